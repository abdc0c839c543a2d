//! Studies and trials in one SQLite file, which other programs may read at any time.

mod open;
mod rows;

pub use open::database_path;

use std::path::PathBuf;

use serde_json::Value as Json;
use sqlx::SqlitePool;

use crate::config::Config;
use crate::facts::Host;
use crate::objective::{Goal, Objective, Score};
use crate::sampler::Past;
use crate::trial::{Launch, Outcome, Trial};

use rows::{StudyRow, TrialRow};

/// Why the database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("database {} does not exist", .0.display())]
    Missing(PathBuf),
    #[error("database {} was made by a newer setpoint (migration {version} is unknown here)", path.display())]
    Newer { path: PathBuf, version: i64 },
    #[error("{} is not a setpoint database: {reason}", path.display())]
    NotADatabase { path: PathBuf, reason: String },
    #[error("database {}: the disk is full", .0.display())]
    Full(PathBuf),
    #[error("database {}: {source}", path.display())]
    Database { path: PathBuf, source: sqlx::Error },
    #[error("database {}: trial {number} of study {study:?} cannot be read: {reason}", path.display())]
    Corrupt { path: PathBuf, study: String, number: i64, reason: String },
}

impl StoreError {
    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Missing(_) => Some("`setpoint tune STUDY.toml` creates it; `--db PATH` names another".to_owned()),
            Self::Newer { .. } => Some("update setpoint, or name another database with --db".to_owned()),
            Self::NotADatabase { .. } => Some("name another file with --db".to_owned()),
            Self::Full(_) => {
                Some("free some space and run the same command again: every stored trial is kept".to_owned())
            }
            Self::Database { .. } | Self::Corrupt { .. } => None,
        }
    }
}

/// One study as it is stored.
#[derive(Clone, Debug)]
pub struct Study {
    pub id: i64,
    pub name: String,
    pub definition: Json,
    pub host: Json,
    pub setpoint_version: String,
    pub created_at: String,
}

impl Study {
    /// What the study looks for.
    #[must_use]
    pub fn objective(&self) -> Option<Objective> {
        serde_json::from_value(self.definition.get("objective")?.clone()).ok()
    }
}

/// How many trials of a study ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub measured: i64,
    pub failed: i64,
    pub rejected: i64,
    pub running: i64,
}

/// A trial and how good it is.
#[derive(Clone, Debug)]
pub struct Scored {
    pub trial: Trial,
    pub score: Score,
}

/// What is known of a trial before it is launched.
#[derive(Clone, Debug)]
pub struct Begin<'a> {
    pub number: u32,
    pub proposed_by: &'a str,
    pub config: &'a Config,
    pub launch: &'a Launch,
    pub started_at: &'a str,
    pub log: &'a std::path::Path,
}

/// An open database.
#[derive(Clone, Debug)]
pub struct Store {
    pool: SqlitePool,
    path: PathBuf,
}

