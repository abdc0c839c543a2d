//! CUDA graphs, compilation and attention kernels (`CompilationConfig`, `AttentionConfig`, `KernelConfig` in vLLM
//! 0.32).

use serde_json::{Map, Value as Json};

use super::{Candidate, Rule, Violation, refusal};

pub(super) const RULES: &[Rule] = &[
    refusal("R22", "the largest capture size equals max-cudagraph-capture-size", largest_capture_size),
    refusal("R22a", "a field is set by its flag or in JSON, not by both", duplicate_fields),
    refusal("R22b", "the optimization level is 0, 1, 2 or 3", level),
    refusal("R22c", "custom operations and the compiler's backend are well-formed", compilation),
    refusal("R15j", "the attention backend exists", attention_backend),
    refusal("R15k", "the kernel for linear attention runs on this device", linear_attention),
];

/// `AttentionBackendEnum` in `vllm/v1/attention/backends/registry.py`.
const BACKENDS: [&str; 46] = [
    "AMX_MLA",
    "B12X",
    "CPU_ATTN",
    "CPU_MLA",
    "CUSTOM",
    "CUTLASS_MLA",
    "CUTLASS_MSA",
    "FLASHINFER",
    "FLASHINFER_MLA",
    "FLASHINFER_MLA_SPARSE",
    "FLASHINFER_MLA_SPARSE_DSV4",
    "FLASHINFER_MLA_SPARSE_DSV41",
    "FLASHINFER_MLA_SPARSE_SM120",
    "FLASHINFER_MLA_SPARSE_SM90",
    "FLASHMLA",
    "FLASHMLA_MEGA_ATTN_DSV41",
    "FLASHMLA_SPARSE",
    "FLASHMLA_SPARSE_DSV4",
    "FLASHMLA_SPARSE_DSV41",
    "FLASH_ATTN",
    "FLASH_ATTN_DIFFKV",
    "FLASH_ATTN_MLA",
    "FLASH_ATTN_MLA_SPARSE",
    "FLEX_ATTENTION",
    "HPC_ATTN",
    "MINIMAX_M3_SPARSE",
    "NO_ATTENTION",
    "ROCM_AITER_FA",
    "ROCM_AITER_MLA",
    "ROCM_AITER_MLA_SPARSE",
    "ROCM_AITER_TRITON_MLA",
    "ROCM_AITER_UNIFIED_ATTN",
    "ROCM_ATTN",
    "ROCM_FLASHMLA_SPARSE_DSV4",
    "ROCM_SEGMENTED_ATTN",
    "TOKENSPEED_MLA",
    "TORCH_SDPA",
    "TRITON_ATTN",
    "TRITON_ATTN_DIFFKV",
    "TRITON_FLASHINFER",
    "TRITON_FLASH_ATTN",
    "TRITON_MLA",
    "TRITON_MSA",
    "TURBOQUANT",
    "ULTRAQUANT",
    "XPU_MLA_SPARSE",
];

/// Returns whether the backend exists. The name may be in upper or lower case.
pub(super) fn is_attention_backend(name: &str) -> bool {
    BACKENDS.iter().any(|known| known.eq_ignore_ascii_case(name))
}

fn attention_backend(candidate: &Candidate<'_>) -> Option<Violation> {
    let name = candidate.text("attention-backend")?;
    let known = name.eq_ignore_ascii_case("auto") || is_attention_backend(name);
    (!known).then(|| {
        let message =
            format!("Unknown attention backend: '{}'. Valid options are: {}", name.to_uppercase(), BACKENDS.join(", "));
        Violation::new(message).unset("attention-backend")
    })
}

fn sizes(candidate: &Candidate<'_>, fields: &Map<String, Json>) -> Option<Vec<u64>> {
    if let Some(text) = candidate.config.get("cudagraph-capture-sizes") {
        return Some(text.to_string().split_whitespace().filter_map(|size| size.parse().ok()).collect());
    }
    let sizes = fields.get("cudagraph_capture_sizes")?.as_array()?;
    Some(sizes.iter().filter_map(Json::as_u64).collect())
}

/// Checks the capture sizes on GPUs. On a CPU no graphs are captured, so the sizes have no effect.
fn largest_capture_size(candidate: &Candidate<'_>) -> Option<Violation> {
    if candidate.on_cpu() || candidate.is_on("enforce-eager") {
        return None;
    }
    let fields = candidate.fields("compilation-config").unwrap_or_default();
    let eager =
        fields.get("cudagraph_mode").is_some_and(|mode| mode.as_str() == Some("NONE") || mode.as_i64() == Some(0));
    let sizes = sizes(candidate, &fields).filter(|_| !eager)?;
    if sizes.is_empty() {
        let message = "cudagraph_capture_sizes should contain at least one element when using cuda graph.";
        return Some(Violation::new(message).unset("cudagraph-capture-sizes").unset("compilation-config"));
    }
    let stated = fields.get("max_cudagraph_capture_size").and_then(Json::as_u64);
    let most = candidate.number("max-cudagraph-capture-size").and_then(|most| u64::try_from(most).ok()).or(stated)?;
    let budget = candidate.effective.max_num_batched_tokens;
    let valid = sizes.into_iter().filter(|size| *size <= budget).max().unwrap_or(0);
    (most != valid).then(|| {
        let message = format!(
            "customized max_cudagraph_capture_size(={most}) should be consistent with the max value of \
             cudagraph_capture_sizes(={valid})"
        );
        Violation::new(message).unset("max-cudagraph-capture-size").unset("cudagraph-capture-sizes")
    })
}

