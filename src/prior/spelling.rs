//! Callers' names for the engine's flags and for the metrics of a load.

use crate::engines::default_engine;
use crate::flag::FlagTable;

/// The meaning of a caller's parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParameterMeaning {
    /// A flag of this name.
    Flag(&'static str),
    /// The method of `--speculative-config`.
    DraftMethod,
    /// The number of draft tokens of `--speculative-config`.
    DraftTokens,
}

/// Abbreviations and older names, with dashes. Exact names of flags go first and are not listed.
const SPELLINGS: [(&[&str], &str); 19] = [
    (
        &["gmu", "gpu-mem-util", "gpu-mem-utilization", "gpu-memory-util", "gpu-util", "mem-fraction", "mem-util"],
        "gpu-memory-utilization",
    ),
    (&["tp", "tp-size", "tensor-parallel", "tensor-parallelism"], "tensor-parallel-size"),
    (&["pp", "pp-size", "pipeline-parallel", "pipeline-parallelism"], "pipeline-parallel-size"),
    (&["dp", "dp-size", "data-parallel", "data-parallelism"], "data-parallel-size"),
    (&["max-seqs", "num-seqs", "max-num-sequences", "max-batch-size", "batch-size"], "max-num-seqs"),
    (
        &["max-batched-tokens", "num-batched-tokens", "batched-tokens", "max-batch-tokens", "token-budget", "mnbt"],
        "max-num-batched-tokens",
    ),
    (&["block", "kv-block-size", "page-size"], "block-size"),
    (&["chunked-prefill", "chunked"], "enable-chunked-prefill"),
    (&["prefix-caching", "prefix-cache", "apc", "automatic-prefix-caching"], "enable-prefix-caching"),
    (&["kv-dtype", "kv-cache-type", "kv-cache-precision"], "kv-cache-dtype"),
    (&["eager", "eager-mode"], "enforce-eager"),
    (&["max-len", "model-len", "context-length", "max-seq-len"], "max-model-len"),
    (&["long-prefill-threshold"], "long-prefill-token-threshold"),
    (&["async-schedule"], "async-scheduling"),
    (&["sched-policy"], "scheduling-policy"),
    (&["num-blocks", "num-gpu-blocks"], "num-gpu-blocks-override"),
    (&["quant", "quantisation"], "quantization"),
    (&["cpu-offload"], "cpu-offload-gb"),
    (&["speculative-config-json"], "speculative-config"),
];

const DRAFT_METHODS: [&str; 5] =
    ["spec-method", "spec-type", "speculative-method", "speculation-method", "spec-decode-method"];
const DRAFT_TOKENS: [&str; 6] = [
    "num-spec-tokens",
    "num-speculative-tokens",
    "spec-tokens",
    "num-draft-tokens",
    "draft-tokens",
    "speculative-num-draft-tokens",
];

/// Returns the meaning of a caller's parameter; `None` if it has no effect in the twin.
pub(super) fn meaning(name: &str, table: Option<FlagTable>) -> Option<ParameterMeaning> {
    let plain = name.trim().trim_start_matches('-').to_ascii_lowercase().replace(['_', ' ', '.'], "-");
    if DRAFT_METHODS.contains(&plain.as_str()) {
        return Some(ParameterMeaning::DraftMethod);
    }
    if DRAFT_TOKENS.contains(&plain.as_str()) {
        return Some(ParameterMeaning::DraftTokens);
    }
    let table = table?;
    let flag = table.find(&plain).map(|flag| flag.name);
    let spelt = || SPELLINGS.iter().find(|(names, _)| names.contains(&plain.as_str())).map(|(_, flag)| *flag);
    // A flag that the release lacks has no effect.
    let flag = flag.or_else(|| spelt().and_then(|name| table.find(name)).map(|flag| flag.name))?;
    let has_effect = default_engine().twin().is_some_and(|twin| twin.has_effect(flag));
    has_effect.then_some(ParameterMeaning::Flag(flag))
}

