//! The highest load within the limits on one ready server: one load test after the other, without a restart.
//!
//! Each probe has prompts of its own, because the server's prefix cache holds those of earlier probes, and a warm-up at
//! its own level, which waits for the requests of an overloaded probe before it.

use std::time::Instant;

use serde_json::{Value as Json, json};

use super::attempt::LaunchReport;
use super::load_test::LoadTest;
use crate::job::WorkloadPart;
use crate::load_search::{LoadSearch, LoadSearchStep};
use crate::metrics::RaceTarget;
use crate::objective::LoadGoal;
use crate::server::Server;
use crate::trial::{FailureKind, LaunchRecords, Outcome, ServerTelemetry, SetAsideMeasurement};
use crate::tuner::{TuneError, TunerEvent};

/// Data of the probes beside their measurements.
#[derive(Default)]
struct ProbeRecords {
    series: Vec<Json>,
    set_aside: Vec<SetAsideMeasurement>,
    disturbed: Vec<String>,
}

impl LoadTest<'_> {
    /// Measures loads until the highest one within the limits is known. A failed load counts as beyond the limits if the
    /// server survives it.
    ///
    /// # Errors
    /// If a load cannot be driven.
    pub(super) async fn search_load(
        &self,
        server: &mut Server,
        model: &str,
        goal: &LoadGoal,
    ) -> Result<LaunchReport, TuneError> {
        let parts = self.run.job.parts();
        let [own] = parts[..] else { unreachable!("a load search has one workload") };
        let range = own.load.search_range(goal, self.expected_load);
        let mut search = LoadSearch::new(goal, range, self.race.and_then(RaceTarget::floor));
        let (mut asked, mut gathered) = (0, ProbeRecords::default());
        while let LoadSearchStep::Probe(load) = search.step() {
            let seed = self.run.job.seed.wrapping_add(search.measured());
            let mut level = own.load.at_level(load, u32::MAX);
            level.warmup = level.warmup.max(1);
            let begin = Instant::now();
            let report = self.run_part(server, model, WorkloadPart { load: &level, ..own }, seed, &mut asked).await?;
            let is_overload = report.failed_with(FailureKind::RequestErrors)
                && self.watchdog.raised().is_none()
                && server.is_healthy().await;
            let LaunchReport { outcome, records, .. } = match &report.outcome {
                Outcome::Measured(_) => report,
                _ if is_overload => report,
                _ => return Ok(report),
            };
            gathered.add(load, &outcome, records);
            let kept = search.record(load, begin.elapsed().as_secs_f64(), outcome);
            self.run.emit(TunerEvent::LoadProbed { number: self.number, load, knob: range.knob, kept });
        }
        Ok(gathered.into_report(search.finish()))
    }
}

impl ProbeRecords {
    fn add(&mut self, load: f64, outcome: &Outcome, mut records: LaunchRecords) {
        self.set_aside.append(&mut records.set_aside);
        let series = records.telemetry.map_or(Json::Null, |telemetry| telemetry.series);
        self.series.push(json!({"load": load, "series": series}));
        let disturbed = outcome.measurement().into_iter().flat_map(|measurement| &measurement.disturbed);
        self.disturbed.extend(disturbed.map(|reason| format!("at a load of {load}: {reason}")));
    }

    /// Returns the report of the launch. The times of single requests are not kept: calibrations replay one load.
    fn into_report(self, mut outcome: Outcome) -> LaunchReport {
        let mut summary = std::collections::BTreeMap::new();
        if let Outcome::Measured(measurement) = &mut outcome {
            summary.clone_from(&measurement.server);
            measurement.disturbed.clone_from(&self.disturbed);
        }
        let telemetry = ServerTelemetry { summary, series: json!({"probes": self.series}), disturbed: self.disturbed };
        let records =
            LaunchRecords { telemetry: Some(telemetry), set_aside: self.set_aside, ..LaunchRecords::default() };
        LaunchReport::new(outcome, records)
    }
}
