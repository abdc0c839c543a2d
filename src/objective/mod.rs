//! The objective: one metric to maximise or minimise, and the constraints on others.

mod joint;
mod load_goal;
mod ranking;

use serde::{Deserialize, Serialize};

use crate::trial::{Measurement, Outcome};

pub use joint::{JointObjective, WeightedWorkload, WorkloadAggregate, WorkloadValues};
pub use load_goal::{LoadGoal, SloTier};
pub use ranking::{ConfigValue, LaunchResult, LaunchedTrial, config_value, rank};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    Maximize,
    Minimize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricLimit {
    AtMost(f64),
    AtLeast(f64),
}

/// A service-level objective: a metric and its limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    pub metric: String,
    #[serde(flatten)]
    pub limit: MetricLimit,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    pub metric: String,
    pub goal: Goal,
    pub constraints: Vec<Constraint>,
    /// The rule for several workloads. `None` for one workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joint: Option<JointObjective>,
    /// The price of one device for an hour, in any currency. `None`: costs are not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<f64>,
    /// The search for the highest load within limits, if that load is the metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_goal: Option<Box<LoadGoal>>,
}

/// The quality of a trial, from the worst to the best: failed, infeasible, feasible. A failure is never a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Score {
    /// Rejected, failed, or measured without the objective's metric.
    Failed,
    /// Measured, but beyond a limit. `violation` is the sum over the constraints of the relative excess.
    Infeasible { violation: f64, value: f64 },
    /// Within every limit, with the measured value of the objective.
    Feasible { value: f64 },
}

impl Constraint {
    /// Returns the relative excess over the limit: 0 if it is kept, infinite if the metric is missing.
    #[must_use]
    pub fn violation(&self, measurement: &Measurement) -> f64 {
        self.relative_excess(measurement).max(0.0)
    }

    /// Like [`violation`](Self::violation), for a value of the metric.
    #[must_use]
    pub fn violation_of(&self, value: Option<f64>) -> f64 {
        self.relative_excess_of(value).max(0.0)
    }

    /// Returns the difference from the limit as a share of the limit: negative below it, infinite if the metric is
    /// missing. With several workloads it is that of the workload with the largest excess.
    #[must_use]
    pub fn relative_excess(&self, measurement: &Measurement) -> f64 {
        let of = |measurement: &Measurement| self.relative_excess_of(measurement.metric(&self.metric));
        let excesses = measurement.workloads.iter().map(|part| of(&part.measurement));
        excesses.reduce(f64::max).unwrap_or_else(|| of(measurement))
    }

    fn relative_excess_of(&self, value: Option<f64>) -> f64 {
        let Some(value) = value else { return f64::INFINITY };
        let (excess, limit) = match self.limit {
            MetricLimit::AtMost(limit) => (value - limit, limit),
            MetricLimit::AtLeast(limit) => (limit - value, limit),
        };
        excess / limit.abs().max(f64::MIN_POSITIVE)
    }
}

impl std::fmt::Display for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.limit {
            MetricLimit::AtMost(limit) => write!(f, "{} <= {limit}", self.metric),
            MetricLimit::AtLeast(limit) => write!(f, "{} >= {limit}", self.metric),
        }
    }
}

impl Objective {
    /// Returns the score of an outcome under one workload.
    #[must_use]
    pub fn score(&self, outcome: &Outcome) -> Score {
        self.score_of(outcome, outcome.measurement().and_then(|measurement| measurement.metric(&self.metric)))
    }

    /// Returns the score of an outcome whose value is known. With several workloads the value depends on other launches:
    /// see [`joint_values`](Self::joint_values).
    #[must_use]
    pub fn score_of(&self, outcome: &Outcome, value: Option<f64>) -> Score {
        let Some((measurement, value)) = outcome.measurement().zip(value) else { return Score::Failed };
        let violation = self.violation(measurement);
        if violation > 0.0 { Score::Infeasible { violation, value } } else { Score::Feasible { value } }
    }

    /// Returns all limits, among them those of the highest load.
    pub fn limits(&self) -> impl Iterator<Item = &Constraint> {
        self.constraints.iter().chain(self.load_goal.iter().flat_map(|goal| &goal.limits))
    }

