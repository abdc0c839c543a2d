//! Prediction of a launch's memory: its parts, the room for the cache, and the probability that the room is too small.

use super::gaussian::{Gaussian, SIZE, Vector};
use super::learn::LearnedMemory;
use super::{CacheLayout, MemoryLaunch, activation, graph, weights};
use crate::facts::ModelShape;
use crate::stats::normal;
use crate::stats::{gib, gib_to_bytes, to_f64};

/// The corrections, by their place in a [`Vector`].
pub(super) const WEIGHTS: usize = 0;
pub(super) const SAMPLER: usize = 1;
pub(super) const FORWARD: usize = 2;
pub(super) const OVERHEAD: usize = 3;
pub(super) const GRAPHS: usize = 4;

/// Standard deviation in GiB of the engine's memory profiling between equal starts. Among 162 starts on an L40S, equal
/// ones differ by 0.001 to 0.002. The value is larger because allocators round up.
const REPEAT_DEVIATION: f64 = 0.01;

/// Predicted parts of one device's memory after a start, in GiB. Each is a mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryPrediction {
    pub weights_gib: f64,
    /// The peak of the engine's profiling run, without the weights.
    pub activations_gib: f64,
    /// Memory of the driver, libraries, buffers, and everything else that is not the model's.
    pub overhead_gib: f64,
    /// Captured graphs. Releases before 0.20 allocate them in addition to the budget.
    pub graphs_gib: f64,
    /// Memory that the engine may use in total. `None` if the device's memory is unknown.
    pub budget_gib: Option<f64>,
    /// Mean memory left for the cache. Negative if the other parts exceed the budget.
    pub cache_gib: f64,
    /// Standard deviation of `cache_gib`, 0 if the cache's size is set.
    pub cache_deviation_gib: f64,
    pub layout: CacheLayout,
    /// The launch's `max_model_len` in tokens.
    pub max_model_len: u64,
    /// Number of blocks, if a flag sets it.
    blocks: Option<u64>,
    /// The probability that a cache of a set size does not fit into the device beside the other parts.
    overflow_probability: f64,
}

impl MemoryPrediction {
    /// Returns the probability, 0 to 1, that the engine refuses to start or runs out of memory while it starts.
    #[must_use]
    pub fn failure_probability(&self) -> f64 {
        let refused = match self.blocks {
            Some(blocks) => certain(!self.layout.holds(blocks, self.max_model_len)),
            None => self.too_small_probability(self.max_model_len),
        };
        1.0 - (1.0 - refused) * (1.0 - self.overflow_probability)
    }

    /// Returns the memory in GiB that the cache lacks for one sequence of `max_model_len`. Negative if the cache is
    /// large enough.
    #[must_use]
    pub fn shortage_gib(&self) -> f64 {
        gib(self.layout.bytes_needed(self.max_model_len)) - self.cache_gib
    }

    /// Returns the probability that the cache does not hold one sequence of this length.
    fn too_small_probability(&self, length: u64) -> f64 {
        let needed = gib(self.layout.bytes_needed(length).max(1));
        if self.cache_deviation_gib > 0.0 {
            normal::cdf((needed - self.cache_gib) / self.cache_deviation_gib)
        } else {
            certain(!self.layout.holds(self.blocks(), length))
        }
    }

    /// Returns the mean number of the cache's blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks.unwrap_or_else(|| self.layout.blocks(gib_to_bytes(self.cache_gib)))
    }

    /// Returns the mean number of the cache's tokens, counted like the release's log does.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.layout.tokens(self.blocks(), self.max_model_len)
    }

    /// Returns the number of sequences of the longest length that the cache holds at the same time.
    #[must_use]
    pub fn concurrency(&self) -> f64 {
        self.layout.concurrency(self.blocks(), self.max_model_len)
    }

    /// Returns whether weights and activations leave no room for a cache of a set size.
    #[must_use]
    pub fn is_overfull(&self) -> bool {
        self.overflow_probability > 0.5
    }

    /// Returns whether the cache's size is set and too small for one sequence of the longest length, on any device.
    #[must_use]
    pub fn is_set_too_small(&self) -> bool {
        self.cache_deviation_gib == 0.0 && !self.layout.holds(self.blocks(), self.max_model_len)
    }

    /// Returns the largest length, in tokens, that fits even if the cache is two standard deviations smaller. 0 if none
    /// fits.
    #[must_use]
    pub fn safe_length(&self) -> u64 {
        let careful = gib_to_bytes(self.cache_gib - 2.0 * self.cache_deviation_gib);
        let blocks = self.blocks.unwrap_or_else(|| self.layout.blocks(careful));
        self.layout.largest_length(blocks, self.max_model_len)
    }

    /// Returns the largest length, in tokens and at most the launch's, that fits into the mean cache. 0 if none fits.
    #[must_use]
    pub fn largest_length(&self) -> u64 {
        self.layout.largest_length(self.blocks(), self.max_model_len)
    }
}

