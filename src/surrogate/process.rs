//! A Gaussian process: what some measured values say of all others, with uncertainty.
//!
//! Targets are in units of their own spread. Source: C. Rasmussen and C. Williams, "Gaussian processes for machine
//! learning", 2006, algorithm 2.1.

mod draws;

use super::cholesky::{Cholesky, dot};
use super::encoding::Axis;
use super::fit::{self, Hyper};
use super::kernel::{Features, LEVEL, matern};
pub use draws::Draws;

/// What a process learns from.
#[derive(Clone, Debug, Default)]
pub struct Data {
    pub points: Vec<Vec<f64>>,
    pub targets: Vec<f64>,
    /// Variance of each target that is known beside the common noise.
    pub variances: Vec<f64>,
}

/// What is expected of a process before there are data. Deviations are of the logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Length scale of a number, as a share of its range, and of a choice.
    pub length: f64,
    pub length_deviation: f64,
    /// Standard deviation of the noise, in the targets' units.
    pub noise: f64,
    pub noise_deviation: f64,
    /// Of the part that is particular to a place, and of the one that holds everywhere, in the targets' spread.
    pub rough: f64,
    pub smooth: f64,
    pub size_deviation: f64,
    /// How much the values follow each [`Axis::Trend`].
    pub trend: f64,
    /// What the targets are far from all data.
    pub level: f64,
    /// The targets' spread; `None` takes the data's own.
    pub spread: Option<f64>,
}

/// A fitted process.
#[derive(Clone, Debug)]
pub struct Process {
    features: Features,
    hyper: Hyper,
    level: f64,
    spread: f64,
    /// Features of the data, the rough part's over their length scales; side by side.
    rough: Vec<f64>,
    smooth: Vec<f64>,
    factor: Cholesky,
    weights: Vec<f64>,
}

/// What a process says of a point: mean and standard deviation of the value without noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    pub mean: f64,
    pub deviation: f64,
}

impl Process {
    /// Fits the hyper-parameters and conditions on the data; `None` where the data cannot be worked with.
    #[must_use]
    pub fn fit(axes: &[Axis], data: &Data, expected: &Expected, moved: &[f64]) -> Option<Self> {
        let (level, spread) = scale(&data.targets, expected);
        let features = Features::new(axes);
        let hyper = fit::fit(&features, data, (level, spread), expected, moved);
        Self::condition(features, hyper, (level, spread), data)
    }

    /// The same hyper-parameters with other data.
    #[must_use]
    pub fn on(&self, data: &Data) -> Option<Self> {
        Self::condition(self.features.clone(), self.hyper.clone(), (self.level, self.spread), data)
    }

    fn condition(features: Features, hyper: Hyper, (level, spread): (f64, f64), data: &Data) -> Option<Self> {
        let n = data.points.len();
        let scaled: Vec<_> = data.points.iter().map(|point| hyper.scaled(&features, point)).collect();
        let smooth: Vec<_> = data.points.iter().map(|point| hyper.weighted(&features, point)).collect();
        let mut rows = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..=i {
                let squared = squared_distance(&scaled[i], &scaled[j]);
                rows[i * n + j] = hyper.covariance(squared, dot(&smooth[i], &smooth[j]));
            }
            rows[i * n + i] += hyper.noise() + data.variances[i] / (spread * spread);
        }
        let factor = Cholesky::new(n, rows)?;
        let mut weights: Vec<_> = data.targets.iter().map(|target| (target - level) / spread).collect();
        factor.forward(&mut weights);
        factor.backward(&mut weights);
        Some(Self { features, hyper, level, spread, rough: scaled.concat(), smooth: smooth.concat(), factor, weights })
    }

    /// Number of data.
    #[must_use]
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Standard deviation of the noise of one target.
    #[must_use]
    pub fn noise(&self) -> f64 {
        self.hyper.noise().sqrt() * self.spread
    }

    /// The length scale of each axis, as a share of its range.
    #[must_use]
    pub fn lengths(&self) -> &[f64] {
        &self.hyper.lengths
    }

    /// The mean alone, which is quicker.
    #[must_use]
    pub fn mean(&self, point: &[f64]) -> f64 {
        let rough = self.hyper.scaled(&self.features, point);
        let smooth = self.hyper.weighted(&self.features, point);
        let (d, s) = (rough.len(), smooth.len());
        let term = |i: usize| {
            let correlation = matern(squared_distance(&rough, &self.rough[i * d..(i + 1) * d])).0;
            self.weights[i] * self.hyper.combine(correlation, dot(&smooth, &self.smooth[i * s..(i + 1) * s]))
        };
        self.level + self.spread * (0..self.len()).map(term).sum::<f64>()
    }

    /// What is believed of the value at a point.
    #[must_use]
    pub fn at(&self, point: &[f64]) -> Belief {
        self.near(point).0
    }

    /// The same, and how alike the nearest datum is: the largest correlation of the rough part.
    #[must_use]
    pub fn near(&self, point: &[f64]) -> (Belief, f64) {
        let rough = self.hyper.scaled(&self.features, point);
        let smooth = self.hyper.weighted(&self.features, point);
        let (d, s) = (rough.len(), smooth.len());
        let mut alike: f64 = 0.0;
        let mut cross: Vec<f64> = (0..self.len())
            .map(|i| {
                let correlation = matern(squared_distance(&rough, &self.rough[i * d..(i + 1) * d])).0;
                alike = alike.max(correlation);
                self.hyper.combine(correlation, dot(&smooth, &self.smooth[i * s..(i + 1) * s]))
            })
            .collect();
        let mean = dot(&cross, &self.weights);
        self.factor.forward(&mut cross);
        let own = self.hyper.combine(1.0, dot(&smooth, &smooth));
        let variance = (own - dot(&cross, &cross)).max(1e-12 * own);
        (Belief { mean: self.level + self.spread * mean, deviation: self.spread * variance.sqrt() }, alike)
    }
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// Level and spread of the targets.
#[expect(clippy::cast_precision_loss, reason = "a number of trials")]
fn scale(targets: &[f64], expected: &Expected) -> (f64, f64) {
    let Some(spread) = expected.spread else {
        let n = targets.len().max(1) as f64;
        let mean = targets.iter().sum::<f64>() / n;
        let variance = targets.iter().map(|target| (target - mean) * (target - mean)).sum::<f64>() / n;
        let few = if targets.len() < 3 { 1.0 } else { 0.0 };
        return (mean, variance.sqrt().max(expected.noise).max(few * 0.3));
    };
    (expected.level, spread)
}

impl Hyper {
    /// Coordinates of the rough part over their length scales.
    fn scaled(&self, features: &Features, point: &[f64]) -> Vec<f64> {
        let mut rough = features.rough(point);
        for (value, axis) in rough.iter_mut().zip(&features.axis_of) {
            *value /= self.lengths[*axis];
        }
        rough
    }

    /// Features of the smooth part times their weights.
    fn weighted(&self, features: &Features, point: &[f64]) -> Vec<f64> {
        features.smooth(point).into_iter().map(|(axis, value)| self.smooth[axis] * value).collect()
    }

    fn combine(&self, correlation: f64, smooth: f64) -> f64 {
        self.rough * self.rough * correlation + smooth + LEVEL
    }

    fn covariance(&self, squared: f64, smooth: f64) -> f64 {
        self.combine(matern(squared).0, smooth)
    }

    /// Variance of the noise.
    fn noise(&self) -> f64 {
        self.noise * self.noise
    }
}
