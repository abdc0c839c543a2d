//! Optuna's SQLite storage: trials with parameters, values, constraints and states.
//!
//! A parameter becomes a flag under its name with dashes. A value gets the name of the study's metric
//! (`study.set_metric_names`), or `value` without one. Trials that still run or wait have no result.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use super::{ImportError, ImportedDocument, ImportedFailure, ImportedLaunch, ImportedResult, LineProblem, UnreadLine};
use crate::config::{Config, Value};
use crate::objective::{Constraint, Goal, MetricLimit, Objective};
use crate::stats::f64_to_i64;
use crate::trial::FailureKind;

/// The first bytes of a SQLite database.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// The metric of a value without a name.
const VALUE: &str = "value";

/// The attribute with the values of a trial's constraints.
const CONSTRAINTS: &str = "constraints";

/// Returns the storage and the study that a path names as `FILE` or `FILE#STUDY`. `None` if it is no database.
#[must_use]
pub(super) fn storage(path: &Path) -> Option<(PathBuf, Option<String>)> {
    let is_database = |path: &Path| {
        use std::io::Read;
        let mut begin = [0; MAGIC.len()];
        let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut begin));
        path.is_file() && read.is_ok() && begin == MAGIC
    };
    if is_database(path) {
        return Some((path.to_owned(), None));
    }
    let (file, study) = path.to_str()?.rsplit_once('#')?;
    is_database(Path::new(file)).then(|| (PathBuf::from(file), Some(study.to_owned())))
}

/// Reads a study of a storage.
///
/// # Errors
/// If the file has no tables of Optuna, several studies and none is named, or a malformed row.
pub(super) async fn read(file: &Path, study: Option<&str>) -> Result<ImportedDocument, ImportError> {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let database = |error: sqlx::Error| {
        let hint = "readable are databases of Optuna 2 and later; --db names this program's own database";
        let problem = format!("is no readable storage of Optuna: {error}");
        LineProblem { line: 0, problem, hint: Some(hint.to_owned()) }.of_file(file)
    };
    let mut connection = options.connect().await.map_err(database)?;
    let studies: Vec<(i64, String)> = sqlx::query_as("SELECT study_id, study_name FROM studies ORDER BY study_id")
        .fetch_all(&mut connection)
        .await
        .map_err(database)?;
    let (id, _) = choose(&studies, study).map_err(|problem| problem.of_file(file))?;
    let rows = StudyRows::read(&mut connection, id).await.map_err(database)?;
    let mut document = rows.document().map_err(|problem| problem.of_file(file))?;
    for result in &mut document.results {
        file.clone_into(&mut result.file);
    }
    for unread in &mut document.unread {
        file.clone_into(&mut unread.file);
    }
    Ok(document)
}

fn choose(studies: &[(i64, String)], wanted: Option<&str>) -> Result<(i64, String), LineProblem> {
    let names = || studies.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(", ");
    let problem = |problem: String, hint: String| LineProblem { line: 0, problem, hint: Some(hint) };
    match (studies, wanted) {
        ([], _) => Err(problem("contains no study".to_owned(), "name another file".to_owned())),
        ([only], None) => Ok(only.clone()),
        (_, None) => {
            let problem_text = format!("contains {} studies: {}", studies.len(), names());
            Err(problem(problem_text, "name one as FILE#STUDY".to_owned()))
        }
        (_, Some(wanted)) => {
            let found = studies.iter().find(|(_, name)| name == wanted).cloned();
            found.ok_or_else(|| problem(format!("contains no study {wanted:?}"), format!("it contains {}", names())))
        }
    }
}

/// The rows of one study. The first column of most is the trial's identifier.
struct StudyRows {
    directions: Vec<(i64, String)>,
    metric_names: Option<String>,
    /// Identifier, number, state and start of each trial.
    trials: Vec<(i64, i64, String, Option<String>)>,
    /// Name, value and distribution.
    parameters: Vec<(i64, String, f64, String)>,
    /// Objective and value. The value is null for an infinite one.
    values: Vec<(i64, i64, Option<f64>)>,
    /// Name and JSON of each attribute, of the program and of the user.
    attributes: Vec<(i64, String, String)>,
}

