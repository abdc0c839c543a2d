//! KV block sizes that the attention kernels of a device and release take.

use super::{Candidate, Releases, Rule, Severity, Violation};
use crate::facts::{Device, EngineVersion};

const V0_12: EngineVersion = EngineVersion::new(0, 12, 0);
const V0_32: EngineVersion = EngineVersion::new(0, 32, 0);

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R15a",
        holds: "on a GPU the block size is a multiple of 16",
        releases: Releases::from(EngineVersion::new(0, 8, 0)),
        severity: Severity::Late,
        check: gpu_multiple,
    },
    Rule {
        id: "R15b",
        holds: "on a CPU the block size is a multiple of 32",
        releases: Releases::between(V0_12, V0_32),
        severity: Severity::Degraded,
        check: cpu_prefers,
    },
    Rule {
        id: "R15b",
        holds: "on a CPU the block size is a multiple of 32",
        releases: Releases::from(V0_32),
        severity: Severity::Late,
        check: cpu_needs,
    },
];

/// From 0.8 the V1 attention backends take multiples of 16.
fn gpu_multiple(candidate: &Candidate<'_>) -> Option<Violation> {
    let size = candidate.config.get_i64("block-size")?;
    let v1_on_gpu = !candidate.effective.v0 && candidate.facts.device != Device::Cpu;
    (v1_on_gpu && size % 16 != 0).then(|| {
        let message = if candidate.facts.version < V0_12 {
            format!("Block size must be a multiple of 16, not {size}.")
        } else {
            format!("No common block size for {size} (FLASH_ATTN: [MultipleOf(16)]).")
        };
        Violation::new(message).set("block-size", nearest_multiple(size, 16))
    })
}

/// The block size of a CPU that its attention kernel does not take.
fn odd_on_cpu(candidate: &Candidate<'_>) -> Option<i64> {
    candidate.config.get_i64("block-size").filter(|size| candidate.facts.device == Device::Cpu && size % 32 != 0)
}

fn cpu_prefers(candidate: &Candidate<'_>) -> Option<Violation> {
    let size = odd_on_cpu(candidate)?;
    let message = format!("CPU backend prefers block_size is multiples of 32, otherwise it is slower; got {size}");
    Some(Violation::new(message))
}

fn cpu_needs(candidate: &Candidate<'_>) -> Option<Violation> {
    let size = odd_on_cpu(candidate)?;
    let message = format!("No common block size for {size} (CPU_ATTN: [MultipleOf(32)]).");
    Some(Violation::new(message).set("block-size", nearest_multiple(size, 32)))
}

/// The positive multiple that is nearest to `size`.
fn nearest_multiple(size: i64, multiple: i64) -> i64 {
    (size.saturating_add(multiple / 2).div_euclid(multiple)).max(1).saturating_mul(multiple)
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
        let message = |version: &str| verdict(version, Device::UNKNOWN_GPU, "--block-size 8").unwrap().2;
        assert!(message("0.10.2").starts_with("Block size must be a multiple of 16"));
        assert_eq!(message("0.12.0"), "No common block size for 8 (FLASH_ATTN: [MultipleOf(16)]).");
    }
}
