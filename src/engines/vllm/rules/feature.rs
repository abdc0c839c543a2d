//! Features that need a device, a kind of model or another feature (`ModelConfig`, `MambaConfig`, `VllmConfig` in vLLM
//! 0.32).

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::Value as Json;

use super::{Candidate, Rule, Violation, refusal};
use crate::engines::vllm::FLAGS;

pub(super) const RULES: &[Rule] = &[
    refusal("R4h", "JSON fields are known and have the right types", json_fields),
    refusal("R20b", "the platform supports sleep mode and the cumem allocator", sleep),
    refusal("R21", "the model runner on a CPU supports the feature", model_runner),
    refusal("R21a", "flags of state-space layers suit each other and the model", state_space),
    refusal("R21b", "the profiler has a directory and only its own options", profiler),
    refusal("R21c", "the backend of structured outputs supports the requested options", structured_outputs),
    refusal("R21e", "TerraTorch does not run language models", implementation),
    refusal("R21d", "asynchronous expert load balancing has a compatible communicator", balancing),
];

/// JSON flags that must be objects, with any content.
const OBJECTS: [&str; 3] = ["additional-config", "hf-overrides", "model-class-overrides"];

/// Returns whether Python treats the value as false.
fn is_empty(json: &Json) -> bool {
    match json {
        Json::Null => true,
        Json::Bool(on) => !on,
        Json::Number(number) => number.as_f64() == Some(0.0),
        Json::String(text) => text.is_empty(),
        Json::Array(items) => items.is_empty(),
        Json::Object(fields) => fields.is_empty(),
    }
}

/// JSON flags of any release with fields that the configuration classes validate. Speculative decoding has its own
/// rules.
static READ_BY_CLASSES: LazyLock<BTreeSet<&'static str>> = LazyLock::new(|| {
    let flags = FLAGS.releases(None, None).flat_map(|version| FLAGS.for_version(version).flags());
    flags.filter(|flag| flag.is_read_by_classes() && flag.name != "speculative-config").map(|flag| flag.name).collect()
});

fn json_fields(candidate: &Candidate<'_>) -> Option<Violation> {
    let object = OBJECTS.iter().find_map(|name| {
        // A text that is no JSON stays text, so it is not an object.
        let text = candidate.config.get(name).map(ToString::to_string)?;
        let object = serde_json::from_str::<Json>(&text).is_ok_and(|json| json.is_object());
        (!object).then(|| (*name, "Input should be a valid dictionary".to_owned()))
    });
    let table = FLAGS.for_version(candidate.facts.version);
    let field = || {
        READ_BY_CLASSES.iter().find_map(|name| {
            let json = candidate.json(name)?;
            // Without LoRA, the engine ignores an empty value of this flag.
            let unread = *name == "default-mm-loras" && !candidate.is_on("enable-lora") && is_empty(&json);
            if json.is_null() || unread {
                return None;
            }
            Some((*name, table.find(name)?.find_field_error(&json)?))
        })
    };
    let (name, reason) = object.or_else(field)?;
    Some(Violation::new(format!("{}: {reason}", name.replace('-', "_"))).unset(name))
}

/// Checks the model's class. `terratorch` runs only models for Earth observation, all of one class, and asserts this
/// (`ModelConfig.registry`).
fn implementation(candidate: &Candidate<'_>) -> Option<Violation> {
    let own = candidate.facts.model.architecture.as_deref().unwrap_or("a model without architectures");
    let other = own != "Terratorch" && !own.starts_with("Prithvi");
    (candidate.text("model-impl") == Some("terratorch") && other).then(|| {
        let message = format!("model_impl 'terratorch' cannot run {own}");
        Violation::new(message).unset("model-impl")
    })
}

fn sleep(candidate: &Candidate<'_>) -> Option<Violation> {
    if !candidate.on_cpu() {
        return None;
    }
    if candidate.is_on("enable-sleep-mode") {
        return Some(Violation::new("Sleep mode is not supported on current platform.").unset("enable-sleep-mode"));
    }
    candidate.is_on("enable-cumem-allocator").then(|| {
        Violation::new("cumem allocator is not supported on current platform.").unset("enable-cumem-allocator")
    })
}

fn model_runner(candidate: &Candidate<'_>) -> Option<Violation> {
    if !candidate.on_cpu() {
        return None;
    }
    let refused = |message: &str, flag: &str| Some(Violation::new(message).unset(flag));
    if candidate.is_on("return-sampling-mask") {
        return refused("sampling distribution replay requires Model Runner V2", "return-sampling-mask");
    }
    if candidate.is_on("enable-trace-replay") {
        return refused("trace replay requires Model Runner V2", "enable-trace-replay");
    }
    let routed = candidate
        .fields("aux-output-config")
        .and_then(|mut fields| fields.remove("enable_return_routed_experts").filter(|on| *on != Json::Bool(false)));
    if candidate.is_on("enable-return-routed-experts") || routed.is_some() {
        let message = "AuxOutput Connector requires Model Runner V2; set VLLM_USE_V2_MODEL_RUNNER=1.";
        return Some(Violation::new(message).unset("enable-return-routed-experts").unset("aux-output-config"));
    }
    if candidate.has("watermark-config") {
        return refused("Model Runner V2 requires Triton.", "watermark-config");
    }
    None
}

