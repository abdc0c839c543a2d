//! From the flags that were given to the settings that the engine runs with, refusing what vLLM refuses.

use super::refusal::{Refusal, validates};
use crate::config::Config;
use crate::facts::{Device, EngineVersion, ModelShape};
use crate::flag::FlagTable;
use crate::twin::{DevicePreset, MemoryPlan, MemoryUse, Policy, Settings, kv_blocks};

const GIB: u64 = 1 << 30;

/// The values in force after the release's defaults.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Effective {
    pub(super) policy: Policy,
    pub(super) max_model_len: u32,
    pub(super) max_num_batched_tokens: u32,
    pub(super) max_num_seqs: u32,
    pub(super) block_size: u32,
    pub(super) chunked_prefill: bool,
    pub(super) prefix_caching: bool,
    pub(super) scheduler_delay_factor: f64,
    pub(super) gpu_memory_utilization: f64,
}

impl Effective {
    pub(super) fn resolve(
        config: &Config,
        model: &ModelShape,
        version: EngineVersion,
        device: Device,
    ) -> Result<Self, Refusal> {
        check_bounds(config, version)?;
        check_devices(config, version, device)?;
        let given = |name| config.get_i64(name).map(|value| u32::try_from(value).unwrap_or(0));
        let delay = config.get_f64("scheduler-delay-factor").unwrap_or(0.0);
        let v0 = version.is_v0() || (version < EngineVersion::new(0, 12, 0) && delay != 0.0);
        let derived = u32::try_from(model.max_model_len).unwrap_or(u32::MAX);
        let max_model_len = given("max-model-len").filter(|len| *len > 0).unwrap_or(derived);
        if max_model_len > derived {
            let message = format!(
                "User-specified max_model_len ({max_model_len}) is greater than the derived max_model_len \
                 (max_position_embeddings={derived} or model_max_length=None in model's config.json). This may lead \
                 to incorrect model outputs or CUDA errors."
            );
            return Err(Refusal::value(version, "ModelConfig", &message));
        }
        let chunked = config.get_bool("enable-chunked-prefill");
        let chunked_prefill = match (v0, chunked) {
            (true, chunked) => chunked.unwrap_or(device != Device::Cpu && max_model_len > 32768),
            // Before 0.12, V1 always splits prompts.
            (false, Some(false)) => version < EngineVersion::new(0, 12, 0),
            (false, _) => true,
        };
        let (tokens, seqs) = defaults(config, version, v0, device);
        let tokens = match (v0, chunked_prefill) {
            (true, true) => {
                if version.is_v0() {
                    512
                } else {
                    2048
                }
            }
            (true, false) => max_model_len.max(2048),
            (false, false) => tokens.max(max_model_len),
            (false, true) => tokens,
        };
        let (given_tokens, given_seqs) = (given("max-num-batched-tokens"), given("max-num-seqs"));
        let adapts = version >= EngineVersion::new(0, 10, 0) && !v0;
        let mut max_num_seqs = given_seqs.unwrap_or(seqs);
        let mut max_num_batched_tokens = given_tokens.unwrap_or(tokens);
        if adapts && given_tokens.is_none() {
            max_num_batched_tokens = max_num_batched_tokens.min(max_num_seqs.saturating_mul(max_model_len));
        }
        if adapts && given_seqs.is_none() {
            max_num_seqs = max_num_seqs.min(max_num_batched_tokens);
        }
        let default_block = match (device, version >= EngineVersion::new(0, 8, 0)) {
            (Device::Cpu, true) => 128,
            _ => 16,
        };
        let effective = Self {
            policy: if v0 { Policy::V0 } else { Policy::V1 },
            max_model_len,
            max_num_batched_tokens,
            max_num_seqs,
            block_size: given("block-size").unwrap_or(default_block),
            chunked_prefill,
            prefix_caching: config.get_bool("enable-prefix-caching").unwrap_or(!v0),
            scheduler_delay_factor: delay,
            gpu_memory_utilization: config
                .get_f64("gpu-memory-utilization")
                .unwrap_or(if version >= EngineVersion::new(0, 20, 0) { 0.92 } else { 0.9 }),
        };
        effective.check(version)?;
        Ok(effective)
    }

