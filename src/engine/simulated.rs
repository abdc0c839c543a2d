//! The launch that a simulated engine simulates.

use crate::facts::EngineVersion;
use crate::twin::DevicePreset;

/// How the simulated engine runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Simulated {
    pub device: &'static DevicePreset,
    /// How many times faster than the device its clock goes.
    pub time_scale: f64,
    /// How many devices there are.
    pub devices: u32,
    /// Share of drafts, 0 to 1, that the model agrees with.
    pub acceptance: f64,
    /// Whether it simulates vLLM's front end too.
    pub front_end: bool,
    /// Seconds until it is ready.
    pub startup_s: f64,
    /// The release.
    pub version: EngineVersion,
}
