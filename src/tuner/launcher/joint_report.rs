//! The report of a launch that has measured several workloads in turn.

use serde_json::{Map, Value as Json, json};

use super::attempt::LaunchReport;
use crate::job::Job;
use crate::trial::{
    Failure, LaunchRecords, Measurement, Outcome, ServerTelemetry, SetAsideMeasurement, WorkloadMeasurement,
};

/// The reports of the workloads so far.
#[derive(Debug, Default)]
pub(super) struct JointReport {
    workloads: Vec<WorkloadMeasurement>,
    series: Map<String, Json>,
    set_aside: Vec<SetAsideMeasurement>,
}

impl JointReport {
    /// Adds the report of a workload. If it has no measurement, the launch has failed, and its report is returned.
    pub(super) fn add(&mut self, name: &str, report: LaunchReport) -> Option<LaunchReport> {
        let LaunchReport { outcome, mut records, .. } = report;
        self.set_aside.append(&mut records.set_aside);
        let outcome = match outcome {
            Outcome::Measured(measurement) => {
                let series = records.telemetry.map_or(Json::Null, |telemetry| telemetry.series);
                self.series.insert(name.to_owned(), series);
                self.workloads.push(WorkloadMeasurement { name: name.to_owned(), measurement });
                return None;
            }
            Outcome::Failed(Failure { kind, message }) => {
                Outcome::Failed(Failure { kind, message: format!("workload {name}: {message}") })
            }
            rejected @ Outcome::Rejected(_) => rejected,
        };
        let set_aside = std::mem::take(&mut self.set_aside);
        Some(LaunchReport::new(outcome, LaunchRecords { replies: None, set_aside, ..records }))
    }

    /// Joins the measurements, in the order of the study file. The times of single requests are not kept: calibrations
    /// replay one load.
    pub(super) fn into_report(mut self, job: &Job) -> LaunchReport {
        let place = |part: &WorkloadMeasurement| job.workloads.iter().position(|entry| entry.name == part.name);
        self.workloads.sort_by_key(place);
        let measurement = Measurement::joint(self.workloads);
        let telemetry = ServerTelemetry {
            summary: measurement.server.clone(),
            series: json!({"workloads": self.series}),
            disturbed: measurement.disturbed.clone(),
        };
        let records =
            LaunchRecords { telemetry: Some(telemetry), set_aside: self.set_aside, ..LaunchRecords::default() };
        LaunchReport::new(Outcome::Measured(measurement), records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::FailureKind;
    use crate::tuner::launcher::failed;

    #[test]
    fn the_failure_of_one_workload_is_the_failure_of_the_launch() {
        let report = |outcome| LaunchReport::new(outcome, LaunchRecords::default());
        let mut joint = JointReport::default();
        assert!(joint.add("chat", report(Outcome::Measured(Measurement::default()))).is_none());
        let ended = joint.add("rag", report(failed(FailureKind::RequestErrors, "9 of 10 failed".to_owned()))).unwrap();
        assert_eq!(ended.outcome, failed(FailureKind::RequestErrors, "workload rag: 9 of 10 failed".to_owned()));
    }
}
