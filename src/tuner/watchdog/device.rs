//! Observation of the engine's own GPUs, for steps that move no counter and starts that show no other activity. It has
//! a thread of its own, because a driver may hang, and reads only while nothing else moves.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::LOOK;
use super::busy::Activity;
use super::pulse::Pulse;
use super::still::Stillness;
use crate::server::Processes;
use crate::telemetry::{DeviceActivity, Devices};

/// The least utilization of a device, in percent, at which it counts as busy. An engine without work launches no
/// kernels. Displays and monitors take a few percent.
const BUSY_UTILIZATION: u32 = 10;

/// The most time between two readings that counts as idle: a reading of the driver may take a second.
const MOST_GAP: Duration = Duration::from_secs(2);

/// The state of the driver's query for the devices.
enum Driver {
    Unasked(Devices),
    Open(DeviceActivity),
    /// No device is known to be the engine's.
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

    /// Observes the devices until the watchdog is dropped.
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
            // A driver that hangs is queried again.
            match DeviceActivity::open(devices, &self.processes.pids()).ok()? {
                Some(opened) => self.driver = Driver::Open(opened),
                // During a start the processes may open their devices later.
                None if self.activity.is_start_still() => {}
                None => self.driver = Driver::Absent,
            }
        }
        let Driver::Open(devices) = &self.driver else { return None };
        let utilization = devices.highest_utilization().ok()??;
        Some(utilization >= BUSY_UTILIZATION)
    }
}
