//! Studies and trials in one `SQLite` file. Other programs may read it at any time.

mod answers;
mod check;
mod context;
mod decision;
mod deployment;
mod disagreement;
mod explanation;
mod import;
mod incident;
mod judgement;
mod listing;
mod measurement;
mod observed;
mod open;
mod placement;
mod probe;
mod ranking;
mod read_only;
mod replies;
mod rows;
mod rule_test;
mod signature;
mod starts;
mod startup;
mod telemetry;
mod trial;
mod unfinished;

pub use check::quick_check;
pub use context::StoredContext;
pub use decision::StoredDecision;
pub use deployment::StoredDeployment;
pub use disagreement::RuleDisagreement;
pub use explanation::StoredExplanation;
pub use incident::Incident;
pub use judgement::{ExpectedConfiguration, StoredJudgement};
pub use listing::{ListedTrial, MetricValues};
pub(crate) use measurement::EarlyEnds;
pub use observed::TrialMark;
pub use open::database_path;
pub use ranking::{LeaderOrder, RankedConfiguration};
pub use read_only::{SqlError, SqlLimits, SqlResult, SqlValue, read_only_query};
pub use rule_test::{FailedStart, RuleTest, RuleTestKey, RuleVerdict};
pub use starts::{StartKey, StoredStart};
pub use trial::{TrialBegin, TrialRecord};
pub use unfinished::UnfinishedTrial;

use std::path::PathBuf;

use serde_json::Value as Json;
use sqlx::{SqliteConnection, SqlitePool};

use crate::facts::Host;
use crate::objective::{Objective, Score};
use crate::trial::{Proposal, Trial};

use rows::StudyRow;

/// The reason for which the database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("database {} does not exist", .0.display())]
    Missing(PathBuf),
    #[error("database {} was made by a newer setpoint (migration {version} is unknown here)", path.display())]
    Newer { path: PathBuf, version: i64 },
    #[error("{} is not a setpoint database: {reason}", path.display())]
    NotADatabase { path: PathBuf, reason: String },
    #[error("database {} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("database {} cannot be opened: it is a directory, or its directory is missing or unreadable", .0.display())]
    CannotOpen(PathBuf),
    #[error("database {}: the disk is full", .0.display())]
    Full(PathBuf),
    #[error("database {}: {source}", path.display())]
    Database { path: PathBuf, source: sqlx::Error },
    #[error("database {}: trial {number} of study {study:?} cannot be read: {reason}", path.display())]
    Corrupt { path: PathBuf, study: String, number: i64, reason: String },
    #[error("database {}: the context of study {study:?} cannot be read: {reason}", path.display())]
    UnreadableContext { path: PathBuf, study: String, reason: String },
    #[error("database {}: the time of creation of study {study:?} cannot be read: {reason}", path.display())]
    UnreadableCreationTime { path: PathBuf, study: String, reason: String },
    #[error("database {}: the deployment of study {study:?} cannot be read: {reason}", path.display())]
    UnreadableDeployment { path: PathBuf, study: String, reason: String },
}

impl StoreError {
    /// Returns a hint for users.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Missing(_) => Some("`setpoint tune STUDY.toml` creates it; `--db PATH` names another".to_owned()),
            Self::Newer { .. } => Some("update setpoint, or name another database with --db".to_owned()),
            Self::NotADatabase { .. } | Self::CannotOpen(_) => Some("name another file with --db".to_owned()),
            Self::Full(_) => {
                Some("free some space and run the same command again: every stored trial is kept".to_owned())
            }
            Self::Damaged { .. } => {
                Some("recover its rows with `sqlite3 FILE .recover`, or name another database with --db".to_owned())
            }
            Self::UnreadableDeployment { .. } => {
                Some("run `setpoint tune STUDY.toml` again: it stores the deployment anew".to_owned())
            }
            Self::Database { .. }
            | Self::Corrupt { .. }
            | Self::UnreadableContext { .. }
            | Self::UnreadableCreationTime { .. } => None,
        }
    }
}

/// A stored study.
#[derive(Clone, Debug)]
pub struct Study {
    pub id: i64,
    pub name: String,
    /// The parts of the study file that decide the meaning of a measurement; null if the column is unreadable.
    pub definition: Json,
    /// The host on which the study was created, as `Host` serializes it.
    pub host: Json,
    /// The release of `setpoint` that created the study.
    pub setpoint_version: String,
    /// In the format of `now`.
    pub created_at: String,
}

impl Study {
    /// Returns the objective of the study's definition; `None` if it is absent or unreadable.
    #[must_use]
    pub fn objective(&self) -> Option<Objective> {
        serde_json::from_value(self.definition.get("objective")?.clone()).ok()
    }
}

