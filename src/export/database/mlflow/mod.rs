//! Exports a study as a tracking store of `MLflow`: an experiment with one run for each trial.

use std::collections::BTreeSet;

use super::content::{ContentState, TrialContent, clean};
use super::names::{shortened, unique_names};
use super::{DatabaseExporter, SqlCell, StudyContent, TableRows};

pub(super) struct MlflowExporter;

/// The experiment of the study. `MLflow` creates one with the number 0 if it is absent.
const EXPERIMENT: i64 = 1;

/// The name of the experiment with the number 0.
const DEFAULT: &str = "Default";

// Lengths of columns and of MLflow's own limits (`mlflow.utils.validation`), in characters.
const MAX_EXPERIMENT_NAME: usize = 256;
const MAX_KEY: usize = 250;
const MAX_PARAM: usize = 6000;
const MAX_TAG: usize = 8000;
const MAX_EXPERIMENT_TAG: usize = 20_000;
const MAX_VERSION: usize = 50;

impl DatabaseExporter for MlflowExporter {
    fn name(&self) -> &'static str {
        "mlflow"
    }

    fn summary(&self) -> &'static str {
        "the whole study as an MLflow tracking store (SQLite; needs -o)"
    }

    fn application_id(&self) -> u32 {
        u32::from_be_bytes(*b"spMl")
    }

    fn schema(&self) -> &'static str {
        include_str!("schema.sql")
    }

    fn rows(&self, study: &StudyContent<'_>) -> Vec<TableRows> {
        let mut rows = experiment_rows(study);
        let ids = RunIds::of(study);
        rows.push(run_rows(study, &ids));
        rows.extend(metric_rows(study, &ids));
        rows.push(param_rows(study, &ids));
        rows.push(tag_rows(study, &ids));
        rows
    }
}

fn artifact_location(experiment: i64) -> String {
    format!("mlflow-artifacts:/{experiment}")
}

fn experiment_rows(study: &StudyContent<'_>) -> Vec<TableRows> {
    let report = study.report;
    let columns =
        &["experiment_id", "name", "artifact_location", "lifecycle_stage", "creation_time", "last_update_time"];
    let mut experiments = TableRows::new("experiments", columns);
    let created = report.study.created_at.parse().ok().map(jiff::Timestamp::as_millisecond);
    let updated = study.trials.iter().filter_map(|trial| trial.ended_ms.or(trial.started_ms)).max().or(created);
    let name = match clean(&report.study.name) {
        name if name == DEFAULT => format!("{DEFAULT} (setpoint)"),
        name => shortened(&name, MAX_EXPERIMENT_NAME),
    };
    for (id, name) in [(0, DEFAULT.to_owned()), (EXPERIMENT, name)] {
        let location = artifact_location(id);
        experiments.push([id.into(), name.into(), location.into(), "active".into(), created.into(), updated.into()]);
    }
    let mut tags = TableRows::new("experiment_tags", &["experiment_id", "key", "value"]);
    // Without this tag, the start page of an experiment is that of traces.
    tags.push([EXPERIMENT.into(), "mlflow.experimentKind".into(), "custom_model_development".into()]);
    for (name, text) in study.texts() {
        let text = shortened(&text, MAX_EXPERIMENT_TAG);
        tags.push([EXPERIMENT.into(), format!("setpoint.{name}").into(), text.into()]);
    }
    vec![experiments, tags]
}

/// Identifiers of runs, equal in each export of a study: 32 hexadecimal digits.
struct RunIds(String);

impl RunIds {
    fn of(study: &StudyContent<'_>) -> Self {
        let created = study.report.study.created_at.parse().map_or(0, jiff::Timestamp::as_microsecond);
        Self(format!("{:016x}{:08x}", created.cast_unsigned(), study.report.study.id & 0xffff_ffff))
    }

    fn id(&self, trial: &TrialContent) -> SqlCell {
        format!("{}{:08x}", self.0, trial.number).into()
    }
}

