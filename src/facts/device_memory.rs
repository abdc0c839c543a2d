//! How full the memory of each GPU is, and by whom, as the driver's management library (NVML) reports it: a thin layer
//! that reads.

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;

use super::{GpuError, visible_devices};

/// One device at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    pub uuid: String,
    /// Such as `NVIDIA A100-SXM4-80GB`.
    pub name: String,
    /// Bytes.
    pub total: u64,
    /// Bytes that processes and the driver's contexts for them take.
    pub used: u64,
    pub holders: Vec<Holder>,
}

/// A process that has memory on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// In the driver's own namespace: in a container it may name nobody, or somebody else.
    pub pid: u32,
    /// Bytes; `None` where the driver does not tell (on Windows' driver model, and under some kinds of virtualization).
    pub used: Option<u64>,
}

/// The devices that `CUDA_VISIBLE_DEVICES` leaves, to be read again and again.
pub struct DeviceMemoryReader {
    nvml: Nvml,
    uuids: Vec<String>,
}

impl std::fmt::Debug for DeviceMemoryReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceMemoryReader").field("uuids", &self.uuids).finish_non_exhaustive()
    }
}

impl DeviceMemoryReader {
    /// `visible` is the variable's value, `None` where it is not set.
    ///
    /// # Errors
    /// When there is no driver, no device, or none that is visible.
    pub fn open(visible: Option<&str>) -> Result<Self, GpuError> {
        let nvml = Nvml::init()?;
        let count = nvml.device_count()?;
        let uuid = |index| nvml.device_by_index(index).and_then(|device| device.uuid()).unwrap_or_default();
        let all: Vec<String> = (0..count).map(uuid).collect();
        let places = visible_devices(&all.iter().map(String::as_str).collect::<Vec<_>>(), visible);
        let uuids: Vec<_> = places.into_iter().map(|place| all[place].clone()).collect();
        match visible {
            _ if !uuids.is_empty() => Ok(Self { nvml, uuids }),
            Some(variable) if count > 0 => Err(GpuError::NoneVisible(variable.to_owned(), all.len())),
            _ => Err(GpuError::NoDevice),
        }
    }

    /// The driver's release; `None` where it does not tell.
    #[must_use]
    pub fn driver(&self) -> Option<String> {
        self.nvml.sys_driver_version().ok()
    }

    /// The devices as they are now, in order; one that cannot be read is left out.
    #[must_use]
    pub fn read(&self) -> Vec<DeviceMemory> {
        self.uuids.iter().filter_map(|uuid| self.read_one(uuid)).collect()
    }

    fn read_one(&self, uuid: &str) -> Option<DeviceMemory> {
        let device = self.nvml.device_by_uuid(uuid).ok()?;
        let memory = device.memory_info().ok()?;
        let mut processes = device.running_compute_processes().unwrap_or_default();
        processes.extend(device.running_graphics_processes().unwrap_or_default());
        let mut holders: Vec<Holder> = Vec::new();
        for process in processes {
            let used = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            // One that computes and draws is in both lists, with the same memory.
            if holders.iter().all(|holder| holder.pid != process.pid) {
                holders.push(Holder { pid: process.pid, used });
            }
        }
        let name = device.name().unwrap_or_default();
        Some(DeviceMemory { uuid: uuid.to_owned(), name, total: memory.total, used: memory.used, holders })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_here_is_read_or_the_reason_is_told() {
        let reader = match DeviceMemoryReader::open(None) {
            Ok(reader) => reader,
            Err(error) => return assert!(error.to_string().starts_with("the driver"), "{error}"),
        };
        let readings = reader.read();
        assert_eq!(readings.len(), reader.uuids.len());
        assert!(readings.iter().all(|reading| reading.used <= reading.total && reading.total > 0), "{readings:?}");
    }

    #[test]
    fn a_selection_of_no_device_leaves_nothing_to_read() {
        assert!(DeviceMemoryReader::open(Some("")).is_err());
    }
}
