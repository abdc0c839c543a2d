//! The connection of vLLM and the twin: the scheduler's settings and the division of the memory, derived from flags.

mod allocate;
mod scheduling;

use self::allocate::allocate;
pub(super) use self::scheduling::schedules_ahead;
use self::scheduling::scheduling;
use crate::config::{Config, ResolvedConfig};
use crate::engine::TwinModel;
use crate::rule::Facts;
use crate::twin::{DevicePreset, MemoryPlan, PredictedStartFailure, Settings};

/// The conversion of vLLM's flags to the twin's settings.
pub static TWIN: &dyn TwinModel = &VllmTwin;

/// Derives the twin's settings, memory plan and number of replicas from vLLM's flags.
#[derive(Debug)]
struct VllmTwin;

/// Flags that change the twin's result. All others have no effect on it.
const EFFECTIVE: [&str; 26] = [
    "async-scheduling",
    "block-size",
    "cpu-offload-gb",
    "data-parallel-rank",
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
    "spec-method",
    "spec-model",
    "spec-tokens",
    "speculative-config",
    "stream-interval",
    "tensor-parallel-size",
];

/// The largest number of simulated replicas. More would show nothing new, because all replicas behave alike.
const MAX_REPLICAS: usize = 256;

impl TwinModel for VllmTwin {
    fn settings(
        &self,
        config: &Config,
        resolved: &ResolvedConfig,
        facts: &Facts<'_>,
        device: &DevicePreset,
        acceptance: Option<f64>,
    ) -> Result<(Settings, MemoryPlan), PredictedStartFailure> {
        let scheduling = scheduling(config, resolved, facts.version, device.cpu, acceptance);
        allocate(resolved, config, facts, device, scheduling)
    }

    fn has_effect(&self, flag: &str) -> bool {
        EFFECTIVE.contains(&flag)
    }

    /// Returns the number of data-parallel engines. It is 1 for the V0 engine, which has no replicas, and for an engine
    /// with a rank: the other ranks are servers of their own.
    fn replicas(&self, config: &Config, resolved: &ResolvedConfig) -> usize {
        let asked = config.get_i64("data-parallel-size").and_then(|size| usize::try_from(size).ok());
        let alone = resolved.v0 || config.get("data-parallel-rank").is_some();
        asked.filter(|_| !alone).unwrap_or(1).clamp(1, MAX_REPLICAS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_on_which_the_number_of_replicas_depends_has_an_effect() {
        let alike = Config::new().with("data-parallel-size", 4_i64);
        let alone = alike.clone().with("data-parallel-rank", 1_i64);
        let replicas = [&alike, &alone].map(|config| TWIN.replicas(config, &Settings::default().resolved));
        assert_eq!(replicas, [4, 1]);
        assert!(TWIN.has_effect("data-parallel-size") && TWIN.has_effect("data-parallel-rank"));
    }

    #[test]
    fn the_flags_with_an_effect_are_sorted() {
        assert!(EFFECTIVE.is_sorted());
    }
}
