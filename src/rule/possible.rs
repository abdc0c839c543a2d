//! What a device could be as far as it is not known.
//!
//! Defaults depend on a GPU's memory and capability. Where these are unknown, a configuration is refused only if it
//! would be refused on every GPU that it could be.

use super::Facts;
use crate::facts::{Device, Gpu};

/// Bytes; one of each class of defaults.
const MEMORIES: [u64; 3] = [24 << 30, 80 << 30, 180 << 30];

/// One for each set of kernels.
const CAPABILITIES: [(u8, u8); 5] = [(7, 0), (8, 0), (8, 9), (9, 0), (10, 0)];

/// Bytes: no GPU of a capability below 8.0 has more than the Quadro RTX 8000.
const LARGEST_BEFORE_8: u64 = 48 << 30;

/// The devices that the known one may turn out to be; none where everything is known.
pub(super) fn devices(facts: &Facts<'_>) -> Vec<Device> {
    let Device::Cuda(gpu) = facts.device else { return Vec::new() };
    if gpu.memory.is_some() && gpu.capability.is_some() {
        return Vec::new();
    }
    let memories = gpu.memory.map_or(MEMORIES.to_vec(), |memory| vec![memory]);
    let capabilities = gpu.capability.map_or(CAPABILITIES.to_vec(), |capability| vec![capability]);
    let of = |memory, capability| Device::Cuda(Gpu { memory: Some(memory), capability: Some(capability), ..gpu });
    let exists = |memory: u64, capability: (u8, u8)| capability >= (8, 0) || memory <= LARGEST_BEFORE_8;
    let pairs = memories.into_iter().flat_map(|memory| capabilities.iter().map(move |one| (memory, *one)));
    pairs.filter(|(memory, one)| exists(*memory, *one)).map(|(memory, one)| of(memory, one)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::tests::verdict;

    fn rejects(device: Device, line: &str) -> bool {
        verdict("0.8.5", device, line).is_some_and(|(_, rejects, _)| rejects)
    }

    #[test]
    fn what_some_possible_device_takes_is_not_refused() {
        let line = "--max-num-batched-tokens 512";
        let (small, large) = (Device::gpu_of(24 << 30), Device::gpu_of(80 << 30));
        assert!(rejects(large, line), "1024 sequences by default");
        assert!(!rejects(small, line) && !rejects(Device::UNKNOWN_GPU, line));
        // The old engine, which runs below 8.0, has a budget of a whole prompt.
        let line = "--max-num-seqs 3000";
        let of = |capability| Device::Cuda(Gpu { memory: Some(24 << 30), capability, ..Gpu::default() });
        assert!(rejects(of(Some((8, 0))), line));
        assert!(!rejects(of(Some((7, 5))), line) && !rejects(of(None), line));
        assert!(rejects(Device::UNKNOWN_GPU, "--max-num-batched-tokens 100 --max-num-seqs 200"), "on every device");
    }
}
