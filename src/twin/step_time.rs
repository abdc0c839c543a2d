//! How long one step takes: a roofline over the device plus what the host does for each step and sequence.
//!
//! `host + max(launch, linear + attention + sampling)`, where `linear` is the larger of reading the weights once and
//! multiplying every token with them. The terms are physical, their efficiencies are not calibrated.

use std::time::Duration;

use super::batch::Work;
use super::device::DevicePreset;
use super::memory::kv_bytes_per_token;
use super::settings::{Policy, Settings};
use crate::facts::ModelShape;

/// Seconds of host work for each sequence of a step: sampling parameters, detokenization, output.
const SEQUENCE_HOST_S: f64 = 6e-6;
/// V0 prepares its batches in Python, sequence by sequence.
const V0_SEQUENCE_HOST_S: f64 = 25e-6;
/// Seconds of host work for each block in the block tables.
const BLOCK_HOST_S: f64 = 4e-9;
/// Seconds of host work to hash one prompt token for prefix caching.
const HASH_HOST_S: f64 = 25e-9;
/// Share of matrix-product throughput that attention kernels reach.
const ATTENTION_EFFICIENCY: f64 = 0.7;
/// Passes of the sampler over its 32-bit logits.
const SAMPLER_PASSES: f64 = 6.0;
/// Largest batch, in tokens, for which a graph is captured.
const LARGEST_GRAPH: u32 = 512;

/// The step-time model of one model on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTime {
    step_s: f64,
    sequence_s: f64,
    block_s: f64,
    hash_s: f64,
    launch_s: f64,
    graph_tokens: u32,
    weights_s: f64,
    token_s: f64,
    kv_token_s: f64,
    pair_s: f64,
    sample_s: f64,
}

/// A model whose `config.json` leaves out what the twin needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("config.json does not give {0}")]
pub struct IncompleteShape(pub &'static str);

impl StepTime {
    /// # Errors
    /// When the shape lacks a size.
    pub fn new(model: &ModelShape, device: &DevicePreset, settings: &Settings) -> Result<Self, IncompleteShape> {
        let get = |value: Option<u64>, name| value.map(float).ok_or(IncompleteShape(name));
        let parameters = get(model.dense_parameters(), "all sizes of its layers")?;
        let kv_bytes = get(kv_bytes_per_token(model, settings.cache_dtype_bytes), "the size of its key/value heads")?;
        let layers = get(model.layers, "num_hidden_layers")?;
        let hidden = get(model.hidden_size, "hidden_size")?;
        let vocabulary = get(model.vocab_size, "vocab_size")?;
        let attention = get(model.attention_heads, "num_attention_heads")? * get(model.head_dim, "head_dim")?;
        let bandwidth = device.bandwidth * device.bandwidth_efficiency;
        let compute = device.compute * device.compute_efficiency;
        // Embedding rows are looked up; the output head is read whole but multiplied for sampled positions only.
        let embeddings = hidden * vocabulary * if model.tied_embeddings { 1.0 } else { 2.0 };
        let v0 = settings.policy == Policy::V0;
        // Small blocks make for many small reads of the cache.
        let paging = 1.0 + 1.0 / f64::from(settings.block_size.max(1));
        Ok(Self {
            step_s: device.step_overhead_s * if v0 { 1.5 } else { 1.0 },
            sequence_s: if v0 { V0_SEQUENCE_HOST_S } else { SEQUENCE_HOST_S },
            block_s: BLOCK_HOST_S,
            hash_s: if settings.prefix_caching { HASH_HOST_S } else { 0.0 },
            launch_s: layers * device.layer_launch_s,
            graph_tokens: if device.cpu || settings.eager {
                0
            } else {
                LARGEST_GRAPH.min(settings.max_num_seqs.saturating_mul(2))
            },
            weights_s: (parameters - embeddings + hidden * vocabulary) * float(model.dtype_bytes) / bandwidth,
            token_s: 2.0 * (parameters - embeddings) / compute,
            kv_token_s: kv_bytes * paging / bandwidth,
            // Scores and weighted sum, two operations each.
            pair_s: 4.0 * layers * attention / (compute * ATTENTION_EFFICIENCY),
            sample_s: 2.0 * hidden * vocabulary / compute + SAMPLER_PASSES * 4.0 * vocabulary / bandwidth,
        })
    }

    /// The time from the start of a step to its tokens.
    #[must_use]
    pub fn of(&self, work: &Work) -> Duration {
        let linear = self.weights_s.max(self.token_s * f64::from(work.tokens));
        let read = self.kv_token_s * float(work.decode_context + work.prompt_context);
        let attention = read + self.pair_s * float(work.prompt_pairs);
        let device = linear + attention + self.sample_s * f64::from(work.samples);
        let launch = if work.tokens <= self.graph_tokens { 0.0 } else { self.launch_s };
        let host = self.step_s
            + self.sequence_s * f64::from(work.sequences)
            + self.block_s * float(work.blocks)
            + self.hash_s * f64::from(work.prompt_tokens);
        Duration::try_from_secs_f64(host + launch.max(device)).unwrap_or(Duration::MAX)
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^53, and estimates anyway")]
fn float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::test_model;

    fn seconds(work: Work) -> f64 {
        let settings = crate::twin::tests::settings();
        let settings = Settings { max_num_seqs: 256, block_size: 16, ..settings };
        let device = DevicePreset::find("h100").unwrap();
        StepTime::new(&test_model(), device, &settings).unwrap().of(&work).as_secs_f64()
    }

    fn decode(sequences: u32, context: u64) -> Work {
        let decode_context = u64::from(sequences) * context;
        let blocks = decode_context / 16;
        Work { sequences, tokens: sequences, samples: sequences, decode_context, blocks, ..Work::default() }
    }

    fn prefill(tokens: u32) -> Work {
        let pairs = u64::from(tokens) * u64::from(tokens) / 2;
        let blocks = u64::from(tokens) / 16;
        Work { sequences: 1, tokens, samples: 1, prompt_tokens: tokens, prompt_pairs: pairs, blocks, ..Work::default() }
    }

    #[test]
    fn eight_billion_weights_take_as_long_as_the_bus_needs() {
        // 15 GB of weights without the input embedding over 2.68 TB/s are 5.6 ms, plus 1 ms of overhead.
        let time = seconds(decode(1, 100));
        assert!((0.006..0.0075).contains(&time), "{time}");
    }

    #[test]
    fn a_small_batch_is_nearly_free_and_a_large_one_is_not() {
        assert!(seconds(decode(16, 500)) < 1.1 * seconds(decode(1, 500)));
        assert!(seconds(decode(256, 2000)) > 2.0 * seconds(decode(16, 2000)));
    }

    #[test]
    fn as_many_sequences_as_can_be_named_do_not_overflow() {
        let many = Settings { max_num_seqs: u32::MAX, ..crate::twin::tests::settings() };
        let step_time = StepTime::new(&test_model(), DevicePreset::find("h100").unwrap(), &many).unwrap();
        assert_eq!(step_time.graph_tokens, LARGEST_GRAPH);
    }

    #[test]
    fn prefill_grows_faster_than_its_tokens() {
        let (short, long) = (seconds(prefill(2048)), seconds(prefill(16384)));
        assert!((0.04..0.08).contains(&short), "{short}");
        assert!(long > 8.0 * short, "{short} {long}");
    }
}
