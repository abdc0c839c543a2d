//! Limits of a CPU that the engine only detects in its workers: kernels, memory nodes, memory.
//!
//! Each failure was reproduced with vLLM 0.32.0 on x86-64. Sources: `vllm/v1/worker/cpu_worker.py`,
//! `vllm/v1/attention/backends/cpu_attn.py`, `vllm/utils/ompmultiprocessing.py`.

use super::{Candidate, Rule, Violation, late_failure};
use crate::stats::{GIB, gib};

pub(super) const RULES: &[Rule] = &[
    late_failure(
        "R10d",
        "every worker on a CPU has its own NUMA node, unless its threads are bound explicitly",
        workers_have_nodes,
    ),
    late_failure("R10e", "VLLM_CPU_OMP_THREADS_BIND lists the CPUs of every worker", workers_have_cpus),
    late_failure("R15g", "the CPU's attention kernel supports the model's head size", head_size),
    late_failure("R15h", "latent attention on a CPU needs a KV cache in 16 bits", latent_cache),
    late_failure("R15i", "an fp8 KV cache on a CPU needs a head size that is a multiple of 32", eight_bit_heads),
    late_failure("R16q", "decode context parallelism does not run on CPUs", context_is_undivided),
    late_failure("R17d", "the speculative method ngram_gpu needs a GPU", drafts_use_gpu),
    late_failure("R18c", "the offload of KV cache blocks needs a GPU", blocks_offload_from_gpu),
    late_failure("R18d", "the prefetch of offloaded weights needs a GPU", weights_prefetch_to_gpu),
    late_failure("R20l", "the CPU has a kernel for the quantization of weights during loading", online_kernels),
    late_failure("R5c", "gpu-memory-utilization on a CPU leaves memory for the engine itself", share_leaves_room),
    late_failure("R5d", "the host's memory has room for the requested KV cache", cache_fits),
];

const BIND: &str = "VLLM_CPU_OMP_THREADS_BIND";

/// Returns the number of workers of one engine.
fn workers(candidate: &Candidate<'_>) -> u64 {
    let e = &candidate.effective;
    e.tensor_parallel_size.max(1).saturating_mul(e.pipeline_parallel_size.max(1))
}

/// Checks the number of memory nodes. By default the engine binds each worker to the CPUs of one node. Other
/// data-parallel engines may use the same node.
fn workers_have_nodes(candidate: &Candidate<'_>) -> Option<Violation> {
    let nodes = candidate.facts.host.numa_nodes.filter(|_| candidate.on_cpu())?;
    let by_itself = candidate.facts.env.get(BIND).is_none_or(|bind| bind == "auto");
    let workers = workers(candidate);
    let simulated = candidate.facts.env.contains_key("VLLM_CPU_SIM_MULTI_NUMA");
    (by_itself && !simulated && workers > u64::from(nodes)).then(|| {
        let message = format!(
            "Not enough allowed NUMA nodes to bind threads of {workers} local CPUWorkers: the host has {nodes}. Set \
             VLLM_CPU_OMP_THREADS_BIND, or decrease the parallel sizes."
        );
        Violation::new(message).unset("tensor-parallel-size").unset("pipeline-parallel-size")
    })
}

/// Checks the variable. Its value `0-3|4-7` lists the CPUs of the first worker, then those of the second, and so on.
fn workers_have_cpus(candidate: &Candidate<'_>) -> Option<Violation> {
    let bind = candidate.facts.env.get(BIND).filter(|bind| !["auto", "nobind"].contains(&bind.as_str()))?;
    let (lists, workers) = (bind.split('|').count(), workers(candidate));
    // With several engines, each engine uses its part of the list.
    let alone = candidate.number_or("data-parallel-size", 1) <= 1;
    (candidate.on_cpu() && alone && u64::try_from(lists).ok() != Some(workers)).then(|| {
        let message = format!(
            "{BIND}={bind} has {lists} lists of CPUs, which doesn't match local world size {workers}: tensor times \
             pipeline parallel size."
        );
        Violation::new(message)
    })
}

