//! Records of a start-up: the duration of each phase, and the configuration that the engine resolved.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::facts::MeasurementCondition;

/// The start-up of a launch. It is stored for every launch that started a process, even if its server never became
/// ready.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Startup {
    /// Phases in order. Together they last from spawn to readiness, or to the failure.
    pub phases: Vec<PhaseTime>,
    /// The configuration that the engine reports: names of flags without dashes, and a few names of its own such as
    /// `engine`. Empty if it was never ready.
    #[serde(default)]
    pub resolved: BTreeMap<String, String>,
    /// Flags that the engine resolved to another value than the requested one.
    #[serde(default)]
    pub differences: Vec<FlagDifference>,
    /// Conditions of the host when the server became ready. Empty if it never did, and in trials of older versions.
    #[serde(default)]
    pub conditions: Vec<MeasurementCondition>,
}

/// One phase of a start-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// The name of an `engine::StartPhase`.
    pub phase: String,
    pub duration_s: f64,
}

/// A flag whose explicit value the engine does not use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlagDifference {
    /// The name without leading dashes.
    pub flag: String,
    /// The requested value, and the value that the engine uses.
    pub asked: String,
    pub resolved: String,
}

impl fmt::Display for FlagDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flag, asked, resolved } = self;
        write!(f, "{flag} is {resolved}, not the requested {asked}")
    }
}

/// Memory figures from the log of a start-up; `None` for values that the log lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryObservation {
    /// The model's weights on one device.
    pub weights_gib: Option<f64>,
    /// Memory left for the cache; negative if there is too little.
    pub cache_gib: Option<f64>,
    /// The number of KV cache blocks.
    pub blocks: Option<u64>,
    /// The capacity of the cache in tokens, by the count of the engine's release.
    pub tokens: Option<u64>,
    /// Memory of the captured graphs.
    pub graphs_gib: Option<f64>,
    /// The number of concurrent sequences of `max_model_len` tokens that fit.
    pub concurrency: Option<f64>,
    pub max_model_len: Option<u64>,
    /// The length that the engine suggests if `max_model_len` does not fit.
    pub largest_length: Option<u64>,
    /// Duration of profiling, allocation and warm-up, in seconds.
    pub init_s: Option<f64>,
}

impl MemoryObservation {
    /// Returns whether it contains weights, cache, blocks or tokens. A start without any of them is not stored.
    #[must_use]
    pub fn is_useful(&self) -> bool {
        self.weights_gib.is_some() || self.cache_gib.is_some() || self.blocks.is_some() || self.tokens.is_some()
    }
}
