//! The simulated launch of an engine that computes nothing.

use crate::facts::EngineVersion;
use crate::twin::{DevicePreset, Factors, SpeedVariation};

/// The settings of the simulated engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedLaunch {
    pub device: &'static DevicePreset,
    /// The number of simulated seconds in one real second.
    pub time_scale: f64,
    /// The number of simulated devices.
    pub devices: u32,
    /// The share of draft tokens, 0 to 1, that the model accepts.
    pub acceptance: f64,
    /// Whether it simulates vLLM's front end too.
    pub front_end: bool,
    /// The duration of the simulated start in seconds.
    pub startup_s: f64,
    /// The simulated release.
    pub version: EngineVersion,
    /// The variation of its speed between launches and over the time of a study.
    pub variation: SpeedVariation,
    /// Factors on the terms of its step time. Predictions do not know them. A calibration finds them.
    pub physics: Factors,
    /// The excess of all times of a live look over those of a launch, as a share.
    pub live_bias: f64,
}
