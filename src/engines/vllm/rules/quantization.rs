//! Quantization methods that a model's configuration accepts (`ModelConfig` in vLLM 0.32).

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::facts::EngineVersion;

const V0_32: ReleaseRange = ReleaseRange::starting_at(EngineVersion::V0_32);

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R20a",
        condition: "the quantization method is known and suits the checkpoint",
        releases: V0_32,
        severity: Severity::Configuration,
        check: method,
    },
    Rule {
        id: "R20e",
        condition: "latent attention supports the KV cache type",
        releases: V0_32,
        severity: Severity::Configuration,
        check: latent_cache,
    },
];

/// Methods of 0.32 that quantize a checkpoint at loading.
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

/// Methods of 0.32 that also compute in 32-bit floats.
const FLOAT32_METHODS: [&str; 2] = ["compressed-tensors", "torchao"];

fn method(candidate: &Candidate<'_>) -> Option<Violation> {
    let asked = candidate.text("quantization").map(str::to_lowercase);
    let method = match (candidate.facts.model.quantization.as_deref(), asked) {
        (None, None) => return None,
        (None, Some(asked)) => asked,
        (Some(own), asked) => match checkpoint_method(candidate, own, asked.as_deref()) {
            Ok(method) => method.to_owned(),
            Err(violation) => return Some(violation),
        },
    };
    let refused = |message: String| Some(Violation::new(message).unset("quantization"));
    let known = ONLINE.iter().chain(&OFFLINE).chain(&DEPRECATED).any(|known| *known == method);
    if !known {
        return refused(format!("Unknown quantization method: {method}."));
    }
    let own = candidate.facts.model.quantization.is_some();
    if DEPRECATED.contains(&method.as_str()) && !candidate.is_on("allow-deprecated-quantization") {
        let message = format!(
            "The quantization method {method} is deprecated and will be removed in future versions of vLLM. To \
             bypass, set `--allow-deprecated-quantization`."
        );
        return if own {
            Some(Violation::new(message).set("allow-deprecated-quantization", true))
        } else {
            refused(message)
        };
    }
    // `quantization_config` on the command line may replace the checkpoint's missing description.
    let described = candidate.has("quantization-config");
    let offline = OFFLINE.contains(&method.as_str()) || method == "fbgemm_fp8";
    if !own && offline && !(method == "online" && described) {
        return refused(format!("Cannot find the config file for {method}"));
    }
    if method == "auto_gptq"
        && let Some(violation) = gptq(candidate)
    {
        return Some(violation);
    }
    let dtype = dtype(candidate)?;
    let only_bfloat16 = method == "gpt_oss_mxfp4" && dtype != "bfloat16";
    ((dtype == "float32" && !FLOAT32_METHODS.contains(&method.as_str())) || only_bfloat16).then(|| {
        let takes = if method == "gpt_oss_mxfp4" { "torch.bfloat16" } else { "torch.bfloat16, torch.float16" };
        let message =
            format!("torch.{dtype} is not supported for quantization method {method}. Supported dtypes: [{takes}]");
        Violation::new(message).set("dtype", "bfloat16")
    })
}

/// Returns the effective method if the checkpoint names one (`ModelConfig._verify_quantization`, and the overrides of
/// each method).
fn checkpoint_method<'a>(
    candidate: &Candidate<'_>,
    own: &'a str,
    asked: Option<&'a str>,
) -> Result<&'a str, Violation> {
    let model = candidate.facts.model;
    let gpt_oss = model.model_type.as_deref() == Some("gpt_oss") && own == "mxfp4";
    let cpu = candidate.on_cpu();
    match (own, asked) {
        (_, Some("humming")) if gpt_oss => {
            let message =
                "For gpt-oss model, use '--moe-backend humming' instead of '--quantization humming'.";
            Err(Violation::new(message).unset("quantization"))
        }
        (_, Some("humming")) => Ok("humming"),
        // This holds for any explicit method.
        _ if gpt_oss => Ok("gpt_oss_mxfp4"),
        ("auto-round", _) => Ok("inc"),
        ("modelopt", _) => Ok("modelopt"),
        ("gptq", None | Some("gptq" | "gptq_marlin" | "auto_gptq" | "marlin")) => Ok("auto_gptq"),
        ("gptq", Some("moe_wna16")) if !model.activation_order && matches!(model.quantization_bits, Some(4 | 8)) => {
            Ok("moe_wna16")
        }
        ("awq", None | Some("awq" | "awq_marlin" | "auto_awq" | "marlin")) if !cpu => Ok("auto_awq"),
        ("awq", Some("moe_wna16")) if !cpu && model.quantization_bits == Some(4) => Ok("moe_wna16"),
        ("fp8", Some("deepseek_v4_fp8")) => Ok("deepseek_v4_fp8"),
        (_, None) => Ok(own),
        (_, Some(asked)) if asked == own => Ok(own),
        (_, Some(asked)) => Err(Violation::new(format!(
            "Quantization method specified in the model config ({own}) does not match the quantization method specified \
             in the `quantization` argument ({asked})."
        ))
        .unset("quantization")),
    }
}