fn run_rows(study: &StudyContent<'_>, ids: &RunIds) -> TableRows {
    let columns = &[
        "run_uuid",
        "name",
        "source_type",
        "source_name",
        "entry_point_name",
        "user_id",
        "status",
        "start_time",
        "end_time",
        "source_version",
        "lifecycle_stage",
        "artifact_uri",
        "experiment_id",
    ];
    let mut runs = TableRows::new("runs", columns);
    let version = shortened(&clean(&study.report.study.setpoint_version), MAX_VERSION);
    for trial in &study.trials {
        let status = match trial.state {
            ContentState::Ranked | ContentState::Unranked => "FINISHED",
            ContentState::Failed => "FAILED",
            ContentState::Rejected => "KILLED",
            ContentState::Running => "RUNNING",
        };
        let SqlCell::Text(id) = ids.id(trial) else { continue };
        let artifacts = format!("{}/{id}/artifacts", artifact_location(EXPERIMENT));
        runs.push([
            id.into(),
            run_name(trial).into(),
            "LOCAL".into(),
            "setpoint".into(),
            "".into(),
            "".into(),
            status.into(),
            trial.started_ms.into(),
            trial.ended_ms.into(),
            version.as_str().into(),
            "active".into(),
            artifacts.into(),
            EXPERIMENT.into(),
        ]);
    }
    runs
}

fn run_name(trial: &TrialContent) -> String {
    format!("trial {}", trial.number)
}

/// Returns the metrics, and the same as the latest ones. A ranked trial has the objective's value as `value`.
fn metric_rows(study: &StudyContent<'_>, ids: &RunIds) -> Vec<TableRows> {
    let columns = &["run_uuid", "key", "value", "timestamp", "step", "is_nan"];
    let (mut all, mut latest) = (TableRows::new("metrics", columns), TableRows::new("latest_metrics", columns));
    for trial in &study.trials {
        let value = trial.value.filter(|_| trial.state == ContentState::Ranked).map(|value| ("value", value));
        let time = trial.ended_ms.or(trial.started_ms).unwrap_or(0);
        for (name, number) in trial.numbers.iter().map(|(name, number)| (*name, *number)).chain(value) {
            let row = || [ids.id(trial), name.into(), number.into(), time.into(), 0.into(), 0.into()];
            all.push(row());
            latest.push(row());
        }
    }
    vec![all, latest]
}

/// Returns each flag of each configuration, also the fixed ones.
fn param_rows(study: &StudyContent<'_>, ids: &RunIds) -> TableRows {
    let flags: BTreeSet<_> = study.trials.iter().flat_map(|trial| trial.config.iter().map(|(name, _)| name)).collect();
    let names = unique_names(flags, key);
    let mut params = TableRows::new("params", &["run_uuid", "key", "value"]);
    for trial in &study.trials {
        for (name, value) in trial.config.iter() {
            let value = shortened(&clean(&value.to_string()), MAX_PARAM);
            params.push([ids.id(trial), names[name].as_str().into(), value.into()]);
        }
    }
    params
}

/// Returns a name with the characters that `MLflow` allows in keys.
fn key(name: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-. :/".contains(c);
    let name = name.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect::<String>();
    // A number may follow.
    shortened(&name, MAX_KEY - 10).replace(['(', ')'], "_")
}

fn tag_rows(study: &StudyContent<'_>, ids: &RunIds) -> TableRows {
    let mut tags = TableRows::new("tags", &["run_uuid", "key", "value"]);
    for trial in &study.trials {
        let own = [
            ("mlflow.runName".to_owned(), run_name(trial)),
            ("mlflow.source.name".to_owned(), "setpoint".to_owned()),
            ("mlflow.source.type".to_owned(), "LOCAL".to_owned()),
        ];
        let texts = trial.texts().into_iter().map(|(name, text)| (format!("setpoint.{name}"), text));
        for (name, text) in own.into_iter().chain(texts) {
            tags.push([ids.id(trial), name.into(), shortened(&text, MAX_TAG).into()]);
        }
    }
    tags
}
