//! Experts, context parallelism and microbatches (`ParallelConfig` and `ModelConfig.verify_with_parallel_config` in
//! vLLM).

use super::quantization::dtype;
use super::{Candidate, ReleaseRange, Rule, Severity, Violation, refusal};
use crate::facts::EngineVersion;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R16a",
        condition: "the decode-context-parallel size suits the other parallel sizes",
        releases: ReleaseRange::starting_at(EngineVersion::V0_10),
        severity: Severity::Configuration,
        check: decode_context,
    },
    Rule {
        id: "R16b",
        condition: "expert parallelism needs a model with experts",
        releases: ReleaseRange::starting_at(EngineVersion::V0_8),
        severity: Severity::Configuration,
        check: has_experts,
    },
    refusal("R16e", "decode context parallelism fits the key/value heads", context_and_heads),
    refusal("R16f", "expert load balancing needs expert parallelism and several GPUs", load_balancing),
    refusal("R16g", "elastic expert parallelism needs load balancing, one pipeline stage and a valid maximum", elastic),
    refusal("R16h", "microbatches have a supported backend and enough tokens", microbatches),
    refusal("R16i", "prefill context parallelism needs a model runner that supports it", prefill_context),
    refusal("R16j", "the moonep backend supports the model and the placement of its experts", moonep),
];

fn tensor(candidate: &Candidate<'_>) -> i64 {
    candidate.number_or("tensor-parallel-size", 1)
}

fn decode_context(candidate: &Candidate<'_>) -> Option<Violation> {
    let decode = candidate.number("decode-context-parallel-size").filter(|size| *size > 0)?;
    let (tensor, prefill) = (tensor(candidate), candidate.number_or("prefill-context-parallel-size", 1));
    if prefill == 1 {
        return (tensor % decode != 0).then(|| {
            let message = format!("tp_size={tensor} must be divisible by dcp_size={decode}.");
            Violation::new(message).unset("decode-context-parallel-size")
        });
    }
    let whole = tensor.saturating_mul(prefill);
    (![1, prefill, whole].contains(&decode)).then(|| {
        let message = format!(
            "When PCP is enabled, DCP must be disabled, span the PCP axis, or span the full TP x PCP axis. Got \
             TP={tensor}, PCP={prefill}, DCP={decode}."
        );
        Violation::new(message).unset("decode-context-parallel-size")
    })
}

fn has_experts(candidate: &Candidate<'_>) -> Option<Violation> {
    (candidate.is_on("enable-expert-parallel") && !candidate.is_moe()).then(|| {
        let message = "Number of experts in the model must be greater than 0 when expert parallelism is enabled.";
        Violation::new(message).unset("enable-expert-parallel")
    })
}

fn context_and_heads(candidate: &Candidate<'_>) -> Option<Violation> {
    let decode = candidate.number("decode-context-parallel-size").filter(|size| *size > 1)?;
    let model = candidate.facts.model;
    if model.latent.is_some() {
        return None;
    }
    let heads = i64::try_from(model.attention_heads?).ok()?;
    let kv_heads = i64::try_from(model.kv_heads?).ok().filter(|heads| *heads > 0)?;
    let tensor = tensor(candidate);
    let message = if tensor <= kv_heads {
        format!(
            "Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({tensor}) to be greater than \
             the model's total number of KV heads ({kv_heads}). Increase `--tensor-parallel-size` or set \
             `--decode-context-parallel-size 1`."
        )
    } else if decode > tensor / kv_heads {
        format!(
            "`--decode-context-parallel-size` ({decode}) exceeds the maximum supported value ({}) for \
             `--tensor-parallel-size` ({tensor}) and {kv_heads} model KV heads.",
            tensor / kv_heads
        )
    } else if heads / kv_heads % decode != 0 {
        format!(
            "The model's number of query heads per KV head ({}) must be divisible by \
             `--decode-context-parallel-size` ({decode}) for GQA/MQA.",
            heads / kv_heads
        )
    } else {
        return None;
    };
    Some(Violation::new(message).unset("decode-context-parallel-size"))
}

fn load_balancing(candidate: &Candidate<'_>) -> Option<Violation> {
    let fields = candidate.fields("eplb-config").unwrap_or_default();
    if !candidate.is_on("enable-eplb") {
        let redundant = fields.get("num_redundant_experts").filter(|count| count.as_i64() != Some(0))?;
        let message = format!(
            "num_redundant_experts is set to {redundant} but EPLB is not enabled. Either enable EPLB or unset \
             num_redundant_experts."
        );
        return Some(Violation::new(message).unset("eplb-config"));
    }
    let refused = |message: String| Some(Violation::new(message).unset("enable-eplb").unset("eplb-config"));
    if candidate.on_cpu() {
        return refused(
            "Expert parallelism load balancing is only supported on CUDA devices or ROCm devices or XPU devices now."
                .to_owned(),
        );
    }
    if !candidate.is_on("enable-expert-parallel") {
        return refused("enable_expert_parallel must be True to use EPLB.".to_owned());
    }
    let size = |name| candidate.number_or(name, 1);
    let (prefill, data) = (size("prefill-context-parallel-size"), size("data-parallel-size"));
    if tensor(candidate).saturating_mul(prefill).saturating_mul(data) <= 1 {
        return refused(format!(
            "EPLB requires tensor, prefill-context, or data parallelism, but got TP={}, PCP={prefill}, DP={data}.",
            tensor(candidate)
        ));
    }
    None
}

