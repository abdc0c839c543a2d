//! Division of the device's memory at the start, and refusals for lack of memory.

use super::refusal::Refusal;
use crate::config::{Config, ResolvedConfig};
use crate::engines::vllm::TWIN;
use crate::facts::EngineVersion;
use crate::rule::Facts;
use crate::stats::gib;
use crate::twin::{DevicePreset, MemoryPlan, PredictedStartFailure, Settings};

/// Divides the memory of one device. Returns the scheduler's settings and the division, or vLLM's refusal.
pub(super) fn allocate(
    effective: &ResolvedConfig,
    config: &Config,
    facts: &Facts<'_>,
    device: &DevicePreset,
    acceptance: f64,
) -> Result<(Settings, MemoryPlan), Refusal> {
    let version = facts.version;
    TWIN.settings(config, effective, facts, device, Some(acceptance)).map_err(|shortage| match &shortage {
        PredictedStartFailure::Shape(error) => Refusal::traceback("config/model.py", &format!("KeyError: '{error}'")),
        PredictedStartFailure::MemoryNotFree { utilization, wanted_gib, free_gib, total_gib } => {
            let cause = format!(
                "ValueError: Free memory on device cuda:0 ({free_gib:.2}/{total_gib:.2} GiB) on startup is less than \
                 desired GPU memory utilization ({utilization}, {wanted_gib:.2} GiB). Decrease GPU memory utilization \
                 or reduce GPU memory used by other processes."
            );
            Refusal::engine(version, &cause)
        }
        PredictedStartFailure::NoCache => {
            let cause = "ValueError: No available memory for the cache blocks. Try increasing \
                         `gpu_memory_utilization` when initializing the engine.";
            Refusal::engine(version, cause)
        }
        PredictedStartFailure::CacheTooSmall { plan, settings } => {
            Refusal::engine(version, &too_small(version, plan, settings))
        }
    })
}

fn too_small(version: EngineVersion, plan: &MemoryPlan, settings: &Settings) -> String {
    let len = settings.max_model_len();
    let most = plan.layout.largest_length(plan.blocks.into(), u32::MAX.into());
    let advice = "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.";
    if settings.resolved.v0 {
        return format!(
            "ValueError: The model's max seq len ({len}) is larger than the maximum number of tokens that can \
             be stored in KV cache ({most}). {advice}"
        );
    }
    let needed = gib(plan.layout.bytes_needed(len.into()));
    let estimate = if version >= EngineVersion::new(0, 10, 0) {
        format!(" Based on the available memory, the estimated maximum model length is {most}.")
    } else {
        String::new()
    };
    format!(
        "ValueError: To serve at least one request with the model(s)'s max seq len ({len}), ({needed:.2} GiB KV cache \
         is needed, which is larger than the available KV cache memory ({:.2} GiB).{estimate} {advice}",
        gib(plan.cache)
    )
}
