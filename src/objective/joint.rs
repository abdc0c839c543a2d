//! One value over several workloads.
//!
//! The value `v` of a launch on a workload `w` becomes comparable by its ratio to another value `v0` on the same workload.
//! With the weights `a` of the workloads, for a goal to maximise:
//!
//! ```text
//! mean     exp(sum a_w ln(v_w / v0_w) / sum a_w)         v0: of the reference
//! worst    min over w of v_w / v0_w                      v0: of the reference
//! regret   min over w of (v_w / v0_w)^(a_w / max a)      v0: of the best configuration on this workload
//! ```
//!
//! A goal to minimise has the largest ratio in place of the smallest. Every value is therefore a ratio with the direction
//! of the goal. The reference is the configuration of the measured launch with the lowest number, usually the engine's
//! defaults. The best configuration is the best of those within every limit, or of all if there is none. `v0` is the
//! geometric mean over the launches of its configuration: the ratios of a single launch would be exactly 1, and their
//! minimum would be without noise. All of it follows from the history alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Goal, Objective};
use crate::trial::Measurement;

/// The rule that joins the values of several workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkloadAggregate {
    Mean,
    Worst,
    Regret,
}

/// A workload and its weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightedWorkload {
    pub name: String,
    pub weight: f64,
}

/// The part of an objective that concerns several workloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JointObjective {
    pub over: WorkloadAggregate,
    /// In the order of the study file.
    pub workloads: Vec<WeightedWorkload>,
}

/// The objective of one measured launch on each workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadValues {
    /// The trial's number.
    pub number: u32,
    /// The identifier of the configuration ([`Config::key`](crate::config::Config::key)).
    pub config_key: String,
    /// Whether the launch kept every limit.
    pub is_feasible: bool,
    /// Above 0, in the order of the workloads.
    pub values: Vec<f64>,
}

impl WorkloadAggregate {
    pub const ALL: [Self; 3] = [Self::Mean, Self::Worst, Self::Regret];

    /// Returns the name in study files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Worst => "worst",
            Self::Regret => "regret",
        }
    }
}

impl Objective {
    /// Returns the name of the values. With several workloads they are ratios.
    #[must_use]
    pub fn value_name(&self) -> String {
        match self.joint.as_ref().map(|joint| joint.over) {
            None => self.metric.clone(),
            Some(WorkloadAggregate::Mean) => format!("mean ratio of {}", self.metric),
            Some(WorkloadAggregate::Worst) => format!("worst ratio of {}", self.metric),
            Some(WorkloadAggregate::Regret) => format!("worst ratio to the best {}", self.metric),
        }
    }

    /// Returns the objective's metric on each workload. `None` if a workload lacks it or has a value that is not above 0,
    /// because such a value has no ratio. Also `None` for an objective of one workload.
    #[must_use]
    pub fn workload_values(&self, number: u32, config_key: &str, measurement: &Measurement) -> Option<WorkloadValues> {
        let value = |workload: &WeightedWorkload| {
            let part = measurement.workloads.iter().find(|part| part.name == workload.name)?;
            part.measurement.metric(&self.metric).filter(|value| *value > 0.0)
        };
        let values = self.joint.as_ref()?.workloads.iter().map(value).collect::<Option<_>>()?;
        let (config_key, is_feasible) = (config_key.to_owned(), self.violation(measurement) <= 0.0);
        Some(WorkloadValues { number, config_key, is_feasible, values })
    }

    /// Returns the joint value of each of `launches`, in their order. `among` are the launches that the reference and
    /// the best values are taken from. Empty for an objective of one workload, and without such launches.
    #[must_use]
    pub fn joint_values(&self, launches: &[WorkloadValues], among: &[WorkloadValues]) -> Vec<f64> {
        let Some(joint) = &self.joint else { return Vec::new() };
        let means = ConfigurationMeans::of(among);
        let reference = match joint.over {
            WorkloadAggregate::Mean | WorkloadAggregate::Worst => {
                means.into_iter().min_by_key(|means| means.first).map(|means| means.values())
            }
            WorkloadAggregate::Regret => self.best_values(&means),
        };
        let Some(reference) = reference else { return Vec::new() };
        launches.iter().map(|launch| joint.value(self.goal, &launch.values, &reference)).collect()
    }

    /// Returns the best value on each workload.
    fn best_values(&self, means: &[ConfigurationMeans]) -> Option<Vec<f64>> {
        let any_feasible = means.iter().any(|means| means.is_feasible);
        let counted = means.iter().filter(|means| means.is_feasible || !any_feasible);
        let better = match self.goal {
            Goal::Maximize => f64::max,
            Goal::Minimize => f64::min,
        };
        let of_both =
            |best: Vec<f64>, other: Vec<f64>| best.into_iter().zip(other).map(|(a, b)| better(a, b)).collect();
        counted.map(ConfigurationMeans::values).reduce(of_both)
    }
}

