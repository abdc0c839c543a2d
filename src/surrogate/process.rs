//! A Gaussian process: predictions from measured values for all other points, with their uncertainty.
//!
//! Targets are in units of their own spread. Source: C. Rasmussen and C. Williams, "Gaussian processes for machine
//! learning", 2006, algorithm 2.1.

mod draws;
mod drift;

use super::encoding::EncodedAxis;
use super::fit;
use super::kernel::{HyperParameters, Kernel};
use crate::stats::{Cholesky, dot, to_f64};

/// The data of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessData {
    pub points: Vec<Vec<f64>>,
    pub targets: Vec<f64>,
    /// Variance of each target beside the common noise, up to a factor that is fitted.
    pub variances: Vec<f64>,
}

/// The priors of the hyper-parameters: medians, and standard deviations of the logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HyperPriors {
    /// Length scale of a number, as a share of its range, and of a choice.
    pub length: f64,
    pub length_deviation: f64,
    /// Standard deviation of the noise, in units of the targets' spread. A spread that is taken from the data is at
    /// least this number, in the targets' own units.
    pub noise: f64,
    pub noise_deviation: f64,
    /// Standard deviation of the local part and of the part that holds in the whole space, in units of the targets'
    /// spread.
    pub rough: f64,
    pub smooth: f64,
    /// Standard deviation of the logarithms of `rough`, `smooth` and `trend`.
    pub size_deviation: f64,
    /// Size of the slope of the values in each [`EncodedAxis::Trend`], in units of the targets' spread.
    pub trend: f64,
    /// Size of the effect of each [`EncodedAxis::Difference`] for a coordinate of 1, in the targets' own units.
    pub difference: f64,
    /// Expected value of the targets far from all data. Used only with `spread`; otherwise it is the data's mean.
    pub level: f64,
    /// The targets' spread. `None` takes mean and spread of the data.
    pub spread: Option<f64>,
}

/// A fitted process.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    kernel: Kernel,
    hyper: HyperParameters,
    scale: TargetScale,
    /// Coordinates of the data, one column for each axis.
    columns: Vec<Vec<f64>>,
    /// Of the covariance matrix of the data, noise included.
    factor: Cholesky,
    /// The inverse of that matrix times the targets, in units of the spread.
    weights: Vec<f64>,
}

/// The posterior at a point: mean and standard deviation of the value without noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PosteriorBelief {
    pub mean: f64,
    pub deviation: f64,
}

impl Process {
    /// Fits the hyper-parameters and conditions on the data. `moved` are distances from the means of the
    /// hyper-parameters' priors, in their standard deviations; empty for the most likely process.
    ///
    /// Returns `None` if a number is not finite, a variance is negative, the counts of points, targets and variances
    /// differ, or the covariance cannot be factored.
    #[must_use]
    pub(crate) fn fit(axes: &[EncodedAxis], data: &ProcessData, expected: &HyperPriors, moved: &[f64]) -> Option<Self> {
        if !data.is_sound(axes.len()) {
            return None;
        }
        let scale = TargetScale::of(&data.targets, expected);
        let hyper = fit::fit(axes, data, scale, expected, moved);
        Self::condition(axes, hyper, scale, data)
    }

    /// Returns the process with these hyper-parameters, conditioned on other data.
    #[must_use]
    pub(crate) fn conditioned_on(&self, data: &ProcessData) -> Option<Self> {
        Self::condition(self.kernel.axes(), self.hyper.clone(), self.scale, data)
    }

    /// Conditions a process with these hyper-parameters on data.
    pub(super) fn condition(
        axes: &[EncodedAxis],
        hyper: HyperParameters,
        scale: TargetScale,
        data: &ProcessData,
    ) -> Option<Self> {
        if !data.is_sound(axes.len()) {
            return None;
        }
        let n = data.points.len();
        let kernel = Kernel::new(axes, &hyper);
        let columns = columns(axes.len(), &data.points);
        let mut rows = vec![0.0; n * n];
        for (i, point) in data.points.iter().enumerate() {
            let row = &mut rows[i * n..=i * n + i];
            kernel.fill_covariances(point, &columns, row);
            row[i] += hyper.noise_variance(scale.variance(data.variances[i]));
        }
        let factor = Cholesky::new(n, rows)?;
        let mut weights: Vec<_> = data.targets.iter().map(|target| scale.target(*target)).collect();
        factor.forward(&mut weights);
        factor.backward(&mut weights);
        Some(Self { kernel, hyper, scale, columns, factor, weights })
    }

