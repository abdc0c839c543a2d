//! The choice between the V0 and V1 engines. vLLM 0.8 to 0.11 have both. A setting that V1 does not support silently
//! selects V0.
//!
//! Source: `_is_v1_supported_oracle` in `vllm/engine/arg_utils.py` of 0.8.5 and 0.10.2.

use crate::config::Config;
use crate::facts::{Device, EngineVersion, Gpu};
use crate::rule::Facts;

/// A setting that V1 does not support.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engines::vllm) struct UnsupportedFeature {
    /// The feature's name in the engine's messages.
    pub feature: String,
    /// Whether `VLLM_USE_V1=1` still selects V1, as an experiment.
    pub experimental: bool,
}

/// Returns whether the V0 engine would run.
pub(super) fn runs_v0(config: &Config, facts: &Facts<'_>) -> bool {
    let version = facts.version;
    if version < EngineVersion::V0_8 || version >= EngineVersion::V0_12 {
        return version < EngineVersion::V0_8;
    }
    match asks_for_v1(facts) {
        Some(false) => true,
        Some(true) => first_unsupported(config, facts).is_some_and(|unsupported| !unsupported.experimental),
        None => first_unsupported(config, facts).is_some(),
    }
}

/// Returns whether `VLLM_USE_V1` requests V1. `None` if it is not set to a number.
pub(in crate::engines::vllm) fn asks_for_v1(facts: &Facts<'_>) -> Option<bool> {
    Some(facts.env.get("VLLM_USE_V1")?.trim().parse::<i64>().ok()? != 0)
}

/// Returns the first setting that the V1 engine of a release with both engines does not support.
pub(in crate::engines::vllm) fn first_unsupported(config: &Config, facts: &Facts<'_>) -> Option<UnsupportedFeature> {
    let hard = by_flag(config, facts)
        .or_else(|| by_cache_type(config, facts))
        .or_else(|| by_model(config, facts))
        .or_else(|| by_backend(facts))
        .or_else(|| by_device(config, facts));
    let hard = hard.map(|feature| UnsupportedFeature { feature, experimental: false });
    let soft =
        || experimental_drafting(config, facts).map(|feature| UnsupportedFeature { feature, experimental: true });
    hard.or_else(soft)
}

fn by_flag(config: &Config, facts: &Facts<'_>) -> Option<String> {
    let old = facts.version < EngineVersion::V0_10;
    let other_than = |name: &str, value: i64| config.get_i64(name).is_some_and(|given| given != value);
    let text = |name: &str| config.get_str(name);
    let is_on = |name: &str| config.get_bool(name) == Some(true);
    let given = |name: &str| config.get(name).is_some();
    let load_format = text("load-format").filter(|format| *format == "sharded_state" || old && *format == "tensorizer");
    let guided = text("guided-decoding-backend").filter(|_| old);
    let guided =
        guided.filter(|name| !["auto", "xgrammar", "guidance"].contains(&name.split(':').next().unwrap_or(name)));
    let partial = ["max-num-partial-prefills", "max-long-partial-prefills"].into_iter().any(|name| other_than(name, 1));
    let task = text("task").filter(|task| old && !["auto", "generate"].contains(task));
    [
        load_format.map(|format| format!("--load_format {format}")),
        given("logits-processor-pattern").then(|| "--logits-processor-pattern".to_owned()),
        given("preemption-mode").then(|| "--preemption-mode".to_owned()),
        is_on("disable-async-output-proc").then(|| "--disable-async-output-proc".to_owned()),
        text("scheduling-policy").filter(|policy| old && *policy != "fcfs").map(|_| "--scheduling-policy".to_owned()),
        other_than("num-scheduler-steps", 1).then(|| "--num-scheduler-steps".to_owned()),
        config
            .get_f64("scheduler-delay-factor")
            .filter(|factor| *factor != 0.0)
            .map(|_| "--scheduler-delay-factor".to_owned()),
        guided.map(|name| format!("--guided-decoding-backend={name}")),
        is_on("enable-prompt-adapter").then(|| "--enable-prompt-adapter".to_owned()),
        is_on("enable-prompt-embeds").then(|| "--enable-prompt-embeds".to_owned()),
        text("dtype")
            .filter(|dtype| old && ["float", "float32"].contains(dtype))
            .map(|_| "--dtype torch.float32".to_owned()),
        text("quantization").filter(|method| old && *method == "gguf").map(|_| "--quantization gguf".to_owned()),
        task.map(|task| format!("--task {task}")),
        partial.then(|| "Concurrent Partial Prefill".to_owned()),
        (old && (given("otlp-traces-endpoint") || given("collect-detailed-traces")))
            .then(|| "--otlp-traces-endpoint".to_owned()),
    ]
    .into_iter()
    .flatten()
    .next()
}

