//! A normal distribution over the memory model's corrections, and its update by an observation.

use crate::stats::small::dot;

/// The number of corrections.
pub(super) const SIZE: usize = 5;

pub(super) type Vector = [f64; SIZE];

/// A multivariate normal distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gaussian {
    pub(super) mean: Vector,
    covariance: [Vector; SIZE],
}

impl Gaussian {
    /// Creates a distribution of independent corrections with these standard deviations.
    pub(super) fn independent(mean: Vector, deviations: Vector) -> Self {
        let mut covariance = [[0.0; SIZE]; SIZE];
        for (index, deviation) in deviations.into_iter().enumerate() {
            covariance[index][index] = deviation * deviation;
        }
        Self { mean, covariance }
    }

    /// Returns the variance of the inner product of `slope` and the corrections.
    pub(super) fn variance(&self, slope: &Vector) -> f64 {
        dot(slope, &self.covariance_times(slope))
    }

    /// Makes one correction less certain.
    pub(super) fn widen(&mut self, index: usize, variance: f64) {
        self.covariance[index][index] += variance;
    }

    /// Updates the distribution with an observation by Bayes' rule: one step of a Kalman filter.
    ///
    /// `surprise` is the observation minus the mean's prediction. `slope` is the derivative of the prediction with
    /// respect to the corrections. `noise` is the variance of the observation itself.
    pub(super) fn observe(&mut self, slope: &Vector, surprise: f64, noise: f64) {
        let gain = self.covariance_times(slope);
        let total = dot(slope, &gain) + noise;
        if !(total > 0.0 && surprise.is_finite()) {
            return;
        }
        for row in 0..SIZE {
            self.mean[row] += gain[row] / total * surprise;
            for column in 0..SIZE {
                self.covariance[row][column] -= gain[row] * gain[column] / total;
            }
        }
    }

    /// Returns the covariance times `slope`.
    fn covariance_times(&self, slope: &Vector) -> Vector {
        self.covariance.map(|row| dot(&row, slope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_observation_is_believed_and_the_rest_stays_as_uncertain_as_it_was() {
        let mut gaussian = Gaussian::independent([1.0; SIZE], [1.0; SIZE]);
        let slope = [2.0, 0.0, 0.0, 0.0, 0.0];
        gaussian.observe(&slope, 3.0, 0.0);
        assert!((gaussian.mean[0] - 2.5).abs() < 1e-12 && gaussian.variance(&slope).abs() < 1e-12);
        assert!((gaussian.variance(&[0.0, 1.0, 0.0, 0.0, 0.0]) - 1.0).abs() < 1e-12);
    }
}