    /// Returns the names of all metrics: the objective's own, and those of all limits.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = &str> {
        let tiers = self.load_goal.iter().flat_map(|goal| &goal.tiers).flat_map(|tier| &tier.limits);
        std::iter::once(self.metric.as_str()).chain(self.limits().chain(tiers).map(|limit| limit.metric.as_str()))
    }

    /// Returns the sum of the relative excesses over the limits.
    fn violation(&self, measurement: &Measurement) -> f64 {
        let of_limits = self.constraints.iter().map(|constraint| constraint.violation(measurement));
        let of_load = self.load_goal.iter().map(|goal| goal.violation(measurement));
        of_limits.chain(of_load).sum()
    }

    /// Returns the improvement of `value` over `reference` as a factor: above 1 is better for both goals.
    #[must_use]
    pub fn gain(&self, value: f64, reference: f64) -> f64 {
        match self.goal {
            Goal::Maximize => value / reference,
            Goal::Minimize => reference / value,
        }
    }
}

impl Score {
    /// Reads a score from its value and its violation, which is 0 if every limit was kept.
    #[must_use]
    pub(crate) fn from_stored(value: Option<f64>, violation: Option<f64>) -> Self {
        match (value, violation) {
            (Some(value), Some(0.0)) => Self::Feasible { value },
            (Some(value), Some(violation)) => Self::Infeasible { violation, value },
            _ => Self::Failed,
        }
    }

    /// Returns the score under further limits that are violated by `further`.
    #[must_use]
    pub fn with_further_violation(self, further: f64) -> Self {
        match self {
            Self::Infeasible { violation, value } => Self::Infeasible { violation: violation + further, value },
            Self::Feasible { value } if further > 0.0 => Self::Infeasible { violation: further, value },
            kept => kept,
        }
    }

    /// Returns the objective's value, if it was measured.
    #[must_use]
    pub fn value(self) -> Option<f64> {
        match self {
            Self::Failed => None,
            Self::Infeasible { value, .. } | Self::Feasible { value } => Some(value),
        }
    }

    #[must_use]
    pub fn is_feasible(self) -> bool {
        matches!(self, Self::Feasible { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Distribution, Failure, FailureKind};

    fn measured(p99_ttft_ms: f64, output_tokens: u64) -> Outcome {
        let ttft_ms = Some(Distribution { p99: p99_ttft_ms, ..Distribution::default() });
        let window =
            Measurement { duration_s: 1.0, total_output_tokens: output_tokens, ttft_ms, ..Measurement::default() };
        Outcome::Measured(window)
    }

    fn objective(goal: Goal) -> Objective {
        let limit = Constraint { metric: "p99_ttft_ms".to_owned(), limit: MetricLimit::AtMost(100.0) };
        Objective {
            metric: "output_throughput".to_owned(),
            goal,
            constraints: vec![limit],
            joint: None,
            price_per_hour: None,
            load_goal: None,
        }
    }

    #[test]
    fn a_failure_has_no_number_for_either_goal() {
        let failed = Outcome::Failed(Failure { kind: FailureKind::Crash, message: String::new() });
        for goal in [Goal::Maximize, Goal::Minimize] {
            assert_eq!(objective(goal).score(&failed), Score::Failed);
            assert_eq!(objective(goal).score(&failed).value(), None);
        }
    }

    #[test]
    fn a_violation_is_the_relative_excess_over_the_limit() {
        let score = |ttft, tokens| objective(Goal::Maximize).score(&measured(ttft, tokens));
        assert_eq!(score(150.0, 10), Score::Infeasible { violation: 0.5, value: 10.0 });
        assert_eq!(score(100.0, 10), Score::Feasible { value: 10.0 });
    }

    #[test]
    fn gain_above_one_is_better_for_both_goals() {
        assert!((objective(Goal::Maximize).gain(30.0, 20.0) - 1.5).abs() < 1e-12);
        assert!((objective(Goal::Minimize).gain(20.0, 30.0) - 1.5).abs() < 1e-12);
    }
}