fn context_is_undivided(candidate: &Candidate<'_>) -> Option<Violation> {
    let size = candidate.number_or("decode-context-parallel-size", 1);
    (candidate.on_cpu() && size > 1).then(|| {
        let message = format!(
            "Decode Context Parallelism (DCP) requires attention implementations to return the softmax LSE during \
             decode, but CPUAttentionBackendImpl does not: decode_context_parallel_size is {size}."
        );
        Violation::new(message).unset("decode-context-parallel-size")
    })
}

/// The kernel's head sizes: the list of `CPUAttentionBackend.get_supported_head_sizes`, and 48, which also works.
const HEAD_SIZES: [u64; 12] = [32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512];

fn head_size(candidate: &Candidate<'_>) -> Option<Violation> {
    let model = candidate.facts.model;
    let size =
        model.head_dim.filter(|size| candidate.on_cpu() && model.latent.is_none() && !HEAD_SIZES.contains(size))?;
    Some(Violation::new(format!(
        "Unsupported CPU attention configuration: head_dim={size}; the kernel supports {}",
        HEAD_SIZES.map(|size| size.to_string()).join(", ")
    )))
}

fn is_eight_bit_float(dtype: &str) -> bool {
    dtype.starts_with("fp8")
}

fn latent_cache(candidate: &Candidate<'_>) -> Option<Violation> {
    let dtype = candidate.text("kv-cache-dtype").filter(|dtype| is_eight_bit_float(dtype))?;
    (candidate.on_cpu() && candidate.facts.model.latent.is_some()).then(|| {
        let message = format!(
            "Latent attention on a CPU only supports an unquantized (bf16) KV cache, not {dtype}; fp8 KV cache for CPU \
             MLA is not yet implemented."
        );
        Violation::new(message).unset("kv-cache-dtype")
    })
}

fn eight_bit_heads(candidate: &Candidate<'_>) -> Option<Violation> {
    let dtype = candidate.text("kv-cache-dtype").filter(|dtype| is_eight_bit_float(dtype))?;
    let size = candidate.facts.model.head_dim.filter(|size| size % 32 != 0 && size % 16 == 0)?;
    (candidate.on_cpu() && candidate.facts.model.latent.is_none()).then(|| {
        let message =
            format!("FP8 KV cache requires head_size divisible by 32 on CPU: head_size is {size}, the cache {dtype}.");
        Violation::new(message).unset("kv-cache-dtype")
    })
}

fn drafts_use_gpu(candidate: &Candidate<'_>) -> Option<Violation> {
    let fields = candidate.fields("speculative-config").filter(|_| candidate.on_cpu())?;
    (fields.get("method").and_then(serde_json::Value::as_str) == Some("ngram_gpu")).then(|| {
        let message = "Found no NVIDIA driver on your system: the method ngram_gpu needs one, ngram does not.";
        Violation::new(message).unset("speculative-config")
    })
}

fn blocks_offload_from_gpu(candidate: &Candidate<'_>) -> Option<Violation> {
    let size = candidate.config.get_f64("kv-offloading-size").filter(|_| candidate.on_cpu())?;
    let message =
        format!("CPU Offloading is currently only supported on CUDA-alike and XPU GPUs: kv_offloading_size is {size}.");
    Some(Violation::new(message).unset("kv-offloading-size").unset("kv-offloading-backend"))
}

fn weights_prefetch_to_gpu(candidate: &Candidate<'_>) -> Option<Violation> {
    let group = candidate.number_or("offload-group-size", 0);
    (candidate.on_cpu() && group > 0).then(|| {
        let message =
            format!("Module parameters should not already be on CPU: offload_group_size is {group} without a GPU.");
        let violation = Violation::new(message).unset("offload-group-size").unset("offload-backend");
        violation.unset("offload-num-in-group").unset("offload-prefetch-step")
    })
}