    /// Returns the number of data.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.weights.len()
    }

    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Returns the standard deviation of the noise of one target.
    #[must_use]
    pub(crate) fn noise(&self) -> f64 {
        self.hyper.noise * self.scale.spread
    }

    /// Returns the length scale of each axis, as a share of its range.
    #[cfg(test)]
    pub(crate) fn lengths(&self) -> &[f64] {
        &self.hyper.lengths
    }

    /// Returns the mean alone. This is faster than `at`.
    #[must_use]
    pub(crate) fn mean(&self, point: &[f64]) -> f64 {
        let mut cross = vec![0.0; self.len()];
        self.kernel.fill_covariances(point, &self.columns, &mut cross);
        self.scale.level + self.scale.spread * dot(&cross, &self.weights)
    }

    /// Returns the posterior of the value at a point.
    #[must_use]
    pub(crate) fn at(&self, point: &[f64]) -> PosteriorBelief {
        self.posterior_with_correlation(point).0
    }

    /// Like `at`, with the largest correlation of the rough part with a datum.
    #[must_use]
    pub(crate) fn posterior_with_correlation(&self, point: &[f64]) -> (PosteriorBelief, f64) {
        let mut cross = vec![0.0; self.len()];
        let alike = self.kernel.fill_covariances(point, &self.columns, &mut cross);
        let mean = dot(&cross, &self.weights);
        self.factor.forward(&mut cross);
        let own = self.kernel.prior_variance(point);
        let variance = (own - dot(&cross, &cross)).max(1e-12 * own);
        (
            PosteriorBelief {
                mean: self.scale.level + self.scale.spread * mean,
                deviation: self.scale.spread * variance.sqrt(),
            },
            alike,
        )
    }
}

/// Returns one column for each axis.
fn columns(axes: usize, points: &[Vec<f64>]) -> Vec<Vec<f64>> {
    (0..axes).map(|axis| points.iter().map(|point| point[axis]).collect()).collect()
}

/// Level and spread of the targets. A process models them as distance from the level in units of the spread.
#[derive(Clone, Copy, Debug)]
pub(super) struct TargetScale {
    pub(super) level: f64,
    pub(super) spread: f64,
}

impl TargetScale {
    fn of(targets: &[f64], expected: &HyperPriors) -> Self {
        let Some(spread) = expected.spread else {
            let n = to_f64(targets.len().max(1));
            // In units of the largest, whose square may overflow.
            let unit = targets.iter().fold(f64::MIN_POSITIVE, |most, target| most.max(target.abs()));
            let mean = targets.iter().map(|target| target / unit).sum::<f64>() / n;
            let square = |target: &f64| (target / unit - mean) * (target / unit - mean);
            let variance = targets.iter().map(square).sum::<f64>() / n;
            // The spread of fewer than three targets is hardly known: it is at least 0.3.
            let few = if targets.len() < 3 { 1.0 } else { 0.0 };
            let spread = (variance.sqrt() * unit).max(expected.noise).max(few * 0.3);
            return Self { level: mean * unit, spread };
        };
        Self { level: expected.level, spread }
    }

    /// Returns a target in units of the spread above the level.
    pub(super) fn target(self, target: f64) -> f64 {
        (target - self.level) / self.spread
    }

    /// Returns a target's variance in squared units of the spread.
    pub(super) fn variance(self, variance: f64) -> f64 {
        variance / (self.spread * self.spread)
    }
}

impl ProcessData {
    /// Returns at most `most` data, evenly chosen, the first and the last included.
    #[must_use]
    pub(crate) fn evenly(&self, most: usize) -> Self {
        let count = self.points.len();
        if count <= most {
            return self.clone();
        }
        let chosen: Vec<_> = (0..most).map(|at| at * (count - 1) / (most - 1).max(1)).collect();
        Self {
            points: chosen.iter().map(|at| self.points[*at].clone()).collect(),
            targets: chosen.iter().map(|at| self.targets[*at]).collect(),
            variances: chosen.iter().map(|at| self.variances[*at]).collect(),
        }
    }

    /// Returns data with the standard deviations of the targets as targets.
    #[must_use]
    pub(crate) fn deviations(&self) -> Self {
        let deviations = self.variances.iter().map(|variance| variance.sqrt()).collect();
        Self { points: self.points.clone(), targets: deviations, variances: vec![0.0; self.variances.len()] }
    }

    /// Returns whether points, targets and variances have equal counts, each point has a coordinate for each axis, all
    /// numbers are finite and no variance is negative.
    fn is_sound(&self, axes: usize) -> bool {
        let count = self.points.len();
        count == self.targets.len()
            && count == self.variances.len()
            && self.points.iter().all(|point| point.len() == axes && point.iter().all(|at| at.is_finite()))
            && self.targets.iter().all(|target| target.is_finite())
            && self.variances.iter().all(|variance| variance.is_finite() && *variance >= 0.0)
    }
}

#[cfg(test)]
mod tests;