/// Returns the probability of a failure that is known: 1 or 0.
fn certain(fails: bool) -> f64 {
    if fails { 1.0 } else { 0.0 }
}

/// Cold estimates in GiB: without corrections from observed starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct UncorrectedMemory {
    weights: weights::WeightMemory,
    peaks: activation::ActivationPeaks,
    /// Mean and standard deviation.
    overhead: (f64, f64),
    graphs: f64,
    /// Whether the release subtracts the graphs before it sizes the cache.
    subtracts_graphs: bool,
    /// Standard deviations of the factors on the sampler and on the forward step.
    factor_deviations: (f64, f64),
}

/// The parts after correction, and the derivative of `used` with respect to the corrections.
pub(super) struct CorrectedMemory {
    weights: f64,
    activations: f64,
    overhead: f64,
    graphs: f64,
    /// Sum of all parts that the engine takes from its share of the memory before it sizes the cache.
    pub(super) used: f64,
    pub(super) slope: Vector,
}

impl UncorrectedMemory {
    /// Returns `None` if the shape lacks a size.
    pub(super) fn new(model: &ModelShape, launch: &MemoryLaunch) -> Option<Self> {
        Some(Self {
            weights: weights::weights(model, launch)?,
            peaks: activation::peaks(model, launch)?,
            overhead: activation::overhead(launch),
            graphs: graph::graphs(model, launch)?,
            subtracts_graphs: graph::subtracts_graphs(launch),
            factor_deviations: activation::factor_deviations(model, launch),
        })
    }

    /// Returns the distribution of the corrections before any observation.
    pub(super) fn prior(&self) -> Gaussian {
        // The overhead's correction is a summand, the others are factors.
        let mean = [1.0, 1.0, 1.0, 0.0, 1.0];
        Gaussian::independent(
            mean,
            [self.weights.relative_deviation, self.factor_deviations.0, self.factor_deviations.1, self.overhead.1, 0.5],
        )
    }

    /// Returns the derivative of the observed weights with respect to the corrections.
    pub(super) fn weights_slope(&self) -> Vector {
        let mut slope = [0.0; SIZE];
        slope[WEIGHTS] = self.weights.gib;
        slope
    }

    /// Returns the derivative of the observed graphs with respect to the corrections.
    pub(super) fn graphs_slope(&self) -> Vector {
        let mut slope = [0.0; SIZE];
        slope[GRAPHS] = self.graphs;
        slope
    }

    /// Applies the corrections `mean`.
    pub(super) fn correct(&self, mean: &Vector) -> CorrectedMemory {
        let sampler = self.peaks.sampler * mean[SAMPLER] + self.peaks.hidden;
        let forward = self.peaks.forward * mean[FORWARD];
        let (weights, graphs) = (self.weights.gib * mean[WEIGHTS], self.graphs * mean[GRAPHS]);
        let overhead = self.overhead.0 + mean[OVERHEAD];
        let activations = sampler.max(forward).max(0.0);
        let mut slope = self.weights_slope();
        if forward > sampler {
            slope[FORWARD] = self.peaks.forward;
        } else {
            slope[SAMPLER] = self.peaks.sampler;
        }
        slope[OVERHEAD] = 1.0;
        if self.subtracts_graphs {
            slope[GRAPHS] = self.graphs;
        }
        let subtracted = if self.subtracts_graphs { graphs } else { 0.0 };
        let used = weights + activations + overhead + subtracted;
        CorrectedMemory { weights, activations, overhead, graphs, used, slope }
    }
}

