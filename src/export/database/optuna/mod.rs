//! Exports a study as a storage of Optuna, which `optuna-dashboard` opens.

mod distribution;
mod note;

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::content::{ContentState, TrialContent, clean};
use super::names::{shortened, unique_names};
use super::{DatabaseExporter, StudyContent, TableRows};
use crate::config::Value;
use crate::objective::Goal;
use crate::space::Domain;
use distribution::OptunaDistribution;

pub(super) struct OptunaExporter;

/// The only study of the file.
const STUDY: i64 = 1;

/// The length of names in Optuna's tables.
const MAX_NAME: usize = 512;

impl DatabaseExporter for OptunaExporter {
    fn name(&self) -> &'static str {
        "optuna"
    }

    fn summary(&self) -> &'static str {
        "the whole study as an Optuna storage for optuna-dashboard (SQLite; needs -o)"
    }

    fn application_id(&self) -> u32 {
        u32::from_be_bytes(*b"spOp")
    }

    fn schema(&self) -> &'static str {
        include_str!("schema.sql")
    }

    fn rows(&self, study: &StudyContent<'_>) -> Vec<TableRows> {
        let mut rows = study_rows(study);
        rows.extend(trial_rows(study));
        rows.push(parameter_rows(study));
        rows
    }
}

fn study_rows(study: &StudyContent<'_>) -> Vec<TableRows> {
    let mut studies = TableRows::new("studies", &["study_id", "study_name"]);
    studies.push([STUDY.into(), shortened(&clean(&study.report.study.name), MAX_NAME).into()]);
    let mut directions = TableRows::new("study_directions", &["study_id", "objective", "direction"]);
    let objective = study.report.objective.as_ref();
    // Optuna has no study without a direction. Such a study has no values either.
    let is_maximized = objective.is_none_or(|objective| objective.goal == Goal::Maximize);
    directions.push([STUDY.into(), 0.into(), if is_maximized { "MAXIMIZE" } else { "MINIMIZE" }.into()]);
    let columns = &["study_id", "key", "value_json"];
    let mut system = TableRows::new("study_system_attributes", columns);
    let names = json!([clean(&study.report.value_name())]);
    system.push([STUDY.into(), "study:metric_names".into(), names.to_string().into()]);
    for (key, value) in note::attributes(study) {
        system.push([STUDY.into(), key.into(), value.to_string().into()]);
    }
    let mut user = TableRows::new("study_user_attributes", columns);
    for (name, text) in study.texts() {
        user.push([STUDY.into(), name.into(), json!(text).to_string().into()]);
    }
    let fixed = study.fixed();
    if !fixed.is_empty() {
        user.push([STUDY.into(), "fixed".into(), json!(fixed.to_string()).to_string().into()]);
    }
    vec![studies, directions, system, user]
}

/// Optuna numbers its rows from 1.
fn trial_id(trial: &TrialContent) -> i64 {
    i64::from(trial.number) + 1
}

/// Unranked trials are `PRUNED`: Optuna's best trial is a complete one.
fn state(trial: &TrialContent) -> &'static str {
    match trial.state {
        ContentState::Ranked => "COMPLETE",
        ContentState::Unranked | ContentState::Rejected => "PRUNED",
        ContentState::Failed => "FAIL",
        ContentState::Running => "RUNNING",
    }
}

/// Returns an instant as `SQLAlchemy` stores it, in UTC.
fn date(milliseconds: Option<i64>) -> Option<String> {
    let instant = jiff::Timestamp::from_millisecond(milliseconds?).ok()?;
    Some(instant.strftime("%Y-%m-%d %H:%M:%S%.6f").to_string())
}

fn trial_rows(study: &StudyContent<'_>) -> Vec<TableRows> {
    let columns = &["trial_id", "number", "study_id", "state", "datetime_start", "datetime_complete"];
    let mut trials = TableRows::new("trials", columns);
    let mut values = TableRows::new("trial_values", &["trial_id", "objective", "value", "value_type"]);
    let columns = &["trial_id", "key", "value_json"];
    let mut user = TableRows::new("trial_user_attributes", columns);
    let mut system = TableRows::new("trial_system_attributes", columns);
    for trial in &study.trials {
        let id = trial_id(trial);
        let (started, ended) = (date(trial.started_ms), date(trial.ended_ms));
        trials.push([
            id.into(),
            i64::from(trial.number).into(),
            STUDY.into(),
            state(trial).into(),
            started.into(),
            ended.into(),
        ]);
        let texts = trial.texts().into_iter().map(|(name, text)| (name, json!(text)));
        let numbers = trial.numbers.iter().map(|(name, number)| (*name, json!(number)));
        for (name, value) in texts.chain(numbers) {
            user.push([id.into(), name.into(), value.to_string().into()]);
        }
        if trial.state != ContentState::Ranked {
            continue;
        }
        values.push([id.into(), 0.into(), trial.value.into(), "FINITE".into()]);
        // A list under this key is the form that optuna-dashboard reads. Optuna itself names its items by number.
        if !trial.excesses.is_empty() {
            system.push([id.into(), "constraints".into(), json!(trial.excesses).to_string().into()]);
        }
    }
    vec![trials, values, user, system]
}

fn parameter_rows(study: &StudyContent<'_>) -> TableRows {
    let fixed = study.fixed();
    let mut values: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for (name, value) in study.trials.iter().flat_map(|trial| trial.config.iter()) {
        if fixed.get(name).is_none() {
            let known = values.entry(name).or_default();
            if !known.contains(&value) {
                known.push(value);
            }
        }
    }
    let domains = study.report.study.definition.pointer("/space/parameters");
    let domain = |name: &str| Domain::from_text(domains?.get(name)?.get("domain").and_then(Json::as_str)?);
    let distributions: BTreeMap<_, _> = values
        .iter()
        .map(|(name, values)| {
            let distribution = OptunaDistribution::of(domain(name).as_ref(), values);
            let json = distribution.json();
            (*name, (distribution, json))
        })
        .collect();
    let names = unique_names(values.keys().copied(), |name| shortened(&clean(name), MAX_NAME));
    let mut rows = TableRows::new("trial_params", &["trial_id", "param_name", "param_value", "distribution_json"]);
    for trial in &study.trials {
        for (name, value) in trial.config.iter() {
            if let Some((distribution, json)) = distributions.get(name) {
                let (param, internal) = (names[name].as_str(), distribution.internal(value));
                rows.push([trial_id(trial).into(), param.into(), internal.into(), json.as_str().into()]);
            }
        }
    }
    rows
}
