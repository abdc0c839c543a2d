//! Explicit attention kernels and KV cache types, checked against the model and the device.
//!
//! Sources: `validate_configuration` and its parts in `vllm/v1/attention/backends` of 0.12 and 0.20;
//! `vllm/platforms/cpu.py` of 0.8, 0.10 and 0.12; `vllm/attention/layer.py`.

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::facts::{Device, EngineVersion};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R14c",
        condition: "on a CPU, a KV cache in another type excludes chunked prefill and prefix caching",
        releases: ReleaseRange::between(EngineVersion::V0_8, EngineVersion::V0_32),
        severity: Severity::Configuration,
        check: cpu_cache_type,
    },
    Rule {
        id: "R15d",
        condition: "an fp8 checkpoint excludes a KV cache in fp8_e5m2",
        releases: ReleaseRange::until(EngineVersion::V0_32),
        severity: Severity::Startup,
        check: cache_suits_checkpoint,
    },
    Rule {
        id: "R15f",
        condition: "the requested attention backend supports the model and the GPU",
        releases: ReleaseRange::starting_at(EngineVersion::V0_12),
        severity: Severity::Startup,
        check: kernel_supports_model,
    },
];

fn cache_type<'a>(candidate: &Candidate<'a>) -> Option<&'a str> {
    candidate.config.get_str("kv-cache-dtype").filter(|kind| *kind != "auto")
}

fn cpu_cache_type(candidate: &Candidate<'_>) -> Option<Violation> {
    let kind = cache_type(candidate).filter(|_| candidate.facts.device == Device::Cpu)?;
    let e = &candidate.effective;
    (e.chunked_prefill || e.prefix_caching).then(|| {
        let message = format!(
            "Chunked-prefill and prefix-cache on the CPU backend is not compatible with FP8 KV cache: kv_cache_dtype is \
             {kind}"
        );
        Violation::new(message).unset("kv-cache-dtype")
    })
}

fn cache_suits_checkpoint(candidate: &Candidate<'_>) -> Option<Violation> {
    let e5m2 = cache_type(candidate) == Some("fp8_e5m2") && candidate.facts.device != Device::Cpu;
    (e5m2 && candidate.facts.model.quantization.as_deref() == Some("fp8")).then(|| {
        Violation::new("fp8_e5m2 kv-cache is not supported with fp8 checkpoints.").set("kv-cache-dtype", "fp8")
    })
}

/// Returns the kernel that a flag or, before 0.20, a variable selects.
pub(super) fn requested_kernel<'a>(candidate: &Candidate<'a>) -> Option<&'a str> {
    let variable =
        candidate.facts.env.get("VLLM_ATTENTION_BACKEND").filter(|_| candidate.facts.version < EngineVersion::V0_20);
    candidate.config.get_str("attention-backend").or_else(|| variable.map(String::as_str))
}

fn kernel_supports_model(candidate: &Candidate<'_>) -> Option<Violation> {
    candidate.facts.device.gpu()?;
    let name = requested_kernel(candidate)?;
    let reason =
        [head_size(candidate, name), cache(candidate, name), latent(candidate, name), capability(candidate, name)];
    let reason = dtype(candidate, name).into_iter().chain(reason.into_iter().flatten()).next()?;
    let message = format!("Selected backend {name} is not valid for this configuration. Reason: [{reason}]");
    Some(Violation::new(message).unset("attention-backend"))
}

fn head_size(candidate: &Candidate<'_>, name: &str) -> Option<String> {
    // The head size of latent attention is that of the compressed cache.
    let size = candidate.facts.model.head_dim.filter(|_| candidate.facts.model.latent.is_none())?;
    let largest = if candidate.facts.version < EngineVersion::V0_20 { 256 } else { 512 };
    let supported = match name {
        "FLASH_ATTN" => size % 8 == 0 && size <= largest,
        "FLASHINFER" => [64, 128, 256].contains(&size),
        "TRITON_ATTN" => size >= 32,
        _ => true,
    };
    (!supported).then(|| format!("'head_size not supported', which is {size}"))
}

fn dtype(candidate: &Candidate<'_>, name: &str) -> Option<String> {
    let asked = candidate.config.get_str("dtype").filter(|dtype| ["float", "float32"].contains(dtype))?;
    ["FLASH_ATTN", "FLASHINFER"].contains(&name).then(|| format!("'dtype not supported', which is {asked}"))
}

fn cache(candidate: &Candidate<'_>, name: &str) -> Option<String> {
    let kind = cache_type(candidate).filter(|kind| kind.starts_with("fp8") && name == "FLASH_ATTN")?;
    let (major, minor) = candidate.facts.device.gpu()?.capability?;
    // From 0.32 on, newer devices use a newer kernel.
    let supported = major == 9 || major > 9 && candidate.facts.version >= EngineVersion::V0_32;
    (!supported)
        .then(|| format!("'kv_cache_dtype not supported', which is {kind}, at compute capability {major}.{minor}"))
}

fn latent(candidate: &Candidate<'_>, name: &str) -> Option<String> {
    let model = candidate.facts.model;
    let for_latent = ["TRITON_MLA", "FLASHMLA", "CUTLASS_MLA", "FLASHINFER_MLA", "FLASH_ATTN_MLA"].contains(&name);
    let for_plain = ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION"].contains(&name);
    // Other families may store their latent cache as keys and values.
    let is_latent =
        model.latent.is_some() && model.model_type.as_deref().is_some_and(|kind| kind.starts_with("deepseek"));
    let disabled = candidate.facts.env.get("VLLM_MLA_DISABLE").is_some_and(|value| value != "0");
    match (is_latent && !disabled, model.latent.is_none()) {
        (true, _) if for_plain => Some("'MLA not supported'".to_owned()),
        (_, true) if for_latent => Some("'non-MLA not supported'".to_owned()),
        _ => None,
    }
}