/// Predicts the memory of a launch from the model's shape and the observations of earlier starts.
///
/// Returns `None` if `config.json` lacks a size, or if neither the device's memory nor the cache's size is known.
#[must_use]
pub fn predict(model: &ModelShape, launch: &MemoryLaunch, learned: &LearnedMemory) -> Option<MemoryPrediction> {
    let layout = CacheLayout::new(model, launch)?;
    let base = UncorrectedMemory::new(model, launch);
    let budget_gib = activation::budget(launch);
    let set = launch.cache_memory.map(gib).or_else(|| Some(gib(layout.block_bytes) * to_f64(launch.blocks?)));
    let Some(base) = base else {
        // If the cache's size is set, no other part is needed. They are then 0 in the result.
        return Some(MemoryPrediction {
            weights_gib: 0.0,
            activations_gib: 0.0,
            overhead_gib: 0.0,
            graphs_gib: 0.0,
            budget_gib,
            cache_gib: set?,
            cache_deviation_gib: 0.0,
            layout,
            max_model_len: launch.resolved.max_model_len,
            blocks: launch.blocks,
            overflow_probability: 0.0,
        });
    };
    let gaussian = learned.corrections(model, launch, &base);
    let corrected = base.correct(&gaussian.mean);
    let deviation = (gaussian.variance(&corrected.slope) + REPEAT_DEVIATION * REPEAT_DEVIATION).sqrt();
    let left = budget_gib.map(|budget| budget - corrected.used);
    let (cache_gib, cache_deviation_gib) = match (set, left) {
        (Some(set), _) => (set, 0.0),
        (None, Some(left)) => (left, deviation),
        (None, None) => return None,
    };
    // If the cache's size is set, it and the other parts must fit into the whole device. For CPUs the total is not
    // known here.
    let total = launch.target.device_memory.filter(|_| set.is_some() && !launch.target.cpu).map(gib);
    let crowded = total.map_or(0.0, |total| normal::cdf((cache_gib + corrected.used - total) / deviation));
    Some(MemoryPrediction {
        weights_gib: corrected.weights,
        activations_gib: corrected.activations,
        overhead_gib: corrected.overhead,
        graphs_gib: corrected.graphs,
        budget_gib,
        cache_gib,
        cache_deviation_gib,
        layout,
        max_model_len: launch.resolved.max_model_len,
        blocks: launch.blocks,
        overflow_probability: crowded,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ResolvedConfig;
    use crate::memory::{LaunchTarget, test_launch, test_model};

    fn cold(change: impl Fn(ResolvedConfig) -> ResolvedConfig) -> MemoryPrediction {
        let launch = test_launch();
        let resolved = change(launch.resolved);
        predict(&test_model(), &MemoryLaunch { resolved, ..launch }, &LearnedMemory::default()).unwrap()
    }

    #[test]
    fn an_eight_billion_model_leaves_what_an_h100_measured() {
        let prediction = cold(|resolved| resolved);
        assert!((prediction.cache_gib - 51.38).abs() < 0.3, "{prediction:?}");
        assert!(prediction.failure_probability() < 1e-6);
        assert!((prediction.concurrency() - 26.3).abs() < 0.3, "{}", prediction.concurrency());
    }

    #[test]
    fn weights_without_room_fail_for_certain_and_a_close_call_is_a_risk() {
        let certain = cold(|resolved| ResolvedConfig { gpu_memory_utilization: 0.2, ..resolved });
        assert!(certain.failure_probability() > 0.999 && certain.largest_length() == 0);
        let close = cold(|resolved| ResolvedConfig { max_model_len: 420_000, ..resolved });
        assert!((0.05..0.95).contains(&close.failure_probability()), "{}", close.failure_probability());
        let long = cold(|resolved| ResolvedConfig { max_model_len: 600_000, ..resolved });
        let largest = long.largest_length();
        assert!(long.failure_probability() > 0.999 && (400_000..440_000).contains(&largest), "{largest}");
    }

    #[test]
    fn a_set_size_is_exact_and_can_crowd_the_device() {
        let of = |gib: u64, length| {
            let launch = MemoryLaunch { cache_memory: Some(gib << 30), ..test_launch() };
            let resolved = ResolvedConfig { max_model_len: length, ..launch.resolved };
            predict(&test_model(), &MemoryLaunch { resolved, ..launch }, &LearnedMemory::default()).unwrap()
        };
        assert_eq!(of(1, 8192).blocks(), 64);
        assert!(of(1, 8192).failure_probability() < 1e-9 && of(1, 8193).failure_probability() > 0.999);
        assert!(of(79, 8192).failure_probability() > 0.999, "nothing is left for the weights");
    }

    #[test]
    fn without_the_devices_memory_there_is_no_prediction() {
        let launch = test_launch();
        let target = LaunchTarget { device_memory: None, ..launch.target };
        assert_eq!(predict(&test_model(), &MemoryLaunch { target, ..launch }, &LearnedMemory::default()), None);
    }
}
