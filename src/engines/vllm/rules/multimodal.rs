//! Multimodal models: limits for each prompt, caches and encoders (`MultiModalConfig` in vLLM 0.32). A model without
//! modalities has no such configuration, and the engine ignores these flags.

use serde_json::Value as Json;

use super::{Candidate, Rule, Violation, refusal};
use crate::flag::FlagBounds;

pub(super) const RULES: &[Rule] = &[
    refusal("R19", "limits per prompt are known and whole numbers", limits),
    refusal("R19d", "numbers for multimodal models are within the limits of their fields", bounds),
    refusal("R19e", "mm-shm-cache-max-object-size-mb needs the cache type shm", shared_memory),
    refusal("R19f", "the attention backend of the multimodal encoder exists", encoder_backend),
    refusal("R19g", "the launch supports the transport of multimodal items", transport),
    refusal("R19h", "the device of the multimodal processor exists", processor_device),
    refusal("R19i", "pooling models have one renderer or no multimodal processor cache", renderers),
];

fn limits(candidate: &Candidate<'_>) -> Option<Violation> {
    let limits = candidate.fields("limit-mm-per-prompt")?;
    let refused = |modality: &str, problem: String| {
        Some(Violation::new(format!("limit_mm_per_prompt.{modality}: {problem}")).unset("limit-mm-per-prompt"))
    };
    for (modality, limit) in &limits {
        let counts = match limit {
            Json::Object(fields) => fields.clone(),
            single => [("count".to_owned(), single.clone())].into_iter().collect(),
        };
        for (name, count) in &counts {
            let Some(number) = whole(count) else {
                return refused(modality, format!("Input should be a valid integer, input_value={count}"));
            };
            // The fields are only validated if the model has modalities.
            if !candidate.facts.model.multimodal {
                continue;
            }
            let known: &[&str] = match modality.as_str() {
                "image" => &["count", "width", "height"],
                "video" => &["count", "num_frames", "width", "height"],
                "audio" => &["count", "length"],
                _ => &["count"],
            };
            if !known.contains(&name.as_str()) {
                return refused(modality, format!("{name}: Unexpected keyword argument"));
            }
            let least = if name == "count" { 0.0 } else { 1.0 };
            if number < least {
                return refused(modality, format!("{name}: Input should be at least {least}, input_value={count}"));
            }
        }
    }
    None
}

fn whole(value: &Json) -> Option<f64> {
    let number = match value {
        Json::Bool(on) => Some(f64::from(u8::from(*on))),
        Json::String(text) => text.trim().parse().ok(),
        other => other.as_f64(),
    };
    number.filter(|number| number.fract() == 0.0)
}

const AT_LEAST_ZERO: FlagBounds = FlagBounds { ge: Some(0.0), gt: None, le: None, lt: None };

const BOUNDS: [(&str, FlagBounds); 5] = [
    ("mm-processor-cache-gb", AT_LEAST_ZERO),
    ("mm-shm-cache-max-object-size-mb", AT_LEAST_ZERO),
    ("mm-encoder-fp8-scale-save-margin", FlagBounds { ge: None, gt: Some(0.0), le: None, lt: None }),
    ("video-pruning-rate", FlagBounds { ge: Some(0.0), gt: None, le: None, lt: Some(1.0) }),
    ("mm-ipc-gpu-memory-gb", AT_LEAST_ZERO),
];

fn bounds(candidate: &Candidate<'_>) -> Option<Violation> {
    if !candidate.facts.model.multimodal {
        return None;
    }
    BOUNDS.iter().find_map(|(name, bounds)| {
        let reason = bounds.find_broken_bound(candidate.config.get_f64(name)?)?;
        Some(Violation::new(format!("{}: {reason}", name.replace('-', "_"))).unset(name))
    })
}

fn shared_memory(candidate: &Candidate<'_>) -> Option<Violation> {
    const FLAG: &str = "mm-shm-cache-max-object-size-mb";
    let size = candidate.number(FLAG).filter(|size| *size != 128)?;
    let shared = candidate.text("mm-processor-cache-type") == Some("shm");
    (candidate.facts.model.multimodal && !shared).then(|| {
        let message = format!(
            "'mm_shm_cache_max_object_size_mb' ({size}) should only be set when 'mm_processor_cache_type' is 'shm'."
        );
        Violation::new(message).unset(FLAG)
    })
}