/// Parts of the names of architectures with state-space layers. Other architectures refuse `--use-replayssm`.
const STATE_SPACE: [&str; 12] =
    ["Mamba", "Jamba", "Bamba", "Nemotron", "Granite", "Falcon", "Zamba", "Plamo", "Next", "Kimi", "Lfm", "Bailing"];

/// Families with both attention layers and state-space layers.
const HYBRID: [&str; 10] = [
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "jamba",
    "kimi_linear",
    "lfm2",
    "nemotron_h",
    "plamo2",
    "qwen3_next",
    "zamba2",
];

/// Families with only state-space layers.
const STATE_ONLY: [&str; 3] = ["falcon_mamba", "mamba", "mamba2"];

fn state_space(candidate: &Candidate<'_>) -> Option<Violation> {
    let backend = candidate.config.get_str("mamba-backend");
    if let Some(name) = backend.filter(|name| !["triton", "flashinfer", "cpu"].contains(&name.to_lowercase().as_str()))
    {
        let message =
            format!("Unknown Mamba SSU backend: '{}'. Valid options are: TRITON, FLASHINFER, CPU", name.to_uppercase());
        return Some(Violation::new(message).unset("mamba-backend"));
    }
    let flashinfer = backend.is_some_and(|name| name.eq_ignore_ascii_case("flashinfer"));
    if candidate.has("mamba-ssu-algorithm") && !flashinfer {
        let message = "Mamba SSU algorithm selection is only supported with the FlashInfer backend. Please set \
                       `--mamba-backend flashinfer`, or omit `--mamba-ssu-algorithm`.";
        return Some(Violation::new(message).unset("mamba-ssu-algorithm"));
    }
    let rounds = candidate.is_on("enable-mamba-cache-stochastic-rounding");
    if rounds && candidate.text("mamba-ssm-cache-dtype") != Some("float16") {
        let message = "Stochastic rounding for Mamba cache requires the SSM cache to be float16. Please set it \
                       explicitly, by specifying `--mamba-ssm-cache-dtype float16`, or disable stochastic rounding by \
                       not specifying `--enable-mamba-cache-stochastic-rounding`.";
        return Some(Violation::new(message).unset("enable-mamba-cache-stochastic-rounding"));
    }
    let size = candidate.number("mamba-block-size").and_then(|size| u64::try_from(size).ok());
    let uncached = !candidate.effective.prefix_caching;
    if size.is_some_and(|size| size > 0 && size != candidate.effective.max_model_len) && uncached {
        let message = "--mamba-block-size can only be set with --enable-prefix-caching";
        return Some(Violation::new(message).unset("mamba-block-size"));
    }
    let own = candidate.facts.model.architecture.as_deref();
    let kind = candidate.facts.model.model_type.as_deref().unwrap_or_default();
    // Prefix caching is a default only for models with some attention layers.
    let default = HYBRID.contains(&kind);
    let cached = candidate.config.get_bool("enable-prefix-caching").unwrap_or(default);
    if (default || STATE_ONLY.contains(&kind)) && cached && !candidate.effective.chunked_prefill {
        let message = "Chunked prefill is required for mamba cache mode 'align'.";
        return Some(Violation::new(message).unset("enable-chunked-prefill"));
    }
    let without = own.is_some_and(|own| !STATE_SPACE.iter().any(|family| own.contains(family)));
    (candidate.is_on("use-replayssm") && without).then(|| {
        let message = format!("--use-replayssm is not supported for architecture '{}'", own.unwrap_or_default());
        Violation::new(message).unset("use-replayssm")
    })
}

fn profiler(candidate: &Candidate<'_>) -> Option<Violation> {
    let fields = candidate.fields("profiler-config")?;
    let text = |name: &str| fields.get(name).and_then(Json::as_str).filter(|text| !text.is_empty());
    let refused = |message: String| Some(Violation::new(message).unset("profiler-config"));
    let kind = text("profiler");
    if text("torch_profiler_dir").is_some() != (kind == Some("torch")) {
        return refused(if kind == Some("torch") {
            "torch_profiler_dir must be set when profiler is 'torch'".to_owned()
        } else {
            "torch_profiler_dir is only applicable when profiler is set to 'torch'".to_owned()
        });
    }
    if kind != Some("torch") {
        let other = ["torch_profiler_activities", "capture_torch_profiler"]
            .into_iter()
            .find(|name| fields.get(*name).is_some_and(|value| !value.is_null() && *value != Json::Bool(false)));
        if let Some(name) = other {
            return refused(format!("{name} is only applicable when profiler is set to 'torch'"));
        }
    }
    if kind == Some("proton") {
        if text("proton_profiler_dir").is_none() {
            return refused("proton_profiler_dir must be set when profiler is 'proton'".to_owned());
        }
        if candidate.on_cpu() {
            return refused("The Proton profiler currently supports NVIDIA CUDA only".to_owned());
        }
    } else if text("proton_profiler_dir").is_some() {
        return refused("proton_profiler_dir only applicable when profiler is set to 'proton'".to_owned());
    }
    None
}

