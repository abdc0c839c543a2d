//! Writing trials: their proposals before a launch, and their outcomes with all records of the launch.

use sqlx::SqliteConnection;

use super::answers::write_answers;
use super::context::write_trial_context;
use super::measurement::write_measurements;
use super::replies::write_replies;
use super::starts::write_start;
use super::startup::write_startup;
use super::telemetry::write_telemetry;
use super::{StartKey, Store, StoreError, StoredStart, json};
use crate::facts::TrialContext;
use crate::objective::Score;
use crate::trial::{LaunchCommand, LaunchRecords, Outcome, Proposal, Trial};

/// A trial that is about to be launched.
#[derive(Clone, Debug)]
pub struct TrialBegin<'a> {
    pub proposal: &'a Proposal,
    pub launch: &'a LaunchCommand,
    /// In the format of `store::now`.
    pub started_at: &'a str,
    /// The path of the launch's log.
    pub log: &'a std::path::Path,
}

/// A trial that has ended.
#[derive(Clone, Copy, Debug)]
pub struct TrialRecord<'a> {
    pub trial: &'a Trial,
    pub score: Score,
    pub context: Option<&'a TrialContext>,
    /// The model as given to the engine, the key of the start, and the observed start.
    pub start: Option<(&'a str, &'a StartKey, &'a StoredStart)>,
    pub records: &'a LaunchRecords,
    /// Earlier trials whose joint value over several workloads changes by this outcome, with their new values.
    pub rescored: &'a [(u32, f64)],
}

impl<'a> TrialRecord<'a> {
    /// Creates a record of the outcome alone.
    #[must_use]
    pub fn new(trial: &'a Trial, score: Score) -> Self {
        static NO_RECORDS: LaunchRecords =
            LaunchRecords { startup: None, telemetry: None, replies: None, answers: None, set_aside: Vec::new() };
        Self { trial, score, context: None, start: None, records: &NO_RECORDS, rescored: &[] }
    }
}

