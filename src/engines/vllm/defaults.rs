//! The values that the engine works with, including its defaults.
//!
//! Many failures come from one explicit value that conflicts with a default. The defaults depend on the release, the
//! device and the device's memory. Sources: `vllm/config` and `vllm/engine/arg_utils.py` of the releases in
//! `flags/flags.json`.

mod class;
pub(super) mod engine;

use crate::config::{Config, ResolvedConfig, Value};
use crate::facts::{Device, EngineVersion};
use crate::rule::Facts;
use class::DeviceClass;

/// Returns the values that the engine works with: those of `config`, and defaults for the other flags.
#[must_use]
pub fn resolve_config(config: &Config, facts: &Facts<'_>) -> ResolvedConfig {
    let facts = &facts.for_launch(config);
    let number = |name: &str| config.get_i64(name).and_then(|value| u64::try_from(value).ok());
    let version = facts.version;
    let v0 = engine::runs_v0(config, facts);
    // From 0.20 on, -1 requests the longest length that fits.
    let max_model_len =
        number("max-model-len").filter(|length| *length > 0).unwrap_or_else(|| super::rules::lengths(config, facts).0);
    let tensor_parallel_size = number("tensor-parallel-size").unwrap_or(1);
    let pipeline_parallel_size = number("pipeline-parallel-size").unwrap_or(1);
    // Encoder-decoder models neither split prompts nor share prefixes, regardless of the flags.
    let whole = version >= EngineVersion::V0_12 && facts.model.encoder_decoder;
    let chunked_prefill = !whole && uses_chunked_prefill(config, facts, v0, max_model_len);

    let class = DeviceClass::of(facts, v0, tensor_parallel_size.saturating_mul(pipeline_parallel_size));
    let scale =
        u64::from(version >= EngineVersion::V0_20 && config.get_str("performance-mode") == Some("throughput")) + 1;
    let explicit_seqs = number("max-num-seqs");
    let default_seqs = class.seqs.saturating_mul(if v0 { 1 } else { scale });
    let layout = if is_batched_layout(config, version) { BATCHED_LAYOUT_TOKENS } else { class.tokens };
    let default_tokens = layout.saturating_mul(scale);
    let max_num_batched_tokens = number("max-num-batched-tokens").unwrap_or_else(|| {
        let tokens = match (v0, chunked_prefill) {
            (true, _) => return v0_tokens(config, facts, chunked_prefill, max_model_len),
            (false, true) => default_tokens,
            (false, false) => default_tokens.max(max_model_len),
        };
        let most = explicit_seqs.unwrap_or(default_seqs).saturating_mul(max_model_len);
        if version >= EngineVersion::V0_12 { tokens.min(most) } else { tokens }
    });
    let max_num_seqs = explicit_seqs.unwrap_or_else(|| {
        if !v0 && version >= EngineVersion::V0_10 { default_seqs.min(max_num_batched_tokens) } else { default_seqs }
    });
    let whole_prompts = processes_whole_prompts(facts);
    // V0 has no prefix caching for multimodal models, even if the flag is set.
    let shares_prefixes = !(whole || whole_prompts || v0 && facts.model.multimodal);
    // vLLM checks that the budget covers `max_num_seqs` before it replaces the budget. A budget that fails the check is
    // not replaced.
    let is_replaced = whole_prompts && max_num_batched_tokens >= max_num_seqs;
    ResolvedConfig {
        v0,
        max_model_len,
        max_num_batched_tokens: if is_replaced { max_model_len.max(V1_TOKENS) } else { max_num_batched_tokens },
        max_num_seqs,
        block_size: block_size(config, facts),
        chunked_prefill: chunked_prefill && !whole_prompts,
        prefix_caching: shares_prefixes && config.get_bool("enable-prefix-caching").unwrap_or(!v0),
        scheduler_delay_factor: config.get_f64("scheduler-delay-factor").unwrap_or(0.0),
        gpu_memory_utilization: config
            .get_f64("gpu-memory-utilization")
            .unwrap_or(if version >= EngineVersion::V0_20 { 0.92 } else { 0.9 }),
        tensor_parallel_size,
        pipeline_parallel_size,
    }
}

/// Returns the default of a flag if it does not depend on the release, the model and the device
/// (`vllm/engine/arg_utils.py`, `vllm/config`, 0.6.3 to 0.33.0).
#[must_use]
pub(super) fn constant_default(flag: &str) -> Option<Value> {
    Some(match flag {
        "enforce-eager"
        | "enable-expert-parallel"
        | "enable-eplb"
        | "enable-dbo"
        | "disable-custom-all-reduce"
        | "long-prefill-token-threshold-adaptive" => false.into(),
        "scheduler-reserve-full-isl" => true.into(),
        "data-parallel-size" | "decode-context-parallel-size" | "num-scheduler-steps" | "stream-interval" => {
            1_i64.into()
        }
        "watermark" => 0.0.into(),
        "long-prefill-token-threshold" => 0_i64.into(),
        "kv-cache-dtype" => "auto".into(),
        "scheduling-policy" => "fcfs".into(),
        _ => return None,
    })
}

