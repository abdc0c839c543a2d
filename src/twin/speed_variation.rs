//! Variation of a simulated machine's speed: a factor per launch, and a slow drift over the time of a study.
//!
//! All times of a launch are multiplied by `exp(launch z + drift x(t))`. `z` is a standard normal number of the launch.
//! `x` is a path of the study with variance 1 at each instant of its time `t`. The median factor is 1, so that the
//! speed without variation is the truth that measurements estimate.
//!
//! `x` is a critically damped oscillator driven by white noise (a Matérn process of smoothness 3/2): a machine's
//! temperature follows random influences with a delay and returns to its mean. The correlation of two values of `x` is
//! `(1 + r) exp(-r)` with `r = lag / scale`. It falls to `1 / e` at the correlation time.

use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::stats::{f64_to_usize, to_f64};

/// The correlation time divided by the scale of the path: the root of `(1 + r) exp(-r) = 1 / e`.
const CORRELATION_SCALES: f64 = 2.146_193_220_620_58;
/// Distance of two nodes of the path in scales. Cubic polynomials connect the nodes.
const NODE_DISTANCE: f64 = 1.0 / 8.0;
/// The largest number of nodes, which limits memory. The path stays constant after the last one.
const MAX_NODES: usize = 1 << 20;
/// Keeps the draws apart from those of samplers and workloads, which use the same seed.
const SEED_MASK: u64 = 0x51b7_2c0e_94d8_a36f;
/// The random stream of the path. Launches use the streams below it.
const DRIFT_STREAM: u64 = u64::MAX;

/// The variation of a simulated machine's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedVariation {
    /// Standard deviation of the logarithm of a launch's factor.
    pub launch: f64,
    /// Standard deviation of the logarithm of the drift at an instant.
    pub drift: f64,
    /// The lag at which the drift's autocorrelation is `1 / e`, on the device's clock.
    pub correlation_time: Duration,
}

impl SpeedVariation {
    /// No variation: launches repeat exactly.
    pub const NONE: Self = Self { launch: 0.0, drift: 0.0, correlation_time: Duration::from_hours(2) };

    /// Returns whether two launches may differ.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.launch > 0.0 || self.drift > 0.0
    }

    /// Draws the speed of a launch.
    #[must_use]
    pub fn draw(&self, launch: LaunchDraw) -> LaunchSpeed {
        let factor = if self.launch > 0.0 { libm::exp(self.launch * launch.normal()) } else { 1.0 };
        let path = (self.drift > 0.0).then(|| DriftPath::new(launch.study_seed, self.correlation_time));
        LaunchSpeed { factor, drift: self.drift, path }
    }
}

/// The identity of a launch, the seed of its speed. Two launches of a study never share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchDraw {
    pub study_seed: u64,
    /// The trial's number.
    pub trial: u32,
    /// The number of earlier launches of this trial that failed because of their environment.
    pub retry: u32,
}

impl LaunchDraw {
    /// Returns the launch's standard normal number.
    fn normal(self) -> f64 {
        let stream = (u64::from(self.trial) << 32) | u64::from(self.retry);
        StandardNormal.sample(&mut random_stream(self.study_seed, stream))
    }
}

/// The speed of one launch over the time of its study.
#[derive(Clone, Debug)]
pub struct LaunchSpeed {
    factor: f64,
    drift: f64,
    path: Option<DriftPath>,
}

impl LaunchSpeed {
    /// The undisturbed speed.
    pub const EVEN: Self = Self { factor: 1.0, drift: 0.0, path: None };

    /// Returns the factor on all times at an instant of the study's time on the device's clock.
    pub fn slowness(&mut self, study_time: Duration) -> f64 {
        match &mut self.path {
            Some(path) => self.factor * libm::exp(self.drift * path.at(study_time)),
            None => self.factor,
        }
    }
}

/// A smooth random path that returns to its mean, with variance 1. A longer path begins with the shorter one.
#[derive(Clone, Debug)]
struct DriftPath {
    rng: ChaCha8Rng,
    /// Seconds between two nodes.
    spacing_s: f64,
    /// Value and scaled slope at each node so far: both have variance 1.
    nodes: Vec<(f64, f64)>,
}

impl DriftPath {
    fn new(study_seed: u64, correlation_time: Duration) -> Self {
        let mut rng = random_stream(study_seed, DRIFT_STREAM);
        let first = (StandardNormal.sample(&mut rng), StandardNormal.sample(&mut rng));
        let spacing_s = correlation_time.as_secs_f64() / CORRELATION_SCALES * NODE_DISTANCE;
        Self { rng, spacing_s, nodes: vec![first] }
    }

    /// Returns the value at an instant.
    fn at(&mut self, time: Duration) -> f64 {
        let place = (time.as_secs_f64() / self.spacing_s).min(to_f64(MAX_NODES - 2));
        let share = place.fract();
        let before = f64_to_usize(place);
        while self.nodes.len() < before + 2 {
            self.add_node();
        }
        hermite(self.nodes[before], self.nodes[before + 1], share)
    }

    /// Draws the next node by the exact transition of the process: `A (x, y) + L z` with
    /// `A = exp(-a) [[1 + a, a], [-a, 1 - a]]` and `L L^T = 1 - A A^T`.
    fn add_node(&mut self) {
        const A: f64 = NODE_DISTANCE;
        let decay = libm::exp(-A);
        let (value, slope) = self.nodes.last().copied().unwrap_or_default();
        let noise = [
            [1.0 - decay * decay * (1.0 + 2.0 * A + 2.0 * A * A), 2.0 * decay * decay * A * A],
            [0.0, 1.0 - decay * decay * (1.0 - 2.0 * A + 2.0 * A * A)],
        ];
        let first = noise[0][0].sqrt();
        let shared = noise[0][1] / first;
        let own = (noise[1][1] - shared * shared).sqrt();
        let normal: [f64; 2] = std::array::from_fn(|_| StandardNormal.sample(&mut self.rng));
        self.nodes.push((
            decay * ((1.0 + A) * value + A * slope) + first * normal[0],
            decay * ((1.0 - A) * slope - A * value) + shared * normal[0] + own * normal[1],
        ));
    }
}

