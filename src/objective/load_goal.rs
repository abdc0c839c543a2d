//! The highest load within limits as an objective.

use serde::{Deserialize, Serialize};

use super::Constraint;
use crate::stats::to_f64;
use crate::trial::{LoadBound, Measurement};

/// The search for the highest load of each configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadGoal {
    /// The limits that the load must keep. They are not among the objective's constraints: at the highest load a limit
    /// is just kept.
    pub limits: Vec<Constraint>,
    /// The share of requests, 0 to 1, that must keep the limits of the goodput. `None` without such limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good_share: Option<f64>,
    /// The largest number of measured loads.
    pub probes: u32,
    /// The lowest and the highest load that is measured. `None`: 1 user and 4096 users, or a 64th and 64 times of the
    /// study's own rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lowest: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest: Option<f64>,
    /// Further sets of limits, for which the same probes are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<SloTier>,
}

/// A further set of limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SloTier {
    pub name: String,
    pub limits: Vec<Constraint>,
}

/// The violation of a configuration that keeps the limits of the goodput at no load.
const UNKNOWN_VIOLATION: f64 = 1.0;

impl LoadGoal {
    /// Returns the violation of the limits at the lowest measured load; 0 if any measured load keeps them.
    pub(super) fn violation(&self, measurement: &Measurement) -> f64 {
        let is_below = measurement.load_curve.as_ref().is_some_and(|curve| curve.highest.bound == LoadBound::Below);
        if !is_below {
            return 0.0;
        }
        let of_limits: f64 = self.limits.iter().map(|limit| limit.violation(measurement)).sum();
        let bad = |good: u64| 1.0 - to_f64(good) / to_f64(measurement.completed.max(1));
        let missed =
            self.good_share.zip(measurement.good_requests).map(|(share, good)| (bad(good) + share - 1.0).max(0.0));
        let all = of_limits + missed.unwrap_or(0.0);
        if all > 0.0 { all } else { UNKNOWN_VIOLATION }
    }

    /// Returns the limits as text, for reports.
    #[must_use]
    pub fn limits_text(&self) -> String {
        let share = self.good_share.map(|share| format!("{} % of the requests within load.goodput", share * 100.0));
        self.limits.iter().map(ToString::to_string).chain(share).collect::<Vec<_>>().join(", ")
    }
}
