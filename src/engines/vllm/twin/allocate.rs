//! The simulation of a start's memory: its division on the device, and the shortages.

use crate::config::{Config, ResolvedConfig};
use crate::engines::vllm::rules::memory_launch;
use crate::facts::EngineVersion;
use crate::rule::Facts;
use crate::stats::gib;
use crate::twin::{DevicePreset, MemoryPlan, PredictedStartFailure, Scheduling, Settings, plan_memory};

/// Divides the memory of one device and returns the scheduler's settings.
///
/// # Errors
/// If the engine would not start.
pub(super) fn allocate(
    effective: &ResolvedConfig,
    config: &Config,
    facts: &Facts<'_>,
    device: &DevicePreset,
    scheduling: Scheduling,
) -> Result<(Settings, MemoryPlan), PredictedStartFailure> {
    // A device may have more or less memory than its preset, such as an A100 of 40 GB.
    let memory = facts.device.gpu().and_then(|gpu| gpu.memory).unwrap_or(device.memory);
    let device = &DevicePreset { memory, ..device.clone() };
    check_free_memory(effective.gpu_memory_utilization, facts.version, device)?;
    let fp8 = config.get_str("kv-cache-dtype").is_some_and(|dtype| dtype.starts_with("fp8"));
    let mut settings = Settings {
        resolved: *effective,
        num_blocks: 0,
        eager: config.get_bool("enforce-eager").unwrap_or(false),
        cache_dtype_bytes: fp8.then_some(1),
        scheduling,
    };
    let launch = memory_launch(config, facts, effective);
    let plan = plan_memory(facts.model, device, &launch)?;
    if plan.blocks == 0 && launch.blocks.is_none() {
        return Err(PredictedStartFailure::NoCache);
    }
    // V1 reserves one block.
    settings.num_blocks = if effective.v0 { plan.blocks } else { plan.blocks.saturating_sub(1) };
    if !plan.layout.holds(plan.blocks.into(), effective.max_model_len) {
        return Err(PredictedStartFailure::CacheTooSmall { plan, settings: Box::new(settings) });
    }
    Ok((settings, plan))
}

fn check_free_memory(
    utilization: f64,
    version: EngineVersion,
    device: &DevicePreset,
) -> Result<(), PredictedStartFailure> {
    let (total_gib, free_gib) = (gib(device.memory), gib(device.memory.saturating_sub(device.context_memory)));
    let wanted_gib = total_gib * utilization;
    if version < EngineVersion::V0_10 || wanted_gib <= free_gib {
        return Ok(());
    }
    Err(PredictedStartFailure::MemoryNotFree { utilization, wanted_gib, free_gib, total_gib })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::resolve_config;
    use crate::facts::ModelShape;

    fn llama() -> ModelShape {
        ModelShape::from_json(&serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
            "max_position_embeddings": 8192, "torch_dtype": "bfloat16"
        }))
    }

    fn on(device: &str, config: &Config) -> Result<(Settings, MemoryPlan), PredictedStartFailure> {
        let (model, device) = (llama(), DevicePreset::find(device).unwrap());
        let facts = Facts::new(crate::engines::vllm::VLLM_RULES, &model, EngineVersion::V0_32, device.device());
        let effective = resolve_config(config, &facts);
        allocate(&effective, config, &facts, device, Scheduling::default())
    }

    #[test]
    fn a_shortage_is_reported_with_its_sizes() {
        let problem = |device, config: &Config| on(device, config).unwrap_err().to_string();
        let all = Config::new().with("gpu-memory-utilization", 1.0);
        assert_eq!(
            problem("l4", &all),
            "gpu-memory-utilization 1 requests 22.04 GiB, but 21.65 of 22.04 GiB are free on the device"
        );
        let little = Config::new().with("gpu-memory-utilization", 0.5);
        assert_eq!(problem("l4", &little), "the weights and the activations leave no memory for the KV cache");
        let few = Config::new().with("num-gpu-blocks-override", 10);
        let text = problem("h100", &few);
        assert!(text.starts_with("the KV cache has 10 blocks") && text.contains("max-model-len 8192"), "{text}");
    }

    #[test]
    fn a_device_of_another_size_than_its_preset_has_a_smaller_cache() {
        let (model, device) = (llama(), DevicePreset::find("a100").unwrap());
        let blocks = |described: crate::facts::Device| {
            let facts = Facts::new(crate::engines::vllm::VLLM_RULES, &model, EngineVersion::V0_32, described);
            let effective = resolve_config(&Config::new(), &facts);
            let (settings, _) = allocate(&effective, &Config::new(), &facts, device, Scheduling::default()).unwrap();
            settings.num_blocks
        };
        let (whole, half) = (blocks(device.device()), blocks(crate::facts::Device::gpu_of(40 << 30)));
        assert!(half < whole / 2, "{half} {whole}");
    }

    #[test]
    fn settings_are_those_that_the_engine_resolves() {
        let config = Config::new().with("max-num-seqs", 7).with("kv-cache-dtype", "fp8").with("enforce-eager", true);
        let (settings, plan) = on("h100", &config).unwrap();
        assert_eq!((settings.max_num_seqs(), settings.cache_dtype_bytes, settings.eager), (7, Some(1), true));
        assert_eq!((settings.resolved.v0, settings.num_blocks), (false, plan.blocks - 1));
    }
}
