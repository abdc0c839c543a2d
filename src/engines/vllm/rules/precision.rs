//! Number formats that the GPU and the quantisation method support.
//!
//! Sources: `check_if_supports_dtype` in `vllm/platforms/cuda.py` (before: `worker/worker.py`), `_find_dtype` in
//! `vllm/config/model.py`, `get_min_capability` and `get_supported_act_dtypes` of every quantisation method.

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::facts::{Device, EngineVersion};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R20f",
        condition: "a model family that overflows in float16 needs another type",
        releases: ReleaseRange::starting_at(EngineVersion::V0_10),
        severity: Severity::Configuration,
        check: family_takes_float16,
    },
    Rule {
        id: "R20g",
        condition: "bfloat16 needs a GPU of compute capability 8.0 or higher",
        releases: ReleaseRange::ALL,
        severity: Severity::Startup,
        check: gpu_takes_bfloat16,
    },
    Rule {
        id: "R20h",
        condition: "the GPU has the compute capability that the quantization method needs",
        releases: ReleaseRange::until(EngineVersion::V0_8),
        severity: Severity::Startup,
        check: gpu_takes_method,
    },
    Rule {
        id: "R20h",
        condition: "the GPU has the compute capability that the quantization method needs",
        releases: ReleaseRange::starting_at(EngineVersion::V0_8),
        severity: Severity::Configuration,
        check: gpu_takes_method,
    },
    Rule {
        id: "R20i",
        condition: "the quantization method supports the requested type",
        releases: ReleaseRange::until(EngineVersion::V0_32),
        severity: Severity::Startup,
        check: method_takes_dtype,
    },
    Rule {
        id: "R20j",
        condition: "the quantization method is the checkpoint's",
        releases: ReleaseRange::until(EngineVersion::V0_32),
        severity: Severity::Configuration,
        check: method_matches_checkpoint,
    },
    Rule {
        id: "R20k",
        condition: "quantization by bitsandbytes needs the load format bitsandbytes",
        releases: ReleaseRange::until(EngineVersion::V0_8),
        severity: Severity::Configuration,
        check: bitsandbytes_load_format,
    },
];

/// Families with `Numerical instability` in `_FLOAT16_NOT_SUPPORTED_MODELS`.
const NO_FLOAT16: [&str; 5] = ["gemma2", "gemma3", "gemma3_text", "glm4", "plamo2"];

fn family_takes_float16(candidate: &Candidate<'_>) -> Option<Violation> {
    let asked = candidate.config.get_str("dtype").filter(|dtype| ["half", "float16"].contains(dtype))?;
    let family = candidate.facts.model.model_type.as_deref().filter(|family| NO_FLOAT16.contains(family))?;
    // 0.32 no longer refuses this family.
    if family == "plamo2" && candidate.facts.version >= EngineVersion::V0_32 {
        return None;
    }
    let message = format!(
        "The model type '{family}' does not support float16. Reason: Numerical instability. Please use bfloat16 or \
         float32 instead. (dtype is {asked})"
    );
    Some(Violation::new(message).unset("dtype"))
}

fn gpu_takes_bfloat16(candidate: &Candidate<'_>) -> Option<Violation> {
    let (major, minor) = candidate.facts.device.gpu()?.capability.filter(|known| known.0 < 8)?;
    let asked = candidate.config.get_str("dtype").filter(|dtype| *dtype != "auto");
    // From 0.10 on, `auto` falls back to float16.
    let by_itself =
        || candidate.facts.version < EngineVersion::V0_10 && candidate.facts.model.dtype.as_deref() == Some("bfloat16");
    asked.map_or_else(by_itself, |dtype| dtype == "bfloat16").then(|| {
        let message = format!(
            "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your GPU has compute \
             capability {major}.{minor}. You can use float16 instead by explicitly setting the `dtype` flag in CLI, for \
             example: --dtype=half."
        );
        Violation::new(message).set("dtype", "half")
    })
}

