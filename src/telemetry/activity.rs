//! Activity of the engine's own GPUs: evidence of steps that move no counter.

use super::WatchedDevices;
use super::gpu::WatchedGpus;
use crate::facts::GpuError;

/// The GPUs of a launch.
#[derive(Debug)]
pub(crate) struct DeviceActivity(WatchedGpus);

impl DeviceActivity {
    /// Finds the GPUs that these processes compute on. Returns `None` without a driver, and if the GPUs are not known
    /// to be the engine's: their activity could then come from other programs.
    ///
    /// # Errors
    /// If the driver hangs.
    pub(crate) fn open(devices: &WatchedDevices, pids: &[i32]) -> Result<Option<Self>, GpuError> {
        let gpus = WatchedGpus::open(devices, pids)?;
        Ok(gpus.filter(|gpus| gpus.absence_note().is_none()).map(Self))
    }

    /// Reads the highest utilization of the GPUs, in percent of the driver's last sample period. This period is at most
    /// a second. Returns `None` if no GPU reports a utilization. MIG instances do not.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub(crate) fn highest_utilization(&self) -> Result<Option<u32>, GpuError> {
        self.0.highest_utilization()
    }
}