/// Interpolates between two nodes by the cubic polynomial with their values and slopes.
fn hermite((from, from_slope): (f64, f64), (to, to_slope): (f64, f64), share: f64) -> f64 {
    let rest = 1.0 - share;
    rest * rest * ((1.0 + 2.0 * share) * from + share * NODE_DISTANCE * from_slope)
        + share * share * ((1.0 + 2.0 * rest) * to - rest * NODE_DISTANCE * to_slope)
}

fn random_stream(study_seed: u64, stream: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(study_seed ^ SEED_MASK);
    rng.set_stream(stream);
    rng
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn variation(launch: f64, drift: f64) -> SpeedVariation {
        SpeedVariation { launch, drift, ..SpeedVariation::NONE }
    }

    fn slowness(variation: SpeedVariation, study_seed: u64, trial: u32, retry: u32, at: Duration) -> f64 {
        variation.draw(LaunchDraw { study_seed, trial, retry }).slowness(at)
    }

    fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / to_f64(values.len());
        let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        (mean, (squares / to_f64(values.len() - 1)).sqrt())
    }

    #[test]
    fn without_variation_every_launch_has_the_same_speed() {
        for trial in 0..5 {
            let even = slowness(SpeedVariation::NONE, 7, trial, 0, HOUR * trial);
            assert_eq!(even.to_bits(), 1.0_f64.to_bits());
        }
        assert!(!SpeedVariation::NONE.is_some() && variation(0.1, 0.0).is_some() && variation(0.0, 0.1).is_some());
    }

    #[test]
    fn the_logarithms_of_launches_have_the_requested_deviation_around_zero() {
        let logs: Vec<_> = (0..4000).map(|trial| slowness(variation(0.03, 0.0), 1, trial, 0, HOUR).ln()).collect();
        let (mean, deviation) = mean_and_deviation(&logs);
        assert!(mean.abs() < 0.002 && (deviation / 0.03 - 1.0).abs() < 0.04, "{mean} {deviation}");
    }

    #[test]
    fn equal_launches_repeat_and_another_seed_trial_or_retry_is_another_draw() {
        for variation in [variation(0.03, 0.0), variation(0.03, 0.03)] {
            let first = slowness(variation, 1, 2, 0, HOUR);
            assert_eq!(first.to_bits(), slowness(variation, 1, 2, 0, HOUR).to_bits());
            for (seed, trial, retry) in [(2, 2, 0), (1, 3, 0), (1, 2, 1), (1, 0, 2)] {
                assert!((slowness(variation, seed, trial, retry, HOUR) - first).abs() > 1e-6);
            }
        }
        let drift = |seed, trial, at| slowness(variation(0.0, 0.03), seed, trial, 0, at);
        assert_eq!(drift(1, 2, HOUR).to_bits(), drift(1, 9, HOUR).to_bits(), "all launches of a study share it");
        assert!((drift(1, 2, HOUR) - drift(2, 2, HOUR)).abs() > 1e-6);
        assert!((drift(1, 2, HOUR) - drift(1, 2, 5 * HOUR)).abs() > 1e-6);
    }

    /// Returns the mean product of the values at two instants with this lag, over many studies.
    fn correlation(correlation_time: Duration, lag: Duration) -> f64 {
        let products = (0..3000_u64).map(|seed| {
            let mut path = DriftPath::new(seed, correlation_time);
            // Begins between two nodes.
            let begin = correlation_time.mul_f64(1.23);
            path.at(begin) * path.at(begin + lag)
        });
        products.sum::<f64>() / 3000.0
    }

    #[test]
    fn the_correlation_of_the_drift_falls_to_one_over_e_at_the_stated_time() {
        for time in [HOUR / 2, 6 * HOUR] {
            for (lags, expected) in [(0.0, 1.0), (0.25, 0.899), (1.0, 0.3679), (2.0, 0.0724), (5.0, 0.0003)] {
                let found = correlation(time, time.mul_f64(lags));
                assert!((found - expected).abs() < 0.08, "{lags} times {time:?}: {found}, expected {expected}");
            }
        }
    }

    #[test]
    fn the_drift_is_smooth_and_does_not_depend_on_the_order_of_questions() {
        let mut path = DriftPath::new(3, 2 * HOUR);
        let minutes: Vec<_> = (0..1200).map(|minute| path.at(Duration::from_mins(minute))).collect();
        // The root mean square slope is one scale, 56 minutes. Five times that never occurs here.
        assert!(minutes.windows(2).all(|pair| (pair[1] - pair[0]).abs() < 5.0 / 56.0));
        let bends = minutes.windows(3).map(|three| (three[2] - 2.0 * three[1] + three[0]).abs());
        assert!(bends.fold(0.0, f64::max) < 0.02, "no kinks");
        let mut backwards = DriftPath::new(3, 2 * HOUR);
        for minute in (0..1200).rev() {
            let value = backwards.at(Duration::from_mins(minute));
            assert_eq!(value.to_bits(), minutes[usize::try_from(minute).unwrap()].to_bits());
        }
        assert!(path.at(Duration::MAX).is_finite());
    }
}
