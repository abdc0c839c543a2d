//! Quantization methods that a model's configuration takes (`ModelConfig` in vLLM 0.32).

use super::{Candidate, Releases, Rule, Severity, Violation};
use crate::facts::EngineVersion;

const V0_32: Releases = Releases::from(EngineVersion::new(0, 32, 0));

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R20a",
        holds: "the quantization method is known and the checkpoint has what it needs",
        releases: V0_32,
        severity: Severity::Configuration,
        check: method,
    },
    Rule {
        id: "R20e",
        holds: "the KV cache type is one that latent attention has",
        releases: V0_32,
        severity: Severity::Configuration,
        check: latent_cache,
    },
];

/// Methods of 0.32 that quantize a checkpoint while it is loaded.
const ONLINE: [&str; 12] = [
    "deepseek_v4_fp8",
    "experts_int8",
    "fp8",
    "fp8_per_block",
    "fp8_per_channel",
    "fp8_per_tensor",
    "gpt_oss_mxfp4",
    "humming",
    "int8_per_channel_weight_only",
    "mxfp4",
    "mxfp8",
    "nvfp4_per_token",
];

/// Methods of 0.32 that need a checkpoint made for them.
const OFFLINE: [&str; 16] = [
    "auto_awq",
    "auto_gptq",
    "awq",
    "awq_marlin",
    "compressed-tensors",
    "gptq",
    "gptq_marlin",
    "inc",
    "modelopt",
    "modelopt_fp4",
    "modelopt_mixed",
    "modelopt_mxfp8",
    "moe_wna16",
    "online",
    "quark",
    "torchao",
];

const DEPRECATED: [&str; 2] = ["fbgemm_fp8", "fp_quant"];

fn method(candidate: &Candidate<'_>) -> Option<Violation> {
    let method = candidate.text("quantization")?.to_lowercase();
    let refused = |message: String| Some(Violation::new(message).unset("quantization"));
    let known = ONLINE.iter().chain(&OFFLINE).chain(&DEPRECATED).any(|known| *known == method);
    if !known {
        return refused(format!("Unknown quantization method: {method}."));
    }
    if DEPRECATED.contains(&method.as_str()) && !candidate.on("allow-deprecated-quantization") {
        return refused(format!(
            "The quantization method {method} is deprecated and will be removed in future versions of vLLM. To \
             bypass, set `--allow-deprecated-quantization`."
        ));
    }
    if candidate.facts.model.quantization.is_some() {
        return None;
    }
    // `quantization_config` on the command line may hold what the checkpoint lacks.
    let described = candidate.has("quantization-config");
    if (OFFLINE.contains(&method.as_str()) || method == "fbgemm_fp8") && !(method == "online" && described) {
        return refused(format!("Cannot find the config file for {method}"));
    }
    let dtype = dtype(candidate)?;
    let only_bfloat16 = method == "gpt_oss_mxfp4" && dtype != "bfloat16";
    (dtype == "float32" || only_bfloat16).then(|| {
        let message = format!("torch.{dtype} is not supported for quantization method {method}.");
        if candidate.text("dtype").is_some_and(|given| given != "auto") && !only_bfloat16 {
            Violation::new(message).unset("dtype")
        } else {
            Violation::new(message).unset("quantization")
        }
    })
}

/// The data type in the end. `None` where the checkpoint does not say it.
fn dtype<'a>(candidate: &'a Candidate<'_>) -> Option<&'a str> {
    let given = candidate.text("dtype").filter(|dtype| *dtype != "auto");
    let own = || candidate.facts.model.dtype.as_deref().map(|dtype| dtype.trim_start_matches("torch."));
    Some(match given.or_else(own)? {
        "half" => "float16",
        "float" => "float32",
        other => other,
    })
}

fn latent_cache(candidate: &Candidate<'_>) -> Option<Violation> {
    let dtype = candidate.text("kv-cache-dtype").filter(|dtype| matches!(*dtype, "nvfp4" | "nvfp4_4over6"))?;
    candidate.facts.model.latent.is_some().then(|| {
        let message = format!("{dtype} KV cache is not supported with MLA (Multi-head Latent Attention) backends.");
        Violation::new(message).unset("kv-cache-dtype")
    })
}

#[cfg(test)]
mod tests {
    use crate::rule::tests::on_cpu;

    #[test]
    fn methods_are_known_and_have_their_checkpoint() {
        assert_eq!(on_cpu("--quantization FP8"), None);
        assert_eq!(on_cpu("--quantization None"), None);
        for method in ["nonsense", "awq", "fp_quant"] {
            assert_eq!(on_cpu(&format!("--quantization {method}")), Some("R20a"), "{method}");
        }
        assert_eq!(on_cpu("--quantization fp_quant --allow-deprecated-quantization"), None);
        assert_eq!(on_cpu("--quantization fp8 --dtype float32"), Some("R20a"));
    }
}