/// Returns whether multi-head latent attention runs by the CPU's reference kernel. That kernel takes whole prompts and
/// blocks of 16 tokens, regardless of the flags: `check_and_update_config` in `vllm/platforms/cpu.py` of 0.32.0.
fn processes_whole_prompts(facts: &Facts<'_>) -> bool {
    facts.device == Device::Cpu
        && facts.version >= EngineVersion::V0_32
        && facts.model.latent.is_some()
        && facts.host.amx == Some(false)
}

/// `DEFAULT_MAX_NUM_BATCHED_TOKENS` of the V1 engine.
const V1_TOKENS: u64 = 2048;

/// `DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP`.
const BATCHED_LAYOUT_TOKENS: u64 = 256;

/// Returns whether experts are spread over data-parallel engines by a kernel for batches of a fixed size:
/// `use_batched_dp_moe` in `vllm/config/parallel.py`.
fn is_batched_layout(config: &Config, version: EngineVersion) -> bool {
    let kernel = config.get_str("all2all-backend");
    version >= EngineVersion::V0_20
        && kernel.is_some_and(|name| ["deepep_low_latency", "nixl_ep"].contains(&name))
        && is_on(config, "enable-expert-parallel")
        && config.get_i64("data-parallel-size").is_some_and(|engines| engines > 1)
}

/// The length in tokens above which the V0 engine enables chunked prefill by itself.
const V0_CHUNKS_ABOVE: u64 = 32_768;

/// The V0 engine's smallest default of the token budget, if chunked prefill does not reduce it.
const V0_TOKENS: u64 = 2048;

/// The smallest default for a multimodal model: `_MULTIMODAL_MODEL_MAX_NUM_BATCHED_TOKENS`.
const V0_MULTIMODAL_TOKENS: u64 = 5120;

fn is_on(config: &Config, name: &str) -> bool {
    config.get_bool(name) == Some(true)
}

/// Returns whether chunked prefill is enabled, by the flag or by default.
fn uses_chunked_prefill(config: &Config, facts: &Facts<'_>, v0: bool, max_model_len: u64) -> bool {
    let asked = config.get_bool("enable-chunked-prefill");
    if v0 {
        let by_itself = max_model_len > V0_CHUNKS_ABOVE
            && facts.device != Device::Cpu
            && !engine::uses_window(config, facts)
            && !facts.model.multimodal
            && !(facts.version >= EngineVersion::V0_8 && facts.model.latent.is_some())
            && config.get("speculative-model").is_none()
            && config.get("speculative-config").is_none()
            && !is_on(config, "enable-lora")
            && !is_on(config, "enable-prompt-adapter");
        return asked.unwrap_or(by_itself);
    }
    // V1 ignores the flag before 0.12.
    facts.version < EngineVersion::V0_12 || asked.unwrap_or(true)
}

/// Returns the V0 engine's default of the token budget: `SchedulerConfig` of 0.6.3 and 0.8.5.
fn v0_tokens(config: &Config, facts: &Facts<'_>, chunked_prefill: bool, max_model_len: u64) -> u64 {
    // Multi-step scheduling does not split prompts.
    let splits = chunked_prefill && config.get_i64("num-scheduler-steps").is_none_or(|steps| steps <= 1);
    let tokens = match splits {
        true if facts.version < EngineVersion::V0_8 => 512,
        true => V0_TOKENS,
        false => max_model_len.max(V0_TOKENS),
    };
    if facts.model.multimodal { tokens.max(V0_MULTIMODAL_TOKENS) } else { tokens }
}

/// Returns the number of tokens in one KV cache block. Kernels for multi-head latent attention force their own until
/// 0.20. Before 0.12 they also replace a given size that is a multiple of it (`check_and_update_config` in
/// `vllm/platforms/cuda.py`).
fn block_size(config: &Config, facts: &Facts<'_>) -> u64 {
    if processes_whole_prompts(facts) {
        return 16;
    }
    let given = config.get_i64("block-size").and_then(|size| u64::try_from(size).ok());
    let default = if facts.device == Device::Cpu && facts.version >= EngineVersion::V0_12 { 128 } else { 16 };
    let size = given.unwrap_or(default);
    match forced_block_size(facts) {
        Some(forced) if facts.version < EngineVersion::V0_12 || !size.is_multiple_of(forced) => forced,
        _ => size,
    }
}

