//! What only a started engine knows: how the device's memory is divided, and what does not fit into it.

use super::refusal::Refusal;
use crate::config::Config;
use crate::facts::EngineVersion;
use crate::rule::{Effective, Facts, memory_launch};
use crate::twin::{DevicePreset, MemoryPlan, Policy, Scheduling, Settings, kv_blocks};

const GIB: u64 = 1 << 30;

/// Divides the memory and gives the scheduler its settings, or refuses as the engine's own process does.
pub(super) fn allocate(
    effective: &Effective,
    config: &Config,
    facts: &Facts<'_>,
    device: &DevicePreset,
) -> Result<(Settings, MemoryPlan), Refusal> {
    let version = facts.version;
    check_free_memory(effective.gpu_memory_utilization, version, device)?;
    let fp8 = config.get_str("kv-cache-dtype").is_some_and(|dtype| dtype.starts_with("fp8"));
    let mut settings = Settings {
        policy: if effective.v0 { Policy::V0 } else { Policy::V1 },
        max_model_len: narrow(effective.max_model_len),
        max_num_seqs: narrow(effective.max_num_seqs),
        max_num_batched_tokens: narrow(effective.max_num_batched_tokens),
        block_size: narrow(effective.block_size),
        num_blocks: 0,
        chunked_prefill: effective.chunked_prefill,
        prefix_caching: effective.prefix_caching,
        scheduler_delay_factor: effective.scheduler_delay_factor,
        eager: config.get_bool("enforce-eager").unwrap_or(false),
        cache_dtype_bytes: fp8.then_some(1),
        // A client takes its tokens one by one, and the clock knows one device: neither is simulated yet.
        scheduling: Scheduling {
            pipeline_stages: 1,
            stream_interval: 1,
            ..Scheduling::resolve(config, version, device.cpu, None)
        },
    };
    let launch = memory_launch(config, facts, effective);
    let plan = kv_blocks(facts.model, device, &launch)
        .map_err(|error| Refusal::traceback("config/model.py", &format!("KeyError: '{error}'")))?;
    if plan.blocks == 0 && launch.blocks.is_none() {
        let cause = "ValueError: No available memory for the cache blocks. Try increasing \
                     `gpu_memory_utilization` when initializing the engine.";
        return Err(Refusal::engine(version, cause));
    }
    // V1 keeps one block for itself.
    settings.num_blocks = if effective.v0 { plan.blocks } else { plan.blocks.saturating_sub(1) };
    if !plan.layout.holds(plan.blocks.into(), effective.max_model_len) {
        return Err(Refusal::engine(version, &too_small(version, &plan, &settings)));
    }
    Ok((settings, plan))
}

/// No simulated device has room for more than this.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Since 0.10 the share that is asked for must be free before anything is loaded.
#[expect(clippy::cast_precision_loss, reason = "memory sizes as shares and for display")]
fn check_free_memory(utilization: f64, version: EngineVersion, device: &DevicePreset) -> Result<(), Refusal> {
    let total = device.memory as f64;
    let (free, wanted) = ((device.memory - device.context) as f64, total * utilization);
    if version < EngineVersion::new(0, 10, 0) || wanted <= free {
        return Ok(());
    }
    let gib = |bytes: f64| format!("{:.2}", bytes / GIB as f64);
    let cause = format!(
        "ValueError: Free memory on device cuda:0 ({}/{} GiB) on startup is less than desired GPU memory \
         utilization ({utilization}, {} GiB). Decrease GPU memory utilization or reduce GPU memory used by other \
         processes.",
        gib(free),
        gib(total),
        gib(wanted)
    );
    Err(Refusal::engine(version, &cause))
}

fn too_small(version: EngineVersion, plan: &MemoryPlan, settings: &Settings) -> String {
    let len = settings.max_model_len;
    let most = plan.layout.largest_length(plan.blocks.into(), u32::MAX.into());
    let advice = "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.";
    if settings.policy == Policy::V0 {
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
        "ValueError: To serve at least one request with the model(s)'s max seq len ({len}), ({needed} GiB KV cache \
         is needed, which is larger than the available KV cache memory ({} GiB).{estimate} {advice}",
        gib(plan.cache)
    )
}

/// Two decimals, as vLLM prints sizes.
#[expect(clippy::cast_precision_loss, reason = "printed with two decimals")]
pub(super) fn gib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / GIB as f64)
}
