//! KV block sizes that the attention kernels of a device and release take.

use super::{Candidate, Rule, Severity};
use crate::facts::{Device, EngineVersion};

pub(super) const RULES: &[Rule] = &[Rule { id: "R15a", check: gpu_multiple }, Rule { id: "R15b", check: cpu_multiple }];

const V0_20: EngineVersion = EngineVersion::new(0, 20, 0);
const V0_32: EngineVersion = EngineVersion::new(0, 32, 0);

/// From 0.8 the V1 attention backends take multiples of 16.
fn gpu_multiple(candidate: &Candidate<'_>) -> Option<(Severity, String)> {
    let size = candidate.config.get_i64("block-size")?;
    let v1_on_gpu = !candidate.effective.v0 && candidate.facts.device != Device::Cpu;
    (v1_on_gpu && size % 16 != 0).then(|| {
        let message = if candidate.facts.version < V0_20 {
            format!("Block size must be a multiple of 16, not {size}.")
        } else {
            format!("No common block size for {size}: the attention backends take multiples of 16.")
        };
        (Severity::Late, message)
    })
}

/// The CPU attention kernel takes multiples of 32; earlier releases only warn.
fn cpu_multiple(candidate: &Candidate<'_>) -> Option<(Severity, String)> {
    let size = candidate.config.get_i64("block-size")?;
    let refused = candidate.facts.device == Device::Cpu && candidate.facts.version >= V0_32 && size % 32 != 0;
    refused.then(|| (Severity::Late, format!("No common block size for {size} (CPU_ATTN: [MultipleOf(32)]).")))
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
    }
}
