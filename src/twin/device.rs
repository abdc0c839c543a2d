//! Presets of devices: numbers of their data sheets, and the shares of them that an engine reaches.

use super::frontend::Frontend;
use crate::facts::Device;
use crate::stats::GIB;

/// One device. Rates are the peaks of its data sheet, efficiencies the shares that kernels reach.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePreset {
    /// Name that users write.
    pub name: &'static str,
    pub cpu: bool,
    /// Total memory in bytes.
    pub memory: u64,
    /// Bytes of `memory` in use before the engine has allocated anything.
    pub context_memory: u64,
    /// Memory bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Dense 16-bit operations per second with 32-bit accumulation.
    pub compute: f64,
    /// Share of `bandwidth` reached by reading weights.
    pub bandwidth_efficiency: f64,
    /// Share of `compute` reached by large matrix products.
    pub compute_efficiency: f64,
    /// Share of `bandwidth` reached by reading the cache of many or long sequences.
    pub cache_efficiency: f64,
    /// Share of `compute` reached by the attention of long prompts.
    pub attention_efficiency: f64,
    /// Factor on the time of decodes to read the cache if the batch also contains prompts. In kernels for such batches,
    /// the query heads of a group do not share their reads, except on Hopper.
    pub mixed_reading: f64,
    /// Constant part of the seconds of one layer's attention.
    pub attention_floor_s: f64,
    /// Seconds of one layer's attention per sequence.
    pub attention_sequence_s: f64,
    /// Seconds that every step costs besides the model: scheduling, input preparation, output.
    pub step_overhead_s: f64,
    /// Seconds that each sequence of the step costs: sampling parameters, detokenization, output.
    pub sequence_overhead_s: f64,
    /// Seconds to launch those kernels of one layer that a step's graph does not contain.
    pub layer_launch_s: f64,
    /// Costs of the API server on the host of such a device.
    pub frontend: Frontend,
    /// Seconds for a small message between two devices.
    pub link_latency_s: f64,
    /// Bytes per second and direction between two devices, as reached by all-reduces.
    pub link_bandwidth: f64,
}

const MIB: u64 = 1 << 20;

/// Values that NVIDIA's devices have in common, and their fallbacks.
pub(super) const GPU: DevicePreset = DevicePreset {
    name: "",
    cpu: false,
    memory: 0,
    context_memory: 400 * MIB,
    bandwidth: 0.0,
    compute: 0.0,
    bandwidth_efficiency: 0.8,
    compute_efficiency: 0.7,
    cache_efficiency: 0.85,
    attention_efficiency: 0.55,
    mixed_reading: 1.8,
    attention_floor_s: 8e-6,
    attention_sequence_s: 0.3e-6,
    step_overhead_s: 1.0e-3,
    sequence_overhead_s: 6e-6,
    layer_launch_s: 75e-6,
    frontend: Frontend { request_s: 1.5e-3, prompt_token_s: 1e-6, step_s: 0.3e-3, stream_s: 20e-6 },
    link_latency_s: 5e-6,
    link_bandwidth: PCIE_4,
};

/// Bandwidth of all-reduces between two L40S over `PCIe` 4: 9.5 GB/s in `aiconfigurator`'s table. Four and eight L40S
/// reach a fifth and a tenth of that, which is not modelled.
const PCIE_4: f64 = 9.5e9;
/// Twice the value of `PCIE_4`.
const PCIE_5: f64 = 19e9;

