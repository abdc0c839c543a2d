//! Corrections of the cold estimates by Bayes' rule, from earlier starts of the same model.
//!
//! The cold model is the prior. An extended Kalman filter estimates five corrections: factors on weights, sampler,
//! forward step and graphs, and a summand for the overhead. Each observed start is up to three of its updates: weights,
//! graphs and cache. Only the observations are stored, so the same observations in the same order always give the same
//! prediction.

use super::gaussian::Gaussian;
use super::predict::{OVERHEAD, UncorrectedMemory};
use super::{CacheLayout, MemoryLaunch};
use crate::facts::ModelShape;
use crate::stats::{f64_to_u64, gib, to_f64};
use crate::trial::MemoryObservation;

/// One start: the launch and its observed memory.
#[derive(Clone, Debug, PartialEq)]
pub struct StartObservation {
    pub launch: MemoryLaunch,
    pub observed: MemoryObservation,
}

/// Observed starts of one model on one kind of device with one release. Without starts, the cold model applies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LearnedMemory {
    observations: Vec<StartObservation>,
}

/// Standard deviation of logged sizes in GiB. Logs print two or four decimals, and equal starts differ slightly.
const LOGGED_SIZE_DEVIATION: f64 = 0.01;

/// Number of standard deviations beyond which the estimates do not explain an observation. Something unknown then uses
/// memory, such as another process. The overhead becomes less certain by that difference.
const OUTLIER_DEVIATIONS: f64 = 4.0;

impl LearnedMemory {
    #[must_use]
    pub fn new(observations: Vec<StartObservation>) -> Self {
        Self { observations }
    }

    /// Returns the number of observed starts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.observations.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.observations.is_empty()
    }

    /// Returns the posterior of the corrections for `launch`, whose estimates are `base`.
    pub(super) fn corrections(&self, model: &ModelShape, launch: &MemoryLaunch, base: &UncorrectedMemory) -> Gaussian {
        let mut gaussian = base.prior();
        for observation in &self.observations {
            if let Some(seen) = UncorrectedMemory::new(model, &observation.launch) {
                apply_observation(&mut gaussian, model, observation, &seen, launch);
            }
        }
        gaussian
    }
}

/// Updates the corrections with one observed start.
fn apply_observation(
    gaussian: &mut Gaussian,
    model: &ModelShape,
    observation: &StartObservation,
    seen: &UncorrectedMemory,
    launch: &MemoryLaunch,
) {
    let StartObservation { launch: past, observed } = observation;
    let (weights_doubt, doubt) = mismatch_deviations(past, launch);
    if let Some(weights) = observed.weights_gib {
        let slope = seen.weights_slope();
        let expected: f64 = slope.iter().zip(gaussian.mean).map(|(slope, mean)| slope * mean).sum();
        let deviation = LOGGED_SIZE_DEVIATION + weights_doubt * weights;
        gaussian.observe(&slope, weights - expected, deviation * deviation);
    }
    if let Some(graphs) = observed.graphs_gib {
        let slope = seen.graphs_slope();
        let expected: f64 = slope.iter().zip(gaussian.mean).map(|(slope, mean)| slope * mean).sum();
        gaussian.observe(&slope, graphs - expected, 0.1 * 0.1);
    }
    let (Some(cache), Some(budget)) = (cache_gib(model, past, observed), super::activation::budget(past)) else {
        return;
    };
    let corrected = seen.correct(&gaussian.mean);
    let surprise = (budget - cache) - corrected.used;
    let noise = LOGGED_SIZE_DEVIATION * LOGGED_SIZE_DEVIATION + doubt * doubt;
    let variance = gaussian.variance(&corrected.slope) + noise;
    if surprise * surprise > OUTLIER_DEVIATIONS * OUTLIER_DEVIATIONS * variance {
        gaussian.widen(OVERHEAD, surprise * surprise);
    }
    gaussian.observe(&corrected.slope, surprise, noise);
}

/// Returns the additional standard deviations of an observed start if `launch` differs in more than its sizes. The
/// first is a share of the weights, the second is in GiB.
fn mismatch_deviations(past: &MemoryLaunch, launch: &MemoryLaunch) -> (f64, f64) {
    let (a, b) = (&past.resolved, &launch.resolved);
    let apart =
        (a.tensor_parallel_size, a.pipeline_parallel_size) != (b.tensor_parallel_size, b.pipeline_parallel_size);
    let loaded = past.quantization != launch.quantization || past.dtype_bytes != launch.dtype_bytes;
    let weights = if loaded { 0.05 } else { 0.0 } + if apart { 0.01 } else { 0.0 };
    let run = if a.v0 == b.v0 { 0.0 } else { 0.3 } + if past.compiled == launch.compiled { 0.0 } else { 0.3 };
    (weights, run + if apart { 0.3 } else { 0.0 })
}