fn structured_outputs(candidate: &Candidate<'_>) -> Option<Violation> {
    let fields = candidate.fields("structured-outputs-config")?;
    let on = |name: &str| fields.get(name).is_some_and(|value| *value != Json::Bool(false));
    let backend = fields.get("backend").and_then(Json::as_str).unwrap_or("auto");
    let message = if on("disable_any_whitespace") && !["xgrammar", "guidance"].contains(&backend) {
        "disable_any_whitespace is only supported for xgrammar and guidance backends."
    } else if on("disable_additional_properties") && backend != "guidance" {
        "disable_additional_properties is only supported for the guidance backend."
    } else {
        return None;
    };
    Some(Violation::new(message).unset("structured-outputs-config"))
}

fn balancing(candidate: &Candidate<'_>) -> Option<Violation> {
    let fields = candidate.fields("eplb-config")?;
    let asynchronous = fields.get("use_async") != Some(&Json::Bool(false));
    let communicator = fields.get("communicator").and_then(Json::as_str)?;
    (asynchronous && ["torch_nccl", "pynccl"].contains(&communicator)).then(|| {
        let message = format!(
            "{communicator} communicator is incompatible with async EPLB due to NCCL multi-stream conflicts. Use \
             'torch_gloo' or 'nixl' instead, or leave communicator unset for automatic selection."
        );
        Violation::new(message).unset("eplb-config")
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::{on_cpu, rule};
    use crate::facts::{Device, EngineVersion, ModelShape};
    use crate::rule::{Facts, rejection};

    #[test]
    fn some_features_need_a_gpu() {
        for (line, id) in [
            ("--enable-sleep-mode", "R20b"),
            ("--enable-cumem-allocator", "R20b"),
            ("--return-sampling-mask", "R21"),
            ("--enable-return-routed-experts", "R21"),
        ] {
            assert_eq!((on_cpu(line), rule("0.32.0", line)), (Some(id), None), "{line}");
        }
    }

    #[test]
    fn state_space_flags_fit_together() {
        assert_eq!(on_cpu("--mamba-backend NOPE"), Some("R21a"));
        assert_eq!(on_cpu("--mamba-ssu-algorithm simple"), Some("R21a"));
        assert_eq!(on_cpu("--mamba-ssu-algorithm simple --mamba-backend flashinfer"), None);
        assert_eq!(on_cpu("--mamba-block-size 64"), None);
        assert_eq!(on_cpu("--mamba-block-size 64 --no-enable-prefix-caching"), Some("R21a"));
        assert_eq!(on_cpu("--enable-mamba-cache-stochastic-rounding"), Some("R21a"));
    }

    #[test]
    fn cached_states_need_chunks() {
        let of = |kind: &str, line: &str| {
            let json = serde_json::json!({"model_type": kind, "max_position_embeddings": 1024});
            let version = EngineVersion::V0_32;
            let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            let config = crate::engines::vllm::FLAGS.for_version(version).parse(&arguments).unwrap();
            let model = ModelShape::from_json(&json);
            rejection(&config, &Facts::new(crate::engines::vllm::VLLM_RULES, &model, version, Device::Cpu))
                .map(|finding| finding.rule)
        };
        assert_eq!(of("qwen3_next", "--no-enable-chunked-prefill"), Some("R21a"));
        assert_eq!(of("qwen3_next", "--no-enable-chunked-prefill --no-enable-prefix-caching"), None);
        assert_eq!(of("mamba", "--no-enable-chunked-prefill"), None);
        assert_eq!(of("mamba", "--no-enable-chunked-prefill --enable-prefix-caching"), Some("R21a"));
        assert_eq!(of("qwen3", "--no-enable-chunked-prefill"), None);
    }

    #[test]
    fn an_implementation_that_is_not_installed_is_refused() {
        assert_eq!(on_cpu("--model-impl terratorch"), Some("R21e"));
        assert_eq!(on_cpu("--model-impl transformers"), None);
    }

    #[test]
    fn fields_that_the_parser_does_not_read_are_checked_as_well() {
        assert_eq!(on_cpu("--limit-mm-per-prompt []"), Some("R4h"));
        assert_eq!(on_cpu("--hf-overrides x"), Some("R4h"));
        assert_eq!(on_cpu("--additional-config {}"), None);
        assert_eq!(on_cpu("--default-mm-loras 0"), None);
        assert_eq!(on_cpu("--default-mm-loras 0 --enable-lora"), Some("R4h"));
        assert_eq!(on_cpu(r#"--structured-outputs-config {"disable_any_whitespace":true}"#), Some("R21c"));
        assert_eq!(on_cpu(r#"--profiler-config {"profiler":"torch"}"#), Some("R21b"));
        assert_eq!(on_cpu(r#"--profiler-config {"profiler":"cuda"}"#), None);
    }
}
