//! Model of an engine's start-up time: one or two physical terms per phase, with factors that observed starts calibrate.
//!
//! | phase | duration | prior from |
//! |---|---|---|
//! | import, configure, processes, server, first token | a constant | logs of 0.9.0.1 (L40S) and 0.32.0 (CPU) |
//! | weights | their bytes, from the disk or from the page cache | starts on an L40S (below) |
//! | compile | a constant and a share for each layer; less from the cache of an earlier start | starts on an L40S |
//! | KV cache | a constant and a step of `max_num_batched_tokens` | starts on an L40S |
//! | graphs | captured sizes times layers | starts on an L40S, 11 to 67 sizes |
//!
//! The starts on an L40S are those of `auto-tuning-vllm-l40s` (`tests/it/startup_model.rs`): vLLM 0.9.0.1 with
//! Qwen3-1.7B (28 layers), Llama-3.1-8B (32) and Qwen3-32B-FP8 (64).
//!
//! The logarithm of (measured / term) is normal with unknown mean and variance. Its conjugate prior, the
//! normal-inverse-gamma distribution, is updated in closed form (K. Murphy, Conjugate Bayesian analysis of the Gaussian
//! distribution, 2007, section 6). Each new start reduces the weight of older ones, because machines and models change.

use super::device::DevicePreset;
use super::step_time::IncompleteShape;
use crate::facts::ModelShape;
use crate::memory::{self, LearnedMemory, MemoryLaunch};
use crate::stats::{gib_to_bytes, to_f64};
use crate::trial::PhaseTime;

/// Caches that earlier starts have left on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmState {
    /// Whether the weights are in the page cache.
    pub page_cache: bool,
    /// Whether the engine's compile cache has an entry for this model, and for these values of the flags in the cache's
    /// key.
    pub compile_cache: bool,
}

/// Properties of a start that determine its duration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StartConditions {
    /// Bytes of weights that one device loads.
    pub weight_bytes: u64,
    /// Layers of the pipeline's largest stage.
    pub layers: u32,
    pub cpu: bool,
    /// Whether the engine compiles the model, or loads its compiled code.
    pub uses_compilation: bool,
    /// Number of batch sizes for which graphs are captured.
    pub graphs: u32,
    /// Whether a graph contains a whole step, as in V0. Otherwise it contains the parts between the attention of the
    /// layers.
    pub whole_graphs: bool,
    pub max_num_batched_tokens: u64,
    /// Operations per second of a large matrix product.
    pub compute: f64,
    pub warm: WarmState,
}

impl StartConditions {
    /// Derives the conditions of a launch from its model, its resolved configuration and the device.
    ///
    /// # Errors
    /// If the shape lacks a size.
    pub fn new(
        model: &ModelShape,
        launch: &MemoryLaunch,
        device: &DevicePreset,
        warm: WarmState,
    ) -> Result<Self, IncompleteShape> {
        let prediction = memory::predict(model, launch, &LearnedMemory::default());
        let prediction = prediction.ok_or(IncompleteShape("a size that the weights depend on"))?;
        let layers = model.layers.ok_or(IncompleteShape("num_hidden_layers"))?;
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Ok(Self {
            weight_bytes: gib_to_bytes(prediction.weights_gib),
            layers: narrow(layers.div_ceil(launch.resolved.pipeline_parallel_size.max(1))),
            cpu: launch.target.cpu,
            uses_compilation: launch.compiled,
            graphs: narrow(memory::captured_sizes(launch)),
            whole_graphs: launch.resolved.v0,
            max_num_batched_tokens: launch.resolved.max_num_batched_tokens,
            compute: device.compute * device.compute_efficiency,
            warm,
        })
    }
}

/// A term with a factor of its own. A phase has one term, or two alternatives: cold or warm caches, graphs of whole steps
/// or of their parts. Different resources limit the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Term {
    Import,
    Configure,
    Processes,
    ColdWeights,
    WarmWeights,
    ColdCompile,
    WarmCompile,
    KvCache,
    WholeGraphs,
    Graphs,
    Server,
    FirstToken,
}

use Term::{
    ColdCompile, ColdWeights, Configure, FirstToken, Graphs, Import, KvCache, Processes, Server, WarmCompile,
    WarmWeights, WholeGraphs,
};

/// A term with the uncertainty of its factor's logarithm, as standard deviations.
#[derive(Clone, Copy, Debug)]
struct UncertainTerm {
    term: Term,
    /// Between machines: the uncertainty before any observation.
    spread: f64,
    /// Between starts of one machine.
    noise: f64,
}

const fn uncertain(term: Term, spread: f64, noise: f64) -> UncertainTerm {
    UncertainTerm { term, spread, noise }
}