/// Returns the size of the cache in GiB that a start computed. `None` if a flag set it, because it then contains no
/// information on the other parts.
fn cache_gib(model: &ModelShape, launch: &MemoryLaunch, observed: &MemoryObservation) -> Option<f64> {
    if launch.cache_memory.is_some() || launch.blocks.is_some() {
        return None;
    }
    let layout = CacheLayout::new(model, launch)?;
    let length = launch.resolved.max_model_len;
    // The number of blocks is exact; all other numbers are rounded.
    let blocks = observed
        .blocks
        .or_else(|| Some(layout.blocks_of_tokens(observed.tokens?, length)))
        .or_else(|| Some(whole(observed.concurrency? * whole_blocks(&layout, length))));
    blocks.map(|blocks| gib(blocks.saturating_mul(layout.block_bytes))).or(observed.cache_gib)
}

/// Returns the number of blocks of one sequence of this length.
fn whole_blocks(layout: &CacheLayout, length: u64) -> f64 {
    to_f64(layout.blocks_per_request(length))
}

fn whole(number: f64) -> u64 {
    f64_to_u64(number.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ResolvedConfig;
    use crate::memory::{predict, test_launch, test_model};

    /// Returns a start on a device with 2 GiB less and a forward step that needs a third more than the cold model
    /// predicts.
    fn start(tokens: u64, seqs: u64) -> StartObservation {
        let launch = test_launch();
        let resolved = ResolvedConfig {
            max_num_batched_tokens: tokens,
            max_num_seqs: seqs,
            gpu_memory_utilization: 0.9,
            ..launch.resolved
        };
        let launch = MemoryLaunch { resolved, ..launch };
        let base = UncorrectedMemory::new(&test_model(), &launch).unwrap();
        let used = base.correct(&[1.0, 1.0, 1.33, 2.0, 1.0]).used;
        let cache = crate::memory::activation::budget(&launch).unwrap() - used;
        StartObservation {
            launch,
            observed: MemoryObservation { cache_gib: Some(cache), ..MemoryObservation::default() },
        }
    }

    fn error(learned: &LearnedMemory, observation: &StartObservation) -> f64 {
        let prediction = predict(&test_model(), &observation.launch, learned).unwrap();
        let cache = observation.observed.cache_gib.unwrap();
        (prediction.cache_gib - cache).abs() / cache
    }

    #[test]
    fn two_starts_correct_what_the_cold_model_does_not_know() {
        let learned = LearnedMemory::new(vec![start(8192, 1024), start(65_536, 64)]);
        for unseen in [start(2048, 256), start(32_768, 128), start(16_384, 1024)] {
            assert!(error(&LearnedMemory::default(), &unseen) > 0.03);
            assert!(error(&learned, &unseen) < 0.01, "{}", error(&learned, &unseen));
        }
    }

    #[test]
    fn every_start_makes_the_prediction_more_certain() {
        let deviation = |count: usize| {
            let starts = [start(8192, 1024), start(65_536, 64), start(2048, 256)];
            let learned = LearnedMemory::new(starts.into_iter().take(count).collect());
            predict(&test_model(), &start(32_768, 512).launch, &learned).unwrap().cache_deviation_gib
        };
        let widths = [deviation(0), deviation(2), deviation(3)];
        assert!(widths[0] > widths[1] && widths[1] > widths[2], "{widths:?}");
    }

    #[test]
    fn a_cache_of_a_set_size_teaches_nothing() {
        let set = |change: fn(&mut MemoryLaunch)| {
            let mut observation = start(8192, 1024);
            change(&mut observation.launch);
            observation
        };
        let learned = LearnedMemory::new(vec![set(|l| l.cache_memory = Some(1 << 30)), set(|l| l.blocks = Some(8))]);
        let other = start(4096, 64);
        assert_eq!(
            predict(&test_model(), &other.launch, &learned),
            predict(&test_model(), &other.launch, &LearnedMemory::default())
        );
    }
}
