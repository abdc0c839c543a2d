//! Observation of the engine's own GPUs, for steps that move no counter and starts that show no other activity. It has
//! a thread of its own, because a driver may hang, and reads only while nothing else moves.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::CHECK_INTERVAL;
use super::activity::LaunchActivity;
use super::progress_monitor::Stillness;
use super::reply_monitor::ReplyMonitor;
use crate::server::LaunchProcesses;
use crate::telemetry::{DeviceActivity, WatchedDevices};

/// The least utilization of a device, in percent, at which it counts as busy. An engine without work launches no
/// kernels. Displays and monitors take a few percent.
const BUSY_UTILIZATION: u32 = 10;

/// The most time between two readings that counts as idle: a reading of the driver may take a second.
const MAX_READING_GAP: Duration = Duration::from_secs(2);

/// The state of the driver's query for the devices.
enum DriverState {
    NotQueried(WatchedDevices),
    Open(DeviceActivity),
    /// No device is known to be the engine's.
    Absent,
}

/// Watches the devices of one launch.
pub(super) struct DeviceObserver {
    processes: LaunchProcesses,
    driver: DriverState,
    activity: Arc<LaunchActivity>,
    reply_monitor: Arc<ReplyMonitor>,
    stillness: Stillness,
}

impl DeviceObserver {
    pub(super) fn new(
        devices: WatchedDevices,
        processes: LaunchProcesses,
        activity: Arc<LaunchActivity>,
        pulse: Arc<ReplyMonitor>,
    ) -> Self {
        let (driver, stillness) = (DriverState::NotQueried(devices), Stillness::new(MAX_READING_GAP));
        Self { processes, driver, activity, reply_monitor: pulse, stillness }
    }

    /// Observes the devices until the watchdog is dropped.
    pub(super) fn run(mut self, lives: &Receiver<()>) {
        while lives.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if self.reply_monitor.reply_silence().silent < CHECK_INTERVAL && !self.activity.is_start_still() {
                self.stillness = Stillness::new(MAX_READING_GAP);
                self.activity.set_devices(None, false);
            } else {
                let is_busy = self.is_busy();
                let idle = is_busy.map(|is_busy| self.stillness.look(Instant::now(), is_busy));
                self.activity.set_devices(idle, is_busy == Some(true));
            }
        }
    }

    /// Reads whether a device computes; `None` if the driver does not report it.
    fn is_busy(&mut self) -> Option<bool> {
        if let DriverState::NotQueried(devices) = &self.driver {
            // A driver that hangs is queried again.
            match DeviceActivity::open(devices, &self.processes.pids()).ok()? {
                Some(opened) => self.driver = DriverState::Open(opened),
                // During a start the processes may open their devices later.
                None if self.activity.is_start_still() => {}
                None => self.driver = DriverState::Absent,
            }
        }
        let DriverState::Open(devices) = &self.driver else { return None };
        let utilization = devices.highest_utilization().ok()??;
        Some(utilization >= BUSY_UTILIZATION)
    }
}
