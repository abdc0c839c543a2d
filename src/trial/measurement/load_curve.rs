//! The metrics of one configuration at several loads, and the highest load within the limits.

use serde::{Deserialize, Serialize};

use super::Measurement;

/// The quantity of a load that a search varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadKnob {
    /// Users of a closed loop, or concurrent requests if all arrive at once.
    #[serde(rename = "concurrency")]
    Concurrency,
    /// Arrivals of sessions per second.
    #[serde(rename = "rate_per_s")]
    Rate,
    /// Speed of a trace's replay relative to its recording.
    #[serde(rename = "trace_speed")]
    Speed,
}

impl LoadKnob {
    /// Returns the name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Concurrency => "concurrency",
            Self::Rate => "rate_per_s",
            Self::Speed => "trace_speed",
        }
    }

    /// Returns a load with its unit.
    #[must_use]
    pub fn describe(self, load: f64) -> String {
        format!("{} {}", short(load), self.unit())
    }

    /// Returns the unit in reports.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Concurrency => "at a time",
            Self::Rate => "arrivals/s",
            Self::Speed => "times as fast as recorded",
        }
    }
}

/// The position of the highest load relative to the measured ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadBound {
    /// Lower loads keep the limits, and higher ones do not.
    Between,
    /// Every measured load keeps the limits. The value is the highest of them.
    AtLeast,
    /// No measured load keeps the limits. The value is the lowest of them.
    Below,
}

/// The highest load within a set of limits, in the unit of the knob.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HighestMeasuredLoad {
    pub value: f64,
    /// The interval that contains the highest load with 90 % confidence. `None` if the measured loads give no bound.
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub bound: LoadBound,
    /// Whether a limited metric at least doubles within a quarter more load, without a rise before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cliff: bool,
}

/// The measurement of one load. In JSON its metrics are beside its load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadProbe {
    pub load: f64,
    /// Seconds of the load, with its warm-up.
    pub seconds: f64,
    /// Whether the measured values keep the limits.
    pub kept: bool,
    #[serde(flatten)]
    pub measurement: Measurement,
}

/// The highest load within the limits of one tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierLoad {
    pub name: String,
    #[serde(flatten)]
    pub highest: HighestMeasuredLoad,
}

/// The measured loads of one server, in the order of their measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadCurve {
    #[serde(rename = "of")]
    pub knob: LoadKnob,
    #[serde(flatten)]
    pub highest: HighestMeasuredLoad,
    /// The search ended early, because the highest load cannot reach this value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_against: Option<f64>,
    pub probes: Vec<LoadProbe>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierLoad>,
}

impl LoadCurve {
    /// Returns the highest load with its unit and interval.
    #[must_use]
    pub fn text(&self) -> String {
        self.highest.text(self.knob)
    }
}

impl HighestMeasuredLoad {
    /// Returns the load with its unit and interval.
    #[must_use]
    pub fn text(&self, knob: LoadKnob) -> String {
        let (value, unit) = (self.value, knob.unit());
        match (self.bound, self.low.zip(self.high)) {
            (LoadBound::AtLeast, _) => format!("at least {} {unit}", short(value)),
            (LoadBound::Below, _) => format!("below {} {unit}", short(value)),
            (LoadBound::Between, Some((low, high))) => {
                let cliff = if self.cliff { ", a cliff" } else { "" };
                format!("{} {unit} ({} to {}{cliff})", short(value), short(low), short(high))
            }
            (LoadBound::Between, None) => format!("{} {unit}", short(value)),
        }
    }
}

/// Returns a load with at least three significant digits, without zeros at the end.
fn short(load: f64) -> String {
    let decimals = if load >= 100.0 {
        0
    } else if load >= 10.0 {
        1
    } else {
        2
    };
    let text = format!("{load:.decimals$}");
    let is_whole = text.parse::<f64>().is_ok_and(|shown| shown.fract() == 0.0);
    if is_whole { format!("{load:.0}") } else { text }
}
