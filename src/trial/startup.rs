//! What a launch's start told: how long each phase took, and with which configuration the engine really runs.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::facts::MeasurementCondition;

/// Stored for every launch that got as far as a process, also where its server never became ready.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Startup {
    /// In their order. Together they last from spawn to readiness, or to the failure.
    pub phases: Vec<PhaseTime>,
    /// The configuration that the engine reports: names of flags without dashes, and a few names of its own such as
    /// `engine`. Empty where it was never ready.
    #[serde(default)]
    pub resolved: BTreeMap<String, String>,
    /// What was asked for and is resolved otherwise.
    #[serde(default)]
    pub differences: Vec<Difference>,
    /// Conditions of the host when the server was ready. Empty if it never was, and in trials of older versions.
    #[serde(default)]
    pub conditions: Vec<MeasurementCondition>,
}

/// One phase of a start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    pub phase: String,
    pub duration_s: f64,
}

/// A flag that was set explicitly, and with which the engine does not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub flag: String,
    pub asked: String,
    pub resolved: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flag, asked, resolved } = self;
        write!(f, "{flag} is {resolved}, asked for was {asked}")
    }
}

/// Memory of a start as its log reports it; `None` for values that the log lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryObservation {
    /// The model's weights on one device.
    pub weights_gib: Option<f64>,
    /// Memory that is left for the cache; negative if there is too little.
    pub cache_gib: Option<f64>,
    /// Blocks of the cache.
    pub blocks: Option<u64>,
    /// Tokens of the cache, as the release counts them.
    pub tokens: Option<u64>,
    /// Captured graphs.
    pub graphs_gib: Option<f64>,
    /// Sequences of `max_model_len` tokens at the same time.
    pub concurrency: Option<f64>,
    pub max_model_len: Option<u64>,
    /// The length that the engine names where `max_model_len` does not fit.
    pub largest_length: Option<u64>,
    /// Profiling, allocating and warming up.
    pub init_s: Option<f64>,
}

impl MemoryObservation {
    /// Whether it holds any figure of the memory.
    #[must_use]
    pub fn is_useful(&self) -> bool {
        self.weights_gib.is_some() || self.cache_gib.is_some() || self.blocks.is_some() || self.tokens.is_some()
    }
}
