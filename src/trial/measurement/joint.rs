//! Measurements of several workloads on one server, joined in one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Measurement, MetricDirection};

/// The measurement of one of several workloads. In JSON the name is beside the metrics, as `workload`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadMeasurement {
    #[serde(rename = "workload")]
    pub name: String,
    #[serde(flatten)]
    pub measurement: Measurement,
}

/// Metrics whose joint value is the sum over the workloads.
const SUMS: [&str; 6] =
    ["completed", "failed", "duration", "total_input_tokens", "total_output_tokens", "cached_prompt_tokens"];

impl Measurement {
    /// Joins the measurements of several workloads. Requests, tokens and durations are sums. Every other metric is that
    /// of the workload with the worst value, so that a limit on it holds for each workload.
    #[must_use]
    pub fn joint(workloads: Vec<WorkloadMeasurement>) -> Self {
        let (mut errors, mut server) = (BTreeMap::new(), BTreeMap::new());
        for (class, count) in workloads.iter().flat_map(|part| &part.measurement.errors) {
            *errors.entry(class.clone()).or_default() += count;
        }
        for name in workloads.first().into_iter().flat_map(|part| part.measurement.server.keys()) {
            server.extend(worst(&workloads, name).map(|value| (name.clone(), value)));
        }
        let sum = |of: fn(&Self) -> u64| workloads.iter().map(|part| of(&part.measurement)).sum();
        let disturbed = workloads.iter().flat_map(|part| {
            part.measurement.disturbed.iter().map(|reason| format!("workload {}: {reason}", part.name))
        });
        Self {
            completed: sum(|part| part.completed),
            failed: sum(|part| part.failed),
            duration_s: workloads.iter().map(|part| part.measurement.duration_s).sum(),
            total_input_tokens: sum(|part| part.total_input_tokens),
            total_output_tokens: sum(|part| part.total_output_tokens),
            cached_prompt_tokens: workloads.iter().map(|part| part.measurement.cached_prompt_tokens).sum(),
            errors,
            server,
            disturbed: disturbed.collect(),
            approximate: workloads.iter().any(|part| part.measurement.approximate),
            workloads,
            ..Self::default()
        }
    }
}

/// Returns a metric of a joint measurement; `None` if one of the workloads lacks it.
pub(super) fn metric(workloads: &[WorkloadMeasurement], name: &str) -> Option<f64> {
    if SUMS.contains(&name) {
        return workloads.iter().map(|part| part.measurement.metric(name)).sum();
    }
    worst(workloads, name)
}

/// Returns the worst value of a metric over the workloads.
fn worst(workloads: &[WorkloadMeasurement], name: &str) -> Option<f64> {
    let values: Option<Vec<f64>> = workloads.iter().map(|part| part.measurement.metric(name)).collect();
    let worse = match Measurement::direction(name)? {
        MetricDirection::Maximize => f64::min,
        MetricDirection::Minimize => f64::max,
    };
    values?.into_iter().reduce(worse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Distribution;

    fn part(name: &str, tokens: u64, p99_ttft_ms: Option<f64>) -> WorkloadMeasurement {
        let measurement = Measurement {
            completed: 10,
            duration_s: 2.0,
            total_output_tokens: tokens,
            ttft_ms: p99_ttft_ms.map(|p99| Distribution { p99, ..Distribution::default() }),
            server: [("kv_cache_usage_max".to_owned(), p99_ttft_ms.unwrap_or(0.0) / 1e3)].into(),
            errors: [("refused".to_owned(), 1)].into(),
            ..Measurement::default()
        };
        WorkloadMeasurement { name: name.to_owned(), measurement }
    }

    #[test]
    fn counts_are_sums_and_other_metrics_those_of_the_worst_workload() {
        let joint = Measurement::joint(vec![part("chat", 100, Some(30.0)), part("rag", 40, Some(90.0))]);
        let metrics = ["completed", "duration", "output_throughput", "p99_ttft_ms", "kv_cache_usage_max"];
        let values = metrics.map(|name| joint.metric(name).unwrap());
        assert_eq!(values.to_vec(), [20.0, 4.0, 20.0, 90.0, 0.09]);
        assert_eq!((joint.total_output_tokens, joint.errors["refused"]), (140, 2));
        let partly = Measurement::joint(vec![part("chat", 100, None), part("rag", 40, Some(90.0))]);
        assert_eq!(partly.metric("p99_ttft_ms"), None, "a limit on it is not known to be kept");
    }

    #[test]
    fn a_joint_measurement_is_read_back_with_its_workloads() {
        let joint = Measurement::joint(vec![part("chat", 100, Some(30.0)), part("rag", 40, Some(90.0))]);
        let json = serde_json::to_value(&joint).unwrap();
        assert_eq!((&json["output_throughput"], &json["completed"]), (&20.0.into(), &20.into()));
        assert_eq!(
            (&json["workloads"][1]["workload"], &json["workloads"][1]["completed"]),
            (&"rag".into(), &10.into())
        );
        assert_eq!(serde_json::from_value::<Measurement>(json).unwrap(), joint);
    }
}