/// Checks the type of the KV cache. V1 supports types other than `auto` only with some attention kernels. If the
/// capability is unknown, this function assumes the best case.
fn by_cache_type(config: &Config, facts: &Facts<'_>) -> Option<String> {
    let kind = config.get_str("kv-cache-dtype").filter(|kind| *kind != "auto")?;
    let backend = facts.env.get("VLLM_ATTENTION_BACKEND").map(String::as_str);
    let gpu = facts.device.gpu();
    let capability = gpu.and_then(|gpu| gpu.capability);
    let is = |major: u8| gpu.is_some() && capability.is_none_or(|known| known.0 == major);
    let is_fp8 = kind.starts_with("fp8");
    let supported = if facts.version < EngineVersion::V0_10 {
        is_fp8 && matches!(backend, None | Some("FLASH_ATTN_VLLM_V1")) && is(9)
    } else if gpu.is_none() {
        false
    } else if facts.model.latent.is_some() {
        matches!(backend, None | Some("FLASHMLA" | "CUTLASS_MLA")) || !is_fp8
    } else if is(10) && capability.is_some() {
        true
    } else {
        match backend {
            None | Some("FLASH_ATTN_VLLM_V1") => !is_fp8 || is(9),
            Some("FLASHINFER") => true,
            Some("TRITON_ATTN_VLLM_V1") => capability.is_none_or(|known| known >= (8, 9)),
            Some(_) => false,
        }
    };
    (!supported).then(|| "--kv-cache-dtype".to_owned())
}

/// Classes marked `SupportsV0Only` in 0.8.5.
const V0_ONLY_0_8: [&str; 15] = [
    "BambaForCausalLM",
    "BartForConditionalGeneration",
    "BartModel",
    "BertModel",
    "BloomForCausalLM",
    "Florence2ForConditionalGeneration",
    "GritLM",
    "JambaForCausalLM",
    "Mamba2ForCausalLM",
    "MambaForCausalLM",
    "MiniMaxText01ForCausalLM",
    "MllamaForConditionalGeneration",
    "Plamo2ForCausalLM",
    "WhisperForConditionalGeneration",
    "Zamba2ForCausalLM",
];

/// Classes marked `SupportsV0Only` in 0.10.2.
const V0_ONLY_0_10: [&str; 8] = [
    "BartForConditionalGeneration",
    "BartModel",
    "DonutForConditionalGeneration",
    "Florence2ForConditionalGeneration",
    "MBartForConditionalGeneration",
    "MllamaForConditionalGeneration",
    "MotifForCausalLM",
    "Phi4FlashForCausalLM",
];

fn by_model(config: &Config, facts: &Facts<'_>) -> Option<String> {
    let architecture = facts.model.architecture.as_deref();
    let listed = if facts.version < EngineVersion::V0_10 { &V0_ONLY_0_8[..] } else { &V0_ONLY_0_10[..] };
    if let Some(name) = architecture.filter(|name| listed.contains(name)) {
        return Some(format!("['{name}']"));
    }
    if facts.version >= EngineVersion::V0_10 {
        return None;
    }
    // V1 of 0.8 supports only drafting with n-grams and EAGLE.
    let drafting = config.get_str("speculative-config")?;
    let method = drafting_method(drafting);
    let known = method.as_deref().is_some_and(|name| ["ngram", "[ngram]", "eagle", "eagle3"].contains(&name));
    (!known).then(|| "Speculative Decoding".to_owned())
}