/// The geometric means of a configuration's launches.
struct ConfigurationMeans {
    /// The number of its first launch.
    first: u32,
    is_feasible: bool,
    launches: u32,
    /// Sums of the logarithms.
    logs: Vec<f64>,
}

impl ConfigurationMeans {
    fn of(launches: &[WorkloadValues]) -> Vec<Self> {
        let mut means: BTreeMap<&str, Self> = BTreeMap::new();
        for launch in launches {
            let mean = means.entry(&launch.config_key).or_insert_with(|| Self {
                first: launch.number,
                is_feasible: true,
                launches: 0,
                logs: vec![0.0; launch.values.len()],
            });
            mean.first = mean.first.min(launch.number);
            mean.is_feasible &= launch.is_feasible;
            mean.launches += 1;
            mean.logs.iter_mut().zip(&launch.values).for_each(|(sum, value)| *sum += libm::log(*value));
        }
        means.into_values().collect()
    }

    fn values(&self) -> Vec<f64> {
        self.logs.iter().map(|log| libm::exp(log / f64::from(self.launches))).collect()
    }
}

impl JointObjective {
    /// Joins values by their ratios to `reference`.
    fn value(&self, goal: Goal, values: &[f64], reference: &[f64]) -> f64 {
        let logs = values.iter().zip(reference).map(|(value, reference)| libm::log(value / reference));
        let weights = self.workloads.iter().map(|workload| workload.weight);
        let worse = match goal {
            Goal::Maximize => f64::min,
            Goal::Minimize => f64::max,
        };
        let log = match self.over {
            WorkloadAggregate::Mean => {
                let sum: f64 = logs.zip(weights.clone()).map(|(log, weight)| log * weight).sum();
                sum / weights.sum::<f64>()
            }
            WorkloadAggregate::Worst => logs.reduce(worse).unwrap_or(0.0),
            WorkloadAggregate::Regret => {
                let largest = weights.clone().fold(f64::MIN_POSITIVE, f64::max);
                logs.zip(weights).map(|(log, weight)| log * (weight / largest)).reduce(worse).unwrap_or(0.0)
            }
        };
        libm::exp(log)
    }