    fn check(&self, version: EngineVersion) -> Result<(), Refusal> {
        let (tokens, seqs, len) = (self.max_num_batched_tokens, self.max_num_seqs, self.max_model_len);
        let refuse = |message: &str| Err(Refusal::value(version, "SchedulerConfig", message));
        if !self.chunked_prefill && tokens < len {
            return refuse(&format!(
                "max_num_batched_tokens ({tokens}) is smaller than max_model_len ({len}). This effectively limits \
                 the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. \
                 Please increase max_num_batched_tokens or decrease max_model_len."
            ));
        }
        if tokens < seqs {
            return refuse(&format!(
                "max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs})."
            ));
        }
        let utilization = self.gpu_memory_utilization;
        if utilization > 1.0 {
            let message = format!("GPU memory utilization must be less than 1.0. Got {utilization}.");
            return Err(Refusal::value(version, "CacheConfig", &message));
        }
        if tokens == 0 || seqs == 0 || self.block_size == 0 {
            // Old releases do not check these and break later.
            return Err(Refusal::traceback(
                "engine/llm_engine.py",
                "ZeroDivisionError: integer division or modulo by zero",
            ));
        }
        Ok(())
    }

    /// Divides the memory and gives the scheduler its settings, or refuses as the engine's own process does.
    pub(super) fn allocate(
        &self,
        config: &Config,
        model: &ModelShape,
        version: EngineVersion,
        device: &DevicePreset,
    ) -> Result<(Settings, MemoryPlan), Refusal> {
        self.check_block_size(version, device)?;
        self.check_free_memory(version, device)?;
        let eager = config.get_bool("enforce-eager").unwrap_or(false);
        let fp8 = config.get_str("kv-cache-dtype").is_some_and(|dtype| dtype.starts_with("fp8"));
        let cache_dtype_bytes = fp8.then_some(1);
        let usage = MemoryUse {
            utilization: self.gpu_memory_utilization,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_num_seqs: self.max_num_seqs,
            block_size: self.block_size,
            eager,
            cache_dtype_bytes,
        };
        let mut plan = kv_blocks(model, device, &usage)
            .map_err(|error| Refusal::traceback("config/model.py", &format!("KeyError: '{error}'")))?;
        let unsigned = |name| config.get_i64(name).and_then(|value| u64::try_from(value).ok());
        if let Some(bytes) = unsigned("kv-cache-memory-bytes") {
            plan.cache = bytes;
            plan.blocks = u32::try_from(bytes / plan.block_bytes).unwrap_or(u32::MAX);
        }
        let overridden = unsigned("num-gpu-blocks-override").and_then(|blocks| u32::try_from(blocks).ok());
        if plan.blocks == 0 && overridden.is_none() {
            let cause = "ValueError: No available memory for the cache blocks. Try increasing \
                         `gpu_memory_utilization` when initializing the engine.";
            return Err(Refusal::engine(version, cause));
        }
        plan.blocks = overridden.unwrap_or(plan.blocks);
        // V1 keeps one block for itself.
        let usable = if self.policy == Policy::V1 { plan.blocks.saturating_sub(1) } else { plan.blocks };
        let needed = self.max_model_len.div_ceil(self.block_size);
        if usable < needed {
            return Err(Refusal::engine(version, &self.too_small(version, &plan, usable)));
        }
        let settings = Settings {
            policy: self.policy,
            max_model_len: self.max_model_len,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            block_size: self.block_size,
            num_blocks: usable,
            chunked_prefill: self.chunked_prefill,
            prefix_caching: self.prefix_caching,
            scheduler_delay_factor: self.scheduler_delay_factor,
            eager,
            cache_dtype_bytes,
        };
        Ok((settings, plan))
    }

