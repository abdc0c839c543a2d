//! The GPUs of this machine, as the driver's management library (NVML) reports them.
//!
//! Reading is a thin layer; which devices an engine sees and what they have in common are pure functions.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::Gpu;

/// One device as the driver reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reading {
    /// Such as `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`.
    uuid: String,
    /// Such as `NVIDIA A100-SXM4-80GB`.
    name: String,
    /// Bytes as CUDA reports them: the total without what the driver reserves.
    memory: u64,
    /// Compute capability: major and minor number.
    capability: (u8, u8),
}

/// Why nothing is known of the GPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    #[error("the driver's management library cannot be loaded: {0}")]
    NoLibrary(String),
    #[error("the driver does not answer: {0}")]
    Unreadable(String),
    #[error("the driver reports no device")]
    NoDevice,
    #[error("CUDA_VISIBLE_DEVICES={0:?} leaves none of the {1} devices visible")]
    NoneVisible(String, usize),
}

impl From<NvmlError> for GpuError {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded => {
                Self::NoLibrary(error.to_string())
            }
            other => Self::Unreadable(other.to_string()),
        }
    }
}

impl Gpu {
    /// The GPUs that an engine started with this `CUDA_VISIBLE_DEVICES` would see. Where they differ, the smallest
    /// memory and the lowest capability count: what runs there runs on each of them.
    ///
    /// # Errors
    /// When there is no driver, no device, or none that is visible.
    pub fn detect(visible_devices: Option<&str>) -> Result<Self, GpuError> {
        let all = read()?;
        if all.is_empty() {
            return Err(GpuError::NoDevice);
        }
        let seen = visible(&all, visible_devices);
        let none = || GpuError::NoneVisible(visible_devices.unwrap_or_default().to_owned(), all.len());
        common(&seen).ok_or_else(none)
    }
}

impl Gpu {
    /// The visible GPUs as the tables of vLLM's benchmarks name them: `8xNVIDIA H100 80GB HBM3`; kinds are joined by ` + `.
    ///
    /// # Errors
    /// When there is no driver, no device, or none that is visible.
    pub fn describe(visible_devices: Option<&str>) -> Result<String, GpuError> {
        let all = read()?;
        let seen = visible(&all, visible_devices);
        if seen.is_empty() {
            return Err(GpuError::NoDevice);
        }
        Ok(names(&seen))
    }
}

/// A GPU of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPlace {
    /// As `CUDA_VISIBLE_DEVICES` names it; an index is to be read with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    pub name: String,
    /// Node of memory that is near; `None` where the kernel does not tell.
    pub node: Option<u32>,
}

impl GpuPlace {
    /// The GPUs that an engine started with this `CUDA_VISIBLE_DEVICES` would see, each to be given to another one.
    ///
    /// # Errors
    /// When there is no driver, no device, or none that is visible.
    pub fn all(variable: Option<&str>) -> Result<Vec<Self>, GpuError> {
        let nvml = Nvml::init()?;
        let count = nvml.device_count()?;
        let devices: Vec<_> = (0..count).map(|index| nvml.device_by_index(index)).collect::<Result<_, _>>()?;
        let uuids = devices.iter().map(nvml_wrapper::Device::uuid).collect::<Result<Vec<_>, _>>()?;
        let uuids: Vec<_> = uuids.iter().map(String::as_str).collect();
        let indices = visible_devices(&uuids, variable);
        match (indices.is_empty(), variable) {
            (true, Some(variable)) => return Err(GpuError::NoneVisible(variable.to_owned(), uuids.len())),
            (true, None) => return Err(GpuError::NoDevice),
            (false, _) => {}
        }
        let node = |index: usize| node(&devices[index].pci_info().ok()?.bus_id);
        Ok(indices.into_iter().map(|index| Self { name: index.to_string(), node: node(index) }).collect())
    }
}

/// The node near a device on the PCI bus, of which the driver writes the domain with eight digits and the kernel with four.
fn node(bus_id: &str) -> Option<u32> {
    let (domain, rest) = bus_id.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let file = format!("/sys/bus/pci/devices/{domain:04x}:{}/numa_node", rest.to_lowercase());
    // -1 where the firmware does not say.
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Each kind with its count, in the order of their first devices.
fn names(seen: &[&Reading]) -> String {
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for reading in seen {
        match kinds.iter_mut().find(|(name, _)| *name == reading.name) {
            Some((_, count)) => *count += 1,
            None => kinds.push((&reading.name, 1)),
        }
    }
    kinds.iter().map(|(name, count)| format!("{count}x{name}")).collect::<Vec<_>>().join(" + ")
}

fn read() -> Result<Vec<Reading>, GpuError> {
    let nvml = Nvml::init()?;
    let reading = |index| {
        let device = nvml.device_by_index(index)?;
        let (memory, capability) = (device.memory_info()?, device.cuda_compute_capability()?);
        let number = |part: i32| u8::try_from(part).unwrap_or(0);
        Ok(Reading {
            uuid: device.uuid()?,
            name: device.name()?,
            memory: memory.total.saturating_sub(memory.reserved),
            capability: (number(capability.major), number(capability.minor)),
        })
    };
    (0..nvml.device_count()?).map(reading).collect()
}

/// The devices that `CUDA_VISIBLE_DEVICES` selects, in its order. As in CUDA the list ends at the first entry that
/// names no device, and a device that is named twice leaves none. Indices count in the driver's order, which for unlike
/// devices is CUDA's only with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
///
/// `uuids` are those of all devices; the answer is their places.
#[must_use]
pub fn visible_devices(uuids: &[&str], variable: Option<&str>) -> Vec<usize> {
    let Some(list) = variable else { return (0..uuids.len()).collect() };
    let selected: Vec<_> = list.split(',').map_while(|entry| select(uuids, entry.trim())).collect();
    let twice = selected.iter().enumerate().any(|(index, one)| selected[..index].contains(one));
    if twice { Vec::new() } else { selected }
}

fn visible<'a>(all: &'a [Reading], variable: Option<&str>) -> Vec<&'a Reading> {
    let uuids: Vec<_> = all.iter().map(|reading| reading.uuid.as_str()).collect();
    visible_devices(&uuids, variable).into_iter().map(|index| &all[index]).collect()
}

