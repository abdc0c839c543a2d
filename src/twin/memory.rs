//! Division of a simulated device's memory, by the means of the memory model.

use super::device::DevicePreset;
use super::step_time::IncompleteShape;
use crate::facts::ModelShape;
use crate::memory::{self, CacheLayout, LaunchTarget, LearnedMemory, MemoryLaunch};
use crate::stats::gib_to_bytes;

/// Parts of the device's memory after a start, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    pub weights: u64,
    /// Bytes for the cache; 0 if nothing is left.
    pub cache: u64,
    /// Blocks that the engine would allocate, its own reserve included.
    pub blocks: u32,
    pub layout: CacheLayout,
}

/// Divides the memory of `device` into weights and KV cache. The device memory in `launch` is ignored.
///
/// # Errors
/// If the shape lacks a size.
pub fn plan_memory(
    model: &ModelShape,
    device: &DevicePreset,
    launch: &MemoryLaunch,
) -> Result<MemoryPlan, IncompleteShape> {
    let target = LaunchTarget { device_memory: Some(device.memory), ..launch.target };
    let launch = MemoryLaunch { target, ..launch.clone() };
    let prediction = memory::predict(model, &launch, &LearnedMemory::default());
    let prediction = prediction.ok_or(IncompleteShape("a size that the KV cache depends on"))?;
    Ok(MemoryPlan {
        weights: gib_to_bytes(prediction.weights_gib),
        cache: gib_to_bytes(prediction.cache_gib),
        blocks: u32::try_from(prediction.blocks()).unwrap_or(u32::MAX),
        layout: prediction.layout,
    })
}

/// Returns the bytes of KV cache per token in all layers.
pub(super) fn kv_bytes_per_token(model: &ModelShape, cache_dtype_bytes: Option<u64>) -> Option<u64> {
    memory::cache_token_bytes(model, cache_dtype_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ResolvedConfig;
    use crate::facts::EngineVersion;
    use crate::twin::test_model;

    fn plan(device: &str, tokens: u64, sequences: u64, utilization: f64) -> MemoryPlan {
        let target = LaunchTarget { version: EngineVersion::new(0, 12, 0), cpu: false, device_memory: None };
        let resolved = ResolvedConfig {
            v0: false,
            max_model_len: 8192,
            max_num_batched_tokens: tokens,
            max_num_seqs: sequences,
            block_size: 16,
            chunked_prefill: true,
            prefix_caching: true,
            scheduler_delay_factor: 0.0,
            gpu_memory_utilization: utilization,
            tensor_parallel_size: 1,
            pipeline_parallel_size: 1,
        };
        let launch = MemoryLaunch::from_resolved(target, resolved);
        plan_memory(&test_model(), DevicePreset::find(device).unwrap(), &launch).unwrap()
    }

    #[test]
    fn an_eight_billion_model_leaves_a_plausible_cache_on_80_gib() {
        let plan = plan("h100", 8192, 256, 0.9);
        assert_eq!(plan.layout.block_bytes, 16 * 131_072);
        let tokens = plan.blocks * 16;
        assert!((400_000..470_000).contains(&tokens), "{tokens}");
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