/// Returns the method in the JSON of `--speculative-config`, or the model if there is no method.
pub(in crate::engines::vllm) fn drafting_method(json: &str) -> Option<String> {
    let json: serde_json::Value = serde_json::from_str(json).ok()?;
    let text = |key: &str| json.get(key).and_then(serde_json::Value::as_str).map(str::to_owned);
    text("method").or_else(|| text("model"))
}

/// Values of `VLLM_ATTENTION_BACKEND` that V1 accepts. Release 0.8 accepts the first nine.
const V1_BACKENDS: [&str; 18] = [
    "FLASH_ATTN_VLLM_V1",
    "FLASH_ATTN",
    "PALLAS",
    "PALLAS_VLLM_V1",
    "TRITON_ATTN_VLLM_V1",
    "TRITON_MLA",
    "FLASHMLA",
    "FLASHINFER",
    "FLASHINFER_VLLM_V1",
    "CUTLASS_MLA",
    "FLASHMLA_VLLM_V1",
    "FLASH_ATTN_MLA",
    "FLASHINFER_MLA",
    "ROCM_AITER_MLA",
    "TORCH_SDPA_VLLM_V1",
    "FLEX_ATTENTION",
    "TREE_ATTN",
    "XFORMERS_VLLM_V1",
];

fn by_backend(facts: &Facts<'_>) -> Option<String> {
    let backend = facts.env.get("VLLM_ATTENTION_BACKEND")?;
    let known = &V1_BACKENDS[..if facts.version < EngineVersion::V0_10 { 9 } else { V1_BACKENDS.len() }];
    (!known.contains(&backend.as_str())).then(|| format!("VLLM_ATTENTION_BACKEND={backend}"))
}

fn by_device(config: &Config, facts: &Facts<'_>) -> Option<String> {
    match facts.device {
        Device::Cpu if facts.version < EngineVersion::V0_10 => Some("device type=cpu".to_owned()),
        Device::Cpu if uses_window(config, facts) => Some("sliding window (CPU backend)".to_owned()),
        Device::Cuda(Gpu { capability: Some((..8, _)), .. }) if facts.version < EngineVersion::V0_10 => {
            Some("Compute Capability < 8.0".to_owned())
        }
        _ if facts.version < EngineVersion::V0_10
            && config.get_i64("pipeline-parallel-size").is_some_and(|stages| stages > 1)
            && config.get_str("distributed-executor-backend") != Some("ray") =>
        {
            Some("Pipeline Parallelism without Ray distributed executor".to_owned())
        }
        _ => None,
    }
}

/// Returns the kind of drafting that V1 of 0.8 supports only on request (`VLLM_USE_V1=1`).
fn experimental_drafting(config: &Config, facts: &Facts<'_>) -> Option<String> {
    let method = config
        .get_str("speculative-config")
        .filter(|_| facts.version < EngineVersion::V0_10)
        .and_then(drafting_method)?;
    Some(if method.contains("ngram") { "ngram" } else { "Eagle" }.to_owned())
}