/// Terms in the order of a start.
const TERMS: [UncertainTerm; 12] = [
    // `Import` and `Processes` read a Python environment from a disk of unknown speed.
    uncertain(Import, 0.7, 0.15),
    // It takes seconds if the model's name is looked up at its hub, and almost no time for a local directory.
    uncertain(Configure, 1.5, 0.5),
    uncertain(Processes, 0.7, 0.15),
    uncertain(ColdWeights, 1.2, 0.5),
    uncertain(WarmWeights, 0.5, 0.15),
    uncertain(ColdCompile, 0.6, 0.2),
    uncertain(WarmCompile, 0.5, 0.1),
    uncertain(KvCache, 0.7, 0.2),
    uncertain(WholeGraphs, 0.5, 0.1),
    uncertain(Graphs, 0.5, 0.1),
    uncertain(Server, 0.7, 0.3),
    uncertain(FirstToken, 1.5, 0.5),
];

impl Term {
    /// Returns the name of the phase in logs, the database and JSON (`engine::StartPhase`).
    fn phase(self) -> &'static str {
        match self {
            Import => "import",
            Configure => "configure",
            Processes => "processes",
            ColdWeights | WarmWeights => "weights",
            ColdCompile | WarmCompile => "compile",
            KvCache => "kv_cache",
            WholeGraphs | Graphs => "graphs",
            Server => "server",
            FirstToken => "first_token",
        }
    }

    /// Returns the seconds with a factor of 1. `None` if the term does not apply to this start.
    fn seconds(self, start: &StartConditions) -> Option<f64> {
        let (weight_bytes, layers) = (to_f64(start.weight_bytes), f64::from(start.layers));
        // Captured graphs of one layer. The seconds for each are fitted to the starts on an L40S.
        let layer_graphs = f64::from(start.graphs) * layers;
        let uses_warm_code = start.warm.compile_cache;
        let (applies, seconds) = match self {
            Import => (true, 12.0),
            Configure => (true, 1.0),
            Processes => (true, 16.0),
            // 14.99 GiB in 5.4 s, 3.22 GiB in 0.8 to 1.1 s.
            WarmWeights => (start.warm.page_cache, 0.1 + weight_bytes / 3.3e9),
            // Assumed: 0.5 GB/s, the speed of a plain disk. The two measured cold starts were slower: 14.99 GiB in
            // 121 s (0.13 GB/s) and 3.22 GiB in 70 s (0.05 GB/s), probably from storage over a network.
            ColdWeights => (!start.warm.page_cache, 0.1 + weight_bytes / 0.5e9),
            WarmCompile => {
                (start.uses_compilation && uses_warm_code, if start.cpu { 20.0 } else { 2.0 + 0.35 * layers })
            }
            ColdCompile => {
                (start.uses_compilation && !uses_warm_code, if start.cpu { 45.0 } else { 10.0 + 1.3 * layers })
            }
            // A step has two operations per token and weight. A weight has two bytes, so this is one per token and byte.
            KvCache => (true, 2.0 + to_f64(start.max_num_batched_tokens) * weight_bytes / start.compute.max(1.0)),
            WholeGraphs => (start.whole_graphs && start.graphs > 0, layer_graphs * 13e-3),
            Graphs => (!start.whole_graphs && start.graphs > 0, layer_graphs * 9e-3),
            Server => (true, 2.0),
            FirstToken => (true, 0.2),
        };
        applies.then_some(seconds)
    }
}

/// Shorter times count as this one. Log lines are sparse, and the time stamps of some logs count whole seconds.
const SHORTEST_S: f64 = 0.05;

/// Largest weight of the past, in starts. Small, so that the factors adapt within a few starts when the model changes.
const MAX_PAST_WEIGHT: f64 = 4.0;

/// Larger errors, in standard deviations, count as this one. They occur if the machine is busy with other work.
const OUTLIER: f64 = 3.0;

/// The largest standard deviation of a logarithm. Two of them are a factor of a hundred in both directions.
const MAX_DEVIATION: f64 = 2.3;

/// Normal-inverse-gamma distribution of the mean and the variance of a factor's logarithm.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FactorPosterior {
    mean: f64,
    /// Weight of the mean, in starts.
    strength: f64,
    shape: f64,
    scale: f64,
}

impl FactorPosterior {
    /// `spread` is the standard deviation before any observation, `noise` that between starts.
    fn new(spread: f64, noise: f64) -> Self {
        Self { mean: 0.0, strength: (noise / spread).powi(2), shape: 2.0, scale: noise * noise }
    }