fn encoder_backend(candidate: &Candidate<'_>) -> Option<Violation> {
    let name = candidate.text("mm-encoder-attn-backend")?;
    let known = super::graphs::is_attention_backend(name);
    (candidate.facts.model.multimodal && !known).then(|| {
        let message = format!("mm_encoder_attn_backend: Unknown attention backend: '{}'.", name.to_uppercase());
        Violation::new(message).unset("mm-encoder-attn-backend")
    })
}

fn transport(candidate: &Candidate<'_>) -> Option<Violation> {
    let shared = candidate.text("mm-tensor-ipc") == Some("torch_shm") && candidate.facts.model.multimodal;
    if !shared {
        return None;
    }
    let refused = |message: &str| Some(Violation::new(message).unset("mm-tensor-ipc"));
    if candidate.facts.env.get("VLLM_WORKER_MULTIPROC_METHOD").is_none_or(|method| method != "spawn") {
        return refused("torch_shm is known to fail without VLLM_WORKER_MULTIPROC_METHOD set to spawn");
    }
    let sizes = ["data-parallel-size", "tensor-parallel-size", "pipeline-parallel-size"];
    if sizes.into_iter().any(|name| candidate.number_or(name, 1) > 1) {
        return refused(
            "mm_tensor_ipc='torch_shm' is not supported with data_parallel_size > 1 or tensor_parallel_size > 1 or \
             pipeline_parallel_size > 1.",
        );
    }
    None
}

/// Common kinds of torch devices.
const KINDS: [&str; 9] = ["cpu", "cuda", "xpu", "mps", "hpu", "meta", "mtia", "xla", "npu"];

fn processor_device(candidate: &Candidate<'_>) -> Option<Violation> {
    let fields = candidate.fields("mm-processor-kwargs").filter(|_| candidate.facts.model.multimodal)?;
    let device = fields.get("device")?.as_str()?;
    let kind = device.split(':').next().unwrap_or(device);
    (!KINDS.contains(&kind)).then(|| {
        let message = format!("Invalid \"device\" in mm_processor_kwargs: '{device}'.");
        Violation::new(message).unset("mm-processor-kwargs")
    })
}

fn renderers(candidate: &Candidate<'_>) -> Option<Violation> {
    let several = candidate.number_or("renderer-num-workers", 1) > 1;
    let cached = candidate.config.get_f64("mm-processor-cache-gb").is_none_or(|size| size > 0.0);
    let pooling = candidate.text("runner") == Some("pooling");
    (candidate.facts.model.multimodal && several && cached && pooling).then(|| {
        let message = "Cannot use --renderer-num-workers > 1 with the multimodal processor cache enabled for pooling \
                       models.";
        Violation::new(message).unset("renderer-num-workers")
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::FLAGS;
    use crate::engines::vllm::rules::tests::on_cpu;
    use crate::facts::{Device, EngineVersion, ModelShape};
    use crate::rule::{Facts, rejection};

    fn multimodal(line: &str) -> Option<&'static str> {
        let json = serde_json::json!({"text_config": {"max_position_embeddings": 4096}, "vision_config": {}});
        let (model, version) = (ModelShape::from_json(&json), EngineVersion::V0_32);
        let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let config = FLAGS.for_version(version).parse(&arguments).unwrap();
        rejection(&config, &Facts::new(crate::engines::vllm::VLLM_RULES, &model, version, Device::Cpu))
            .map(|finding| finding.rule)
    }

    #[test]
    fn a_text_model_has_its_limits_read_but_not_judged() {
        for (limits, text, images) in [
            (r#"{"image":2}"#, None, None),
            (r#"{"image":-1}"#, None, Some("R19")),
            (r#"{"image":"x"}"#, Some("R19"), Some("R19")),
            (r#"{"image":{"count":1,"bogus":2}}"#, None, Some("R19")),
        ] {
            let line = format!("--limit-mm-per-prompt {limits}");
            assert_eq!((on_cpu(&line), multimodal(&line)), (text, images), "{limits}");
        }
    }

    #[test]
    fn flags_of_modalities_count_only_for_multimodal_models() {
        for (line, id) in [
            ("--mm-processor-cache-gb -1", "R19d"),
            ("--mm-shm-cache-max-object-size-mb 0", "R19e"),
            ("--mm-encoder-attn-backend NOPE", "R19f"),
            ("--mm-tensor-ipc torch_shm", "R19g"),
            (r#"--mm-processor-kwargs {"device":"bogus"}"#, "R19h"),
        ] {
            assert_eq!((on_cpu(line), multimodal(line)), (None, Some(id)), "{line}");
        }
    }
}