impl Store {
    /// Stores a trial before its launch. An interrupted trial of the same number is replaced.
    pub async fn begin_trial(&self, study: i64, begin: &TrialBegin<'_>) -> Result<(), StoreError> {
        let query = sqlx::query(
            "INSERT INTO trials (study_id, number, proposed_by, why, expected_gain, expected_mean, expected_low, \
             expected_high, config, command, env, command_parts, server_of, prepared, fast, state, \
             started_at, log, context, accepted_changes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'running', ?, ?, \
             (SELECT context FROM studies WHERE id = ?), (SELECT accepted_changes FROM studies WHERE id = ?)) \
             ON CONFLICT (study_id, number) DO UPDATE SET proposed_by = excluded.proposed_by, why = excluded.why, \
             expected_gain = excluded.expected_gain, expected_mean = excluded.expected_mean, \
             expected_low = excluded.expected_low, expected_high = excluded.expected_high, config = excluded.config, command = excluded.command, \
             env = excluded.env, command_parts = excluded.command_parts, server_of = excluded.server_of, \
             prepared = excluded.prepared, fast = excluded.fast, started_at = excluded.started_at, log = excluded.log WHERE state = 'running'",
        );
        bind_launch(query, study, begin.proposal, begin.launch)
            .bind(begin.started_at)
            .bind(begin.log.to_string_lossy().into_owned())
            .bind(study)
            .bind(study)
            .execute(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        Ok(())
    }

    /// Stores a trial with its outcome and nothing else.
    pub async fn append(&self, study: i64, trial: &Trial, score: Score) -> Result<(), StoreError> {
        self.append_record(study, TrialRecord::new(trial, score)).await
    }

    /// Stores a trial with its outcome and records, in one transaction. An outcome is never overwritten. If the process
    /// is killed before the commit, the trial is measured again.
    pub async fn append_record(&self, study: i64, record: TrialRecord<'_>) -> Result<(), StoreError> {
        let write = async {
            let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await?;
            write_record(&mut transaction, study, record).await?;
            transaction.commit().await
        };
        write.await.map_err(|error| self.error(error))
    }
}

pub(super) async fn write_record(
    connection: &mut SqliteConnection,
    study: i64,
    record: TrialRecord<'_>,
) -> sqlx::Result<()> {
    let TrialRecord { trial, score, context, start, records, rescored } = record;
    let number = trial.proposal.number;
    if let Some(context) = context {
        write_trial_context(connection, study, number, context).await?;
    }
    if let Some((model, key, start)) = start {
        write_start(connection, study, number, model, key, start).await?;
    }
    if let Some(startup) = &records.startup {
        write_startup(connection, study, number, startup).await?;
    }
    if let Some(telemetry) = &records.telemetry {
        write_telemetry(connection, study, number, telemetry).await?;
    }
    if let Some(replies) = &records.replies {
        write_replies(connection, study, number, replies).await?;
    }
    if let Some(answers) = &records.answers {
        write_answers(connection, study, number, answers).await?;
    }
    // Only a trial without an outcome gets one, together with its measurements.
    if write_outcome(connection, study, trial, score).await? {
        write_measurements(connection, study, record).await?;
        for (number, value) in rescored {
            write_value(connection, study, *number, *value).await?;
        }
    }
    Ok(())
}

/// Replaces the value of a measured trial. Its measurements and its violation stay.
async fn write_value(connection: &mut SqliteConnection, study: i64, number: u32, value: f64) -> sqlx::Result<()> {
    let query = "UPDATE trials SET value = ? WHERE study_id = ? AND number = ? AND state = 'measured'";
    sqlx::query(query).bind(value).bind(study).bind(number).execute(connection).await?;
    Ok(())
}

type Insert<'q> = sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

/// Binds the columns from `study_id` to `fast`, the first columns of both statements.
fn bind_launch<'q>(query: Insert<'q>, study: i64, proposal: &'q Proposal, launch: &LaunchCommand) -> Insert<'q> {
    query
        .bind(study)
        .bind(proposal.number)
        .bind(proposal.origin.name())
        .bind(&proposal.why)
        .bind(proposal.expected_gain)
        .bind(proposal.expected.map(|expected| expected.mean))
        .bind(proposal.expected.map(|expected| expected.low))
        .bind(proposal.expected.map(|expected| expected.high))
        .bind(proposal.config.key())
        .bind(json(&launch.command))
        .bind(json(&launch.env))
        .bind(launch.parts.as_ref().map(json))
        .bind(proposal.server_of)
        .bind(launch.is_prepared)
        .bind(launch.is_fast)
}

/// Stores the outcome unless the trial has one. Returns whether it was stored.
async fn write_outcome(
    connection: &mut SqliteConnection,
    study: i64,
    trial: &Trial,
    score: Score,
) -> sqlx::Result<bool> {
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
    let query = sqlx::query(
        "INSERT INTO trials (study_id, number, proposed_by, why, expected_gain, expected_mean, expected_low, \
             expected_high, config, command, env, command_parts, server_of, prepared, fast, state, \
         reason_code, reason, started_at, startup_s, elapsed_s, engine_version, log, value, violation, probe, \
         context, accepted_changes) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
         (SELECT context FROM studies WHERE id = ?), (SELECT accepted_changes FROM studies WHERE id = ?)) \
         ON CONFLICT (study_id, number) DO UPDATE SET proposed_by = excluded.proposed_by, why = excluded.why, \
         expected_gain = excluded.expected_gain, expected_mean = excluded.expected_mean, \
         expected_low = excluded.expected_low, expected_high = excluded.expected_high, \
         config = excluded.config, command = excluded.command, env = excluded.env, command_parts = excluded.command_parts, \
         server_of = excluded.server_of, prepared = excluded.prepared, fast = excluded.fast, state = excluded.state, \
         reason_code = excluded.reason_code, reason = excluded.reason, started_at = excluded.started_at, \
         startup_s = excluded.startup_s, elapsed_s = excluded.elapsed_s, \
         engine_version = excluded.engine_version, log = excluded.log, \
         value = excluded.value, violation = excluded.violation, probe = excluded.probe \
         WHERE state = 'running'",
    );
    let written = bind_launch(query, study, &trial.proposal, &trial.launch)
        .bind(trial.outcome.name())
        .bind(reason_code)
        .bind(reason)
        .bind(&trial.started_at)
        .bind(trial.startup_s)
        .bind(trial.elapsed_s)
        .bind(&trial.engine_version)
        .bind(trial.log.as_ref().map(|path| path.to_string_lossy().into_owned()))
        .bind(score.value())
        .bind(violation)
        .bind(trial.probe)
        .bind(study)
        .bind(study)
        .execute(connection)
        .await?;
    Ok(written.rows_affected() > 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::facts::Host;
    use crate::trial::{CommandLine, ExpectedValue, Failure, FailureKind};

    #[tokio::test]
    async fn an_expectation_is_read_back_before_and_after_the_outcome() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let expected = Some(ExpectedValue { mean: 1.0 / 3.0, low: 0.25, high: 0.5 });
        let proposal = Proposal { expected, ..Proposal::example(0, "auto") };
        let (launch, log) = (LaunchCommand::default(), directory.path());
        let begin = TrialBegin { proposal: &proposal, launch: &launch, started_at: "2030-01-02T03:04:05.000Z", log };
        store.begin_trial(study.id, &begin).await.unwrap();
        assert_eq!(store.unfinished_trials(&study).await.unwrap()[0].proposal, proposal);
        let failure = Failure { kind: FailureKind::Crash, message: String::new() };
        store.append(study.id, &Trial::of(proposal.clone(), Outcome::Failed(failure)), Score::Failed).await.unwrap();
        assert_eq!(store.trial(&study, 0).await.unwrap().unwrap().trial.proposal, proposal);
        assert_eq!(store.proposals(&study).await.unwrap()[0].proposal, proposal);
    }

    #[tokio::test]
    async fn the_parts_of_a_command_are_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let line = CommandLine::from_parts(
            words("vllm serve"),
            "org/model",
            words("--max-num-seqs 64"),
            words("--enforce-eager"),
            words("--host 127.0.0.1 --port 8123"),
        );
        let failure = Failure { kind: FailureKind::StartupExit, message: String::new() };
        for (number, line) in [(0, line.clone()), (1, CommandLine::from_words(line.words.clone()))] {
            let trial = Trial::example(number, "auto", Outcome::Failed(failure.clone()));
            let trial = Trial { launch: LaunchCommand::redacted(&line, BTreeMap::new()), ..trial };
            store.append(study.id, &trial, Score::Failed).await.unwrap();
            let stored = store.trial(&study, number).await.unwrap().unwrap();
            assert_eq!(stored.trial.launch, trial.launch);
        }
    }
}
