//! What of a launch the memory depends on.

use crate::config::ResolvedConfig;
use crate::facts::{EngineVersion, ModelShape};

/// The engine and the device of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaunchTarget {
    pub version: EngineVersion,
    pub cpu: bool,
    /// Bytes of one device, as the engine sees them.
    pub device_memory: Option<u64>,
}

/// The resolved values and the flags that change how memory is used.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Launch {
    pub target: LaunchTarget,
    pub resolved: ResolvedConfig,
    /// Whether steps run without captured graphs.
    pub eager: bool,
    /// Whether the model is compiled: V1's default, in V0 only where it is asked for.
    pub compiled: bool,
    /// Bytes of one cached element; `None` is the model's own.
    pub cache_dtype_bytes: Option<u64>,
    /// Whether the cache has a type of which the size is not known here.
    pub unknown_cache: bool,
    /// Replicas among which a layer's experts are divided.
    pub data_parallel_size: u64,
    /// Whether latent attention is cached as `fp8_ds_mla`.
    pub deepseek_cache: bool,
    /// Bytes of one activation and of one unquantised weight; `None` is the checkpoint's own.
    pub dtype_bytes: Option<u64>,
    /// Method that quantises the weights, where it is asked for.
    pub quantization: Option<String>,
    /// Bytes of the cache on one device, where they are set instead of computed.
    pub cache_memory: Option<u64>,
    /// Blocks, where they are set instead of computed.
    pub blocks: Option<u64>,
    /// Whether layers with a sliding window have their own, smaller share of the cache.
    pub hybrid: bool,
    /// Steps that may be in flight at the same time.
    pub concurrent_batches: u64,
    /// Devices among which one sequence's context is divided.
    pub context_parallel_size: u64,
    /// Whether releases that can do so subtract an estimate of the graphs from the cache.
    pub estimates_graphs: bool,
    /// Bytes of the weights that stay in the host's memory, on each device.
    pub offloaded: u64,
}

impl Launch {
    /// Bytes of one activation: engines run models of 32 bits in 16 unless a flag says otherwise.
    #[must_use]
    pub fn element_bytes(&self, model: &ModelShape) -> u64 {
        self.dtype_bytes.unwrap_or(model.dtype_bytes.min(2))
    }

    /// A launch without a flag that changes the use of memory beyond the resolved values.
    #[must_use]
    pub fn plain(target: LaunchTarget, resolved: ResolvedConfig) -> Self {
        Self {
            target,
            resolved,
            eager: false,
            compiled: !resolved.v0,
            cache_dtype_bytes: None,
            unknown_cache: false,
            data_parallel_size: 1,
            deepseek_cache: false,
            dtype_bytes: None,
            quantization: None,
            cache_memory: None,
            blocks: None,
            hybrid: !resolved.v0,
            concurrent_batches: 1,
            context_parallel_size: 1,
            estimates_graphs: true,
            offloaded: 0,
        }
    }
}