impl StudyRows {
    async fn read(connection: &mut SqliteConnection, study: i64) -> sqlx::Result<Self> {
        let directions =
            sqlx::query_as("SELECT objective, direction FROM study_directions WHERE study_id = ? ORDER BY 1")
                .bind(study)
                .fetch_all(&mut *connection)
                .await?;
        let metric_names = sqlx::query_scalar(
            "SELECT value_json FROM study_system_attributes WHERE study_id = ? AND key = 'study:metric_names'",
        )
        .bind(study)
        .fetch_optional(&mut *connection)
        .await?;
        let trials = sqlx::query_as(
            "SELECT trial_id, number, state, CAST(datetime_start AS TEXT) FROM trials WHERE study_id = ? ORDER BY number",
        )
        .bind(study)
        .fetch_all(&mut *connection)
        .await?;
        let parameters = sqlx::query_as(
            "SELECT trial_id, param_name, CAST(param_value AS REAL), distribution_json FROM trial_params \
             JOIN trials USING (trial_id) WHERE study_id = ?",
        )
        .bind(study)
        .fetch_all(&mut *connection)
        .await?;
        let values = sqlx::query_as(
            "SELECT trial_id, objective, value FROM trial_values JOIN trials USING (trial_id) WHERE study_id = ?",
        )
        .bind(study)
        .fetch_all(&mut *connection)
        .await?;
        let attributes = sqlx::query_as(
            "SELECT trial_id, key, value_json FROM trial_user_attributes JOIN trials USING (trial_id) WHERE study_id = ? \
             UNION ALL SELECT trial_id, key, value_json FROM trial_system_attributes JOIN trials USING (trial_id) \
             WHERE study_id = ?",
        )
        .bind(study)
        .bind(study)
        .fetch_all(&mut *connection)
        .await?;
        Ok(Self { directions, metric_names, trials, parameters, values, attributes })
    }

    fn document(&self) -> Result<ImportedDocument, LineProblem> {
        let mut document = ImportedDocument { objective: self.objective(), ..ImportedDocument::default() };
        for (id, number, state, start) in &self.trials {
            match self.result(*id, *number, state)? {
                Some(mut result) => {
                    result.measured_at = start.as_ref().map(|start| format!("{}Z", start.replacen(' ', "T", 1)));
                    document.results.push(result);
                }
                None => document.unread.push(UnreadLine {
                    file: PathBuf::new(),
                    line: usize::try_from(*number).unwrap_or_default(),
                    text: format!("trial {number} is {state}"),
                    reason: "a trial without a result",
                }),
            }
        }
        Ok(document)
    }

    fn objective(&self) -> Option<Objective> {
        let (_, direction) = self.directions.first()?;
        let goal = if direction == "MINIMIZE" { Goal::Minimize } else { Goal::Maximize };
        let names = self.attributes.iter().filter(|(_, key, _)| key == CONSTRAINTS);
        let count = names.map(|(_, _, json)| constraints(json).len()).max().unwrap_or(0);
        // Optuna counts a constraint as kept if its value is at most 0.
        let limit = |index| Constraint { metric: constraint(index), limit: MetricLimit::AtMost(0.0) };
        Some(Objective {
            metric: self.metric(0),
            goal,
            constraints: (0..count).map(limit).collect(),
            joint: None,
            price_per_hour: None,
            load_goal: None,
        })
    }

    /// Returns the name of an objective's metric.
    fn metric(&self, objective: i64) -> String {
        let names: Option<Vec<String>> = self.metric_names.as_ref().and_then(|names| serde_json::from_str(names).ok());
        let index = usize::try_from(objective).unwrap_or_default();
        let name = names.and_then(|names| names.get(index).cloned());
        let unnamed = || if self.directions.len() > 1 { format!("{VALUE}_{objective}") } else { VALUE.to_owned() };
        name.unwrap_or_else(unnamed)
    }

