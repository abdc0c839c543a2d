//! Peak memory of the engine's profiling run: the larger of a forward step with the full token budget and the sampler's
//! work.
//!
//! The constants are fitted to public measurements. These are 162 starts of 0.9.0.1 on an L40S (three models, V0 and
//! V1) and the profiles of eight models on an H100 with 0.11 (llm-d-benchmark). The sampler's factor is equal in all of
//! them within 2 %. Each of the forward factors comes from one dense model.

use super::MemoryLaunch;
use crate::facts::{EngineVersion, ModelShape};
use crate::stats::{GIB, gib, to_f64};

/// Memory of the sampler at its peak, in multiples of the 32-bit logits. It holds 16-bit and 32-bit logits, sorted
/// values with 64-bit indices, probabilities, sums and masks.
const SORTING_PEAK_FACTOR: f64 = 9.5;
/// Like `SORTING_PEAK_FACTOR`, for releases that do not sort: from 0.20 a Triton kernel finds the thresholds of top-k and top-p
/// (`apply_top_k_top_p_triton`).
const SELECTING_PEAK_FACTOR: f64 = 4.5;

/// Components of the peak in GiB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ActivationPeaks {
    /// Memory of the sampler. It grows with the number of sequences.
    pub(super) sampler: f64,
    /// Hidden states of all tokens. They stay allocated while the sampler works.
    pub(super) hidden: f64,
    /// Memory of the forward step. It grows with the token budget.
    pub(super) forward: f64,
}

/// Estimates the components. Returns `None` if the shape lacks a size.
pub(super) fn peaks(model: &ModelShape, launch: &MemoryLaunch) -> Option<ActivationPeaks> {
    let resolved = &launch.resolved;
    let element = to_f64(launch.element_bytes(model));
    let parallel = to_f64(resolved.tensor_parallel_size.max(1));
    let (tokens, hidden) = (to_f64(resolved.max_num_batched_tokens), to_f64(model.hidden_size?));
    let sequences = to_f64(resolved.max_num_seqs.min(resolved.max_num_batched_tokens));
    let copies =
        if launch.target.version >= EngineVersion::V0_20 { SELECTING_PEAK_FACTOR } else { SORTING_PEAK_FACTOR };
    // Copies of the feed-forward's inner activations, and of the hidden states.
    let (inner, outer) = match (resolved.v0, launch.compiled) {
        (_, false) => (3.0, 3.0),
        (false, true) => (3.0, 5.0),
        // Without `auto_functionalized_v2` the compiled graph copies the tensors that it writes to.
        (true, true) => (5.5, 1.0),
    };
    let intermediate = to_f64(intermediate(model)?) / parallel;
    Some(ActivationPeaks {
        sampler: sequences * to_f64(model.vocab_size?) * 4.0 * copies / to_f64(GIB),
        hidden: tokens * hidden * element / to_f64(GIB),
        forward: tokens * (inner * intermediate + outer * hidden) * element / to_f64(GIB),
    })
}

/// Returns the number of elements of the feed-forward's inner activations for one token.
fn intermediate(model: &ModelShape) -> Option<u64> {
    match model.experts {
        Some(experts) => {
            let inner = experts.intermediate_size.or(model.intermediate_size)?;
            let active = experts.per_token.unwrap_or(1).saturating_add(experts.shared);
            Some(inner.saturating_mul(active).max(model.intermediate_size.unwrap_or(0)))
        }
        None => model.intermediate_size,
    }
}

/// Estimates the memory of the driver, the libraries and their buffers, in GiB: mean and standard deviation.
///
/// Up to 0.9, V1 counts all memory of the device that it has not allocated itself. That includes its CUDA context and
/// other processes. V0, and V1 from 0.10 on, count only memory that the profiling run has added. With several devices,
/// NCCL adds buffers.
pub(super) fn overhead(launch: &MemoryLaunch) -> (f64, f64) {
    let resolved = &launch.resolved;
    if launch.target.cpu {
        // The resident memory of the process without the weights.
        return (1.5, 0.7);
    }
    let (alone, doubt) = match (resolved.v0, launch.target.version < EngineVersion::V0_10) {
        (true, _) => (0.09, 0.1),
        (false, true) => (0.55, 0.15),
        (false, false) => (0.16, 0.1),
    };
    let many = resolved.tensor_parallel_size.saturating_mul(resolved.pipeline_parallel_size) > 1;
    if many { (alone + 0.42, doubt + 0.2) } else { (alone, doubt) }
}

/// Returns the prior's standard deviations of the factors on the sampler and on the forward step.
pub(super) fn factor_deviations(model: &ModelShape, launch: &MemoryLaunch) -> (f64, f64) {
    // The constants were fitted to releases up to 0.11.
    let measured = launch.target.version < EngineVersion::V0_12;
    // The engine also profiles encoders of images and sound, and it runs some of them with fewer sequences.
    let other = if model.multimodal || model.encoder_decoder { 2.0 } else { 1.0 };
    let (sampler, forward) = if measured { (0.04, 0.25) } else { (0.35, 0.35) };
    (sampler * other, forward * other)
}

/// Returns the part of the device's memory that the engine may use, in GiB. `None` if that memory is unknown.
pub(super) fn budget(launch: &MemoryLaunch) -> Option<f64> {
    Some(gib(launch.target.device_memory?) * launch.resolved.gpu_memory_utilization)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ResolvedConfig;
    use crate::memory::{test_launch, test_model};

    #[test]
    fn the_sampler_is_the_peak_of_many_sequences_and_the_mlp_of_many_tokens() {
        let many = peaks(&test_model(), &test_launch()).unwrap();
        // Measured on an H100 with 0.11: 4.76 GiB.
        let peak = (many.sampler + many.hidden).max(many.forward);
        assert!((4.6..4.8).contains(&peak), "{peak}");
        let few =
            MemoryLaunch { resolved: ResolvedConfig { max_num_seqs: 16, ..test_launch().resolved }, ..test_launch() };
        let few = peaks(&test_model(), &few).unwrap();
        assert!(few.forward > few.sampler + few.hidden);
    }
}
