//! KV block sizes that the attention kernels of a device and release take.

use super::{Candidate, Rule, Severity};
use crate::facts::{Device, EngineVersion};

pub(super) const RULES: &[Rule] = &[Rule { id: "R15a", check: gpu_multiple }, Rule { id: "R15b", check: cpu_multiple }];

const V0_12: EngineVersion = EngineVersion::new(0, 12, 0);
const V0_32: EngineVersion = EngineVersion::new(0, 32, 0);

/// From 0.8 the V1 attention backends take multiples of 16.
fn gpu_multiple(candidate: &Candidate<'_>) -> Option<(Severity, String)> {
    let size = candidate.config.get_i64("block-size")?;
    let v1_on_gpu = !candidate.effective.v0 && candidate.facts.device != Device::Cpu;
    (v1_on_gpu && size % 16 != 0).then(|| {
        let message = if candidate.facts.version < V0_12 {
            format!("Block size must be a multiple of 16, not {size}.")
        } else {
            format!("No common block size for {size} (FLASH_ATTN: [MultipleOf(16)]).")
        };
        (Severity::Late, message)
    })
}

/// The CPU attention kernel takes multiples of 32; earlier releases only warn.
fn cpu_multiple(candidate: &Candidate<'_>) -> Option<(Severity, String)> {
    let (size, version) = (candidate.config.get_i64("block-size")?, candidate.facts.version);
    if candidate.facts.device != Device::Cpu || version < V0_12 || size % 32 == 0 {
        return None;
    }
    Some(if version < V0_32 {
        let message = format!("CPU backend prefers block_size is multiples of 32, otherwise it is slower; got {size}");
        (Severity::Degraded, message)
    } else {
        (Severity::Late, format!("No common block size for {size} (CPU_ATTN: [MultipleOf(32)])."))
    })
}

#[cfg(test)]
mod tests {
    use crate::facts::Device;
    use crate::rule::tests::{rule, verdict};

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
        let message = |version: &str| verdict(version, Device::Cuda { memory: 0 }, "--block-size 8").unwrap().2;
        assert!(message("0.10.2").starts_with("Block size must be a multiple of 16"));
        assert_eq!(message("0.12.0"), "No common block size for 8 (FLASH_ATTN: [MultipleOf(16)]).");
    }
}