    /// Returns the standard deviation of a joint value from those of its workloads, all as shares. For `worst` and
    /// `regret` it is the largest one. `None` if one is unknown.
    #[must_use]
    pub fn deviation(&self, deviations: &[Option<f64>]) -> Option<f64> {
        let known: Vec<f64> = deviations.iter().copied().collect::<Option<_>>()?;
        let weights = || self.workloads.iter().map(|workload| workload.weight);
        match self.over {
            WorkloadAggregate::Mean => {
                let squares: f64 = known.iter().zip(weights()).map(|(own, weight)| (own * weight).powi(2)).sum();
                Some(squares.sqrt() / weights().sum::<f64>())
            }
            WorkloadAggregate::Worst | WorkloadAggregate::Regret => known.into_iter().reduce(f64::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::{Constraint, MetricLimit};
    use crate::trial::{Distribution, WorkloadMeasurement};

    fn objective(goal: Goal, over: WorkloadAggregate, weights: [f64; 2]) -> Objective {
        let workload = |(name, weight): (&str, f64)| WeightedWorkload { name: name.to_owned(), weight };
        let workloads = [("a", weights[0]), ("b", weights[1])].map(workload).to_vec();
        let metric = if goal == Goal::Maximize { "output_throughput" } else { "mean_ttft_ms" };
        let joint = Some(JointObjective { over, workloads });
        Objective {
            metric: metric.to_owned(),
            goal,
            constraints: Vec::new(),
            joint,
            price_per_hour: None,
            load_goal: None,
        }
    }

    fn launch(number: u32, values: [f64; 2]) -> WorkloadValues {
        WorkloadValues { number, config_key: number.to_string(), is_feasible: true, values: values.to_vec() }
    }

    fn values(objective: &Objective, launches: &[WorkloadValues]) -> Vec<f64> {
        let values = objective.joint_values(launches, launches);
        values.into_iter().map(|value| (value * 1e4).round() / 1e4).collect()
    }

    /// The reference, the best of each workload, and one that is good at both.
    const LAUNCHES: [[f64; 2]; 4] = [[100.0, 10.0], [160.0, 8.0], [90.0, 16.0], [120.0, 12.0]];

    #[test]
    fn mean_worst_and_regret_rate_the_same_launches_differently() {
        let launches: Vec<_> = (0..).zip(LAUNCHES).map(|(number, values)| launch(number, values)).collect();
        let of = |over| values(&objective(Goal::Maximize, over, [1.0, 1.0]), &launches);
        assert_eq!(of(WorkloadAggregate::Mean), [1.0, 1.1314, 1.2, 1.2]);
        assert_eq!(of(WorkloadAggregate::Worst), [1.0, 0.8, 0.9, 1.2]);
        assert_eq!(of(WorkloadAggregate::Regret), [0.625, 0.5, 0.5625, 0.75]);
        let heavy = objective(Goal::Maximize, WorkloadAggregate::Mean, [3.0, 1.0]);
        assert_eq!(values(&heavy, &launches)[1..3], [1.3454, 1.0392]);
        // A loss on a light workload counts for less.
        let heavy = objective(Goal::Maximize, WorkloadAggregate::Regret, [4.0, 1.0]);
        assert_eq!(values(&heavy, &launches)[1..2], [0.8409]);
    }

    #[test]
    fn a_goal_to_minimise_has_the_largest_ratio() {
        let launches: Vec<_> = (0..).zip(LAUNCHES).map(|(number, values)| launch(number, values)).collect();
        let of = |over| values(&objective(Goal::Minimize, over, [1.0, 1.0]), &launches);
        assert_eq!(of(WorkloadAggregate::Worst), [1.0, 1.6, 1.6, 1.2]);
        assert_eq!(of(WorkloadAggregate::Regret), [1.25, 1.7778, 2.0, 1.5]);
    }

    #[test]
    fn the_reference_has_the_lowest_number_and_the_best_values_keep_the_limits() {
        let late = [launch(4, [90.0, 9.0]), launch(2, [100.0, 10.0])];
        let of = |over, launches: &[WorkloadValues]| values(&objective(Goal::Maximize, over, [1.0, 1.0]), launches);
        assert_eq!(of(WorkloadAggregate::Worst, &late), [0.9, 1.0]);
        let over_a_limit = WorkloadValues { is_feasible: false, ..launch(1, [200.0, 20.0]) };
        assert_eq!(of(WorkloadAggregate::Regret, &[over_a_limit.clone(), launch(2, [100.0, 10.0])]), [2.0, 1.0]);
        assert_eq!(of(WorkloadAggregate::Regret, &[over_a_limit]), [1.0], "there is no other");
    }

    #[test]
    fn the_reference_is_the_mean_of_the_launches_of_its_configuration() {
        let again = |number, values| WorkloadValues { config_key: "0".to_owned(), ..launch(number, values) };
        let launches = [launch(0, [100.0, 10.0]), again(1, [121.0, 10.0]), launch(2, [110.0, 20.0])];
        let of = |over| values(&objective(Goal::Maximize, over, [1.0, 1.0]), &launches);
        assert_eq!(of(WorkloadAggregate::Worst), [0.9091, 1.0, 1.0]);
        assert_eq!(of(WorkloadAggregate::Regret), [0.5, 0.5, 1.0]);
    }

    #[test]
    fn a_limit_holds_on_every_workload_and_a_value_needs_all_of_them() {
        let part = |name: &str, tokens, p99| WorkloadMeasurement {
            name: name.to_owned(),
            measurement: Measurement {
                duration_s: 1.0,
                total_output_tokens: tokens,
                ttft_ms: Some(Distribution { p99, ..Distribution::default() }),
                ..Measurement::default()
            },
        };
        let limit = |limit| Constraint { metric: "p99_ttft_ms".to_owned(), limit };
        let plain = objective(Goal::Maximize, WorkloadAggregate::Mean, [1.0, 1.0]);
        let measured = |tokens| Measurement::joint(vec![part("b", tokens, 150.0), part("a", 10, 50.0)]);
        let of = |bound, tokens| {
            let objective = Objective { constraints: vec![limit(bound)], ..plain.clone() };
            objective.workload_values(3, "{}", &measured(tokens)).map(|found| (found.is_feasible, found.values))
        };
        assert_eq!(of(MetricLimit::AtMost(200.0), 30), Some((true, vec![10.0, 30.0])));
        assert_eq!(of(MetricLimit::AtMost(100.0), 30), Some((false, vec![10.0, 30.0])));
        assert_eq!(of(MetricLimit::AtLeast(100.0), 30), Some((false, vec![10.0, 30.0])));
        assert_eq!(of(MetricLimit::AtMost(200.0), 0), None, "0 has no ratio");
    }

    #[test]
    fn a_mean_is_more_certain_than_its_workloads() {
        let of = |over, deviations: &[Option<f64>]| {
            objective(Goal::Maximize, over, [1.0, 1.0]).joint.unwrap().deviation(deviations)
        };
        let mean = of(WorkloadAggregate::Mean, &[Some(0.03), Some(0.04)]).unwrap();
        assert!((mean - 0.025).abs() < 1e-12, "{mean}");
        assert_eq!(of(WorkloadAggregate::Worst, &[Some(0.03), Some(0.04)]), Some(0.04));
        assert_eq!(of(WorkloadAggregate::Mean, &[Some(0.03), None]), None);
    }
}
