//! Devices with unknown properties.

use super::verdict;
use crate::facts::{Device, Gpu};

fn rejects(device: Device, line: &str) -> bool {
    verdict("0.8.5", device, line).is_some_and(|(_, rejects, _)| rejects)
}

#[test]
fn a_configuration_that_some_possible_device_accepts_is_not_refused() {
    let line = "--max-num-batched-tokens 512";
    let (small, large) = (Device::gpu_of(24 << 30), Device::gpu_of(80 << 30));
    assert!(rejects(large, line), "1024 sequences by default");
    assert!(!rejects(small, line) && !rejects(Device::UNKNOWN_GPU, line));
    // The V0 engine, which runs below 8.0, has a default budget of at least a whole prompt.
    let line = "--max-num-seqs 3000";
    let of = |capability| Device::Cuda(Gpu { memory: Some(24 << 30), capability, ..Gpu::default() });
    assert!(rejects(of(Some((8, 0))), line));
    assert!(!rejects(of(Some((7, 5))), line) && !rejects(of(None), line));
    assert!(rejects(Device::UNKNOWN_GPU, "--max-num-batched-tokens 100 --max-num-seqs 200"), "on every device");
}