/// The place of the device that an entry names: by index, or by the beginning of its UUID where no other begins so.
fn select(uuids: &[&str], entry: &str) -> Option<usize> {
    if let Ok(index) = entry.parse::<usize>() {
        return (index < uuids.len()).then_some(index);
    }
    let mut named = (0..uuids.len()).filter(|index| entry.starts_with("GPU-") && uuids[*index].starts_with(entry));
    named.next().filter(|_| named.next().is_none())
}

/// What holds on each of the devices; `None` where there is none.
fn common(devices: &[&Reading]) -> Option<Gpu> {
    Some(Gpu {
        memory: Some(devices.iter().map(|device| device.memory).min()?),
        count: u32::try_from(devices.len()).ok(),
        capability: devices.iter().map(|device| device.capability).min(),
        a100: devices.iter().any(|device| device.name.to_lowercase().contains("a100")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(uuid: &str, name: &str, memory: u64, capability: (u8, u8)) -> Reading {
        Reading { uuid: uuid.to_owned(), name: name.to_owned(), memory: memory << 30, capability }
    }

    fn three() -> Vec<Reading> {
        vec![
            reading("GPU-11aa", "NVIDIA H100 80GB HBM3", 79, (9, 0)),
            reading("GPU-11bb", "NVIDIA A100-SXM4-80GB", 79, (8, 0)),
            reading("GPU-22cc", "Tesla T4", 15, (7, 5)),
        ]
    }

    fn seen(variable: Option<&str>) -> Vec<String> {
        visible(&three(), variable).into_iter().map(|reading| reading.uuid.clone()).collect()
    }

    #[test]
    fn devices_are_selected_by_index_and_by_the_beginning_of_a_uuid() {
        assert_eq!(seen(None), ["GPU-11aa", "GPU-11bb", "GPU-22cc"]);
        assert_eq!(seen(Some("2,0")), ["GPU-22cc", "GPU-11aa"]);
        assert_eq!(seen(Some("GPU-11b, GPU-22cc")), ["GPU-11bb", "GPU-22cc"]);
    }

    #[test]
    fn devices_are_named_by_kind_with_their_count() {
        let all = three();
        assert_eq!(names(&[&all[2], &all[0], &all[2]]), "2xTesla T4 + 1xNVIDIA H100 80GB HBM3");
    }

    #[test]
    fn the_selection_ends_at_the_first_entry_that_names_no_device() {
        assert_eq!(seen(Some("1,-1,0")), ["GPU-11bb"]);
        assert_eq!(seen(Some("0,7,1")), ["GPU-11aa"]);
        for none in ["", "-1", "3", "NoDevFiles", "GPU-11", "GPU-33", "0,0", "MIG-11aa"] {
            assert!(seen(Some(none)).is_empty(), "{none}");
        }
    }

    #[test]
    fn unlike_devices_count_as_the_smallest_and_oldest_of_them() {
        let all = three();
        let gpu = |of: &[&Reading]| common(of).unwrap();
        let newest = gpu(&[&all[0]]);
        assert_eq!(
            (newest.memory, newest.count, newest.capability, newest.a100),
            (Some(79 << 30), Some(1), Some((9, 0)), false)
        );
        let all = gpu(&visible(&all, None));
        assert_eq!((all.memory, all.count, all.capability, all.a100), (Some(15 << 30), Some(3), Some((7, 5)), true));
        assert_eq!(common(&[]), None);
    }

    #[test]
    fn what_is_here_is_read_or_the_reason_is_told() {
        match Gpu::detect(None) {
            Ok(gpu) => assert!(gpu.count > Some(0) && gpu.memory > Some(0) && gpu.capability > Some((0, 0)), "{gpu:?}"),
            Err(error) => assert!(error.to_string().starts_with("the driver"), "{error}"),
        }
        match GpuPlace::all(None) {
            Ok(places) => assert_eq!(places.len(), usize::try_from(Gpu::detect(None).unwrap().count.unwrap()).unwrap()),
            Err(error) => assert_eq!(Some(error), Gpu::detect(None).err()),
        }
    }
}
