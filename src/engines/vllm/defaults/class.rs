//! Defaults of the token budget and of the batch size by engine, device and memory.

use crate::facts::{Device, EngineVersion, Gpu};
use crate::rule::Facts;
use crate::stats::GIB;

/// The defaults of one class of devices.
pub(super) struct DeviceClass {
    /// The token budget of one step.
    pub tokens: u64,
    /// The number of sequences in one batch.
    pub seqs: u64,
}

impl DeviceClass {
    /// Returns the defaults on the device of `facts`. `workers` is the number of workers of one engine. V0 has another
    /// default of the token budget, so `tokens` is 0 for V0.
    pub(super) fn of(facts: &Facts<'_>, v0: bool, workers: u64) -> Self {
        match facts.device {
            _ if v0 => Self { tokens: 0, seqs: 256 },
            Device::Cpu => Self { tokens: workers.saturating_mul(2048), seqs: workers.saturating_mul(128) },
            // For an unknown memory, assume the values that refuse the least: many tokens and few sequences.
            Device::Cuda(Gpu { memory: None, .. }) => {
                Self { tokens: if facts.version >= EngineVersion::V0_32 { 16_384 } else { 8192 }, seqs: 256 }
            }
            Device::Cuda(Gpu { memory: Some(memory), .. })
                if memory >= 160 * GIB && facts.version >= EngineVersion::V0_32 =>
            {
                Self { tokens: 16_384, seqs: 1024 }
            }
            // From 0.10 on, an A100 counts as a smaller device.
            Device::Cuda(Gpu { memory: Some(memory), a100, .. })
                if memory >= 70 * GIB && !(a100 && facts.version >= EngineVersion::V0_10) =>
            {
                Self { tokens: 8192, seqs: 1024 }
            }
            Device::Cuda(_) => Self { tokens: 2048, seqs: 256 },
        }
    }
}