/// Returns the minimum capability, times ten, of a quantisation method in a release. `None` if it is unknown.
fn least_capability(method: &str, version: EngineVersion) -> Option<u64> {
    Some(match method {
        "gguf" | "gptq" => 60,
        "bitsandbytes" | "compressed-tensors" | "moe_wna16" => 70,
        "awq" | "torchao" => 75,
        "awq_marlin" | "fp8" | "gptq_marlin" | "modelopt_fp4" if version >= EngineVersion::V0_20 => 75,
        "modelopt" if version < EngineVersion::V0_10 => 89,
        "fp_quant" => 100,
        "modelopt_fp4" if version < EngineVersion::V0_10 => 100,
        "awq_marlin" | "experts_int8" | "fbgemm_fp8" | "fp8" | "gptq_marlin" | "modelopt_fp4" | "mxfp4" => 80,
        _ => return None,
    })
}

/// Returns the explicit quantisation method, otherwise the checkpoint's own.
fn method<'a>(candidate: &Candidate<'a>) -> Option<&'a str> {
    candidate.config.get_str("quantization").or(candidate.facts.model.quantization.as_deref())
}

fn gpu_takes_method(candidate: &Candidate<'_>) -> Option<Violation> {
    let (major, minor) = candidate.facts.device.gpu()?.capability?;
    let method = method(candidate)?;
    let (least, has) = (least_capability(method, candidate.facts.version)?, u64::from(major) * 10 + u64::from(minor));
    (has < least).then(|| {
        let message = format!(
            "The quantization method {method} is not supported for the current GPU. Minimum capability: {least}. \
             Current capability: {has}."
        );
        let violation = Violation::new(message);
        if candidate.config.get("quantization").is_some() { violation.unset("quantization") } else { violation }
    })
}

/// Checks the data type. The kernels of `awq` and `gptq` compute in float16 only. Other kernels for these checkpoints
/// have their own names.
fn method_takes_dtype(candidate: &Candidate<'_>) -> Option<Violation> {
    let method = candidate.config.get_str("quantization").filter(|name| ["awq", "gptq"].contains(name))?;
    let dtype = match candidate.config.get_str("dtype")? {
        "bfloat16" => "torch.bfloat16",
        "float" | "float32" => "torch.float32",
        _ => return None,
    };
    if candidate.facts.device == Device::Cpu {
        return None;
    }
    let message =
        format!("{dtype} is not supported for quantization method {method}. Supported dtypes: [torch.float16]");
    Some(Violation::new(message).set("dtype", "half"))
}

/// Groups of methods that read the same kind of checkpoint. The first name is that of the checkpoint.
const KINDS: [&[&str]; 4] = [
    &["awq", "awq_marlin"],
    &["gptq", "gptq_bitblas", "gptq_marlin", "gptq_marlin_24", "marlin"],
    &["fp8"],
    &["bitsandbytes"],
];

fn method_matches_checkpoint(candidate: &Candidate<'_>) -> Option<Violation> {
    let asked = candidate.config.get_str("quantization")?;
    let own = candidate.facts.model.quantization.as_deref()?;
    let kind = |name: &str| KINDS.into_iter().position(|kind| kind.contains(&name));
    // Only for these groups it is certain that no method reads a checkpoint of another group.
    (kind(asked)? != kind(own)?).then(|| {
        let message = format!(
            "Quantization method specified in the model config ({own}) does not match the quantization method \
             specified in the `quantization` argument ({asked})."
        );
        Violation::new(message).unset("quantization")
    })
}