fn capability(candidate: &Candidate<'_>, name: &str) -> Option<String> {
    let (major, minor) = candidate.facts.device.gpu()?.capability?;
    let supported = match name {
        "FLASH_ATTN" => major >= 8,
        "FLASHINFER" => ((7, 5)..=(12, 1)).contains(&(major, minor)),
        "FLASHMLA" => [9, 10].contains(&major),
        "CUTLASS_MLA" | "FLASHINFER_MLA" => major == 10,
        "FLASH_ATTN_MLA" => major == 9,
        _ => true,
    };
    (!supported).then(|| format!("'compute capability not supported', which is {major}.{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::FLAGS;
    use crate::engines::vllm::rules::tests::verdict;
    use crate::facts::{Gpu, ModelShape};
    use crate::rule::{Facts, check};

    fn found(version: &str, capability: Option<(u8, u8)>, model: &str, line: &str) -> Option<(&'static str, String)> {
        let model = ModelShape::from_json(&serde_json::from_str(model).unwrap());
        let version = version.parse().unwrap();
        let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let config = FLAGS.for_version(version).parse(&arguments).unwrap();
        let device = Device::Cuda(Gpu { capability, ..Gpu::default() });
        let finding = check(&config, &Facts::new(crate::engines::vllm::VLLM_RULES, &model, version, device))
            .into_iter()
            .next()?;
        Some((finding.rule, finding.message))
    }

    fn id(version: &str, capability: Option<(u8, u8)>, model: &str, line: &str) -> Option<&'static str> {
        found(version, capability, model, line).map(|(id, _)| id)
    }

    #[test]
    fn a_kernel_that_is_asked_for_has_its_devices_and_types() {
        let asked = "--attention-backend FLASH_ATTN";
        let at = |capability, line: &str| id("0.20.2", capability, "{}", line);
        assert_eq!((at(Some((8, 0)), asked), at(Some((7, 5)), asked), at(None, asked)), (None, Some("R15f"), None));
        let fp8 = format!("{asked} --kv-cache-dtype fp8");
        assert_eq!((at(Some((9, 0)), &fp8), at(Some((8, 9)), &fp8), at(None, &fp8)), (None, Some("R15f"), None));
        assert_eq!(at(None, &format!("{asked} --dtype float32")), Some("R15f"));
        assert_eq!(at(None, &format!("{asked} --dtype half")), None);
        assert_eq!(at(None, "--attention-backend TRITON_ATTN --dtype float32"), None);
    }

    #[test]
    fn a_kernel_that_is_asked_for_suits_the_models_heads() {
        let heads = |size: u64| format!(r#"{{"head_dim": {size}}}"#);
        let of = |version: &str, size: u64, name: &str| {
            id(version, None, &heads(size), &format!("--attention-backend {name}"))
        };
        assert_eq!((of("0.20.2", 128, "FLASHINFER"), of("0.20.2", 96, "FLASHINFER")), (None, Some("R15f")));
        assert_eq!((of("0.20.2", 512, "FLASH_ATTN"), of("0.20.2", 100, "FLASH_ATTN")), (None, Some("R15f")));
        assert_eq!((of("0.20.2", 32, "TRITON_ATTN"), of("0.20.2", 16, "TRITON_ATTN")), (None, Some("R15f")));
        let deepseek = r#"{"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}"#;
        let message = found("0.20.2", None, deepseek, "--attention-backend FLASH_ATTN").unwrap().1;
        assert!(message.ends_with("Reason: ['MLA not supported']"), "{message}");
        assert_eq!(id("0.20.2", None, deepseek, "--attention-backend TRITON_MLA"), None);
        assert_eq!(id("0.20.2", None, "{}", "--attention-backend TRITON_MLA"), Some("R15f"));
    }

    #[test]
    fn an_fp8_checkpoint_has_no_e5m2_cache() {
        let checkpoint = r#"{"quantization_config": {"quant_method": "fp8"}}"#;
        let of = |version: &str, kind: &str| id(version, Some((9, 0)), checkpoint, &format!("--kv-cache-dtype {kind}"));
        assert_eq!((of("0.20.2", "fp8_e5m2"), of("0.20.2", "fp8_e4m3")), (Some("R15d"), None));
        assert_eq!(of("0.32.0", "fp8_e5m2"), None);
        assert_eq!(id("0.20.2", None, "{}", "--kv-cache-dtype fp8_e5m2"), None);
    }

    #[test]
    fn a_cpu_caches_in_fp8_only_without_chunks_and_prefixes() {
        let on_cpu = |version: &str, line: &str| verdict(version, Device::Cpu, line).map(|(id, ..)| id);
        assert_eq!(on_cpu("0.12.0", "--kv-cache-dtype fp8"), Some("R14c"));
        let plain = "--kv-cache-dtype fp8 --no-enable-chunked-prefill --no-enable-prefix-caching";
        assert_eq!(on_cpu("0.12.0", plain), None);
        assert_eq!(on_cpu("0.8.5", "--kv-cache-dtype fp8"), None, "V0 has neither by default");
        assert_eq!(on_cpu("0.8.5", "--kv-cache-dtype fp8 --enable-prefix-caching"), Some("R14c"));
        assert_eq!(on_cpu("0.32.0", "--kv-cache-dtype fp8"), None);
    }
}
