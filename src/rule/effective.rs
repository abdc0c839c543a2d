//! The values that the engine works with once its defaults are filled in.
//!
//! Many failures come from one explicit value against a defaulted one, and the defaults depend on the release, the
//! device and the device's memory. Sources: `vllm/config`, `vllm/engine/arg_utils.py` of the releases in `flag`.

use super::Facts;
use crate::config::Config;
use crate::facts::{Device, EngineVersion, Gpu};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effective {
    /// Whether the V0 engine would run.
    pub v0: bool,
    /// Tokens; a sequence's prompt and output together.
    pub max_model_len: u64,
    /// Tokens in one step.
    pub max_num_batched_tokens: u64,
    /// Sequences in one batch.
    pub max_num_seqs: u64,
    /// Tokens in one KV block.
    pub block_size: u64,
    pub chunked_prefill: bool,
    pub prefix_caching: bool,
    pub scheduler_delay_factor: f64,
    pub gpu_memory_utilization: f64,
    pub tensor_parallel_size: u64,
    pub pipeline_parallel_size: u64,
}

const V0_8: EngineVersion = EngineVersion::new(0, 8, 0);
const V0_10: EngineVersion = EngineVersion::new(0, 10, 0);
const V0_12: EngineVersion = EngineVersion::new(0, 12, 0);
const V0_20: EngineVersion = EngineVersion::new(0, 20, 0);
const V0_32: EngineVersion = EngineVersion::new(0, 32, 0);

impl Effective {
    #[must_use]
    pub fn resolve(config: &Config, facts: &Facts<'_>) -> Self {
        let number = |name: &str| config.get_i64(name).and_then(|value| u64::try_from(value).ok());
        let version = facts.version;
        let v0 = runs_v0(config, facts);
        // From 0.20 on, -1 asks for as much as fits.
        let max_model_len =
            number("max-model-len").filter(|length| *length > 0).unwrap_or_else(|| facts.model.max_model_len(version));
        let tensor_parallel_size = number("tensor-parallel-size").unwrap_or(1);
        let pipeline_parallel_size = number("pipeline-parallel-size").unwrap_or(1);
        let chunked_prefill = chunks(config, facts, v0, max_model_len);

        let class = Class::of(facts, v0, tensor_parallel_size.saturating_mul(pipeline_parallel_size));
        let scale = u64::from(version >= V0_20 && config.get_str("performance-mode") == Some("throughput")) + 1;
        let explicit_seqs = number("max-num-seqs");
        let default_seqs = class.seqs.saturating_mul(if v0 { 1 } else { scale });
        let default_tokens = class.tokens.saturating_mul(scale);
        let max_num_batched_tokens = number("max-num-batched-tokens").unwrap_or_else(|| {
            let tokens = match (v0, chunked_prefill) {
                (true, true) => return if version < V0_8 { 512 } else { 2048 },
                (true, false) => return max_model_len.max(2048),
                (false, true) => default_tokens,
                (false, false) => default_tokens.max(max_model_len),
            };
            let most = explicit_seqs.unwrap_or(default_seqs).saturating_mul(max_model_len);
            if version >= V0_12 { tokens.min(most) } else { tokens }
        });
        let max_num_seqs = explicit_seqs.unwrap_or_else(|| {
            if !v0 && version >= V0_10 { default_seqs.min(max_num_batched_tokens) } else { default_seqs }
        });
        Self {
            v0,
            max_model_len,
            max_num_batched_tokens,
            max_num_seqs,
            block_size: number("block-size").unwrap_or(if facts.device == Device::Cpu && version >= V0_12 {
                128
            } else {
                16
            }),
            chunked_prefill,
            prefix_caching: config.get_bool("enable-prefix-caching").unwrap_or(!v0),
            scheduler_delay_factor: config.get_f64("scheduler-delay-factor").unwrap_or(0.0),
            gpu_memory_utilization: config.get_f64("gpu-memory-utilization").unwrap_or(if version >= V0_20 {
                0.92
            } else {
                0.9
            }),
            tensor_parallel_size,
            pipeline_parallel_size,
        }
    }
}