/// Returns the metric for a caller's name, and the factor from the caller's unit to the metric's. Latencies are in
/// seconds unless their name ends in `ms`.
pub(super) fn metric(name: &str) -> Option<(String, f64)> {
    let plain = name.trim().to_ascii_lowercase().replace(['-', ' ', '.', '/'], "_");
    if crate::trial::Measurement::is_known(&plain) {
        return Some((plain, 1.0));
    }
    let known = match plain.as_str() {
        "throughput" | "output_tokens_per_s" | "tokens_per_s" | "tokens_per_second" | "tok_s" | "tps" => {
            Some("output_throughput")
        }
        "total_throughput" | "total_tokens_per_s" => Some("total_token_throughput"),
        "requests_per_s" | "requests_per_second" | "rps" | "qps" => Some("request_throughput"),
        _ => None,
    };
    if let Some(known) = known {
        return Some((known.to_owned(), 1.0));
    }
    let words: Vec<&str> = plain.split('_').collect();
    let any = |list: &[&str]| words.iter().any(|word| list.contains(word));
    let latency =
        [("ttft", &["ttft"][..]), ("tpot", &["tpot"]), ("itl", &["itl"]), ("e2el", &["e2el", "e2e", "latency"])];
    let (latency, _) = latency.into_iter().find(|(_, spelt)| any(spelt))?;
    let statistic = ["p50", "p90", "p95", "p99", "median"].into_iter().find(|name| any(&[name])).unwrap_or("mean");
    let per_unit = if words.last() == Some(&"ms") { 1.0 } else { 1e3 };
    Some((format!("{statistic}_{latency}_ms"), per_unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::FLAGS;

    #[test]
    fn flags_are_found_by_their_names_and_common_abbreviations() {
        let table = Some(FLAGS.for_version(FLAGS.newest_release()));
        for (name, flag) in [
            ("max_num_seqs", "max-num-seqs"),
            ("--max-num-seqs", "max-num-seqs"),
            ("gmu", "gpu-memory-utilization"),
            ("TP", "tensor-parallel-size"),
            ("chunked_prefill", "enable-chunked-prefill"),
            ("prefix_caching", "enable-prefix-caching"),
            ("long_prefill_threshold", "long-prefill-token-threshold"),
            ("kv_cache_dtype", "kv-cache-dtype"),
        ] {
            assert_eq!(meaning(name, table), Some(ParameterMeaning::Flag(flag)), "{name}");
        }
        assert_eq!(meaning("spec_method", table), Some(ParameterMeaning::DraftMethod));
        assert_eq!(meaning("num_spec_tokens", table), Some(ParameterMeaning::DraftTokens));
        for name in ["colour", "", "attn_backend", "scheduler_delay", "scheduler-delay-factor"] {
            assert_eq!(meaning(name, table), None, "{name}");
        }
    }

    #[test]
    fn every_spelling_leads_to_a_flag_of_some_release_that_has_an_effect() {
        for (names, flag) in SPELLINGS {
            let mut releases = FLAGS.releases(None, None).map(|version| FLAGS.for_version(version));
            assert!(releases.any(|table| table.find(flag).is_some()), "{flag}");
            assert!(!names.is_empty() && default_engine().twin().unwrap().has_effect(flag), "{flag}");
        }
    }

    #[test]
    fn metrics_are_found_by_latency_statistic_and_unit() {
        for (name, found) in [
            ("throughput", Some(("output_throughput", 1.0))),
            ("request_throughput", Some(("request_throughput", 1.0))),
            ("ttft_p99", Some(("p99_ttft_ms", 1e3))),
            ("p95-tpot-ms", Some(("p95_tpot_ms", 1.0))),
            ("p99_ttft_ms", Some(("p99_ttft_ms", 1.0))),
            ("mean latency", Some(("mean_e2el_ms", 1e3))),
            ("accuracy", None),
        ] {
            assert_eq!(metric(name), found.map(|(name, unit)| (name.to_owned(), unit)), "{name}");
        }
    }
}
