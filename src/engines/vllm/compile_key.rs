//! The key of compiled code. Configurations with equal keys share the code that `torch.compile` has compiled.

use super::defaults::constant_default;
use crate::config::{Config, ResolvedConfig};
use crate::facts::EngineVersion;
use crate::rule::Facts;

/// Numeric flags with a default that depends on the model, the release, the device or other flags. The key contains
/// their resolved values.
const RESOLVED: [&str; 6] = [
    "block-size",
    "max-model-len",
    "max-num-batched-tokens",
    "max-num-seqs",
    "pipeline-parallel-size",
    "tensor-parallel-size",
];

/// Further flags that the hash omits before 0.11.
const UNHASHED_BEFORE_0_11: [&str; 4] = ["block-size", "cuda-graph-sizes", "max-num-batched-tokens", "max-num-seqs"];

/// Flags that the hash omits in every release. The list covers the flags that search spaces and studies use.
const UNHASHED_FLAGS: [&str; 24] = [
    "api-server-count",
    "disable-cascade-attn",
    "disable-custom-all-reduce",
    "disable-hybrid-kv-cache-manager",
    "disable-log-requests",
    "disable-log-stats",
    "distributed-executor-backend",
    // Its effect is part of the resolved `max-num-batched-tokens`.
    "enable-chunked-prefill",
    "enable-prefix-caching",
    "gpu-memory-utilization",
    "kv-cache-memory-bytes",
    "load-format",
    "long-prefill-token-threshold",
    "long-prefill-token-threshold-adaptive",
    "max-long-partial-prefills",
    "max-num-partial-prefills",
    "num-gpu-blocks-override",
    "prefix-caching-hash-algo",
    "scheduler-reserve-full-isl",
    "scheduling-policy",
    "seed",
    "served-model-name",
    "stream-interval",
    "watermark",
];

/// Returns the key of the engine's cache of compiled code, within one study. Configurations with equal keys share the
/// code. `config` includes the study's own arguments. A flag counts as part of the hash unless it is known to be
/// omitted. At worst, a compilation is then expected at a start that does not compile.
///
/// Source: `VllmConfig.compute_hash` of vLLM 0.32.0 and the hashes of its parts (`vllm/config/*.py`).
/// `compilation/backends.py` and `caching.py` derive the directory from them. The key was compared with the hashes of
/// that release. Asynchronous scheduling is part of the hash through `disable_nccl_for_dp_synchronization`. Newer
/// releases hash all fields with exceptions. Older ones hash only listed fields (`vllm/config.py` of 0.9). The times
/// of 161 starts confirm this (`tests/it/startup_model.rs`).
#[must_use]
pub fn compile_key(config: &Config, facts: &Facts<'_>, effective: &ResolvedConfig) -> String {
    let counts_all = facts.version >= EngineVersion::new(0, 11, 0);
    let is_hashed =
        |name: &str| !UNHASHED_FLAGS.contains(&name) && (counts_all || !UNHASHED_BEFORE_0_11.contains(&name));
    let resolved = RESOLVED.into_iter().filter(|name| is_hashed(name));
    let resolved = resolved.filter_map(|name| Some((name.to_owned(), effective.value(name)?)));
    let others = config.iter().filter(|(name, value)| {
        !RESOLVED.contains(name) && is_hashed(name) && constant_default(name).as_ref() != Some(value)
    });
    let others = others.map(|(name, value)| (name.to_owned(), value.clone()));
    others.chain(resolved).collect::<Config>().key()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::{VLLM_RULES, resolve_config};
    use crate::facts::{Device, ModelShape};

    fn key(version: &str, line: &str) -> String {
        let model = serde_json::json!({"max_position_embeddings": 4096, "architectures": ["Qwen3ForCausalLM"]});
        let model = ModelShape::from_json(&model);
        let facts = Facts::new(VLLM_RULES, &model, version.parse().unwrap(), Device::gpu_of(24 << 30));
        let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let config = crate::engines::vllm::FLAGS.for_version(facts.version).parse(&arguments).unwrap();
        compile_key(&config, &facts, &resolve_config(&config, &facts))
    }

    #[test]
    fn defaults_that_are_stated_share_with_those_that_are_not() {
        let own = key("0.32.0", "");
        for line in [
            "--max-num-seqs 256 --max-num-batched-tokens 2048",
            "--max-model-len 4096 --block-size 16",
            "--tensor-parallel-size 1 --pipeline-parallel-size 1 --data-parallel-size 1",
            "--kv-cache-dtype auto --no-enforce-eager",
        ] {
            assert_eq!(key("0.32.0", line), own, "{line}");
        }
    }

    #[test]
    fn flags_outside_of_the_engines_hash_are_left_out() {
        // Expected results by `VllmConfig.compute_hash` of 0.32.0 for these command lines.
        let own = key("0.32.0", "");
        for line in [
            "--gpu-memory-utilization 0.5",
            "--no-enable-prefix-caching --prefix-caching-hash-algo xxhash",
            "--long-prefill-token-threshold 512 --long-prefill-token-threshold-adaptive",
            "--scheduling-policy priority --scheduler-reserve-full-isl --watermark 0.02",
            "--num-gpu-blocks-override 500 --seed 3 --stream-interval 4",
            "--disable-cascade-attn --disable-custom-all-reduce --load-format dummy",
            "--max-num-batched-tokens 2048 --no-enable-chunked-prefill",
        ] {
            assert_eq!(key("0.32.0", line), own, "{line}");
        }
        for line in [
            "--max-num-seqs 128",
            "--max-num-batched-tokens 4096",
            "--no-enable-chunked-prefill",
            "--block-size 32",
            "--max-model-len 2048",
            "--no-async-scheduling",
            "--kv-cache-dtype fp8",
            "--dtype float16",
            "--tensor-parallel-size 2",
            "--max-cudagraph-capture-size 16",
            "--optimization-level 1",
            "--performance-mode throughput",
        ] {
            assert_ne!(key("0.32.0", line), own, "{line}");
        }
        assert_eq!(key("0.9.0", "--max-num-seqs 128 --max-num-batched-tokens 4096 --block-size 32"), key("0.9.0", ""));
        assert_ne!(key("0.9.0", "--max-model-len 2048"), key("0.9.0", ""));
    }
}
