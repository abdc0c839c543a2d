//! The GPUs of this machine: number, memory and capability, as the driver's management library (NVML) reports them.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::device_memory::{DeviceMemory, read_memory};
use super::gpu_list::{GpuId, GpuList, GpuSelection};
use super::nvml::{GpuError, NVML_TIMEOUT, call_nvml};
use super::{Gpu, GpuUnit};

/// One device as the driver reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuReading {
    pub id: GpuId,
    /// Such as `NVIDIA A100-SXM4-80GB`.
    pub name: Option<String>,
    /// Compute capability: major and minor number.
    pub capability: Option<(u8, u8)>,
    /// `None` if the device does not report it, or cannot be read.
    pub memory: Option<DeviceMemory>,
    /// The first error of a device that cannot be read.
    pub problem: Option<String>,
}

/// The GPUs that an engine can see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuReport {
    /// At least one, in CUDA's order.
    pub readings: Vec<GpuReading>,
    /// Whether the user has named the devices, by a variable or for slots.
    is_chosen: bool,
}

impl GpuReport {
    /// Reads the selected devices.
    ///
    /// # Errors
    /// If there is no driver, no device, none that is selected, or none of these that can be read.
    pub fn read(selection: &GpuSelection) -> Result<Self, GpuError> {
        let is_chosen = *selection != GpuSelection::Visible(None);
        let selection = selection.clone();
        let readings = call_nvml(NVML_TIMEOUT, "reading the devices", move |nvml| {
            let selected = GpuList::read(nvml)?.selected(&selection)?;
            Ok(selected.iter().map(|id| reading(nvml, id)).collect())
        })?;
        Self { readings, is_chosen }.readable()
    }

    /// Reads every device of this machine, including unreadable ones.
    ///
    /// # Errors
    /// If there is no driver or no device.
    pub fn of_machine() -> Result<Self, GpuError> {
        let readings = call_nvml(NVML_TIMEOUT, "reading the devices", |nvml| {
            let all = GpuList::read(nvml)?.all();
            Ok(all.iter().map(|id| reading(nvml, id)).collect())
        })?;
        Ok(Self { readings, is_chosen: false })
    }

    fn readable(self) -> Result<Self, GpuError> {
        let problems: Vec<_> = self.readings.iter().filter_map(problem_text).collect();
        if problems.len() == self.readings.len() { Err(GpuError::Device(problems.join("; "))) } else { Ok(self) }
    }

    /// Summarizes the devices for the rules. Memory of processes that are `ours` counts as free: they are ended before
    /// a launch.
    #[must_use]
    pub fn gpu(&self, ours: impl Fn(u32) -> bool) -> Gpu {
        let unit = |reading: &GpuReading| {
            let memory = reading.memory.as_ref();
            let own = |memory: &DeviceMemory| {
                let holders = memory.holders.iter().filter(|holder| ours(holder.pid));
                holders.filter_map(|holder| holder.used).sum::<u64>()
            };
            GpuUnit {
                index: reading.id.index,
                memory: memory.map(|memory| memory.usable),
                capability: reading.capability,
                a100: reading.name.as_ref().is_some_and(|name| name.to_lowercase().contains("a100")),
                free: memory.map(|memory| memory.free.saturating_add(own(memory)).min(memory.usable)),
            }
        };
        Gpu::listed(self.readings.iter().map(unit).collect())
    }

    /// Returns the devices' names as in the tables of vLLM's benchmarks: `8xNVIDIA H100 80GB HBM3`. Kinds are joined by
    /// ` + `.
    #[must_use]
    pub fn names(&self) -> String {
        names(&self.readings)
    }

    /// Returns the name of the first device, on which every engine computes.
    #[must_use]
    pub fn first_name(&self) -> Option<&str> {
        self.readings.first()?.name.as_deref()
    }

    /// Returns notices for users, one line each: devices that cannot be read, and devices of several kinds.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        let mut notices: Vec<_> = self.readings.iter().filter_map(problem_text).collect();
        let kind = |reading: &GpuReading| reading.name.clone();
        let mut known = self.readings.iter().filter_map(kind);
        let first = known.next();
        if !self.is_chosen && known.any(|name| Some(&name) != first.as_ref()) {
            let named = |reading: &GpuReading| {
                format!("{} {}", reading.id.index, reading.name.as_deref().unwrap_or("unreadable"))
            };
            let list = self.readings.iter().map(named).collect::<Vec<_>>().join(", ");
            notices.push(format!(
                "the GPUs differ ({list}), and an engine uses the first ones: select others with CUDA_VISIBLE_DEVICES"
            ));
        }
        notices
    }
}

fn problem_text(reading: &GpuReading) -> Option<String> {
    Some(format!("{} cannot be read: {}", reading.id, reading.problem.as_ref()?))
}

/// Returns each kind with its count, in the order of their first devices.
fn names(readings: &[GpuReading]) -> String {
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for name in readings.iter().filter_map(|reading| reading.name.as_deref()) {
        match kinds.iter_mut().find(|(kind, _)| *kind == name) {
            Some((_, count)) => *count += 1,
            None => kinds.push((name, 1)),
        }
    }
    kinds.iter().map(|(name, count)| format!("{count}x{name}")).collect::<Vec<_>>().join(" + ")
}