/// Bandwidth and compute are from NVIDIA's data sheets and architecture white papers, without sparsity. Memory is the
/// size that the driver reports to programs, below that of the name. Sources of the efficiencies:
///
/// - `a100`, `h100`, `l40s`: `aiconfigurator`'s tables of kernels under vLLM 0.14. They cover matrix products of 16
///   million weights and more, attention of 32 heads in 8 groups, and all-reduces. Uncalibrated, whole loads on the
///   last two decode 0 to 12 % slower than predicted (`tests/it/twin_presets.rs`).
/// - `rtx4090`, `rtxpro6000`: the layer profiles of Llama 3.1 8B under vLLM 0.19 that `LLMServingSim` publishes.
/// - `h200` and `b200` follow `h100`, `l4` and `a10` follow `l40s`. They are not measured.
/// - `cpu`: see its entry.
///
/// Overheads of the GPUs are rough figures for vLLM. Calibration replaces them.
const PRESETS: [DevicePreset; 10] = [
    // Data sheet: A100 80 GB SXM.
    DevicePreset {
        name: "a100",
        memory: 81_152 * MIB,
        bandwidth: 2.039e12,
        compute: 312e12,
        bandwidth_efficiency: 0.7,
        compute_efficiency: 0.78,
        cache_efficiency: 0.82,
        step_overhead_s: 1.2e-3,
        layer_launch_s: 90e-6,
        link_bandwidth: 100e9,
        ..GPU
    },
    // Data sheet: H100 80 GB SXM.
    DevicePreset { name: "h100", memory: 81_090 * MIB, bandwidth: 3.35e12, compute: 989e12, ..HOPPER },
    // Data sheet: H200 SXM; the same chip with other memory.
    DevicePreset { name: "h200", memory: 143_156 * MIB, bandwidth: 4.8e12, compute: 989e12, ..HOPPER },
    // Data sheet: DGX B200, an eighth of it.
    DevicePreset {
        name: "b200",
        memory: 182_642 * MIB,
        bandwidth: 8.0e12,
        compute: 2250e12,
        compute_efficiency: 0.7,
        link_bandwidth: 330e9,
        ..HOPPER
    },
    // Data sheet: L40S.
    DevicePreset {
        name: "l40s",
        memory: 45_458 * MIB,
        bandwidth: 864e9,
        compute: 362e12,
        bandwidth_efficiency: 0.83,
        cache_efficiency: 0.82,
        attention_efficiency: 0.52,
        ..GPU
    },
    // Data sheet: L4. Its 242 tera-operations per second are with sparsity. At 72 watts it does not keep its clock.
    DevicePreset {
        name: "l4",
        memory: 22_574 * MIB,
        bandwidth: 300e9,
        compute: 121e12,
        compute_efficiency: 0.55,
        attention_efficiency: 0.45,
        step_overhead_s: 1.5e-3,
        layer_launch_s: 90e-6,
        ..GPU
    },
    // Data sheet: A10. It has 125 tera-operations per second with 16-bit and with 32-bit accumulation.
    DevicePreset {
        name: "a10",
        memory: 22_515 * MIB,
        bandwidth: 600e9,
        compute: 125e12,
        compute_efficiency: 0.6,
        step_overhead_s: 1.2e-3,
        layer_launch_s: 90e-6,
        ..GPU
    },
    // White paper of the Ada architecture: 165.2 tera-operations per second with 32-bit accumulation. The profile
    // reaches 96 % of them.
    DevicePreset {
        name: "rtx4090",
        memory: 24_081 * MIB,
        bandwidth: 1.008e12,
        compute: 165.2e12,
        bandwidth_efficiency: 0.91,
        compute_efficiency: 0.95,
        cache_efficiency: 0.94,
        attention_efficiency: 0.8,
        mixed_reading: 2.0,
        attention_sequence_s: 0.38e-6,
        ..GPU
    },
    // Data sheet: RTX PRO 6000 Blackwell Server Edition.
    DevicePreset {
        name: "rtxpro6000",
        memory: 97_251 * MIB,
        bandwidth: 1.597e12,
        compute: 503.8e12,
        bandwidth_efficiency: 0.87,
        compute_efficiency: 0.74,
        cache_efficiency: 0.95,
        attention_efficiency: 0.53,
        mixed_reading: 1.5,
        attention_sequence_s: 0.24e-6,
        link_bandwidth: PCIE_5,
        ..GPU
    },
    // A virtual machine with two cores of an Intel Xeon with AMX. vLLM computes on one of them, and its other processes
    // share the second. Fitted to 112 loads on vLLM 0.32 with a model of 4 million parameters in its layers. The rates
    // are those of its small matrices, far below the core's peak.
    DevicePreset {
        name: "cpu",
        cpu: true,
        memory: 16 * GIB,
        context_memory: 0,
        bandwidth: 20e9,
        compute: 600e9,
        bandwidth_efficiency: 0.7,
        compute_efficiency: 0.3,
        cache_efficiency: 0.63,
        attention_efficiency: 0.98,
        mixed_reading: 1.0,
        attention_floor_s: 6.8e-6,
        attention_sequence_s: 0.7e-6,
        step_overhead_s: 2.7e-3,
        sequence_overhead_s: 22e-6,
        layer_launch_s: 155e-6,
        frontend: Frontend { request_s: 0.7e-3, prompt_token_s: 1.8e-6, step_s: 0.32e-3, stream_s: 139e-6 },
        link_latency_s: 20e-6,
        link_bandwidth: 5e9,
    },
];

/// Values that the Hopper devices and the B200 have in common.
const HOPPER: DevicePreset = DevicePreset {
    bandwidth_efficiency: 0.77,
    compute_efficiency: 0.7,
    cache_efficiency: 0.9,
    mixed_reading: 1.0,
    attention_sequence_s: 0.25e-6,
    link_latency_s: 4.7e-6,
    link_bandwidth: 165e9,
    ..GPU
};

impl DevicePreset {
    /// The name of the simulated device if none is given.
    pub const DEFAULT: &'static str = "h100";

    /// Returns the preset with this name, ignoring case.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name.eq_ignore_ascii_case(name))
    }

    /// Returns the names of all presets.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|preset| preset.name)
    }

    /// Returns the device as a `facts::Device`, the type that rules and defaults use.
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

    #[test]
    fn no_preset_promises_more_than_its_data_sheet() {
        for preset in &PRESETS {
            let shares = [
                preset.bandwidth_efficiency,
                preset.compute_efficiency,
                preset.cache_efficiency,
                preset.attention_efficiency,
            ];
            assert!(shares.iter().all(|share| (0.3..1.0).contains(share)), "{preset:?}");
            assert!(preset.memory > preset.context_memory && preset.mixed_reading >= 1.0, "{preset:?}");
        }
    }
}
