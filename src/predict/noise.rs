//! Noise between launches: the variation of a metric from one launch of a configuration to the next.
//!
//! The variance of a metric's logarithm over `n` launches of one configuration has `n - 1` degrees of freedom. The
//! variances of all configurations that were measured repeatedly are pooled with an assumed variance. The assumed one
//! counts for one degree of freedom, or for two if nothing was repeated. The range of one further launch follows
//! Student's distribution. Few repetitions therefore give a wider range than many.

use std::collections::BTreeMap;

use crate::metrics::student;
use crate::stats::to_f64;
use crate::trial::Measurement;

/// Degrees of freedom of the assumed deviation, with repeated measurements.
const ASSUMED_FREEDOM: f64 = 1.0;
/// The same without repeated measurements.
const ASSUMED_FREEDOM_UNREPEATED: f64 = 2.0;
/// Assumed standard deviation of the logarithm of a metric from launch to launch, for real engines.
const ASSUMED: f64 = 0.05;
/// The same for the simulated engine.
const ASSUMED_SIMULATED: f64 = 0.01;
/// Factor on the assumed deviation for tail percentiles, extremes and standard deviations.
const TAILS: f64 = 2.0;
/// The 90th percentile of the normal distribution.
const Z_90: f64 = 1.281_551_565_544_6;
/// Counts that only the load determines. They have no noise.
const NOISELESS_METRICS: [&str; 6] = [
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "cached_prompt_tokens",
    "max_concurrent_requests",
];

/// The noise between launches of one study.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchNoise {
    assumed: f64,
    /// For each metric, the sum of its logarithms' squared deviations from their means, and the degrees of freedom.
    measured: BTreeMap<&'static str, (f64, f64)>,
    /// Number of configurations that were measured more than once.
    pub configurations: usize,
    /// Number of measurements of these configurations.
    pub launches: usize,
}

impl LaunchNoise {
    /// Estimates the noise from groups of measurements. A group contains one configuration, each time measured in a
    /// launch of its own.
    #[must_use]
    pub fn of<'a>(groups: impl IntoIterator<Item = &'a [Measurement]>, simulated: bool) -> Self {
        let assumed = if simulated { ASSUMED_SIMULATED } else { ASSUMED };
        let mut noise = Self { assumed, ..Self::default() };
        for group in groups.into_iter().filter(|group| group.len() > 1) {
            noise.configurations += 1;
            noise.launches += group.len();
            for name in Measurement::NAMES.iter().filter(|name| !NOISELESS_METRICS.contains(name)) {
                let values =
                    group.iter().filter_map(|measurement| measurement.metric(name)).filter(|value| *value > 0.0);
                let logs: Vec<_> = values.map(libm::log).collect();
                if logs.len() < 2 {
                    continue;
                }
                let mean = logs.iter().sum::<f64>() / to_f64(logs.len());
                let squares: f64 = logs.iter().map(|log| (log - mean) * (log - mean)).sum();
                let (sum, freedom) = noise.measured.entry(name).or_default();
                *sum += squares;
                *freedom += to_f64(logs.len() - 1);
            }
        }
        noise
    }

    /// Returns whether a configuration was measured more than once.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.configurations > 0
    }

    /// Returns the standard deviation of the logarithm of a metric, and its degrees of freedom.
    #[must_use]
    pub fn deviation(&self, name: &str) -> (f64, f64) {
        if NOISELESS_METRICS.contains(&name) {
            return (0.0, ASSUMED_FREEDOM_UNREPEATED);
        }
        let is_tail =
            ["p90_", "p95_", "p99_", "p1_", "p5_", "p10_", "std_", "max_"].iter().any(|tail| name.starts_with(tail));
        let assumed = if is_tail { TAILS * self.assumed } else { self.assumed };
        let (sum, freedom) = self.measured.get(name).copied().unwrap_or_default();
        let own = if freedom > 0.0 { ASSUMED_FREEDOM } else { ASSUMED_FREEDOM_UNREPEATED };
        let all = freedom + own;
        (((own * assumed * assumed + sum) / all).sqrt(), all)
    }

    /// Widens a range of the 10th to the 90th percentile around a value, so that it includes the noise of one further
    /// launch.
    #[must_use]
    pub fn widen(&self, name: &str, value: f64, (low, high): (f64, f64)) -> (f64, f64) {
        let (deviation, freedom) = self.deviation(name);
        if value <= 0.0 || low <= 0.0 || deviation <= 0.0 {
            return (low, high);
        }
        let noise = student(Z_90, freedom) * deviation;
        let below = libm::hypot(libm::log(value / low.min(value)), noise);
        let above = libm::hypot(libm::log(high.max(value) / value), noise);
        (value * libm::exp(-below), value * libm::exp(above))
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;
    use rand_distr::{Distribution, StandardNormal};

    use super::*;

    /// Returns a launch that takes `slowness` times as long as it would without noise.
    fn launch(slowness: f64) -> Measurement {
        Measurement {
            completed: 100,
            total_output_tokens: 10_000,
            duration_s: 10.0 * slowness,
            ..Measurement::default()
        }
    }

    #[test]
    fn four_of_five_further_launches_lie_in_the_range_for_any_noise_and_few_repetitions() {
        for (deviation, repeated) in [(0.02, 2), (0.1, 2), (0.1, 6), (0.05, 0), (0.2, 4)] {
            let mut rng = ChaCha8Rng::seed_from_u64(11);
            let mut normal = || -> f64 { StandardNormal.sample(&mut rng) };
            let studies = 1000;
            let mut held = 0;
            for _ in 0..studies {
                let mut run = || launch((deviation * normal()).exp());
                let groups: Vec<_> = (0..repeated).map(|_| [run(), run()]).collect();
                let noise = LaunchNoise::of(groups.iter().map(<[_; 2]>::as_slice), false);
                // The prediction is right on average and has no uncertainty of its own.
                let (low, high) = noise.widen("output_throughput", 1000.0, (1000.0, 1000.0));
                held += u32::from((low..=high).contains(&run().metric("output_throughput").unwrap()));
            }
            let share = f64::from(held) / f64::from(studies);
            // Until enough was measured, the assumed noise is too large for small noise and too small for large noise.
            let most = if deviation < 0.05 || repeated == 0 { 1.0 } else { 0.93 };
            assert!((0.7..most).contains(&share), "{deviation} {repeated}: {share}");
        }
    }

    #[test]
    fn a_range_without_any_noise_holds_too_few_further_launches() {
        // The draws spread by 2 % to each side, the launches by 10 %.
        let noise = LaunchNoise::of([[launch(0.9), launch(1.1)].as_slice()], false);
        let (low, high) = noise.widen("output_throughput", 1000.0, (980.0, 1020.0));
        assert!(low < 900.0 && high > 1100.0, "{low} {high}");
        assert_eq!((noise.configurations, noise.launches), (1, 2));
    }

    #[test]
    fn counts_of_the_load_do_not_vary_and_little_is_assumed_of_the_simulated_engine() {
        let (real, simulated) = (LaunchNoise::of([], false), LaunchNoise::of([], true));
        assert!(!real.is_measured());
        assert_eq!(real.widen("completed", 96.0, (96.0, 96.0)), (96.0, 96.0));
        let wide = |noise: &LaunchNoise, name: &str| {
            let (low, high) = noise.widen(name, 10.0, (10.0, 10.0));
            high - low
        };
        assert!(wide(&real, "mean_ttft_ms") > 4.0 * wide(&simulated, "mean_ttft_ms"));
        assert!(wide(&real, "p99_ttft_ms") > 1.9 * wide(&real, "mean_ttft_ms"));
    }
}
