//! Model of a step's duration: physical terms for the device's computation and the host's work.
//!
//! | term | meaning | from |
//! |---|---|---|
//! | linear | weights read once, every token multiplied with them | bytes, operations |
//! | attention | cached tokens read by decodes, pairs of prompt tokens | bytes, operations |
//! | sampling | output head and sampler, for each sequence | bytes, operations |
//! | launch | kernels between the pieces of a graph, or all of them | measured, for each layer |
//! | communication | all-reduces and sends between devices | bytes, latency |
//! | host | scheduling, input preparation, output, for step and sequence | measured |
//!
//! `device = linear + attention + sampling + launch + communication`. A step takes `device + host`. With asynchronous
//! scheduling the host prepares the next step meanwhile, and the step takes the larger of the two. Every term is
//! computed in O(1).
//!
//! Not modelled: clocks that fall under load, different kernels for different batch sizes, and slower first steps after
//! a start. The delay of the engine by an API server on the same core is not modelled either. The experts of a layer
//! count as one dense feed-forward of `intermediate_size`.

mod attention;
mod curve;
mod factors;
mod graph;
mod grid;
mod parallel;

use std::time::Duration;

use super::batch::BatchWork;
use super::device::{DevicePreset, GPU};
use super::frontend::Frontend;
use super::memory::kv_bytes_per_token;
use super::settings::Settings;
use crate::facts::ModelShape;
use crate::stats::to_f64;

pub(crate) use attention::{Attention, MeasuredKernels};
pub(crate) use curve::Curve;
pub use factors::{Factors, TermFactor};
use graph::Graphs;
pub(crate) use grid::KernelGrid;
use parallel::Communication;
pub use parallel::Parallel;

/// Factor on the host's work per sequence in V0. There, Python prepares the batches sequence by sequence.
const V0_SEQUENCE: f64 = 4.0;
/// Seconds of host work per block in the block tables.
const BLOCK_HOST_S: f64 = 4e-9;
/// Seconds of host work per prompt token to hash it for prefix caching.
const HASH_HOST_S: f64 = 25e-9;
/// Number of passes of the sampler over its 32-bit logits.
const SAMPLER_PASSES: f64 = 6.0;
/// Ratio of a layer's launch time in eager mode to that of a compiled layer. In eager mode Python calls every kernel.
const EAGER_LAUNCH_FACTOR: f64 = 4.0;
/// The step-time model of one language model on one device, or on several devices among which it is divided.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTime {
    linear: Curve,
    sampling: Curve,
    attention: Attention,
    /// Number of devices among which attention is divided.
    attention_devices: f64,
    graphs: Graphs,
    /// Seconds of kernel launches in a step that is not one captured graph.
    launch_s: f64,
    /// Smallest seconds of the device's part of a step whose kernels Python launches one by one. 0 if compiled.
    eager_s: f64,
    communication: Communication,
    host: Host,
    frontend: Frontend,
    factors: Factors,
    /// The factor on all times, also on those without a factor of their own.
    slowness: f64,
}

/// Seconds of host work per step, sequence, block and hashed token. `overlapped` is whether the host works while the
/// device computes.
#[derive(Clone, Debug, PartialEq)]
struct Host {
    step_s: f64,
    sequence_s: f64,
    block_s: f64,
    hash_s: f64,
    overlapped: bool,
}

/// The terms of one step in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepParts {
    pub linear_s: f64,
    pub attention_s: f64,
    pub sampling_s: f64,
    pub launch_s: f64,
    pub communication_s: f64,
    pub host_s: f64,
    /// The whole step. It is less than the sum of the terms if host and device work at the same time, and may be more
    /// in eager mode.
    pub total_s: f64,
}

impl StepParts {
    fn slowed(self, factor: f64) -> Self {
        Self {
            linear_s: self.linear_s * factor,
            attention_s: self.attention_s * factor,
            sampling_s: self.sampling_s * factor,
            launch_s: self.launch_s * factor,
            communication_s: self.communication_s * factor,
            host_s: self.host_s * factor,
            total_s: self.total_s * factor,
        }
    }
}

