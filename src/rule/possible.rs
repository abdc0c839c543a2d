//! The possible values of unknown properties of a device.
//!
//! Defaults depend on a GPU's memory and capability. If these are unknown, a configuration is refused only if every
//! possible GPU would refuse it.

use super::Facts;
use crate::facts::{Device, Gpu};

/// Memory sizes in bytes, one for each class of defaults.
const MEMORIES: [u64; 3] = [24 << 30, 80 << 30, 180 << 30];

/// Compute capabilities, one for each set of kernels.
const CAPABILITIES: [(u8, u8); 5] = [(7, 0), (8, 0), (8, 9), (9, 0), (10, 0)];

/// The largest memory of a GPU with a capability below 8.0, in bytes: that of the Quadro RTX 8000.
const LARGEST_BEFORE_8: u64 = 48 << 30;

/// Returns the devices that are consistent with the facts. Empty if no property is unknown.
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
