//! The devices that the twin knows: data sheet numbers and how much of them an engine gets.

use crate::facts::Device;

/// One device. Rates are the peaks of its data sheet; the efficiencies say what kernels reach of them.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePreset {
    pub name: &'static str,
    pub cpu: bool,
    /// Bytes in total.
    pub memory: u64,
    /// Bytes of `memory` that are taken before the engine has allocated anything.
    pub context: u64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Dense 16-bit operations per second.
    pub compute: f64,
    /// Share of `bandwidth` reached by reading weights and cache.
    pub bandwidth_efficiency: f64,
    /// Share of `compute` reached by large matrix products.
    pub compute_efficiency: f64,
    /// Seconds that every step costs besides the model: scheduling, input preparation, output.
    pub step_overhead_s: f64,
    /// Seconds to launch one layer kernel by kernel, that is without a captured graph.
    pub layer_launch_s: f64,
}

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// Bandwidth and compute from NVIDIA's data sheets (A100 80 GB SXM, H100 80 GB SXM, L4, all without sparsity), memory
/// as the driver reports it to programs, which is less than the name says; `cpu` is one socket of a two-core virtual machine with AVX-512. Efficiencies and overheads are rough
/// figures for vLLM and wait for calibration.
const PRESETS: [DevicePreset; 4] = [
    DevicePreset {
        name: "a100",
        cpu: false,
        memory: 81_152 * MIB,
        context: 400 * MIB,
        bandwidth: 2.039e12,
        compute: 312e12,
        bandwidth_efficiency: 0.8,
        compute_efficiency: 0.65,
        step_overhead_s: 1.2e-3,
        layer_launch_s: 90e-6,
    },
    DevicePreset {
        name: "h100",
        cpu: false,
        memory: 81_090 * MIB,
        context: 400 * MIB,
        bandwidth: 3.35e12,
        compute: 989e12,
        bandwidth_efficiency: 0.8,
        compute_efficiency: 0.6,
        step_overhead_s: 1.0e-3,
        layer_launch_s: 75e-6,
    },
    DevicePreset {
        name: "l4",
        cpu: false,
        memory: 22_574 * MIB,
        context: 400 * MIB,
        bandwidth: 300e9,
        compute: 121e12,
        bandwidth_efficiency: 0.8,
        compute_efficiency: 0.55,
        step_overhead_s: 1.5e-3,
        layer_launch_s: 90e-6,
    },
    DevicePreset {
        name: "cpu",
        cpu: true,
        memory: 16 * GIB,
        context: 0,
        bandwidth: 20e9,
        compute: 300e9,
        bandwidth_efficiency: 0.7,
        compute_efficiency: 0.6,
        step_overhead_s: 2.0e-3,
        layer_launch_s: 30e-6,
    },
];

impl DevicePreset {
    /// The name of the device that is simulated where none is named.
    pub const DEFAULT: &'static str = "h100";

    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name.eq_ignore_ascii_case(name))
    }

    pub fn names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|preset| preset.name)
    }

    /// What rules and defaults need to know of it.
    #[must_use]
    pub fn device(&self) -> Device {
        if self.cpu { Device::Cpu } else { Device::gpu_of(self.memory) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_one_of_the_presets() {
        assert!(DevicePreset::find(DevicePreset::DEFAULT).is_some());
    }
}