/// From 0.8 to 0.11 both engines exist, and some flags, devices and models silently select the old one.
fn runs_v0(config: &Config, facts: &Facts<'_>) -> bool {
    let version = facts.version;
    if version < V0_8 || version >= V0_12 {
        return version < V0_8;
    }
    let other_than = |name: &str, value: i64| config.get_i64(name).is_some_and(|given| given != value);
    let cpu = facts.device == Device::Cpu;
    let by_platform = if version < V0_10 { cpu } else { cpu && facts.model.sliding_window.is_some() };
    let by_policy = version < V0_10 && config.get_str("scheduling-policy").is_some_and(|policy| policy != "fcfs");
    facts.env.get("VLLM_USE_V1").is_some_and(|value| value == "0")
        || by_platform
        || by_policy
        || config.get_f64("scheduler-delay-factor").is_some_and(|factor| factor != 0.0)
        || config.get_str("preemption-mode").is_some()
        || config.get_bool("disable-async-output-proc") == Some(true)
        || ["num-scheduler-steps", "max-num-partial-prefills", "max-long-partial-prefills"]
            .into_iter()
            .any(|name| other_than(name, 1))
}

/// Above this length the V0 engine turns chunked prefill on by itself.
const V0_CHUNKS_ABOVE: u64 = 32_768;

fn chunks(config: &Config, facts: &Facts<'_>, v0: bool, max_model_len: u64) -> bool {
    let asked = config.get_bool("enable-chunked-prefill");
    if v0 {
        let by_itself = max_model_len > V0_CHUNKS_ABOVE
            && facts.device != Device::Cpu
            && facts.model.sliding_window.is_none()
            && config.get("speculative-model").is_none()
            && config.get_bool("enable-lora") != Some(true);
        return asked.unwrap_or(by_itself);
    }
    // V1 ignores the flag before 0.12.
    facts.version < V0_12 || asked.unwrap_or(true)
}

/// Defaults of the token budget and the batch, which depend on the device.
struct Class {
    tokens: u64,
    seqs: u64,
}

impl Class {
    fn of(facts: &Facts<'_>, v0: bool, workers: u64) -> Self {
        const GIB: u64 = 1 << 30;
        match facts.device {
            _ if v0 => Self { tokens: 0, seqs: 256 },
            Device::Cpu => Self { tokens: workers.saturating_mul(2048), seqs: workers.saturating_mul(128) },
            // Of an unknown memory assume what refuses least: many tokens and few sequences.
            Device::Cuda(Gpu { memory: None, .. }) => {
                Self { tokens: if facts.version >= V0_32 { 16_384 } else { 8192 }, seqs: 256 }
            }
            Device::Cuda(Gpu { memory: Some(memory), .. }) if memory >= 160 * GIB && facts.version >= V0_32 => {
                Self { tokens: 16_384, seqs: 1024 }
            }
            // From 0.10 an A100 counts as a smaller device.
            Device::Cuda(Gpu { memory: Some(memory), a100, .. })
                if memory >= 70 * GIB && !(a100 && facts.version >= V0_10) =>
            {
                Self { tokens: 8192, seqs: 1024 }
            }
            Device::Cuda(_) => Self { tokens: 2048, seqs: 256 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::ModelShape;

    fn effective(version: &str, device: Device, length: u64, config: &Config) -> Effective {
        let model = ModelShape::from_json(&serde_json::json!({"max_position_embeddings": length}));
        let facts = Facts::new(&model, version.parse().unwrap(), device);
        Effective::resolve(config, &facts)
    }

    fn resolve(version: &str, device: Device, length: u64, config: &Config) -> (u64, u64, bool) {
        let effective = effective(version, device, length, config);
        (effective.max_num_batched_tokens, effective.max_num_seqs, effective.chunked_prefill)
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
    fn the_old_engine_runs_where_the_new_one_does_not_support_the_device_or_a_flag() {
        let v0 = |version: &str, device, config: &Config| effective(version, device, 4096, config).v0;
        let (gpu, none) = (Device::gpu_of(24 << 30), Config::new());
        assert!(v0("0.8.5", Device::Cpu, &none) && !v0("0.10.2", Device::Cpu, &none));
        assert!(!v0("0.8.5", gpu, &none));
        let partial = Config::new().with("max-num-partial-prefills", 2_i64);
        assert!(v0("0.10.2", gpu, &partial) && !v0("0.12.0", gpu, &partial));
        let priority = Config::new().with("scheduling-policy", "priority");
        assert!(v0("0.8.5", gpu, &priority) && !v0("0.10.2", gpu, &priority));
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
