//! The possible values of unknown properties of a device.
//!
//! Defaults depend on a GPU's memory and capability. If one of these is unknown, a rule's finding stays only if it holds
//! on every possible GPU.

use super::Facts;
use crate::facts::{Device, Gpu};

/// Memory sizes in bytes, one for each class of defaults.
const MEMORIES: [u64; 3] = [24 << 30, 80 << 30, 180 << 30];

/// Representative compute capabilities, one for each set of kernels and number formats.
const CAPABILITIES: [(u8, u8); 7] = [(7, 0), (7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)];

/// The largest memory of a GPU with a capability below 8.0, in bytes: that of the Quadro RTX 8000.
const LARGEST_BEFORE_8: u64 = 48 << 30;

/// Returns the GPUs that the known properties allow. Empty if both are known, or if the device is no GPU.
pub(super) fn devices(facts: &Facts<'_>) -> Vec<Device> {
    let Device::Cuda(gpu) = facts.device else { return Vec::new() };
    if gpu.memory.is_some() && gpu.capability.is_some() {
        return Vec::new();
    }
    let memories = gpu.memory.map_or(MEMORIES.to_vec(), |memory| vec![memory]);
    let capabilities = gpu.capability.map_or(CAPABILITIES.to_vec(), |capability| vec![capability]);
    let device = |memory, capability| Device::Cuda(Gpu { memory: Some(memory), capability: Some(capability), ..gpu });
    let exists = |memory: u64, capability: (u8, u8)| capability >= (8, 0) || memory <= LARGEST_BEFORE_8;
    let pairs =
        memories.into_iter().flat_map(|memory| capabilities.iter().map(move |capability| (memory, *capability)));
    let existing = pairs.filter(|(memory, capability)| exists(*memory, *capability));
    existing.map(|(memory, capability)| device(memory, capability)).collect()
}