/// Returns the block size that a kernel for multi-head latent attention forces, in tokens.
pub(super) fn forced_block_size(facts: &Facts<'_>) -> Option<u64> {
    let capability = facts.device.gpu()?.capability?;
    let covered = (EngineVersion::V0_8..EngineVersion::V0_20).contains(&facts.version) && facts.model.latent.is_some();
    let backend = facts.env.get("VLLM_ATTENTION_BACKEND").map(String::as_str);
    match (backend, capability.0) {
        _ if !covered => None,
        (None | Some("FLASHMLA"), 9) => Some(64),
        (None | Some("CUTLASS_MLA"), 10) if facts.version >= EngineVersion::V0_10 => Some(128),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::ModelShape;

    fn effective(version: &str, device: Device, length: u64, config: &Config) -> ResolvedConfig {
        let model = ModelShape::from_json(&serde_json::json!({"max_position_embeddings": length}));
        let facts = Facts::new(crate::engines::vllm::VLLM_RULES, &model, version.parse().unwrap(), device);
        resolve_config(config, &facts)
    }

    fn resolve(version: &str, device: Device, length: u64, config: &Config) -> (u64, u64, bool) {
        let effective = effective(version, device, length, config);
        (effective.max_num_batched_tokens, effective.max_num_seqs, effective.chunked_prefill)
    }

    #[test]
    fn an_encoder_decoder_neither_chunks_nor_shares() {
        let json = serde_json::json!({"model_type": "whisper", "max_target_positions": 448});
        let model = ModelShape::from_json(&json);
        let asked = Config::new().with("enable-prefix-caching", true).with("enable-chunked-prefill", true);
        let effective = resolve_config(
            &asked,
            &Facts::new(crate::engines::vllm::VLLM_RULES, &model, EngineVersion::V0_32, Device::Cpu),
        );
        assert_eq!((effective.max_model_len, effective.chunked_prefill, effective.prefix_caching), (448, false, false));
    }

    #[test]
    fn defaults_on_a_cpu_are_those_of_the_real_0_32() {
        let config = |name: &str, value: i64| Config::new().with(name, value);
        let resolve = |length, config: &Config| resolve("0.32.0", Device::Cpu, length, config);
        assert_eq!(resolve(4096, &Config::new()), (2048, 128, true));
        assert_eq!(resolve(4096, &config("tensor-parallel-size", 2)), (4096, 256, true));
        assert_eq!(resolve(4096, &Config::new().with("performance-mode", "throughput")), (4096, 256, true));
        assert_eq!(resolve(4096, &config("max-num-batched-tokens", 100)), (100, 100, true));
        assert_eq!(resolve(8, &config("max-num-seqs", 4)), (32, 4, true));
    }

    #[test]
    fn defaults_on_a_gpu_follow_its_memory_and_the_release() {
        let none = Config::new();
        let (small, large) = (Device::gpu_of(24 << 30), Device::gpu_of(80 << 30));
        assert_eq!(resolve("0.6.3", small, 32_768, &none), (32_768, 256, false));
        assert_eq!(resolve("0.6.3", small, 65_536, &none), (512, 256, true));
        assert_eq!(resolve("0.8.5", large, 32_768, &none), (8192, 1024, true));
        assert_eq!(
            resolve("0.8.5", large, 32_768, &Config::new().with("scheduler-delay-factor", 0.5)),
            (32_768, 256, false)
        );
        assert_eq!(resolve("0.12.0", small, 32_768, &none), (2048, 256, true));
        assert_eq!(resolve("0.32.0", Device::gpu_of(180 << 30), 32_768, &none), (16_384, 1024, true));
        let unchunked = Config::new().with("enable-chunked-prefill", false);
        assert_eq!(resolve("0.32.0", small, 32_768, &unchunked), (32_768, 256, false));
    }

    #[test]
    fn the_old_engines_budget_depends_on_steps_and_on_the_model() {
        let config = Config::new().with("enable-chunked-prefill", true);
        let steps = config.clone().with("num-scheduler-steps", 8_i64);
        let gpu = Device::gpu_of(24 << 30);
        assert_eq!(resolve("0.6.3", gpu, 4096, &config).0, 512);
        assert_eq!(resolve("0.6.3", gpu, 4096, &steps).0, 4096);
        assert_eq!(resolve("0.8.5", gpu, 4096, &steps).0, 4096);
        let shape = serde_json::json!({"max_position_embeddings": 65_536, "vision_config": {}});
        let model = ModelShape::from_json(&shape);
        let facts = Facts::new(crate::engines::vllm::VLLM_RULES, &model, EngineVersion::new(0, 6, 3), gpu);
        let asked = Config::new().with("enable-prefix-caching", true).with("max-model-len", 1024_i64);
        let effective = resolve_config(&asked, &facts);
        assert_eq!((effective.max_num_batched_tokens, effective.prefix_caching), (5120, false));
        assert!(!resolve_config(&Config::new(), &facts).chunked_prefill, "long, but multimodal");
    }

    #[test]
    fn experts_spread_in_fixed_batches_get_a_small_budget_from_0_20_on() {
        let config = Config::new()
            .with("all2all-backend", "deepep_low_latency")
            .with("enable-expert-parallel", true)
            .with("data-parallel-size", 2_i64);
        let large = Device::gpu_of(80 << 30);
        assert_eq!(resolve("0.20.2", large, 4096, &config), (256, 256, true));
        assert_eq!(resolve("0.12.0", large, 4096, &config), (8192, 1024, true));
        assert_eq!(resolve("0.20.2", large, 4096, &config.with("data-parallel-size", 1_i64)), (8192, 1024, true));
    }

    #[test]
    fn an_a100_has_the_defaults_of_a_smaller_device_from_0_10_on() {
        let a100 = Device::Cuda(crate::facts::Gpu { memory: Some(80 << 30), a100: true, ..Default::default() });
        let none = Config::new();
        assert_eq!(resolve("0.8.5", a100, 4096, &none), (8192, 1024, true));
        assert_eq!(resolve("0.10.2", a100, 4096, &none), (2048, 256, true));
        assert_eq!(resolve("0.32.0", a100, 4096, &none), (2048, 256, true));
    }

    #[test]
    fn latent_attention_forces_block_sizes_on_the_devices_of_its_kernels() {
        let model = ModelShape::from_json(&serde_json::json!({"kv_lora_rank": 512, "qk_rope_head_dim": 64}));
        let size = |version: &str, capability, given: i64| {
            let device = Device::Cuda(crate::facts::Gpu { capability, ..Default::default() });
            let facts = Facts::new(crate::engines::vllm::VLLM_RULES, &model, version.parse().unwrap(), device);
            resolve_config(&Config::new().with("block-size", given), &facts).block_size
        };
        assert_eq!(size("0.8.5", Some((9, 0)), 128), 64);
        assert_eq!(size("0.12.0", Some((9, 0)), 128), 128);
        assert_eq!(size("0.12.0", Some((9, 0)), 32), 64);
        assert_eq!((size("0.8.5", Some((10, 0)), 32), size("0.10.2", Some((10, 0)), 32)), (32, 128));
        assert_eq!((size("0.8.5", Some((8, 0)), 32), size("0.8.5", None, 32)), (32, 32));
        assert_eq!(size("0.20.2", Some((9, 0)), 32), 32);
    }

    #[test]
    fn latent_attention_on_a_cpu_without_tiles_takes_whole_prompts_and_blocks_of_16() {
        use crate::facts::HostLimits;
        let json = serde_json::json!({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "max_position_embeddings": 4096});
        let model = ModelShape::from_json(&json);
        let asked = |tokens: i64| {
            Config::new()
                .with("max-num-batched-tokens", tokens)
                .with("block-size", 64_i64)
                .with("max-num-seqs", 128_i64)
        };
        let of = |version: &str, amx, tokens: i64| {
            let host = HostLimits { amx, ..HostLimits::default() };
            let facts = Facts {
                host,
                ..Facts::new(crate::engines::vllm::VLLM_RULES, &model, version.parse().unwrap(), Device::Cpu)
            };
            let found = resolve_config(&asked(tokens), &facts);
            (found.max_num_batched_tokens, found.block_size, found.chunked_prefill, found.prefix_caching)
        };
        assert_eq!(of("0.32.0", Some(false), 256), (4096, 16, false, false));
        assert_eq!(of("0.32.0", Some(false), 100), (100, 16, false, false), "refused: fewer tokens than sequences");
        for amx in [Some(true), None] {
            assert_eq!(of("0.32.0", amx, 256), (256, 64, true, true));
        }
    }

    #[test]
    fn the_share_of_memory_and_the_capped_budget_came_with_a_release() {
        let gpu = Device::gpu_of(24 << 30);
        let share = |version| effective(version, gpu, 4096, &Config::new()).gpu_memory_utilization;
        assert!((share("0.12.0") - 0.9).abs() < 1e-9 && (share("0.20.2") - 0.92).abs() < 1e-9);
        let four = Config::new().with("max-num-seqs", 4_i64);
        assert_eq!((resolve("0.10.2", gpu, 8, &four).0, resolve("0.12.0", gpu, 8, &four).0), (2048, 32));
    }

    #[test]
    fn numbers_as_large_as_they_can_be_do_not_overflow() {
        let all = ["tensor-parallel-size", "pipeline-parallel-size", "max-num-seqs", "max-model-len"];
        let huge = all.into_iter().fold(Config::new(), |config, name| config.with(name, i64::MAX));
        for device in [Device::Cpu, Device::UNKNOWN_GPU] {
            assert!(resolve("0.32.0", device, 4096, &huge).0 > 0);
        }
    }
}
