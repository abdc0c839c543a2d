//! Our own documents: `export --format json`, and `trials`, `show` and `best` with `--format json`.

use serde_json::Value as Json;

use super::{LineProblem, Members, number, text};
use crate::config::Config;
use crate::import::{ImportedFailure, ImportedLaunch, ImportedResult, LoadDescription};
use crate::trial::{FailureKind, Measurement};

pub(super) fn read(line: usize, members: &Members) -> Result<Vec<ImportedResult>, LineProblem> {
    let trial = number(line, members, "trial")?;
    let problem = |key: &str, error: &dyn std::fmt::Display| {
        LineProblem::new(line, format!("trial {trial}: {key:?} cannot be read: {error}"))
    };
    let value = |key: &str| members.get(key).cloned().filter(|value| !value.is_null());
    let config: Config =
        serde_json::from_value(value("config").unwrap_or_default()).map_err(|error| problem("config", &error))?;
    let command: Vec<String> =
        value("command").map_or(Ok(Vec::new()), serde_json::from_value).map_err(|error| problem("command", &error))?;
    let env = value("env").map_or_else(|| Ok(std::collections::BTreeMap::new()), serde_json::from_value);
    let env = env.map_err(|error| problem("env", &error))?;
    let metrics = match value("metrics") {
        Some(metrics) => {
            let measurement: Measurement =
                serde_json::from_value(metrics.clone()).map_err(|error| problem("metrics", &error))?;
            known_metrics(&measurement, &metrics)
        }
        None => std::collections::BTreeMap::new(),
    };
    let failure = (text(members, "state").is_some_and(|state| state != "measured")).then(|| {
        let code = text(members, "reason_code");
        let kind = code.as_deref().and_then(FailureKind::from_name);
        let is_rejected = text(members, "state").as_deref() == Some("rejected");
        let rule = code.filter(|_| is_rejected);
        ImportedFailure { message: text(members, "reason").unwrap_or_default(), kind, rule }
    });
    if failure.is_none() && metrics.is_empty() {
        return Err(LineProblem::new(line, format!("trial {trial} has neither metrics nor a failure")));
    }
    let model = crate::import::launch::model_of(&command);
    let result = ImportedResult {
        line,
        name: None,
        launch: Some(ImportedLaunch { command, env, config, model: model.clone() }),
        load: LoadDescription { model, ..LoadDescription::default() },
        metrics,
        failure,
        engine_version: text(members, "engine_version"),
        measured_at: text(members, "started_at").or_else(|| text(members, "measured_at")),
        ..ImportedResult::default()
    };
    Ok(vec![result])
}

/// Returns the metrics of a measurement: those that it computes, and percentiles without a name of ours.
fn known_metrics(measurement: &Measurement, json: &Json) -> std::collections::BTreeMap<String, f64> {
    let mut metrics = measurement.reported.clone();
    for name in Measurement::NAMES.iter().filter(|name| json.get(**name).is_some()) {
        metrics.extend(measurement.metric(name).map(|value| ((*name).to_owned(), value)));
    }
    metrics.extend(measurement.server.iter().map(|(name, value)| (name.clone(), *value)));
    metrics
}