    /// Returns the predictive standard deviation of the next start's logarithm. It is that of Student's distribution
    /// with `2 shape` degrees of freedom.
    fn deviation(&self) -> f64 {
        (self.scale * (self.strength + 1.0) / (self.strength * (self.shape - 1.0))).sqrt().min(MAX_DEVIATION)
    }

    /// Updates the distribution with the logarithm of measured over estimated seconds.
    fn learn(&mut self, logarithm: f64) {
        let max_error = OUTLIER * self.deviation();
        let error = (logarithm - self.mean).clamp(-max_error, max_error);
        let strength = self.strength + 1.0;
        self.mean += error / strength;
        self.scale += self.strength * error * error / (2.0 * strength);
        self.strength = strength.min(MAX_PAST_WEIGHT);
        self.shape += 0.5;
        let max_shape = 2.0 + MAX_PAST_WEIGHT / 2.0;
        if self.shape > max_shape {
            // `scale` shrinks as well, so that the expected variance stays the same.
            self.scale *= (max_shape - 1.0) / (self.shape - 1.0);
            self.shape = max_shape;
        }
    }
}

/// Correlation between the durations of the phases: a machine that is busy with other work slows all of them. Not
/// fitted.
const PHASE_CORRELATION: f64 = 0.5;

/// The estimated duration of one phase of a start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhaseForecast {
    /// The phase's name in [`PhaseTime`].
    pub phase: &'static str,
    pub median_s: f64,
    /// Standard deviation of the duration's natural logarithm.
    pub spread: f64,
}

impl PhaseForecast {
    fn mean_s(&self) -> f64 {
        self.median_s * (self.spread * self.spread / 2.0).exp()
    }

    fn deviation_s(&self) -> f64 {
        self.mean_s() * (self.spread * self.spread).exp_m1().sqrt()
    }
}

/// The estimated duration from the spawn of the process to readiness.
#[derive(Clone, Debug, PartialEq)]
pub struct StartForecast {
    pub mean_s: f64,
    /// In 19 of 20 cases the start takes between `low_s` and `high_s`.
    pub low_s: f64,
    pub high_s: f64,
    /// The phases in the order of a start.
    pub parts: Vec<PhaseForecast>,
}

impl StartForecast {
    /// Combines the phases of a start. Their sum is approximated by a log-normal distribution of the same mean and
    /// variance (L. Fenton, 1960).
    #[must_use]
    pub fn of(parts: Vec<PhaseForecast>) -> Self {
        let mean_s: f64 = parts.iter().map(PhaseForecast::mean_s).sum();
        let alone: f64 = parts.iter().map(|part| part.deviation_s().powi(2)).sum();
        let together = parts.iter().map(PhaseForecast::deviation_s).sum::<f64>().powi(2);
        let variance = (1.0 - PHASE_CORRELATION) * alone + PHASE_CORRELATION * together;
        let square = (variance / (mean_s * mean_s).max(f64::MIN_POSITIVE)).ln_1p();
        let median = mean_s * (-square / 2.0).exp();
        let factor = (1.96 * square.sqrt()).exp();
        Self { mean_s, low_s: median / factor, high_s: median * factor, parts }
    }
}

/// The start-up model of one machine and one engine, calibrated by observed starts.
#[derive(Clone, Debug, PartialEq)]
pub struct StartupModel {
    posteriors: [FactorPosterior; TERMS.len()],
}

impl Default for StartupModel {
    fn default() -> Self {
        Self { posteriors: TERMS.map(|term| FactorPosterior::new(term.spread, term.noise)) }
    }
}

impl StartupModel {
    /// Learns from the finished phases of a start. Phases with unknown names are ignored.
    pub fn learn(&mut self, start: &StartConditions, phases: &[PhaseTime]) {
        for (posterior, UncertainTerm { term, .. }) in self.posteriors.iter_mut().zip(TERMS) {
            let time = phases.iter().find(|time| time.phase == term.phase());
            if let Some((time, seconds)) = time.zip(term.seconds(start)).filter(|(time, _)| time.duration_s.is_finite())
            {
                posterior.learn((time.duration_s.max(SHORTEST_S) / seconds.max(SHORTEST_S)).ln());
            }
        }
    }

    /// Estimates the duration of a start.
    #[must_use]
    pub fn predict(&self, start: &StartConditions) -> StartForecast {
        let part = |(posterior, UncertainTerm { term, .. }): (&FactorPosterior, UncertainTerm)| {
            let seconds = term.seconds(start)?.max(SHORTEST_S);
            Some(PhaseForecast {
                phase: term.phase(),
                median_s: seconds * posterior.mean.exp(),
                spread: posterior.deviation(),
            })
        };
        StartForecast::of(self.posteriors.iter().zip(TERMS).filter_map(part).collect())
    }
}