/// Methods without a kernel for CPUs. `fp8_per_channel`, `experts_int8` and `int8_per_channel_weight_only` have
/// kernels.
const WITHOUT_KERNEL: [&str; 5] = ["fp8", "fp8_per_block", "fp8_per_tensor", "mxfp4", "mxfp8"];

fn online_kernels(candidate: &Candidate<'_>) -> Option<Violation> {
    let method = candidate.text("quantization").filter(|method| WITHOUT_KERNEL.contains(method))?;
    (candidate.on_cpu() && candidate.facts.model.quantization.is_none()).then(|| {
        let message = format!("Failed to find a kernel that can implement {method} on a CPU.");
        Violation::new(message).unset("quantization")
    })
}

/// The minimum memory of server, engine and worker together, in GiB, before the worker measures the available memory.
const OWN_GIB: f64 = 1.0;

/// Returns the cache's size in bytes, if it is set.
fn cache_bytes(candidate: &Candidate<'_>) -> Option<u64> {
    let variable = candidate.facts.env.get("VLLM_CPU_KVCACHE_SPACE").filter(|text| !text.is_empty());
    // The variable takes precedence over the flag.
    let space = variable.map(|text| text.parse::<u64>().ok().and_then(|gib| gib.checked_mul(GIB)));
    space.unwrap_or_else(|| candidate.number("kv-cache-memory-bytes").and_then(|bytes| u64::try_from(bytes).ok()))
}

fn share_leaves_room(candidate: &Candidate<'_>) -> Option<Violation> {
    let total = gib(candidate.facts.host.memory.filter(|_| candidate.on_cpu())?);
    // With several nodes, each has only a part of the memory, so this comparison would be wrong.
    let one_node = candidate.facts.host.numa_nodes == Some(1);
    let (share, available) = (candidate.effective.gpu_memory_utilization, total - OWN_GIB);
    let sized = candidate.facts.env.get("VLLM_CPU_KVCACHE_SPACE").is_some_and(|text| !text.is_empty())
        || candidate.has("kv-cache-memory-bytes");
    (one_node && !sized && share <= 1.0 && total * share > available).then(|| {
        let message = format!(
            "Available memory on node 0 (at most {available:.2}/{total:.2} GiB) on startup is less than desired CPU \
             memory utilization ({share}, {:.2} GiB).",
            total * share
        );
        let fits = ((available / total) * 0.9 * 100.0).floor() / 100.0;
        let violation = Violation::new(message);
        if fits > 0.0 { violation.set("gpu-memory-utilization", fits) } else { violation }
    })
}