/// Checks a checkpoint like the only GPTQ class of 0.32. No flag changes a checkpoint, so there is no repair.
fn gptq(candidate: &Candidate<'_>) -> Option<Violation> {
    let model = candidate.facts.model;
    if model.activation_order {
        return Some(Violation::new(
            "GPTQ group activation ordering (desc_act=True) is no longer supported. Use a checkpoint with static \
             activation ordering or desc_act=False.",
        ));
    }
    let (bits, symmetric) = (model.quantization_bits?, model.symmetric_quantization?);
    (!matches!(bits, 4 | 8) || !symmetric).then(|| {
        let symmetric = if symmetric { "True" } else { "False" };
        Violation::new(format!("Unsupported quantization config: bits={bits}, sym={symmetric}"))
    })
}

/// Returns the effective data type of 0.32 (`_get_and_verify_dtype`). `None` if the checkpoint does not state one.
pub(super) fn dtype<'a>(candidate: &'a Candidate<'_>) -> Option<&'a str> {
    if let Some(given) = candidate.text("dtype").filter(|dtype| *dtype != "auto") {
        return Some(match given {
            "half" => "float16",
            "float" => "float32",
            other => other,
        });
    }
    // By default, checkpoints in float32 are converted to bfloat16.
    match candidate.facts.model.dtype.as_deref()?.trim_start_matches("torch.") {
        "float32" | "float" => Some("bfloat16"),
        "half" => Some("float16"),
        other => Some(other),
    }
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
    use crate::engines::vllm::FLAGS;
    use crate::engines::vllm::rules::tests::on_cpu;
    use crate::facts::{Device, EngineVersion, ModelShape};
    use crate::rule::{Facts, rejection, repair};

    /// Returns the rejecting rule of 0.32.0 on a CPU for a model with these keys, and whether there is a repair.
    fn of(json: &str, line: &str) -> Option<(&'static str, bool)> {
        let model = ModelShape::from_json(&serde_json::from_str(json).unwrap());
        let version = EngineVersion::V0_32;
        let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let config = FLAGS.for_version(version).parse(&arguments).unwrap();
        let facts = Facts::new(crate::engines::vllm::VLLM_RULES, &model, version, Device::Cpu);
        rejection(&config, &facts).map(|finding| (finding.rule, repair(&config, &facts).is_some()))
    }

    #[test]
    fn the_method_of_a_checkpoint_is_taken_or_matches() {
        let refused = Some(("R20a", true));
        let gptq = r#"{"quantization_config": {"quant_method": "gptq", "bits": 4, "desc_act": false, "sym": true}}"#;
        for line in ["", "--quantization gptq_marlin", "--quantization moe_wna16", "--quantization humming"] {
            assert_eq!(of(gptq, line), None, "{line}");
        }
        assert_eq!(of(gptq, "--quantization torchao"), refused);
        assert_eq!(of(gptq, "--dtype float32"), refused);
        let packed = r#"{"quantization_config": {"quant_method": "compressed-tensors"}}"#;
        assert_eq!(of(packed, "--dtype float32"), None);
        assert_eq!(of(packed, "--quantization fp8"), refused);
        let awq = r#"{"quantization_config": {"quant_method": "awq", "bits": 4}}"#;
        assert_eq!(of(awq, "--quantization awq_marlin"), refused, "a CPU has a kernel of its own");
        let oss = r#"{"model_type": "gpt_oss", "dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"}}"#;
        assert_eq!(of(oss, "--quantization gptq"), None);
        assert_eq!(of(oss, "--dtype float16"), refused);
        assert_eq!(of(r#"{"quantization_config": {"quant_method": "fbgemm_fp8"}}"#, ""), refused);
    }

    #[test]
    fn checkpoints_that_no_flag_can_help_are_refused() {
        for own in [
            r#""gptq", "bits": 4, "group_size": 128, "desc_act": true, "sym": true"#,
            r#""gptq", "bits": 4, "group_size": 128, "desc_act": false, "sym": false"#,
            r#""gptq", "bits": 3, "group_size": 128, "desc_act": false, "sym": true"#,
            r#""bitsandbytes", "load_in_4bit": true"#,
        ] {
            let json = format!(r#"{{"quantization_config": {{"quant_method": {own}}}}}"#);
            assert_eq!(of(&json, ""), Some(("R20a", false)), "{own}");
        }
    }

    #[test]
    fn a_float32_checkpoint_is_converted_unless_the_dtype_is_explicit() {
        assert_eq!(of(r#"{"dtype": "float32"}"#, "--quantization mxfp8"), Some(("R20l", true)), "a CPU has no kernel");
        assert_eq!(of(r#"{"dtype": "float32"}"#, "--quantization mxfp8 --dtype float32"), Some(("R20a", true)));
    }

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
