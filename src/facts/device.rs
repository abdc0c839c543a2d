//! The device that the engine computes on.

/// A kind of device. Defaults and limits of an engine differ between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Cpu,
    Cuda(Gpu),
}

/// GPUs of one kind, with the properties that are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Bytes of one GPU, as CUDA reports them.
    pub memory: Option<u64>,
    /// The number of GPUs that the engine can see.
    pub count: Option<u32>,
    /// Compute capability: major and minor number.
    pub capability: Option<(u8, u8)>,
    /// Whether it is an A100. vLLM recognizes it by name and gives it the defaults of smaller devices.
    pub a100: bool,
    /// Each GPU in CUDA's order, if the driver was read; empty if they are all alike.
    pub units: &'static [GpuUnit],
}

/// One GPU that the engine can see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuUnit {
    /// In the driver's order.
    pub index: u32,
    /// Bytes as CUDA reports them; `None` if the device cannot be read.
    pub memory: Option<u64>,
    pub capability: Option<(u8, u8)>,
    pub a100: bool,
    /// Bytes of `memory` that no foreign process holds.
    pub free: Option<u64>,
}

impl Gpu {
    /// Creates GPUs from a description, memory in bytes. vLLM recognizes an A100 by its name. Without a name, the
    /// compute capability 8.0 stands for it: that of the A100 and of other devices with its chip, such as the A30.
    #[must_use]
    pub fn described(memory: Option<u64>, count: Option<u32>, capability: Option<(u8, u8)>) -> Self {
        Self { memory, count, capability, a100: capability == Some((8, 0)), units: &[] }
    }

    /// Creates GPUs from the driver's list. Memory and capability are those of the first one. The list is leaked: a
    /// process detects its devices once or twice.
    #[must_use]
    pub fn listed(units: Vec<GpuUnit>) -> Self {
        let count = u32::try_from(units.len()).ok();
        let all = Self { count, units: units.leak(), ..Self::default() };
        Self { units: all.units, ..all.first(1) }
    }

    /// Returns the first `devices` of these GPUs, which an engine computes on. Memory and capability are the lowest of
    /// them. Without a list, returns these GPUs unchanged.
    #[must_use]
    pub fn first(self, devices: u64) -> Self {
        let most = usize::try_from(devices).unwrap_or(usize::MAX).clamp(1, self.units.len().max(1));
        let Some(units) = self.units.get(..most).filter(|units| !units.is_empty()) else { return self };
        // If a device cannot be read, the value is unknown: `None` is the minimum.
        let memory = units.iter().map(|unit| unit.memory).min().flatten();
        let capability = units.iter().map(|unit| unit.capability).min().flatten();
        Self { memory, capability, a100: units.iter().any(|unit| unit.a100), units, ..self }
    }

    /// Makes the GPUs interchangeable, so that a launch may use any of them: each counts as the smallest, oldest and
    /// fullest one.
    #[must_use]
    pub fn interchangeable(self) -> Self {
        if self.units.is_empty() {
            return self;
        }
        let Self { memory, capability, a100, .. } = self.first(u64::MAX);
        // The fullest has the most memory in use: totals may differ.
        let held = |unit: &GpuUnit| Some(unit.memory?.saturating_sub(unit.free?));
        let most = self.units.iter().map(held).collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
        let free = memory.zip(most).map(|(memory, held)| memory.saturating_sub(held));
        let unit = |unit: &GpuUnit| GpuUnit { index: unit.index, memory, capability, a100, free };
        Self { memory, capability, a100, units: self.units.iter().map(unit).collect::<Vec<_>>().leak(), ..self }
    }

    /// Reads a compute capability such as `9.0`.
    #[must_use]
    pub fn parse_capability(text: &str) -> Option<(u8, u8)> {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }
}

impl Device {
    /// A GPU without known properties.
    pub const UNKNOWN_GPU: Self =
        Self::Cuda(Gpu { memory: None, count: None, capability: None, a100: false, units: &[] });

    /// Creates a GPU with this memory in bytes and no other known property.
    #[must_use]
    pub const fn gpu_of(memory: u64) -> Self {
        Self::Cuda(Gpu { memory: Some(memory), count: None, capability: None, a100: false, units: &[] })
    }

    #[must_use]
    pub const fn gpu(self) -> Option<Gpu> {
        match self {
            Self::Cpu => None,
            Self::Cuda(gpu) => Some(gpu),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::GIB;

    fn unit(index: u32, gib: u64, capability: (u8, u8), held: u64) -> GpuUnit {
        let (memory, free) = (Some(gib * GIB), Some((gib - held) * GIB));
        GpuUnit { index, memory, capability: Some(capability), a100: capability == (8, 0), free }
    }

    #[test]
    fn a_launch_is_judged_by_the_devices_that_it_uses() {
        let gpu = Gpu::listed(vec![unit(0, 79, (9, 0), 0), unit(1, 79, (8, 0), 3), unit(2, 4, (7, 5), 1)]);
        let facts = |gpu: Gpu| (gpu.memory.map(|memory| memory / GIB), gpu.capability, gpu.a100, gpu.count);
        assert_eq!(facts(gpu), (Some(79), Some((9, 0)), false, Some(3)));
        assert_eq!(facts(gpu.first(2)), (Some(79), Some((8, 0)), true, Some(3)));
        assert_eq!(facts(gpu.first(9)), (Some(4), Some((7, 5)), true, Some(3)));
        assert_eq!(gpu.first(2).first(2), gpu.first(2));
        let any = gpu.interchangeable();
        assert_eq!((facts(any.first(1)), any.units[0].free), (facts(gpu.first(3)), Some(GIB)));
    }

    #[test]
    fn a_device_that_cannot_be_read_leaves_only_launches_on_it_unknown() {
        let gpu = Gpu::listed(vec![unit(0, 79, (9, 0), 0), GpuUnit { index: 1, ..GpuUnit::default() }]);
        assert_eq!((gpu.memory, gpu.first(2).memory, gpu.first(2).capability), (Some(79 * GIB), None, None));
        assert_eq!(Gpu::described(Some(GIB), Some(4), None).first(2), Gpu::described(Some(GIB), Some(4), None));
    }
}