fn cache_fits(candidate: &Candidate<'_>) -> Option<Violation> {
    let total = gib(candidate.facts.host.memory.filter(|_| candidate.on_cpu())?);
    let (asked, available) = (gib(cache_bytes(candidate)?), total - OWN_GIB);
    (asked > available).then(|| {
        let message = format!(
            "Available memory on node 0 (at most {available:.2}/{total:.2} GiB) on kv cache allocation is less than \
             requested memory for kv ({asked:.2} GiB)."
        );
        Violation::new(message).unset("kv-cache-memory-bytes")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::Config;
    use crate::engines::vllm::FLAGS;
    use crate::facts::{Device, EngineVersion, HostLimits, ModelShape};
    use crate::rule::{Facts, check, repair};

    /// Returns the first finding on a CPU host with 16 GiB and one memory node. `keys` are added to a usual model
    /// shape.
    fn found(keys: &str, env: &[(&str, &str)], line: &str) -> (Option<&'static str>, Option<Config>) {
        let mut json: serde_json::Value = serde_json::json!({
            "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 4096, "vocab_size": 4096, "intermediate_size": 512
        });
        let more: serde_json::Map<_, _> = serde_json::from_str(keys).unwrap();
        json.as_object_mut().unwrap().extend(more);
        let model = ModelShape::from_json(&json);
        let version = EngineVersion::V0_32;
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let config = FLAGS.for_version(version).parse(&words).unwrap();
        let env: BTreeMap<_, _> = env.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let host = HostLimits { memory: Some(16 << 30), numa_nodes: Some(1), amx: None, cores: None };
        let facts =
            Facts { env: &env, host, ..Facts::new(crate::engines::vllm::VLLM_RULES, &model, version, Device::Cpu) };
        (check(&config, &facts).first().map(|finding| finding.rule), repair(&config, &facts))
    }

    #[test]
    fn every_worker_needs_a_memory_node_unless_its_threads_are_bound_by_hand() {
        assert_eq!(found("{}", &[], "-tp 2").0, Some("R10d"));
        assert_eq!(found("{}", &[], "-tp 2").1, Some(Config::new()));
        assert_eq!(found("{}", &[], "-pp 2").0, Some("R10d"));
        assert_eq!(found("{}", &[("VLLM_CPU_OMP_THREADS_BIND", "nobind")], "-tp 2").0, None);
        assert_eq!(found("{}", &[(BIND, "auto")], "-tp 1").0, None);
        assert_eq!(found("{}", &[(BIND, "0")], "-tp 2").0, Some("R10e"));
        assert_eq!(found("{}", &[(BIND, "0|1")], "-tp 2").0, None);
    }

    #[test]
    fn a_context_is_not_divided_among_cpus() {
        let shared = r#"{"num_key_value_heads": 1}"#;
        assert_eq!(found(shared, &[(BIND, "nobind")], "-tp 2 -dcp 2").0, Some("R16q"));
        assert_eq!(found(shared, &[(BIND, "nobind")], "-tp 2").0, None);
    }

    #[test]
    fn the_kernel_is_built_for_some_head_sizes() {
        for (size, expected) in [(32, None), (48, None), (24, Some("R15g")), (144, Some("R15g")), (512, None)] {
            assert_eq!(found(&format!("{{\"head_dim\": {size}}}"), &[], "").0, expected, "{size}");
        }
        assert_eq!(found(r#"{"head_dim": 80}"#, &[], "--kv-cache-dtype fp8").0, Some("R15i"));
        assert_eq!(found(r#"{"head_dim": 96}"#, &[], "--kv-cache-dtype fp8").0, None);
        let latent = r#"{"kv_lora_rank": 512, "qk_rope_head_dim": 64}"#;
        assert_eq!(found(latent, &[], "--kv-cache-dtype fp8").0, Some("R15h"));
        assert_eq!(found(latent, &[], "").0, None);
    }

    #[test]
    fn features_that_need_a_gpu_are_refused_on_a_cpu() {
        for (line, rule) in [
            (r#"--speculative-config {"method":"ngram_gpu","num_speculative_tokens":3}"#, Some("R17d")),
            (r#"--speculative-config {"method":"ngram","num_speculative_tokens":3}"#, None),
            ("--kv-offloading-size 1", Some("R18c")),
            ("--offload-group-size 2", Some("R18d")),
            ("--quantization fp8", Some("R20l")),
            ("--quantization fp8_per_channel", None),
        ] {
            let (found, repaired) = found("{}", &[], line);
            assert_eq!(found, rule, "{line}");
            assert!(repaired.is_some_and(|repaired| rule.is_none() || repaired.is_empty()), "{line}");
        }
    }

    #[test]
    fn the_engine_needs_memory_in_addition_to_its_cache() {
        let space = |gib: &'static str| [("VLLM_CPU_KVCACHE_SPACE", gib)];
        assert_eq!(found("{}", &[], "--gpu-memory-utilization 0.95").0, Some("R5c"));
        assert_eq!(found("{}", &[], "--gpu-memory-utilization 0.93").0, None);
        assert_eq!(found("{}", &space("1"), "--gpu-memory-utilization 0.99").0, None);
        assert_eq!(found("{}", &space("16"), "").0, Some("R5d"));
        assert_eq!(found("{}", &[], "--kv-cache-memory-bytes 15.5g").0, None);
        assert_eq!(found("{}", &[], "--kv-cache-memory-bytes 17g").0, Some("R5d"));
    }
}