impl Store {
    /// The study of this name.
    pub async fn study(&self, name: &str) -> Result<Option<Study>, StoreError> {
        let row: Option<StudyRow> = sqlx::query_as("SELECT * FROM studies WHERE name = ?")
            .bind(name)
            .fetch_optional(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        Ok(row.map(Into::into))
    }

    /// Every study with its counts, the newest last.
    pub async fn studies(&self) -> Result<Vec<(Study, Counts)>, StoreError> {
        let rows: Vec<StudyRow> = sqlx::query_as("SELECT * FROM studies ORDER BY id")
            .fetch_all(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let mut studies = Vec::new();
        for row in rows {
            let study = Study::from(row);
            let counts = self.counts(study.id).await?;
            studies.push((study, counts));
        }
        Ok(studies)
    }

    pub async fn counts(&self, study: i64) -> Result<Counts, StoreError> {
        let query = "SELECT state, count(*) FROM trials WHERE study_id = ? GROUP BY state";
        let rows: Vec<(String, i64)> =
            sqlx::query_as(query).bind(study).fetch_all(&self.pool).await.map_err(|error| self.error(error))?;
        let of = |state: &str| rows.iter().find(|(name, _)| name == state).map_or(0, |(_, count)| *count);
        Ok(Counts { measured: of("measured"), failed: of("failed"), rejected: of("rejected"), running: of("running") })
    }

    pub async fn create_study(&self, name: &str, definition: &Json, host: &Host) -> Result<Study, StoreError> {
        sqlx::query(
            "INSERT INTO studies (name, definition, setpoint_version, host, created_at) VALUES (?, ?, ?, ?, ?)",
        )
        .bind(name)
        .bind(definition.to_string())
        .bind(env!("CARGO_PKG_VERSION"))
        .bind(serde_json::to_string(host).unwrap_or_default())
        .bind(now())
        .execute(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        let study = self.study(name).await?;
        study.ok_or_else(|| self.error(sqlx::Error::RowNotFound))
    }

    /// Stores that a trial is about to be launched. An interrupted trial of the same number is replaced.
    pub async fn begin(&self, study: i64, begin: &Begin<'_>) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO trials (study_id, number, proposed_by, config, command, env, state, started_at, log) \
             VALUES (?, ?, ?, ?, ?, ?, 'running', ?, ?) \
             ON CONFLICT (study_id, number) DO UPDATE SET proposed_by = excluded.proposed_by, \
             config = excluded.config, command = excluded.command, env = excluded.env, \
             started_at = excluded.started_at, log = excluded.log WHERE state = 'running'",
        )
        .bind(study)
        .bind(begin.number)
        .bind(begin.proposed_by)
        .bind(begin.config.key())
        .bind(json(&begin.launch.command))
        .bind(json(&begin.launch.env))
        .bind(begin.started_at)
        .bind(begin.log.to_string_lossy().into_owned())
        .execute(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Stores a trial with its outcome. What has an outcome is never overwritten.
    pub async fn append(&self, study: i64, trial: &Trial, score: Score) -> Result<(), StoreError> {
        let (reason_code, reason) = match &trial.outcome {
            Outcome::Rejected(rejection) => (Some(rejection.rule.clone()), Some(rejection.message.clone())),
            Outcome::Failed(failure) => (Some(failure.kind.name().to_owned()), Some(failure.message.clone())),
            Outcome::Measured(_) => (None, None),
        };
        let violation = match score {
            Score::Failed => None,
            Score::Infeasible { violation, .. } => Some(violation.min(f64::MAX)),
            Score::Feasible { .. } => Some(0.0),
        };
        sqlx::query(
            "INSERT INTO trials (study_id, number, proposed_by, config, command, env, state, reason_code, reason, \
             started_at, startup_s, elapsed_s, engine_version, log, metrics, value, violation) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
             ON CONFLICT (study_id, number) DO UPDATE SET proposed_by = excluded.proposed_by, \
             config = excluded.config, command = excluded.command, env = excluded.env, state = excluded.state, \
             reason_code = excluded.reason_code, reason = excluded.reason, started_at = excluded.started_at, \
             startup_s = excluded.startup_s, elapsed_s = excluded.elapsed_s, \
             engine_version = excluded.engine_version, log = excluded.log, metrics = excluded.metrics, \
             value = excluded.value, violation = excluded.violation WHERE state = 'running'",
        )
        .bind(study)
        .bind(trial.number)
        .bind(&trial.proposed_by)
        .bind(trial.config.key())
        .bind(json(&trial.launch.command))
        .bind(json(&trial.launch.env))
        .bind(trial.outcome.name())
        .bind(reason_code)
        .bind(reason)
        .bind(&trial.started_at)
        .bind(trial.startup_s)
        .bind(trial.elapsed_s)
        .bind(&trial.engine_version)
        .bind(trial.log.as_ref().map(|path| path.to_string_lossy().into_owned()))
        .bind(trial.outcome.measurement().map(json))
        .bind(score.value())
        .bind(violation)
        .execute(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Every trial with an outcome, in order.
    pub async fn trials(&self, study: &Study) -> Result<Vec<Scored>, StoreError> {
        let query = "SELECT * FROM trials WHERE study_id = ? AND state <> 'running' ORDER BY number";
        let rows: Vec<TrialRow> =
            sqlx::query_as(query).bind(study.id).fetch_all(&self.pool).await.map_err(|error| self.error(error))?;
        rows.into_iter().map(|row| self.scored(study, row)).collect()
    }

    /// The configurations that were proposed so far, in order, for the sampler.
    pub async fn history(&self, study: &Study) -> Result<Vec<Past>, StoreError> {
        let query = "SELECT number, proposed_by, config FROM trials \
                     WHERE study_id = ? AND state <> 'running' ORDER BY number";
        let rows: Vec<(i64, String, String)> =
            sqlx::query_as(query).bind(study.id).fetch_all(&self.pool).await.map_err(|error| self.error(error))?;
        let past = |(number, proposed_by, config): (i64, String, String)| match serde_json::from_str(&config) {
            Ok(config) => Ok(Past { proposed_by, config }),
            Err(error) => Err(self.corrupt(study, number, error)),
        };
        rows.into_iter().map(past).collect()
    }

    /// One trial with an outcome.
    pub async fn trial(&self, study: &Study, number: u32) -> Result<Option<Scored>, StoreError> {
        let query = "SELECT * FROM trials WHERE study_id = ? AND number = ? AND state <> 'running'";
        let row: Option<TrialRow> = sqlx::query_as(query)
            .bind(study.id)
            .bind(number)
            .fetch_optional(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        row.map(|row| self.scored(study, row)).transpose()
    }

    /// The best feasible trials, best first.
    pub async fn best(&self, study: &Study, goal: Goal, most: u32) -> Result<Vec<Scored>, StoreError> {
        let query = match goal {
            Goal::Maximize => {
                "SELECT * FROM trials WHERE study_id = ? AND state = 'measured' AND violation = 0 \
                 ORDER BY value DESC, number LIMIT ?"
            }
            Goal::Minimize => {
                "SELECT * FROM trials WHERE study_id = ? AND state = 'measured' AND violation = 0 \
                 ORDER BY value, number LIMIT ?"
            }
        };
        let rows: Vec<TrialRow> = sqlx::query_as(query)
            .bind(study.id)
            .bind(most)
            .fetch_all(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        rows.into_iter().map(|row| self.scored(study, row)).collect()
    }

    fn scored(&self, study: &Study, row: TrialRow) -> Result<Scored, StoreError> {
        let number = row.number;
        row.scored().map_err(|error| self.corrupt(study, number, error))
    }

    fn corrupt(&self, study: &Study, number: i64, reason: impl ToString) -> StoreError {
        let (path, study, reason) = (self.path.clone(), study.name.clone(), reason.to_string());
        StoreError::Corrupt { path, study, number, reason }
    }
}

/// The present time as it is stored: RFC 3339, UTC, milliseconds.
#[must_use]
pub fn now() -> String {
    let now = jiff::Timestamp::now();
    format!("{now:.3}")
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
