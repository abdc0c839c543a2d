//! Memory use of each GPU and of the processes on it, as the driver's management library (NVML) reports it.

use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use super::gpu_list::{GpuId, GpuList};
use super::nvml::{GpuError, NVML_TIMEOUT, call_nvml_async, memory};

/// The time limit of a repeated reading.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// One device at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    pub id: GpuId,
    /// Such as `NVIDIA A100-SXM4-80GB`.
    pub name: String,
    /// Bytes.
    pub total: u64,
    /// Bytes as CUDA reports them: the total without the driver's reserve.
    pub usable: u64,
    /// Bytes that processes and the driver's contexts for them take.
    pub used: u64,
    /// Bytes that a process could get.
    pub free: u64,
    pub holders: Vec<MemoryHolder>,
}

/// A process that has memory on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHolder {
    /// The number in the driver's PID namespace. Inside a container it may match no process, or a different one.
    pub pid: u32,
    /// Bytes; `None` if the driver does not report them (on Windows' driver model, and under some kinds of
    /// virtualization).
    pub used: Option<u64>,
}

/// Devices whose memory is read repeatedly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemoryReader {
    ids: Vec<GpuId>,
}

impl DeviceMemoryReader {
    /// Selects the first `most` devices that this `CUDA_VISIBLE_DEVICES` leaves; `None` if the variable is not set.
    ///
    /// # Errors
    /// If there is no driver, no device, or none that is visible.
    pub async fn open(visible: Option<&str>, most: u64) -> Result<Self, GpuError> {
        let variable = visible.map(str::to_owned);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let ids = call_nvml_async(NVML_TIMEOUT, "listing the devices", move |nvml| {
            let mut ids = GpuList::read(nvml)?.visible(variable.as_deref())?;
            ids.truncate(most);
            Ok(ids)
        });
        Ok(Self { ids: ids.await? })
    }

    /// Reads the devices' present memory, in order. A device that cannot be read is left out.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub async fn read(&self) -> Result<Vec<DeviceMemory>, GpuError> {
        let ids = self.ids.clone();
        let read = move |nvml: &Nvml| Ok(ids.iter().filter_map(|id| read_memory(nvml, id).ok()).collect());
        call_nvml_async(READ_LIMIT, "reading the devices' memory", read).await
    }
}

/// Reads one device.
///
/// # Errors
/// If it does not report its memory, or cannot be read.
pub fn read_memory(nvml: &Nvml, id: &GpuId) -> Result<DeviceMemory, NvmlError> {
    let device = id.open(nvml)?;
    let reading = memory(nvml, &device)?;
    let mut processes = device.running_compute_processes().unwrap_or_default();
    processes.extend(device.running_graphics_processes().unwrap_or_default());
    let mut holders: Vec<MemoryHolder> = Vec::new();
    for process in processes {
        let used = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        // A process that computes and draws is in both lists, with equal memory.
        if holders.iter().all(|holder| holder.pid != process.pid) {
            holders.push(MemoryHolder { pid: process.pid, used });
        }
    }
    Ok(DeviceMemory {
        id: id.clone(),
        name: device.name().unwrap_or_default(),
        total: reading.total,
        usable: reading.usable,
        used: reading.used,
        free: reading.free,
        holders,
    })
}
