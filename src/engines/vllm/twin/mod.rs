//! The connection of vLLM and the twin: the scheduler's settings and the division of the memory, derived from flags.

mod allocate;
mod scheduling;

use self::allocate::allocate;
use self::scheduling::scheduling;
use crate::config::{Config, ResolvedConfig};
use crate::engine::TwinModel;
use crate::rule::Facts;
use crate::twin::{DevicePreset, MemoryPlan, Settings, StartShortage};

/// The twin of vLLM.
pub static TWIN: &dyn TwinModel = &VllmTwin;

/// The reader of vLLM's flags for the twin.
#[derive(Debug)]
struct VllmTwin;

/// Flags that change the twin's result. All others have no effect on it.
const EFFECTIVE: [&str; 22] = [
    "async-scheduling",
    "block-size",
    "cpu-offload-gb",
    "data-parallel-size",
    "dtype",
    "enable-chunked-prefill",
    "enable-prefix-caching",
    "enforce-eager",
    "gpu-memory-utilization",
    "kv-cache-dtype",
    "kv-cache-memory-bytes",
    "long-prefill-token-threshold",
    "max-model-len",
    "max-num-batched-tokens",
    "max-num-seqs",
    "num-gpu-blocks-override",
    "pipeline-parallel-size",
    "quantization",
    "scheduling-policy",
    "speculative-config",
    "stream-interval",
    "tensor-parallel-size",
];

/// The limit of simulated replicas. All replicas behave alike.
const MOST_REPLICAS: usize = 256;

impl TwinModel for VllmTwin {
    fn settings(
        &self,
        config: &Config,
        resolved: &ResolvedConfig,
        facts: &Facts<'_>,
        device: &DevicePreset,
        acceptance: Option<f64>,
    ) -> Result<(Settings, MemoryPlan), StartShortage> {
        let scheduling = scheduling(config, resolved, facts.version, device.cpu, acceptance);
        allocate(resolved, config, facts, device, scheduling)
    }

    fn has_effect(&self, flag: &str) -> bool {
        EFFECTIVE.contains(&flag)
    }

    /// Returns the number of data-parallel engines. The V0 engine has no replicas.
    fn replicas(&self, config: &Config, resolved: &ResolvedConfig) -> usize {
        let asked = config.get_i64("data-parallel-size").and_then(|size| usize::try_from(size).ok());
        let alone = resolved.v0 || config.get("data-parallel-rank").is_some();
        asked.filter(|_| !alone).unwrap_or(1).clamp(1, MOST_REPLICAS)
    }
}
