//! KV cache block sizes that the attention kernels of a device and release support.

use super::attention::requested_kernel;
use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::facts::{Device, EngineVersion};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R15a",
        condition: "on a GPU the block size is a multiple of 16",
        releases: ReleaseRange::starting_at(EngineVersion::V0_8),
        severity: Severity::Startup,
        check: gpu_multiple,
    },
    Rule {
        id: "R15c",
        condition: "the block size is the one that the kernel for latent attention requires",
        releases: ReleaseRange::between(EngineVersion::V0_8, EngineVersion::V0_20),
        severity: Severity::Overridden,
        check: size_is_forced,
    },
    Rule {
        id: "R15e",
        condition: "on a CPU the block size is 16",
        releases: ReleaseRange::between(EngineVersion::V0_8, EngineVersion::V0_12),
        severity: Severity::Degraded,
        check: cpu_has_extension,
    },
    Rule {
        id: "R15b",
        condition: "on a CPU the block size is a multiple of 32",
        releases: ReleaseRange::between(EngineVersion::V0_12, EngineVersion::V0_32),
        severity: Severity::Degraded,
        check: cpu_prefers,
    },
    Rule {
        id: "R15b",
        condition: "on a CPU the block size is a multiple of 32",
        releases: ReleaseRange::starting_at(EngineVersion::V0_32),
        severity: Severity::Startup,
        check: cpu_needs,
    },
];

/// Checks the block size on GPUs. From 0.8 the V1 attention backends support multiples of 16. Up to 0.20
/// `FLEX_ATTENTION` is an exception. Backends for latent attention have their own sizes.
fn gpu_multiple(candidate: &Candidate<'_>) -> Option<Violation> {
    let size = candidate.config.get_i64("block-size")?;
    let v1_on_gpu = !candidate.effective.v0 && candidate.facts.device != Device::Cpu;
    let flexible =
        candidate.facts.version < EngineVersion::V0_32 && requested_kernel(candidate) == Some("FLEX_ATTENTION");
    let plain = candidate.facts.model.latent.is_none() && !flexible;
    (v1_on_gpu && plain && size % 16 != 0).then(|| {
        let message = if candidate.facts.version < EngineVersion::V0_12 {
            format!("Block size must be a multiple of 16, not {size}.")
        } else {
            format!("No common block size for {size} (FLASH_ATTN: [MultipleOf(16)]).")
        };
        Violation::new(message).set("block-size", nearest_multiple(size, 16))
    })
}

fn size_is_forced(candidate: &Candidate<'_>) -> Option<Violation> {
    let (given, taken) = (candidate.config.get_i64("block-size")?, candidate.effective.block_size);
    (u64::try_from(given) != Ok(taken) && candidate.facts.device != Device::Cpu).then(|| {
        let message = format!("Forcing kv cache block size to {taken} for the MLA backend of this GPU, not {given}.");
        Violation::new(message).unset("block-size")
    })
}

/// Warns about sizes other than 16. They need an extension, and it is unknown whether it is installed.
fn cpu_has_extension(candidate: &Candidate<'_>) -> Option<Violation> {
    let on_cpu = candidate.facts.device == Device::Cpu;
    let size = candidate.config.get_i64("block-size").filter(|size| on_cpu && *size != 16)?;
    let message = format!("--block-size={size} requires intel_extension_for_pytorch; without it the start fails");
    Some(Violation::new(message).set("block-size", 16_i64))
}

/// Returns the block size, if it is for a CPU and its attention kernel does not support it.
fn unsupported_cpu_size(candidate: &Candidate<'_>) -> Option<i64> {
    candidate.config.get_i64("block-size").filter(|size| candidate.facts.device == Device::Cpu && size % 32 != 0)
}

fn cpu_prefers(candidate: &Candidate<'_>) -> Option<Violation> {
    let size = unsupported_cpu_size(candidate)?;
    let message = format!("CPU backend prefers block_size is multiples of 32, otherwise it is slower; got {size}");
    Some(Violation::new(message))
}

fn cpu_needs(candidate: &Candidate<'_>) -> Option<Violation> {
    let size = unsupported_cpu_size(candidate)?;
    let message = format!("No common block size for {size} (CPU_ATTN: [MultipleOf(32)]).");
    Some(Violation::new(message).set("block-size", nearest_multiple(size, 32)))
}

/// Returns the positive multiple nearest to `size`.
fn nearest_multiple(size: i64, multiple: i64) -> i64 {
    (size.saturating_add(multiple / 2).div_euclid(multiple)).max(1).saturating_mul(multiple)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::rules::tests::{rule, verdict};
    use crate::facts::{Gpu, ModelShape};
    use crate::rule::{Facts, check};

    #[test]
    fn block_sizes_depend_on_the_engine_and_the_device() {
        assert_eq!(rule("0.6.3", "--block-size 8"), None);
        assert_eq!(rule("0.8.5", "--block-size 8"), Some("R15a"));
        assert_eq!(rule("0.32.0", "--block-size 48"), None);
        let on_cpu = |size: u32| verdict("0.32.0", Device::Cpu, &format!("--block-size {size}"));
        assert_eq!(on_cpu(48).map(|(id, ..)| id), Some("R15b"));
        assert_eq!(on_cpu(96), None);
        let warning = verdict("0.12.0", Device::Cpu, "--block-size 16");
        assert!(warning.is_some_and(|(id, rejects, _)| id == "R15b" && !rejects));
    }

    #[test]
    fn the_refusal_is_worded_as_in_the_release() {
        let message = |version: &str| verdict(version, Device::UNKNOWN_GPU, "--block-size 8").unwrap().2;
        assert!(message("0.10.2").starts_with("Block size must be a multiple of 16"));
        assert_eq!(message("0.12.0"), "No common block size for 8 (FLASH_ATTN: [MultipleOf(16)]).");
    }

    #[test]
    fn latent_attention_has_block_sizes_of_its_own() {
        let model = ModelShape::from_json(&serde_json::json!({"kv_lora_rank": 512, "qk_rope_head_dim": 64}));
        let of = |version: &str, capability, size: i64| {
            let device = Device::Cuda(Gpu { capability, ..Gpu::default() });
            let config = crate::config::Config::new().with("block-size", size);
            check(&config, &Facts::new(crate::engines::vllm::VLLM_RULES, &model, version.parse().unwrap(), device))
                .into_iter()
                .next()
        };
        let finding = of("0.10.2", Some((9, 0)), 16).unwrap();
        let message = "Forcing kv cache block size to 64 for the MLA backend of this GPU, not 16.";
        assert_eq!((finding.rule, finding.severity, finding.message.as_str()), ("R15c", Severity::Overridden, message));
        assert_eq!(of("0.10.2", Some((9, 0)), 64), None);
        assert_eq!(of("0.10.2", Some((8, 0)), 8), None, "Triton takes any");
        assert_eq!(of("0.20.2", Some((9, 0)), 128), None);
    }

    #[test]
    fn another_block_size_on_a_cpu_once_needed_an_extension() {
        let on_cpu = |version, size: u32| verdict(version, Device::Cpu, &format!("--block-size {size}"));
        for version in ["0.8.5", "0.10.2"] {
            assert!(on_cpu(version, 32).is_some_and(|(id, rejects, _)| id == "R15e" && !rejects));
            assert_eq!(on_cpu(version, 16), None);
        }
        assert_eq!(on_cpu("0.12.0", 32), None);
    }
}