    /// Since 0.10 the share that is asked for must be free before anything is loaded.
    #[expect(clippy::cast_precision_loss, reason = "memory sizes as shares and for display")]
    fn check_free_memory(&self, version: EngineVersion, device: &DevicePreset) -> Result<(), Refusal> {
        let (total, utilization) = (device.memory as f64, self.gpu_memory_utilization);
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

    /// V1's attention kernels take only multiples of their own block size.
    fn check_block_size(&self, version: EngineVersion, device: &DevicePreset) -> Result<(), Refusal> {
        let unit = match (self.policy, device.cpu) {
            (Policy::V0, _) => 1,
            (Policy::V1, true) => 32,
            (Policy::V1, false) => 16,
        };
        if self.block_size.is_multiple_of(unit) {
            return Ok(());
        }
        let cause = if version >= EngineVersion::new(0, 12, 0) {
            let kernel = if device.cpu { "CPU_ATTN" } else { "FLASH_ATTN" };
            format!("ValueError: No common block size for {} ({kernel}: [MultipleOf({unit})]).", self.block_size)
        } else {
            format!("ValueError: Block size must be a multiple of {unit}.")
        };
        Err(Refusal::engine(version, &cause))
    }

    fn too_small(&self, version: EngineVersion, plan: &MemoryPlan, usable: u32) -> String {
        let (len, most) = (self.max_model_len, u64::from(usable) * u64::from(self.block_size));
        let advice =
            "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.";
        if self.policy == Policy::V0 {
            return format!(
                "ValueError: The model's max seq len ({len}) is larger than the maximum number of tokens that can \
                 be stored in KV cache ({most}). {advice}"
            );
        }
        let needed = gib(u64::from(len.div_ceil(self.block_size)) * plan.block_bytes);
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
}

/// Defaults of `max_num_batched_tokens` and `max_num_seqs` in a server, before they adapt to each other.
fn defaults(config: &Config, version: EngineVersion, v0: bool, device: Device) -> (u32, u32) {
    if v0 {
        return (2048, 256);
    }
    let workers = workers(config);
    let (tokens, seqs) = match device {
        Device::Cpu => (2048 * workers, 128 * workers),
        Device::Cuda { memory } if memory >= 160 * GIB && version >= EngineVersion::new(0, 32, 0) => (16384, 1024),
        Device::Cuda { memory } if memory >= 70 * GIB => (8192, 1024),
        Device::Cuda { .. } => (2048, 256),
    };
    let doubled = u32::from(config.get_str("performance-mode") == Some("throughput"));
    (tokens << doubled, seqs << doubled)
}

fn workers(config: &Config) -> u32 {
    let parallel = |name| config.get_i64(name).and_then(|value| u32::try_from(value).ok()).unwrap_or(1);
    parallel("tensor-parallel-size").saturating_mul(parallel("pipeline-parallel-size"))
}

/// One device is simulated.
fn check_devices(config: &Config, version: EngineVersion, device: Device) -> Result<(), Refusal> {
    let workers = workers(config);
    if workers <= 1 || device == Device::Cpu {
        return Ok(());
    }
    let message = if version >= EngineVersion::new(0, 20, 0) {
        format!("World size ({workers}) is larger than the number of available GPUs (1) in this node.")
    } else if version >= EngineVersion::new(0, 12, 0) {
        format!("Tensor parallel size ({workers}) cannot be larger than the number of available GPUs (1).")
    } else {
        "Unable to load Ray which is required for multi-node inference, please install Ray with `pip install ray`."
            .to_owned()
    };
    Err(Refusal::value(version, "ParallelConfig", &message))
}

fn check_bounds(config: &Config, version: EngineVersion) -> Result<(), Refusal> {
    if !validates(version) {
        return Ok(());
    }
    let table = FlagTable::for_version(version);
    for (name, value) in config.iter() {
        let (Some(number), Some(bounds)) = (value.as_f64(), table.find(name).and_then(|flag| flag.bounds())) else {
            continue;
        };
        let broken = [
            (bounds.ge, "greater than or equal to", "greater_than_equal", bounds.ge.is_some_and(|ge| number < ge)),
            (bounds.gt, "greater than", "greater_than", bounds.gt.is_some_and(|gt| number <= gt)),
            (bounds.le, "less than or equal to", "less_than_equal", bounds.le.is_some_and(|le| number > le)),
            (bounds.lt, "less than", "less_than", bounds.lt.is_some_and(|lt| number >= lt)),
        ];
        if let Some((Some(bound), words, kind, _)) = broken.into_iter().find(|(.., broken)| *broken) {
            let class = match name {
                "block-size" | "gpu-memory-utilization" | "swap-space" | "cpu-offload-gb" => "CacheConfig",
                "tensor-parallel-size" | "pipeline-parallel-size" | "data-parallel-size" => "ParallelConfig",
                "max-model-len" => "ModelConfig",
                _ => "SchedulerConfig",
            };
            let field = name.replace('-', "_");
            return Err(Refusal::field(class, &field, &format!("{words} {bound}"), kind, &value.to_string()));
        }
    }
    Ok(())
}

/// Two decimals, as vLLM prints sizes.
#[expect(clippy::cast_precision_loss, reason = "printed with two decimals")]
pub(super) fn gib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / GIB as f64)
}
