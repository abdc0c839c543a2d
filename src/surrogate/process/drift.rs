//! A slow drift of the targets over the order of their measurement.
//!
//! The machine changes during a study: temperature, clocks, neighbours. The targets are then `value + drift + noise`, where
//! the drift is a Gaussian process over the time with the covariance `size^2 exp(-|lag| / length)`. Its size, its length and
//! the noise that is left have the largest likelihood of a grid, with the process of the values as it was fitted. A drift is
//! removed only if it explains the targets much better than noise alone does.
//!
//! Source: T. Santner, B. Williams and W. Notz, "The Design and Analysis of Computer Experiments", 2018, section 3.3
//! (likelihood of variance components), and formula 2.23 of C. Rasmussen and C. Williams, 2006 (posterior of one part of a
//! sum).

use super::{Process, ProcessData};
use crate::stats::{Cholesky, dot, to_f64};

/// With fewer targets a drift and the values cannot be separated.
const MIN_TARGETS: usize = 10;
/// The smallest gain of the logarithm of the likelihood by a drift that is removed.
const MIN_LIKELIHOOD_GAIN: f64 = 3.0;
/// The variance of the drift, and of the noise beside it, as multiples of the variance of the noise without a drift.
const DRIFT_VARIANCES: [f64; 5] = [0.5, 1.0, 2.0, 5.0, 12.0];
const NOISE_VARIANCES: [f64; 4] = [1.0, 0.6, 0.3, 0.1];
/// The lags, in measurements, after which the correlation is 1/e.
const LENGTHS: [f64; 3] = [4.0, 12.0, 40.0];

impl Process {
    /// Returns the drift at each target, in the targets' unit. `times` are the places of the targets in the order of
    /// measurement. Returns `None` if there is no clear drift.
    #[must_use]
    pub(crate) fn drift(&self, data: &ProcessData, times: &[f64]) -> Option<Vec<f64>> {
        let count = data.targets.len();
        if count < MIN_TARGETS || times.len() != count || count != self.len() {
            return None;
        }
        let targets: Vec<f64> = data.targets.iter().map(|target| self.scale.target(*target)).collect();
        let values = self.value_covariances(data);
        let noises: Vec<f64> =
            data.variances.iter().map(|variance| self.hyper.noise_variance(self.scale.variance(*variance))).collect();
        let usual = noises.iter().sum::<f64>() / to_f64(count);
        let total = |noise: f64, drift: &dyn Fn(usize, usize) -> f64| {
            let mut rows = values.clone();
            for i in 0..count {
                for j in 0..=i {
                    rows[i * count + j] += drift(i, j);
                }
                rows[i * count + i] += noise * noises[i];
            }
            Cholesky::new(count, rows)
        };
        let without = log_likelihood(&total(1.0, &|_, _| 0.0)?, &targets);
        let mut best: Option<(f64, f64, f64, f64)> = None;
        for length in LENGTHS {
            for drift in DRIFT_VARIANCES {
                for noise in NOISE_VARIANCES {
                    let covariance = |i: usize, j: usize| drift * usual * decay(times[i] - times[j], length);
                    let Some(factor) = total(noise, &covariance) else { continue };
                    let likelihood = log_likelihood(&factor, &targets);
                    if best.is_none_or(|(known, ..)| likelihood > known) {
                        best = Some((likelihood, length, drift, noise));
                    }
                }
            }
        }
        let (_, length, drift, noise) = best.filter(|best| best.0 > without + MIN_LIKELIHOOD_GAIN)?;
        let covariance = |i: usize, j: usize| drift * usual * decay(times[i] - times[j], length);
        let factor = total(noise, &covariance)?;
        let mut weights = targets;
        factor.forward(&mut weights);
        factor.backward(&mut weights);
        let at = |i: usize| (0..count).map(|j| covariance(i, j) * weights[j]).sum::<f64>() * self.scale.spread;
        Some((0..count).map(at).collect())
    }

    /// Returns the covariances of the values at the data, in rows. Only the lower triangle is filled.
    fn value_covariances(&self, data: &ProcessData) -> Vec<f64> {
        let count = data.points.len();
        let mut rows = vec![0.0; count * count];
        for (i, point) in data.points.iter().enumerate() {
            self.kernel.fill_covariances(point, &self.columns, &mut rows[i * count..=i * count + i]);
        }
        rows
    }
}

fn decay(lag: f64, length: f64) -> f64 {
    libm::exp(-lag.abs() / length)
}

/// Returns the logarithm of the likelihood, apart from a constant.
fn log_likelihood(factor: &Cholesky, targets: &[f64]) -> f64 {
    let mut whitened = targets.to_vec();
    factor.forward(&mut whitened);
    -0.5 * (dot(&whitened, &whitened) + factor.log_determinant())
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::stats::normal;
    use crate::surrogate::EncodedAxis;
    use crate::surrogate::process::HyperPriors;

    const PRIORS: HyperPriors = HyperPriors {
        length: 0.5,
        length_deviation: 0.7,
        noise: 0.05,
        noise_deviation: 1.0,
        rough: 0.5,
        smooth: 0.7,
        size_deviation: 1.0,
        trend: 0.5,
        difference: 0.05,
        level: 0.0,
        spread: None,
    };

    /// Returns measurements of a line with noise 0.03 and the given drift at each place.
    fn measured(seed: u64, drift: impl Fn(f64) -> f64) -> (ProcessData, Vec<f64>) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut data = ProcessData::default();
        for place in 0..40 {
            let x: f64 = rng.random();
            data.points.push(vec![x]);
            data.targets.push(0.3 * x + drift(f64::from(place)) + 0.03 * normal::draw(&mut rng));
            data.variances.push(0.0);
        }
        (data, (0..40).map(f64::from).collect())
    }

    fn estimate(seed: u64, drift: impl Fn(f64) -> f64) -> Option<Vec<f64>> {
        let (data, times) = measured(seed, drift);
        let axes = [EncodedAxis::Number { step: 0.0 }];
        let process = Process::fit(&axes, &data, &PRIORS, &[]).unwrap();
        process.drift(&data, &times)
    }

    #[test]
    fn a_slow_drift_is_found_and_follows_the_truth() {
        let truth = |place: f64| 0.12 * (place / 8.0).sin();
        for seed in 0..5 {
            let found = estimate(seed, truth).expect("a drift four times as large as the noise");
            let mean = |values: &[f64]| values.iter().sum::<f64>() / to_f64(values.len());
            let expected: Vec<f64> = (0..40).map(|place| truth(f64::from(place))).collect();
            let (level, true_level) = (mean(&found), mean(&expected));
            let error = found.iter().zip(&expected).map(|(found, truth)| (found - level - truth + true_level).powi(2));
            assert!((error.sum::<f64>() / 40.0).sqrt() < 0.04, "seed {seed}");
        }
    }

    #[test]
    fn noise_alone_is_rarely_taken_for_a_drift() {
        let found = (0..40).filter(|seed| estimate(100 + seed, |_| 0.0).is_some()).count();
        assert!(found <= 1, "{found} of 40");
    }
}