fn reading(nvml: &Nvml, id: &GpuId) -> GpuReading {
    let mut problem = None;
    let mut note = |error: NvmlError| {
        // A call that the driver lacks is no sign of a defective device.
        if !matches!(error, NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) {
            problem.get_or_insert_with(|| error.to_string());
        }
    };
    let device = match id.open(nvml) {
        Ok(device) => device,
        Err(error) => return GpuReading { id: id.clone(), problem: Some(error.to_string()), ..GpuReading::default() },
    };
    let name = device.name().map_err(&mut note).ok();
    let capability = device.cuda_compute_capability().map_err(&mut note).ok();
    let memory = read_memory(nvml, id).map_err(&mut note).ok();
    let part = |part: i32| u8::try_from(part).unwrap_or(0);
    GpuReading {
        id: id.clone(),
        name,
        capability: capability.map(|capability| (part(capability.major), part(capability.minor))),
        memory,
        problem,
    }
}

/// A GPU of this machine that can be assigned to an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPlace {
    /// The name in `CUDA_VISIBLE_DEVICES`. An index is meant with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    pub name: String,
    /// The NUMA node of the device; `None` if the kernel does not report it.
    pub node: Option<u32>,
}

impl GpuPlace {
    /// Returns the GPUs visible with this `CUDA_VISIBLE_DEVICES`, each for an engine of its own. Every instance of a
    /// divided device counts as one. Devices that cannot be read are left out; the second value names them.
    ///
    /// # Errors
    /// If there is no driver, no device, or none that is visible.
    pub fn all(variable: Option<&str>) -> Result<(Vec<Self>, Vec<String>), GpuError> {
        let owned = variable.map(str::to_owned);
        let places = call_nvml(NVML_TIMEOUT, "listing the devices", move |nvml| {
            let all = GpuList::read(nvml)?.one_per_engine(owned.as_deref(), true)?;
            Ok(all.iter().map(|id| (place(nvml, id), problem_text(&reading(nvml, id)))).collect::<Vec<_>>())
        })?;
        let mut found = (Vec::new(), Vec::new());
        for (place, problem) in places {
            match problem {
                None => found.0.push(place),
                Some(problem) => found.1.push(problem),
            }
        }
        if found.0.is_empty() { Err(GpuError::Device(found.1.join("; "))) } else { Ok(found) }
    }

    /// Returns one place for each of these names.
    ///
    /// # Errors
    /// If there is no driver, or if the names select no device.
    pub fn named(names: &str) -> Result<Vec<Self>, GpuError> {
        let variable = names.to_owned();
        call_nvml(NVML_TIMEOUT, "listing the devices", move |nvml| {
            let named = GpuList::read(nvml)?.one_per_engine(Some(&variable), false)?;
            Ok(named.iter().map(|id| place(nvml, id)).collect())
        })
    }
}

fn place(nvml: &Nvml, id: &GpuId) -> GpuPlace {
    // An instance has the bus address of its device.
    let device = nvml.device_by_index(id.index).and_then(|device| device.pci_info());
    GpuPlace { name: id.cuda_name(), node: device.ok().and_then(|pci| node(&pci.bus_id)) }
}

/// Returns the node of a device on the PCI bus. The driver writes the domain with eight digits and the kernel with
/// four.
fn node(bus_id: &str) -> Option<u32> {
    let (domain, rest) = bus_id.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let file = format!("/sys/bus/pci/devices/{domain:04x}:{}/numa_node", rest.to_lowercase());
    // The file contains -1 if the firmware does not report the node.
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::MemoryHolder;

    fn reading(index: u32, name: &str, capability: (u8, u8)) -> GpuReading {
        let id = GpuId { index, uuid: format!("GPU-{index}"), instance: None };
        GpuReading { id, name: Some(name.to_owned()), capability: Some(capability), ..GpuReading::default() }
    }

    #[test]
    fn devices_are_named_by_kind_with_their_count() {
        let (t4, h100) = (reading(0, "Tesla T4", (7, 5)), reading(1, "NVIDIA H100 80GB HBM3", (9, 0)));
        assert_eq!(names(&[t4.clone(), h100, t4]), "2xTesla T4 + 1xNVIDIA H100 80GB HBM3");
    }

    #[test]
    fn memory_of_our_own_processes_counts_as_free() {
        let holders = [(7, Some(60)), (8, Some(10))].map(|(pid, used)| MemoryHolder { pid, used }).to_vec();
        let memory = DeviceMemory { total: 82, usable: 80, used: 70, free: 10, holders, ..DeviceMemory::default() };
        let report = GpuReport {
            readings: vec![GpuReading { memory: Some(memory), ..reading(0, "NVIDIA A100-SXM4-80GB", (8, 0)) }],
            is_chosen: false,
        };
        let gpu = report.gpu(|pid| pid == 7);
        assert_eq!((gpu.memory, gpu.units[0].free, gpu.a100), (Some(80), Some(70), true));
        assert_eq!(report.gpu(|_| false).units[0].free, Some(10));
    }

    #[test]
    fn unreadable_devices_and_unlike_devices_are_reported() {
        let lost = GpuReading { problem: Some("lost".to_owned()), name: None, ..reading(1, "", (0, 0)) };
        let unlike = vec![reading(0, "H100", (9, 0)), lost.clone(), reading(2, "T400", (7, 5))];
        let report = GpuReport { readings: unlike, is_chosen: false };
        let notices = report.notices();
        assert_eq!(notices[0], "GPU 1 cannot be read: lost");
        assert!(notices[1].starts_with("the GPUs differ (0 H100, 1 unreadable, 2 T400)"), "{notices:?}");
        assert_eq!(GpuReport { is_chosen: true, ..report }.notices().len(), 1);
        let none = GpuReport { readings: vec![lost], is_chosen: false }.readable();
        assert_eq!(none.unwrap_err().to_string(), "the driver has no readable device: GPU 1 cannot be read: lost");
    }
}
