//! The goal of a study in one word, and the objective that it stands for.

use std::fmt::Write;

use super::InitError;
use super::limit::LatencyLimit;
use super::traffic::TrafficSource;

/// The value of `--goal`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TuningGoal {
    /// The most generated tokens per second, within the limits that are given.
    #[default]
    Throughput,
    /// The shortest mean time of a request.
    Latency,
    /// The most generated tokens per second, within limits on latency that users of this traffic expect.
    Balanced,
    /// The most requests per second that each keep the limits.
    Goodput,
}

/// An objective with its limits, before it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GoalObjective {
    /// `maximize` or `minimize`.
    pub direction: &'static str,
    pub metric: &'static str,
    /// Limits on percentiles over all requests.
    pub limits: Vec<LatencyLimit>,
    /// Limits on each request, in the form of `load.goodput`.
    pub goodput: Vec<String>,
}

impl TuningGoal {
    pub(crate) const ALL: [(&'static str, Self); 4] = [
        ("throughput", Self::Throughput),
        ("latency", Self::Latency),
        ("balanced", Self::Balanced),
        ("goodput", Self::Goodput),
    ];

    /// Returns the goal's name.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, goal)| *goal == self).map_or("", |(name, _)| name)
    }

    /// Returns the objective. `balanced` and `goodput` use the limits of the traffic's preset if none are given.
    pub(super) fn resolve(
        self,
        limits: &[LatencyLimit],
        traffic: &TrafficSource,
        time_scale: f64,
    ) -> Result<GoalObjective, InitError> {
        let needs_limits = matches!(self, Self::Balanced | Self::Goodput);
        let limits = match (limits, needs_limits) {
            ([], true) => traffic.usual_limits(time_scale).ok_or_else(|| {
                InitError::new(
                    format!(
                        "the goal {} needs limits on latency, and {} has no usual ones",
                        self.name(),
                        traffic.name()
                    ),
                    "add for instance --slo ttft_p99=500ms --slo tpot_p99=50ms",
                )
            })?,
            _ => limits.to_vec(),
        };
        let throughput = GoalObjective {
            direction: "maximize",
            metric: "output_throughput",
            limits: limits.clone(),
            goodput: Vec::new(),
        };
        Ok(match self {
            Self::Throughput | Self::Balanced => throughput,
            Self::Latency => GoalObjective { direction: "minimize", metric: "mean_e2el_ms", ..throughput },
            Self::Goodput => {
                let goodput = limits.iter().map(LatencyLimit::for_goodput).collect::<Result<_, _>>()?;
                GoalObjective { metric: "request_goodput", limits: Vec::new(), goodput, ..throughput }
            }
        })
    }
}

impl GoalObjective {
    /// Returns one line for people.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("{} {}", self.direction, self.metric);
        for (index, limit) in self.limits.iter().enumerate() {
            let _ = write!(
                text,
                "{} {} at most {} ms",
                if index == 0 { ", with" } else { " and" },
                limit.metric(),
                limit.ms
            );
        }
        if !self.goodput.is_empty() {
            let _ = write!(text, " of requests within {} (milliseconds)", self.goodput.join(" and "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(goal: TuningGoal, limits: &[&str], workload: &str) -> Result<String, String> {
        let limits: Vec<LatencyLimit> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
        let traffic = TrafficSource::find(workload).unwrap();
        let objective = goal.resolve(&limits, &traffic, 1.0);
        objective.map(|objective| objective.describe()).map_err(|error| error.to_string())
    }

    #[test]
    fn each_goal_has_its_objective_and_limits() {
        let slo = ["ttft_p99=500ms", "tpot_p95=0.05s"];
        assert_eq!(resolve(TuningGoal::Throughput, &[], "chat").unwrap(), "maximize output_throughput");
        assert_eq!(
            resolve(TuningGoal::Throughput, &slo, "chat").unwrap(),
            "maximize output_throughput, with p99_ttft_ms at most 500 ms and p95_tpot_ms at most 50 ms"
        );
        assert_eq!(resolve(TuningGoal::Latency, &[], "rag").unwrap(), "minimize mean_e2el_ms");
        assert_eq!(
            resolve(TuningGoal::Balanced, &[], "chat").unwrap(),
            "maximize output_throughput, with p99_ttft_ms at most 450 ms and p99_tpot_ms at most 40 ms"
        );
        assert_eq!(
            resolve(TuningGoal::Goodput, &["ttft=500ms", "tpot=50ms"], "chat").unwrap(),
            "maximize request_goodput of requests within ttft:500 and tpot:50 (milliseconds)"
        );
    }

    #[test]
    fn a_goal_without_usual_limits_requires_them() {
        let error = resolve(TuningGoal::Goodput, &[], "batch").unwrap_err();
        assert_eq!(error, "the goal goodput needs limits on latency, and batch has no usual ones");
    }

    #[test]
    fn the_gap_between_tokens_is_no_limit_of_a_request() {
        let error = resolve(TuningGoal::Goodput, &["itl_p99=20ms"], "chat").unwrap_err();
        assert!(error.contains("itl") && error.contains("ttft, tpot or e2el"), "{error}");
    }
}
