//! The second witness of a step that moves no counter, and of a start that shows nothing else: the engine's own GPUs. Asked on a
//! thread of its own, because a driver may hang, and only while nothing else moves.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::LOOK;
use super::busy::Activity;
use super::pulse::Pulse;
use super::still::Stillness;
use crate::server::Processes;
use crate::telemetry::{DeviceActivity, Devices};

/// A device with at least this utilization, in percent, computes. An engine without work launches no kernels; displays and
/// monitors take a few percent.
const BUSY_UTILIZATION: u32 = 10;

/// The time between two readings that counts as idle, at most: a reading of the driver may take a second.
const MOST_GAP: Duration = Duration::from_secs(2);

/// The driver as far as it was asked for the devices.
enum Driver {
    Unasked(Devices),
    Open(DeviceActivity),
    /// There is no device that is known to be the engine's.
    Absent,
}

/// Watches the devices of one launch.
pub(super) struct DeviceWitness {
    processes: Processes,
    driver: Driver,
    activity: Arc<Activity>,
    pulse: Arc<Pulse>,
    stillness: Stillness,
}

impl DeviceWitness {
    pub(super) fn new(devices: Devices, processes: Processes, activity: Arc<Activity>, pulse: Arc<Pulse>) -> Self {
        let (driver, stillness) = (Driver::Unasked(devices), Stillness::new(MOST_GAP));
        Self { processes, driver, activity, pulse, stillness }
    }

    /// Looks until nobody wants to know any more.
    pub(super) fn run(mut self, lives: &Receiver<()>) {
        while lives.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            if self.pulse.beat().silent < LOOK && !self.activity.is_start_still() {
                self.stillness = Stillness::new(MOST_GAP);
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
        if let Driver::Unasked(devices) = &self.driver {
            // A driver that hangs is asked again.
            match DeviceActivity::open(devices, &self.processes.pids()).ok()? {
                Some(opened) => self.driver = Driver::Open(opened),
                // In a start the processes may come to their devices later.
                None if self.activity.is_start_still() => {}
                None => self.driver = Driver::Absent,
            }
        }
        let Driver::Open(devices) = &self.driver else { return None };
        let utilization = devices.highest_utilization().ok()??;
        Some(utilization >= BUSY_UTILIZATION)
    }
}