/// A model whose `config.json` lacks a value that the twin needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("config.json lacks {0}")]
pub struct IncompleteShape(pub &'static str);

impl StepTime {
    /// Builds the step time from the model's shape and a device's rates.
    ///
    /// # Errors
    /// If the shape lacks a size.
    pub fn new(model: &ModelShape, device: &DevicePreset, settings: &Settings) -> Result<Self, IncompleteShape> {
        Self::on_devices(model, device, settings, Parallel::NONE)
    }

    /// Like `new`, but for several devices. Each computes its share of a layer. The result is the time of a step
    /// through all stages of the pipeline. [`Drive`](crate::twin::Drive) keeps several steps under way at once.
    ///
    /// # Errors
    /// If the shape lacks a size.
    pub fn on_devices(
        model: &ModelShape,
        device: &DevicePreset,
        settings: &Settings,
        parallel: Parallel,
    ) -> Result<Self, IncompleteShape> {
        let get = |value: Option<u64>, name| value.map(to_f64).ok_or(IncompleteShape(name));
        let parameters = get(model.dense_parameters(), "a size of its layers")?;
        let kv_bytes = get(kv_bytes_per_token(model, settings.cache_dtype_bytes), "the size of its key/value heads")?;
        let layers = get(model.layers, "num_hidden_layers")?;
        let hidden = get(model.hidden_size, "hidden_size")?;
        let vocabulary = get(model.vocab_size, "vocab_size")?;
        let heads = get(model.attention_heads, "num_attention_heads")? * get(model.head_dim, "head_dim")?;
        let dtype = to_f64(model.dtype_bytes);
        let tensor = f64::from(parallel.tensor.max(1));
        let bandwidth = device.bandwidth * device.bandwidth_efficiency;
        let compute = device.compute * device.compute_efficiency;
        // A step looks up single rows of the embedding. It reads the whole output head, but multiplies it for sampled
        // positions only.
        let embeddings = hidden * vocabulary * if model.tied_embeddings { 1.0 } else { 2.0 };
        let layer_parameters = (parameters - embeddings) / tensor;
        let head = hidden * vocabulary / tensor;
        // Smaller blocks cause more and smaller reads of the cache.
        let paging = 1.0 + 1.0 / f64::from(settings.block_size().max(1));
        let v0 = settings.resolved.v0;
        let launch_s = layers * device.layer_launch_s;
        Ok(Self {
            linear: Curve::Roofline {
                read_s: layer_parameters * dtype / bandwidth,
                row_s: 2.0 * layer_parameters / compute,
            },
            sampling: Curve::Roofline {
                read_s: head * dtype / bandwidth,
                row_s: 2.0 * head / compute + SAMPLER_PASSES * 4.0 * vocabulary / bandwidth,
            },
            attention: Attention::Formula(attention::Formula {
                // The floor and the cost per sequence do not shrink with more devices. `tensor` cancels the division by
                // `shares`.
                floor_s: layers * device.attention_floor_s * tensor,
                sequence_s: layers * device.attention_sequence_s * tensor,
                read_s: kv_bytes * paging / (device.bandwidth * device.cache_efficiency),
                mixed: device.mixed_reading,
                // The score and the weighted sum take two operations each.
                pair_s: 4.0 * layers * heads / (device.compute * device.attention_efficiency),
            }),
            attention_devices: tensor,
            graphs: if device.cpu || settings.eager { Graphs::NONE } else { Graphs::of(settings.max_num_seqs()) },
            launch_s,
            eager_s: if settings.eager && !device.cpu { launch_s * EAGER_LAUNCH_FACTOR } else { 0.0 },
            communication: Communication::new(
                parallel,
                layers,
                hidden * dtype,
                device.link_latency_s,
                device.link_bandwidth,
            ),
            host: Host {
                step_s: device.step_overhead_s * if v0 { 1.5 } else { 1.0 },
                sequence_s: device.sequence_overhead_s * if v0 { V0_SEQUENCE } else { 1.0 },
                ..Host::new(settings)
            },
            frontend: device.frontend,
            factors: Factors::ONE,
            slowness: 1.0,
        })
    }

    /// Builds the step time from measured kernels.
    pub(crate) fn measured(
        linear: Curve,
        sampling: Curve,
        attention: MeasuredKernels,
        layers: f64,
        settings: &Settings,
    ) -> Self {
        Self {
            linear,
            sampling,
            attention: Attention::Measured(Box::new(attention)),
            attention_devices: 1.0,
            graphs: if settings.eager { Graphs::NONE } else { Graphs::of(settings.max_num_seqs()) },
            launch_s: layers * GPU.layer_launch_s,
            eager_s: if settings.eager { layers * GPU.layer_launch_s * EAGER_LAUNCH_FACTOR } else { 0.0 },
            communication: Communication::new(Parallel::NONE, layers, 0.0, 0.0, 1.0),
            host: Host::new(settings),
            frontend: GPU.frontend,
            factors: Factors::ONE,
            slowness: 1.0,
        }
    }

    /// Removes the costs of the front end. The times are then those of an engine without an API server.
    #[must_use]
    pub fn without_frontend(self) -> Self {
        Self { frontend: Frontend::default(), ..self }
    }

    /// Sets the factor on each group of terms. It replaces earlier factors.
    #[must_use]
    pub fn scaled(mut self, factors: Factors) -> Self {
        self.factors = factors;
        self
    }

    /// Multiplies all times by `slowness`. It replaces an earlier one.
    #[must_use]
    pub(crate) fn slowed(self, slowness: f64) -> Self {
        Self { slowness, ..self }
    }

    #[must_use]
    pub fn factors(&self) -> Factors {
        self.factors
    }

    /// Returns the time from the start of a step to its tokens.
    #[must_use]
    pub fn step_duration(&self, work: &BatchWork) -> Duration {
        duration(self.parts(work).total_s)
    }

    /// Like `of`, but returns the terms.
    #[must_use]
    pub fn parts(&self, work: &BatchWork) -> StepParts {
        let factors = &self.factors;
        let padded = self.graphs.padded(work.tokens);
        let whole_graph = padded.is_some() && work.prompt_tokens == 0;
        let rows = f64::from(padded.unwrap_or(work.tokens).max(1));
        let base = self.linear.base();
        let linear_s =
            base * factors[TermFactor::Weights] + (self.linear.at(rows) - base) * factors[TermFactor::Compute];
        // Logits are computed for the last token of every sequence, even if its prompt is not yet complete, and for
        // each draft.
        let sampling_s =
            self.sampling.at(f64::from((work.sequences + work.drafts).max(1))) * factors[TermFactor::Weights];
        let attention_s = self.attention.time(work) / self.attention_devices * factors[TermFactor::Attention];
        let launch_s = if whole_graph { 0.0 } else { self.launch_s * factors[TermFactor::Launch] };
        let communication_s = self.communication.time(rows);
        let device = linear_s + sampling_s + attention_s + communication_s + launch_s;
        let device = device.max(self.eager_s * factors[TermFactor::Launch]);
        let host_s = self.host.time(work) * factors[TermFactor::Host];
        let total_s = if self.host.overlapped { device.max(host_s) } else { device + host_s };
        StepParts { linear_s, attention_s, sampling_s, launch_s, communication_s, host_s, total_s }
            .slowed(self.slowness)
    }

    /// Returns the costs of the API server's work, multiplied by their factor.
    #[must_use]
    pub fn frontend(&self) -> Frontend {
        self.frontend.slowed(self.factors[TermFactor::Frontend] * self.slowness)
    }
}

impl Host {
    fn new(settings: &Settings) -> Self {
        Self {
            step_s: GPU.step_overhead_s,
            sequence_s: GPU.sequence_overhead_s,
            block_s: BLOCK_HOST_S,
            hash_s: if settings.resolved.prefix_caching { HASH_HOST_S } else { 0.0 },
            overlapped: settings.scheduling.async_scheduling,
        }
    }

    fn time(&self, work: &BatchWork) -> f64 {
        self.step_s
            + self.sequence_s * f64::from(work.sequences)
            + self.block_s * to_f64(work.blocks)
            + self.hash_s * f64::from(work.prompt_tokens)
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests;