/// Returns whether attention is limited to a sliding window.
pub(in crate::engines::vllm) fn uses_window(config: &Config, facts: &Facts<'_>) -> bool {
    facts.model.sliding_window.is_some() && config.get_bool("disable-sliding-window") != Some(true)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::facts::ModelShape;

    const CAPABLE: Device =
        Device::Cuda(Gpu { memory: None, count: None, capability: Some((9, 0)), a100: false, units: &[] });
    const OLD: Device =
        Device::Cuda(Gpu { memory: None, count: None, capability: Some((7, 5)), a100: false, units: &[] });

    fn choice(version: &str, device: Device, line: &str, env: &[(&str, &str)], model: &str) -> bool {
        let model = ModelShape::from_json(&serde_json::from_str(model).unwrap());
        let env: BTreeMap<_, _> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let version = version.parse().unwrap();
        let facts = Facts { env: &env, ..Facts::new(crate::engines::vllm::VLLM_RULES, &model, version, device) };
        let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        runs_v0(&crate::engines::vllm::FLAGS.for_version(version).parse(&arguments).unwrap(), &facts)
    }

    /// Returns the choices of 0.8.5 and of 0.10.2.
    fn v0(line: &str) -> (bool, bool) {
        (choice("0.8.5", CAPABLE, line, &[], "{}"), choice("0.10.2", CAPABLE, line, &[], "{}"))
    }

    #[test]
    fn flags_that_the_new_engine_lacks_select_the_old_one() {
        assert_eq!(v0(""), (false, false));
        for line in [
            "--scheduler-delay-factor 0.5",
            "--preemption-mode recompute",
            "--disable-async-output-proc",
            "--max-num-partial-prefills 2",
            "--load-format sharded_state",
        ] {
            assert_eq!(v0(line), (true, true), "{line}");
        }
        for line in [
            "--scheduling-policy priority",
            "--guided-decoding-backend outlines",
            "--dtype float32",
            "--pipeline-parallel-size 2",
            "--speculative-config {\"method\":\"medusa\"}",
            "--speculative-config {\"method\":\"ngram\"}",
        ] {
            assert_eq!(v0(line), (true, false), "{line}");
        }
        assert_eq!(v0("--scheduler-delay-factor 0 --max-num-partial-prefills 1"), (false, false));
        assert_eq!(v0("--pipeline-parallel-size 2 --distributed-executor-backend ray"), (false, false));
    }

    #[test]
    fn the_cache_type_needs_a_kernel_of_the_capability() {
        let fp8 = "--kv-cache-dtype fp8";
        assert_eq!(v0(fp8), (false, false));
        let of = |version, capability| {
            let gpu = Gpu { capability: Some(capability), ..Gpu::default() };
            choice(version, Device::Cuda(gpu), fp8, &[], "{}")
        };
        assert_eq!((of("0.8.5", (8, 0)), of("0.8.5", (10, 0))), (true, true));
        assert_eq!((of("0.10.2", (8, 0)), of("0.10.2", (10, 0))), (true, false));
        let flashinfer = [("VLLM_ATTENTION_BACKEND", "FLASHINFER")];
        assert!(!choice("0.10.2", OLD, fp8, &flashinfer, "{}"));
        assert!(!choice("0.10.2", OLD, fp8, &[], r#"{"kv_lora_rank": 512}"#));
    }

    #[test]
    fn models_and_devices_without_support_select_the_old_engine() {
        let of = |version, device, model| choice(version, device, "", &[], model);
        let whisper = r#"{"architectures": ["WhisperForConditionalGeneration"]}"#;
        assert_eq!((of("0.8.5", CAPABLE, whisper), of("0.10.2", CAPABLE, whisper)), (true, false));
        assert_eq!((of("0.8.5", OLD, "{}"), of("0.10.2", OLD, "{}")), (true, false));
        let window = r#"{"sliding_window": 4096}"#;
        assert_eq!((of("0.10.2", Device::Cpu, window), of("0.10.2", CAPABLE, window)), (true, false));
        assert!(!choice("0.10.2", Device::Cpu, "--disable-sliding-window", &[], window));
        assert_eq!((of("0.8.5", Device::Cpu, "{}"), of("0.10.2", Device::Cpu, "{}")), (true, false));
    }

    #[test]
    fn the_variable_decides_if_both_engines_are_possible() {
        let of = |version, line, value| choice(version, CAPABLE, line, &[("VLLM_USE_V1", value)], "{}");
        assert!(of("0.8.5", "", "0") && of("0.10.2", "", "0") && !of("0.12.0", "", "0"));
        assert!(!of("0.8.5", "--speculative-config {\"method\":\"ngram\"}", "1"));
        let unknown = [("VLLM_ATTENTION_BACKEND", "XFORMERS")];
        assert!(choice("0.8.5", CAPABLE, "", &unknown, "{}"));
    }
}
