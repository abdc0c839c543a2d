//! How much of the device is left for the key/value cache once the engine has started.

use super::device::DevicePreset;
use super::step_time::IncompleteShape;
use crate::facts::ModelShape;

/// What of the configuration the memory depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryUse {
    /// Share of the device's memory that the engine may use, 0 to 1.
    pub utilization: f64,
    pub max_num_batched_tokens: u32,
    pub max_num_seqs: u32,
    /// Tokens.
    pub block_size: u32,
    /// Whether steps run without captured graphs.
    pub eager: bool,
    /// As in [`Settings`](super::Settings).
    pub cache_dtype_bytes: Option<u64>,
}

/// The device's memory in bytes, as the engine's own profiling would report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    pub weights: u64,
    /// Peak of the profiling run: grows with the token budget and, for the sampler, with the sequences.
    pub activations: u64,
    pub graphs: u64,
    pub reserved: u64,
    /// For the cache; 0 when nothing is left.
    pub cache: u64,
    pub block_bytes: u64,
    pub blocks: u32,
}

/// Copies of the 32-bit logits that the sampler holds at its peak: logits, probabilities, sorted values and indices.
const LOGIT_COPIES: u64 = 4;
/// Bytes of one captured graph for one layer.
const GRAPH_LAYER: u64 = 256 << 10;
const LARGEST_GRAPH: u64 = 512;

/// Splits the device's memory. `blocks` is what the engine would allocate, its own reserve included.
///
/// # Errors
/// When the shape lacks a size.
pub fn kv_blocks(model: &ModelShape, device: &DevicePreset, usage: &MemoryUse) -> Result<MemoryPlan, IncompleteShape> {
    let get = |value: Option<u64>, name| value.ok_or(IncompleteShape(name));
    let weights = get(model.dense_parameters(), "all sizes of its layers")? * model.dtype_bytes;
    let kv_bytes = get(kv_bytes_per_token(model, usage.cache_dtype_bytes), "the size of its key/value heads")?;
    let (tokens, sequences) = (u64::from(usage.max_num_batched_tokens), u64::from(usage.max_num_seqs));
    // Residual, its copy, and the gate and up projections with their product, all alive at once in the MLP.
    let hidden = get(model.hidden_size, "hidden_size")?;
    let token_bytes = (2 * hidden + 3 * get(model.intermediate_size, "intermediate_size")?) * model.dtype_bytes;
    let logits = sequences * get(model.vocab_size, "vocab_size")? * 4 * LOGIT_COPIES;
    let activations = (tokens * token_bytes).max(logits);
    let graphs = if usage.eager || device.cpu {
        0
    } else {
        // Sizes 1, 2, 4 and then every eighth up to the largest.
        let sizes = 3 + (2 * sequences).min(LARGEST_GRAPH) / 8;
        sizes * get(model.layers, "num_hidden_layers")? * GRAPH_LAYER
    };
    let reserved = device.reserved;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a memory size"
    )]
    let budget = (device.memory as f64 * usage.utilization) as u64;
    let cache = budget.saturating_sub(weights + activations + graphs + reserved);
    let block_bytes = kv_bytes * u64::from(usage.block_size.max(1));
    let blocks = u32::try_from(cache / block_bytes.max(1)).unwrap_or(u32::MAX);
    Ok(MemoryPlan { weights, activations, graphs, reserved, cache, block_bytes, blocks })
}

/// Bytes of key/value cache per token.
pub(super) fn kv_bytes_per_token(model: &ModelShape, cache_dtype_bytes: Option<u64>) -> Option<u64> {
    let own = model.kv_bytes_per_token()?;
    Some(cache_dtype_bytes.map_or(own, |bytes| own / model.dtype_bytes.max(1) * bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::test_model;

    fn plan(device: &str, tokens: u32, sequences: u32, utilization: f64) -> MemoryPlan {
        let usage = MemoryUse {
            utilization,
            max_num_batched_tokens: tokens,
            max_num_seqs: sequences,
            block_size: 16,
            eager: false,
            cache_dtype_bytes: None,
        };
        kv_blocks(&test_model(), DevicePreset::find(device).unwrap(), &usage).unwrap()
    }

    #[test]
    fn an_eight_billion_model_leaves_a_plausible_cache_on_80_gib() {
        let plan = plan("h100", 8192, 256, 0.9);
        assert_eq!(plan.block_bytes, 16 * 131_072);
        let tokens = plan.blocks * 16;
        assert!((400_000..470_000).contains(&tokens), "{tokens}");
    }

    #[test]
    fn an_fp8_cache_holds_twice_the_tokens() {
        let model = test_model();
        assert_eq!(kv_bytes_per_token(&model, None), Some(131_072));
        assert_eq!(kv_bytes_per_token(&model, Some(1)), Some(65_536));
    }

    #[test]
    fn larger_batches_and_more_sequences_shrink_the_cache() {
        let base = plan("l4", 2048, 64, 0.9).blocks;
        assert!(plan("l4", 16384, 64, 0.9).blocks < base);
        assert!(plan("l4", 2048, 1024, 0.9).blocks < base);
        assert!(plan("l4", 2048, 64, 0.95).blocks > base);
        assert_eq!(plan("l4", 2048, 64, 0.3).blocks, 0);
    }
}
