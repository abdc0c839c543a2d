//! The properties of a launch that determine its use of memory.

use crate::config::ResolvedConfig;
use crate::facts::{EngineVersion, ModelShape};

/// The engine and the device of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaunchTarget {
    pub version: EngineVersion,
    pub cpu: bool,
    /// Memory of one device in bytes, as the engine sees it.
    pub device_memory: Option<u64>,
}

/// The resolved values of a launch, and its flags that change the use of memory.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct MemoryLaunch {
    pub target: LaunchTarget,
    pub resolved: ResolvedConfig,
    /// Whether steps run without captured graphs.
    pub eager: bool,
    /// Whether the model is compiled. This is V1's default; in V0 a flag has to request it.
    pub compiled: bool,
    /// Bytes of one cached element. `None` means the model's own type.
    pub cache_dtype_bytes: Option<u64>,
    /// Whether the cache has a type of unknown size.
    pub unknown_cache_dtype: bool,
    /// Number of data-parallel replicas, among which the experts of a layer are divided.
    pub data_parallel_size: u64,
    /// Whether latent attention is cached as `fp8_ds_mla`.
    pub deepseek_cache: bool,
    /// Bytes of one element of activations and of unquantised weights. `None` means the checkpoint's own type.
    pub dtype_bytes: Option<u64>,
    /// Method that quantises the weights, if a flag sets one.
    pub quantization: Option<String>,
    /// Bytes of the cache on one device, if a flag sets them.
    pub cache_memory: Option<u64>,
    /// Number of the cache's blocks, if a flag sets it.
    pub blocks: Option<u64>,
    /// Whether layers with a sliding window keep only the window's tokens in the cache.
    pub hybrid: bool,
    /// Number of steps that may be in flight at the same time.
    pub concurrent_batches: u64,
    /// Number of devices among which the context of one sequence is divided.
    pub context_parallel_size: u64,
    /// Whether releases that estimate the graphs (from 0.20) subtract the estimate from the cache.
    pub estimates_graphs: bool,
    /// Bytes of weights per device that stay in the host's memory.
    pub offloaded: u64,
}

impl MemoryLaunch {
    /// Returns the bytes of one element of the activations. Engines run 32-bit models in 16 bits unless a flag
    /// overrides it.
    #[must_use]
    pub fn element_bytes(&self, model: &ModelShape) -> u64 {
        self.dtype_bytes.unwrap_or(model.dtype_bytes.min(2))
    }

    /// Creates a launch without flags that change the use of memory beyond the resolved values.
    #[must_use]
    pub fn from_resolved(target: LaunchTarget, resolved: ResolvedConfig) -> Self {
        Self {
            target,
            resolved,
            eager: false,
            compiled: !resolved.v0,
            cache_dtype_bytes: None,
            unknown_cache_dtype: false,
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