/// Flags, and the fields of JSON flags with the same meaning.
const DUPLICATE_FIELDS: [(&str, &str, &str); 4] = [
    ("cudagraph-capture-sizes", "compilation-config", "cudagraph_capture_sizes"),
    ("max-cudagraph-capture-size", "compilation-config", "max_cudagraph_capture_size"),
    ("attention-backend", "attention-config", "backend"),
    ("enable-flashinfer-autotune", "kernel-config", "enable_flashinfer_autotune"),
];

fn duplicate_fields(candidate: &Candidate<'_>) -> Option<Violation> {
    DUPLICATE_FIELDS.iter().find_map(|(flag, whole, field)| {
        if !candidate.has(flag) {
            return None;
        }
        let value = candidate.fields(whole)?.remove(*field).filter(|value| !value.is_null())?;
        // The backend `auto` counts as no backend.
        if value.as_str().is_some_and(|text| text.eq_ignore_ascii_case("auto")) {
            return None;
        }
        let message =
            format!("{} and {}.{field} are mutually exclusive", flag.replace('-', "_"), whole.replace('-', "_"));
        Some(Violation::new(message).unset(flag))
    })
}

fn level(candidate: &Candidate<'_>) -> Option<Violation> {
    let text = candidate.config.get("optimization-level")?.to_string();
    (!matches!(text.as_str(), "0" | "1" | "2" | "3")).then(|| {
        let message = format!("optimization_level: Input should be 0, 1, 2 or 3, input_value='{text}'");
        Violation::new(message).unset("optimization-level")
    })
}

fn compilation(candidate: &Candidate<'_>) -> Option<Violation> {
    let fields = candidate.fields("compilation-config")?;
    let refused = |message: String| Some(Violation::new(message).unset("compilation-config"));
    let operations = fields.get("custom_ops").and_then(Json::as_array);
    let names: Vec<_> = operations.into_iter().flatten().filter_map(Json::as_str).collect();
    let base = |name: &&&str| matches!(**name, "all" | "none");
    if let Some(bad) = names.iter().find(|name| !base(name) && (name.len() < 2 || !name.starts_with(['+', '-']))) {
        return refused(format!(
            "Invalid syntax '{bad}' for custom op, must be 'all', 'none', '+op' or '-op' (where 'op' is the registered \
             op name)"
        ));
    }
    if names.iter().filter(base).count() > 1 {
        return refused("custom_ops can contain only one base mode: 'all' or 'none'".to_owned());
    }
    let both = names.iter().find(|name| {
        name.strip_prefix('+').is_some_and(|operation| names.iter().any(|other| *other == format!("-{operation}")))
    });
    if let Some(both) = both {
        return refused(format!("custom_ops cannot both enable and disable the same operation(s): {}.", &both[1..]));
    }
    let compiles = fields.get("mode").is_some_and(|mode| {
        mode.as_u64() == Some(3) || mode.as_str().is_some_and(|name| name.eq_ignore_ascii_case("VLLM_COMPILE"))
    });
    let backend = fields.get("backend").and_then(Json::as_str).unwrap_or("");
    if compiles && !["", "eager", "inductor"].contains(&backend) {
        return refused(format!("Invalid backend for piecewise compilation: {backend}"));
    }
    for name in ["decoder_replay_cudagraph_capture_sizes", "encoder_cudagraph_token_budgets"] {
        let sizes = fields.get(name).and_then(Json::as_array);
        if sizes.into_iter().flatten().any(|size| size.as_f64().is_some_and(|size| size <= 0.0)) {
            return refused(format!("All {name} must be positive"));
        }
    }
    None
}

fn linear_attention(candidate: &Candidate<'_>) -> Option<Violation> {
    let (name, place) = match candidate.text("kda-prefill-backend")? {
        "flashkda" if candidate.on_cpu() => ("flashkda", "CUDA"),
        "fused" => ("fused", "ROCm"),
        _ => return None,
    };
    let message = format!("--kda-prefill-backend={name} is only available on {place}.");
    Some(Violation::new(message).unset("kda-prefill-backend"))
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::{on_cpu, rule};

    #[test]
    fn graph_sizes_end_at_the_largest_on_gpus_only() {
        let line = "--cudagraph-capture-sizes 1 2 4 --max-cudagraph-capture-size";
        assert_eq!(rule("0.32.0", &format!("{line} 8")), Some("R22"));
        assert_eq!(rule("0.32.0", &format!("{line} 4")), None);
        assert_eq!(rule("0.32.0", &format!("{line} 8 --enforce-eager")), None);
        assert_eq!(on_cpu(&format!("{line} 8")), None);
    }

    #[test]
    fn one_field_has_one_place() {
        let line = r#"--cudagraph-capture-sizes 1 --compilation-config {"cudagraph_capture_sizes":[1]}"#;
        assert_eq!(on_cpu(line), Some("R22a"));
        assert_eq!(on_cpu(r#"--attention-backend FLASH_ATTN --attention-config {"backend":"auto"}"#), None);
    }

    #[test]
    fn levels_backends_and_operations_are_known() {
        assert_eq!((on_cpu("-O5"), on_cpu("-O3"), on_cpu("-O=0")), (Some("R22b"), None, None));
        assert_eq!(on_cpu("--attention-backend NOPE"), Some("R15j"));
        assert_eq!(on_cpu("--attention-backend flash_attn"), None);
        assert_eq!(on_cpu(r#"--compilation-config {"custom_ops":["x"]}"#), Some("R22c"));
        assert_eq!(on_cpu(r#"--compilation-config {"custom_ops":["none","+silu"]}"#), None);
        assert_eq!(on_cpu(r#"--compilation-config {"custom_ops":["-silu","+silu"]}"#), Some("R22c"));
        assert_eq!(on_cpu("--kda-prefill-backend flashkda"), Some("R15k"));
    }
}