fn bitsandbytes_load_format(candidate: &Candidate<'_>) -> Option<Violation> {
    let value = |name: &str| candidate.config.get_str(name);
    let is = |name: &str| value(name) == Some("bitsandbytes");
    match (is("quantization"), is("load-format")) {
        (true, false) => {
            let message = format!(
                "BitsAndBytes quantization and QLoRA adapter only support 'bitsandbytes' load format, but got {}",
                value("load-format").unwrap_or("auto")
            );
            Some(Violation::new(message).set("load-format", "bitsandbytes"))
        }
        (false, true) => {
            let message = format!(
                "BitsAndBytes load format and QLoRA adapter only support 'bitsandbytes' quantization, but got {}",
                value("quantization").unwrap_or("None")
            );
            Some(Violation::new(message).unset("load-format"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::FLAGS;
    use crate::facts::{Gpu, ModelShape};
    use crate::rule::{Facts, rejection};

    fn id(version: &str, capability: Option<(u8, u8)>, model: &str, line: &str) -> Option<&'static str> {
        let model = ModelShape::from_json(&serde_json::from_str(model).unwrap());
        let version = version.parse().unwrap();
        let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let config = FLAGS.for_version(version).parse(&arguments).unwrap();
        let device = Device::Cuda(Gpu { capability, ..Gpu::default() });
        rejection(&config, &Facts::new(crate::engines::vllm::VLLM_RULES, &model, version, device))
            .map(|finding| finding.rule)
    }

    #[test]
    fn bfloat16_needs_a_capability_and_auto_falls_back_from_0_10_on() {
        let model = r#"{"torch_dtype": "bfloat16"}"#;
        for (version, falls_back) in [("0.6.3", false), ("0.8.5", false), ("0.10.2", true), ("0.32.0", true)] {
            assert_eq!(id(version, Some((7, 5)), "{}", "--dtype bfloat16"), Some("R20g"), "{version}");
            assert_eq!(id(version, Some((8, 0)), "{}", "--dtype bfloat16"), None, "{version}");
            assert_eq!(id(version, None, "{}", "--dtype bfloat16"), None, "{version}");
            assert_eq!(id(version, Some((7, 5)), model, "").is_none(), falls_back, "{version}");
            assert_eq!(id(version, Some((7, 5)), model, "--dtype half"), None, "{version}");
        }
    }

    #[test]
    fn families_that_overflow_are_not_run_in_float16() {
        let gemma = r#"{"model_type": "gemma2"}"#;
        let half = |version: &str| id(version, None, gemma, "--dtype half");
        assert_eq!(
            (half("0.8.5"), half("0.10.2"), half("0.20.2"), half("0.32.0")),
            (None, Some("R20f"), Some("R20f"), Some("R20f"))
        );
        assert_eq!(id("0.12.0", None, r#"{"model_type": "qwen2"}"#, "--dtype half"), None);
        assert_eq!(id("0.12.0", None, gemma, "--dtype bfloat16"), None);
    }

    #[test]
    fn quantisation_methods_need_a_capability() {
        let asked = |version: &str, capability, method: &str| {
            id(version, Some(capability), "{}", &format!("--quantization {method} --dtype half"))
        };
        assert_eq!((asked("0.6.3", (7, 5), "fp8"), asked("0.6.3", (8, 0), "fp8")), (Some("R20h"), None));
        assert_eq!((asked("0.12.0", (7, 5), "fp8"), asked("0.20.2", (7, 5), "fp8")), (Some("R20h"), None));
        assert_eq!((asked("0.12.0", (7, 0), "awq"), asked("0.12.0", (7, 5), "awq")), (Some("R20h"), None));
        let checkpoint = r#"{"quantization_config": {"quant_method": "awq"}}"#;
        assert_eq!(id("0.12.0", Some((7, 0)), checkpoint, "--dtype half"), Some("R20h"));
        assert_eq!(id("0.12.0", None, checkpoint, ""), None);
    }

    #[test]
    fn the_method_suits_the_type_and_the_checkpoint() {
        let awq = r#"{"quantization_config": {"quant_method": "awq"}}"#;
        let of = |line: &str| id("0.12.0", None, awq, line);
        assert_eq!(of("--quantization awq --dtype bfloat16"), Some("R20i"));
        assert_eq!(of("--quantization awq_marlin --dtype bfloat16"), None);
        assert_eq!(of("--quantization awq --dtype half"), None);
        assert_eq!(of("--quantization gptq"), Some("R20j"));
        assert_eq!(id("0.32.0", None, awq, "--quantization fp8"), Some("R20a"));
    }

    #[test]
    fn bitsandbytes_came_with_its_own_load_format() {
        let of = |version: &str, line: &str| id(version, None, "{}", line);
        assert_eq!(of("0.6.3", "--quantization bitsandbytes"), Some("R20k"));
        assert_eq!(of("0.6.3", "--load-format bitsandbytes"), Some("R20k"));
        assert_eq!(of("0.6.3", "--quantization bitsandbytes --load-format bitsandbytes"), None);
        assert_eq!(of("0.8.5", "--quantization bitsandbytes"), None);
    }
}