/// The number of trials of a study in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StudyCounts {
    pub measured: i64,
    pub failed: i64,
    pub rejected: i64,
    pub running: i64,
    /// Live looks with any outcome. The other counts are those of launches and of rejected configurations.
    pub live_looks: i64,
}

/// A trial and its score.
#[derive(Clone, Debug)]
pub struct ScoredTrial {
    pub trial: Trial,
    pub score: Score,
}

impl ScoredTrial {
    /// Returns whether other processes or a slowed device have disturbed its measurement.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        self.trial.outcome.measurement().is_some_and(|measurement| !measurement.disturbed.is_empty())
    }
}

/// A proposal with the state of its trial.
#[derive(Clone, Debug)]
pub struct StoredProposal {
    pub proposal: Proposal,
    /// The name of the trial's outcome; `running` if it has none.
    pub state: String,
    /// Whether it belongs to a context that the study has left.
    pub is_earlier: bool,
}

/// An open database. Every method fails with a [`StoreError`] if the file cannot be read or written, or if one of its
/// rows is malformed.
#[derive(Clone, Debug)]
pub struct Store {
    pool: SqlitePool,
    path: PathBuf,
}

impl Store {
    /// Returns the study of this name.
    pub async fn study(&self, name: &str) -> Result<Option<Study>, StoreError> {
        let row: Option<StudyRow> = sqlx::query_as("SELECT * FROM studies WHERE name = ?")
            .bind(name)
            .fetch_optional(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        Ok(row.map(Into::into))
    }

    /// Returns every study with the numbers of its trials, the newest study last.
    pub async fn studies(&self) -> Result<Vec<(Study, StudyCounts)>, StoreError> {
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

    /// Returns the number of a study's trials in each state.
    pub async fn counts(&self, study: i64) -> Result<StudyCounts, StoreError> {
        let query = "SELECT iif(server_of IS NULL, state, 'live_look') AS kind, count(*) FROM trials WHERE study_id = ? \
                     GROUP BY kind";
        let rows: Vec<(String, i64)> =
            sqlx::query_as(query).bind(study).fetch_all(&self.pool).await.map_err(|error| self.error(error))?;
        let of = |state: &str| rows.iter().find(|(name, _)| name == state).map_or(0, |(_, count)| *count);
        Ok(StudyCounts {
            measured: of("measured"),
            failed: of("failed"),
            rejected: of("rejected"),
            running: of("running"),
            live_looks: of("live_look"),
        })
    }

    /// Stores a new study. Fails if the database already has one of this name.
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

    /// Returns the instant at which a study was created.
    pub(crate) fn creation_time(&self, study: &Study) -> Result<jiff::Timestamp, StoreError> {
        study.created_at.parse().map_err(|error: jiff::Error| StoreError::UnreadableCreationTime {
            path: self.path.clone(),
            study: study.name.clone(),
            reason: error.to_string(),
        })
    }

    fn corrupt(&self, study: &str, number: i64, reason: &serde_json::Error) -> StoreError {
        let (path, study, reason) = (self.path.clone(), study.to_owned(), reason.to_string());
        StoreError::Corrupt { path, study, number, reason }
    }
}

/// Returns the present time in the stored format: RFC 3339, UTC, milliseconds.
#[must_use]
pub fn now() -> String {
    let now = jiff::Timestamp::now();
    format!("{now:.3}")
}

/// Executes a statement whose parameters are the study's id, the trial's number and these values.
async fn write_row<const N: usize>(
    connection: &mut SqliteConnection,
    query: &'static str,
    study: i64,
    number: u32,
    values: [String; N],
) -> sqlx::Result<()> {
    let row = sqlx::query(query).bind(study).bind(number);
    values.into_iter().fold(row, sqlx::query::Query::bind).execute(connection).await?;
    Ok(())
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::objective::Goal;
    use crate::trial::{Failure, FailureKind, Measurement, Outcome, Rejection};

    fn trial(number: u32, outcome: Outcome) -> Trial {
        let config = Config::new().with("max-num-seqs", i64::from(number));
        Trial::example(number, "random", outcome).with_config(config)
    }

    fn measured(number: u32) -> Trial {
        trial(number, Outcome::Measured(Measurement { duration_s: 1.0, completed: 1, ..Measurement::default() }))
    }

    async fn store_with_study(directory: &std::path::Path) -> (Store, Study) {
        let store = Store::open(&directory.join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        (store, study)
    }

    #[tokio::test]
    async fn a_stored_outcome_is_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let (store, study) = store_with_study(directory.path()).await;
        store.append(study.id, &measured(0), Score::Feasible { value: 1.0 }).await.unwrap();
        let rejection = Outcome::Rejected(Rejection { rule: "R1".to_owned(), message: String::new() });
        store.append(study.id, &trial(0, rejection), Score::Failed).await.unwrap();
        let stored = store.trial(&study, 0).await.unwrap().unwrap();
        assert_eq!(stored.trial.outcome, measured(0).outcome);
    }

    #[tokio::test]
    async fn a_full_disk_is_named_and_keeps_what_was_stored() {
        let directory = tempfile::tempdir().unwrap();
        let (store, study) = store_with_study(directory.path()).await;
        // SQLite reports a database at its page limit exactly like a full disk.
        let pages: i64 = sqlx::query_scalar("PRAGMA page_count").fetch_one(&store.pool).await.unwrap();
        let mut connection = store.pool.acquire().await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {}", pages + 8)))
            .execute(&mut *connection)
            .await
            .unwrap();
        drop(connection);
        let mut kept = 0;
        let error = loop {
            match store.append(study.id, &measured(kept), Score::Feasible { value: 1.0 }).await {
                Ok(()) => kept += 1,
                Err(error) => break error,
            }
            assert!(kept < 10_000, "the page limit has no effect");
        };
        assert!(matches!(error, StoreError::Full(_)), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("every stored trial is kept")));
        assert_eq!(store.trials(&study).await.unwrap().len(), kept as usize);
    }

    #[tokio::test]
    async fn configurations_are_ranked_by_the_mean_of_their_measurements() {
        let directory = tempfile::tempdir().unwrap();
        let (store, study) = store_with_study(directory.path()).await;
        let a = Config::new().with("a", true);
        let b = Config::new().with("b", true);
        for (number, config, value, violation) in [
            (0, &a, 9.0, 0.0),
            (1, &b, 8.0, 0.0),
            (2, &a, 5.0, 0.0),
            (3, &Config::new(), 99.0, 0.0),
            (4, &Config::new(), 99.0, 0.5),
        ] {
            let trial = measured(number).with_config(config.clone());
            let feasible = Score::Feasible { value };
            let reached = if violation > 0.0 { Score::Infeasible { violation, value } } else { feasible };
            store.append(study.id, &trial, reached).await.unwrap();
        }
        let best = store.best(&study, Goal::Maximize, 9).await.unwrap();
        let ranking: Vec<_> = best.iter().map(|r| (r.first.trial.proposal.number, r.value, r.measurements)).collect();
        assert_eq!(ranking, [(1, 8.0, 1), (0, 7.0, 2)], "3 was over a limit once");
        assert_eq!(best[1].range, (5.0, 9.0));
        let best = store.best(&study, Goal::Minimize, 1).await.unwrap();
        assert_eq!(best[0].first.trial.proposal.number, 0);

        let again = |number, kind| {
            let failure = Failure { kind, message: String::new() };
            trial(number, Outcome::Failed(failure)).with_config(b.clone())
        };
        store.append(study.id, &again(5, FailureKind::PortInUse), Score::Failed).await.unwrap();
        let best = store.best(&study, Goal::Maximize, 9).await.unwrap();
        assert_eq!((best[0].first.trial.proposal.number, best[0].measurements), (1, 1), "the port was not its fault");
        store.append(study.id, &again(6, FailureKind::Crash), Score::Failed).await.unwrap();
        let best = store.best(&study, Goal::Maximize, 9).await.unwrap();
        assert_eq!(
            best.iter().map(|r| r.first.trial.proposal.number).collect::<Vec<_>>(),
            [0],
            "it crashed when launched again"
        );
    }

    #[test]
    fn two_configurations_differ_only_if_none_of_their_measurements_overlap() {
        let ranked = |measurements, range| {
            let first = ScoredTrial { trial: measured(0), score: Score::Feasible { value: 1.0 } };
            RankedConfiguration {
                first,
                trials: vec![0],
                value: 1.0,
                measurements,
                range,
                expected: None,
                is_confirmed: false,
            }
        };
        let (low, high, wide) = (ranked(2, (1.0, 2.0)), ranked(3, (3.0, 4.0)), ranked(2, (1.5, 3.5)));
        assert!(low.is_disjoint_from(&high) && high.is_disjoint_from(&low));
        assert!(!low.is_disjoint_from(&wide) && !wide.is_disjoint_from(&high));
        assert!(!ranked(1, (9.0, 9.0)).is_disjoint_from(&low), "one measurement has no spread");
    }
}
