//! Exports a trial as one JSON object.

use super::{ExportError, ExportedTrial, Exporter};
use crate::report::{add_flags, deployment_json, mean_metrics};
use crate::store::RankedConfiguration;
use crate::study_report::Gain;
use crate::trial::json_for_terminal;

pub(super) struct JsonExporter;

impl Exporter for JsonExporter {
    fn name(&self) -> &'static str {
        "json"
    }

    fn summary(&self) -> &'static str {
        "command, environment, configuration and metrics as one JSON object"
    }

    fn needs_command(&self) -> bool {
        false
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let trial = &winner.scored.trial;
        let ranked = winner.results.map(|standing| &standing.ranked);
        let gain = ranked.map(|ranked| winner.report.gain(ranked));
        let gain_over_deployment = ranked.map(|ranked| winner.report.gain_over_deployment(ranked));
        // `metrics` are of the exported trial alone, `mean_metrics` of all its configuration's measurements.
        let mut object = serde_json::json!({
            "study": winner.report.study.name,
            "trial": trial.proposal.number,
            "engine_version": trial.engine_version,
            "config": trial.proposal.config,
            "command": winner.command(),
            "env": trial.launch.env,
            "metrics": trial.outcome.measurement(),
            "measured_at": trial.started_at,
            "measurements": ranked.map_or(0, |ranked| ranked.measurements),
            "mean_value": ranked.map(|ranked| ranked.value),
            "value_range": ranked.map(|ranked| [ranked.range.0, ranked.range.1]),
            "expected": ranked.and_then(|ranked| ranked.expected).map(|expected| {
                serde_json::json!({"value": expected.value, "deviation": expected.deviation, "feasible": expected.feasible})
            }),
            "mean_metrics": winner.results.map(mean_metrics),
            "trials": winner.results.map(|standing| {
                standing.measured_trials.iter().map(|scored| scored.trial.proposal.number).collect::<Vec<_>>()
            }),
            "feasible": winner.results.map(|standing| !standing.is_over_a_limit()),
            "gain": gain.and_then(Gain::factor),
            "gain_significant": gain.and_then(Gain::is_significant),
            "gain_over_deployment": gain_over_deployment.and_then(Gain::factor),
            "gain_over_deployment_significant": gain_over_deployment.and_then(Gain::is_significant),
            "baseline": winner.report.baseline.as_ref().map(baseline_json),
            "deployment": winner.report.deployment.as_ref().map(baseline_json),
            "deployment_status": winner.report.deployment_status.as_ref().map(deployment_json),
            "evidence": winner.evidence(),
        });
        if let Some(ranked) = ranked {
            add_flags(&mut object, winner.report, ranked);
        }
        Ok(format!("{}\n", json_for_terminal(&format!("{object:#}"))))
    }
}

/// Returns the value of a baseline by all its measurements.
fn baseline_json(baseline: &RankedConfiguration) -> serde_json::Value {
    let range = [baseline.range.0, baseline.range.1];
    serde_json::json!({
        "mean_value": baseline.value, "measurements": baseline.measurements, "value_range": range,
    })
}
