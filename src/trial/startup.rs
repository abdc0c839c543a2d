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