    fn result(&self, id: i64, number: i64, state: &str) -> Result<Option<ImportedResult>, LineProblem> {
        let line = usize::try_from(number).unwrap_or_default();
        let mut result = ImportedResult { line, name: Some(format!("trial {number}")), ..ImportedResult::default() };
        let attributes = || self.attributes.iter().filter(|(trial, ..)| *trial == id);
        match state {
            "COMPLETE" => {
                for (_, objective, value) in self.values.iter().filter(|(trial, ..)| *trial == id) {
                    result.metrics.extend(value.map(|value| (self.metric(*objective), value)));
                }
                // Attributes of the user are often further metrics.
                for (_, key, json) in attributes() {
                    if key == CONSTRAINTS {
                        let values = constraints(json).into_iter().enumerate();
                        result.metrics.extend(values.map(|(index, value)| (constraint(index), value)));
                    }
                    let value = serde_json::from_str::<Json>(json).ok().and_then(|json| json.as_f64());
                    let is_metric = crate::trial::Measurement::is_known(key);
                    result.metrics.extend(value.filter(|_| is_metric).map(|value| (key.clone(), value)));
                }
                if result.metrics.is_empty() {
                    return Ok(None);
                }
            }
            "FAIL" | "PRUNED" => {
                let message = attributes().find(|(_, key, _)| key.contains("reason") || key.contains("error"));
                let message = message.map(|(_, _, json)| serde_json::from_str(json).unwrap_or_else(|_| json.clone()));
                // A pruner ends a trial that would have worked.
                let kind = message.is_none().then_some(FailureKind::Killed).filter(|_| state == "PRUNED");
                let message = message.unwrap_or_else(|| format!("Optuna has stored {state} without a reason"));
                result.failure = Some(ImportedFailure { message, kind, rule: None });
            }
            _ => return Ok(None),
        }
        let mut config = Config::new();
        for (_, name, value, distribution) in self.parameters.iter().filter(|(trial, ..)| *trial == id) {
            let value = parameter(*value, distribution)
                .map_err(|problem| LineProblem::new(0, format!("trial {number}, parameter {name:?}: {problem}")))?;
            if let Some(value) = value {
                config.set(name.trim_start_matches('-').replace('_', "-"), value);
            }
        }
        result.launch = Some(ImportedLaunch { config, ..ImportedLaunch::default() });
        Ok(Some(result))
    }
}

/// Returns the values of a trial's constraints.
fn constraints(json: &str) -> Vec<f64> {
    serde_json::from_str(json).unwrap_or_default()
}

/// Returns the metric of a constraint.
fn constraint(index: usize) -> String {
    format!("constraint_{index}")
}

/// Converts a stored number by the parameter's distribution. `None` for the choice `None`.
fn parameter(number: f64, distribution: &str) -> Result<Option<Value>, String> {
    let json: Json =
        serde_json::from_str(distribution).map_err(|error| format!("the distribution is no JSON: {error}"))?;
    let kind = json["name"].as_str().unwrap_or_default();
    match kind {
        "CategoricalDistribution" => {
            let index = usize::try_from(f64_to_i64(number)).ok();
            let choice = index.and_then(|index| json["attributes"]["choices"].get(index));
            let Some(choice) = choice else { return Err(format!("there is no choice {number}")) };
            if choice.is_null() {
                return Ok(None);
            }
            serde_json::from_value(choice.clone()).map(Some).map_err(|error| format!("choice {choice}: {error}"))
        }
        "IntDistribution" | "IntUniformDistribution" | "IntLogUniformDistribution" => {
            Ok(Some(Value::Int(f64_to_i64(number))))
        }
        _ if kind.contains("Uniform") || kind == "FloatDistribution" => Ok(Some(Value::Float(number))),
        other => Err(format!("the distribution {other:?} is unknown")),
    }
}