fn elastic(candidate: &Candidate<'_>) -> Option<Violation> {
    if !candidate.is_on("enable-elastic-ep") {
        return None;
    }
    let refused = |message: String| Some(Violation::new(message).unset("enable-elastic-ep"));
    if !candidate.is_on("enable-eplb") {
        return refused("Elastic EP is only supported with enable_eplb=True.".to_owned());
    }
    let stages = candidate.number_or("pipeline-parallel-size", 1);
    if stages > 1 {
        return refused(format!(
            "Elastic EP is not supported with pipeline parallelism (pipeline_parallel_size={stages})."
        ));
    }
    let data = candidate.number_or("data-parallel-size", 1);
    if candidate.number("elastic-ep-max-dp-size").is_some_and(|most| most < data) {
        return refused(format!(
            "--elastic-ep-max-dp-size must be greater than or equal to the initial data_parallel_size ({data})."
        ));
    }
    None
}

/// The backends that support microbatches.
const MICROBATCH_BACKENDS: [&str; 3] = ["deepep_low_latency", "deepep_high_throughput", "nixl_ep"];

fn microbatches(candidate: &Candidate<'_>) -> Option<Violation> {
    let dual = candidate.is_on("enable-dbo");
    let size = candidate.number_or("ubatch-size", 0);
    if !dual && size <= 1 {
        return None;
    }
    let count = if dual { 2 } else { size };
    let decode = candidate.number_or("dbo-decode-token-threshold", 32);
    let prefill = candidate.number_or("dbo-prefill-token-threshold", 512);
    if decode.min(prefill) < count {
        let message = format!(
            "dbo_decode_token_threshold and dbo_prefill_token_threshold must be at least the number of microbatches \
             ({count})."
        );
        let violation = Violation::new(message).unset("dbo-decode-token-threshold");
        let violation = violation.unset("dbo-prefill-token-threshold");
        return Some(if count > 32 { violation.unset("ubatch-size") } else { violation });
    }
    // On a CPU the engine disables dual batches, but not an explicit number of microbatches.
    let stays = size > 1 || dual && !candidate.on_cpu();
    let backend = candidate.text("all2all-backend").unwrap_or("allgather_reducescatter");
    (stays && !MICROBATCH_BACKENDS.contains(&backend)).then(|| {
        let message = format!(
            "Microbatching currently only supports the deepep_low_latency, deepep_high_throughput, and nixl_ep all2all \
             backends. {backend} is not supported."
        );
        Violation::new(message).unset("ubatch-size").unset("enable-dbo")
    })
}

fn prefill_context(candidate: &Candidate<'_>) -> Option<Violation> {
    let size = candidate.number("prefill-context-parallel-size").filter(|size| *size > 1)?;
    candidate.on_cpu().then(|| {
        let message = format!(
            "Model Runner V1 does not support: prefill context parallel (prefill_context_parallel_size={size})"
        );
        Violation::new(message).unset("prefill-context-parallel-size")
    })
}

fn moonep(candidate: &Candidate<'_>) -> Option<Violation> {
    if candidate.text("all2all-backend") != Some("moonep") {
        return None;
    }
    let refused = |problem: &str| {
        let message = format!("The moonep all2all backend {problem}");
        Some(Violation::new(message).unset("all2all-backend"))
    };
    if candidate.has("quantization") || candidate.facts.model.quantization.is_some() {
        return refused("currently supports unquantized BF16 models only");
    }
    if dtype(candidate).is_some_and(|dtype| dtype != "bfloat16") {
        return refused("currently supports BF16 models only");
    }
    if candidate.is_on("enable-eplb") {
        return refused("does not support EPLB yet");
    }
    if candidate.text("expert-placement-strategy").is_some_and(|strategy| strategy != "linear") {
        return refused("requires linear expert placement");
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::{on_cpu, rule};

    #[test]
    fn context_parallelism_divides_the_tensor_parallel_devices() {
        assert_eq!(rule("0.32.0", "--decode-context-parallel-size 2"), Some("R16a"));
        assert_eq!(rule("0.32.0", "-tp 4 -dcp 2"), None);
        assert_eq!(rule("0.32.0", "-tp 2 -dcp 2"), Some("R16e"));
        assert_eq!(rule("0.32.0", "-tp 4 -dcp 4"), Some("R16e"));
    }

    #[test]
    fn experts_are_needed_to_spread_them() {
        assert_eq!(rule("0.32.0", "--enable-expert-parallel"), Some("R16b"));
        assert_eq!(rule("0.32.0", "--no-enable-expert-parallel"), None);
        assert_eq!(on_cpu("--enable-eplb"), Some("R16f"));
        assert_eq!(on_cpu("--enable-elastic-ep"), Some("R16g"));
    }

    #[test]
    fn microbatches_need_tokens_and_a_backend_that_can_split() {
        assert_eq!(on_cpu("--ubatch-size 4"), Some("R16h"));
        assert_eq!(on_cpu("--ubatch-size 4 --all2all-backend nixl_ep"), None);
        assert_eq!(on_cpu("--enable-dbo"), None);
        assert_eq!(on_cpu("--enable-dbo --dbo-decode-token-threshold 1"), Some("R16h"));
    }

    #[test]
    fn prefill_context_parallelism_does_not_run_on_a_cpu() {
        assert_eq!(on_cpu("--prefill-context-parallel-size 2"), Some("R16i"));
        assert_eq!(on_cpu("--prefill-context-parallel-size 1"), None);
    }
}
