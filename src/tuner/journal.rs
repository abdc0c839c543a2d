//! The writer of a run: it stores trials, launches and incidents in the database.

use std::path::{Path, PathBuf};

use super::context::RunContext;
use super::memory::{observed_start, start_key};
use super::run::StudyRun;
use super::{TuneError, command_line};
use crate::config::Config;
use crate::objective::Score;
use crate::store::{Incident, StoreError, TrialBegin, TrialRecord};
use crate::trial::{CommandLine, Failure, LaunchCommand, LaunchRecords, Outcome, Proposal, Rejection, Trial};

/// Stores the results of a run in the database.
pub(super) struct Journal<'r> {
    run: &'r StudyRun<'r>,
    context: &'r RunContext<'r>,
}

impl<'r> Journal<'r> {
    pub(super) fn new(run: &'r StudyRun<'r>, context: &'r RunContext<'r>) -> Self {
        Self { run, context }
    }

    /// Stores a trial that is about to be launched. This reserves its number, so that the numbers have no gap even if
    /// later trials end first.
    pub(super) async fn reserve(&self, proposal: &Proposal) -> Result<(), TuneError> {
        let command = command_line(self.run.job, &self.run.installed, &proposal.config, None)?;
        let launch = self.launch(&command, &proposal.config);
        Ok(self.begin(proposal, &launch, &self.run.time.timestamp()).await?)
    }

    /// Stores the beginning of a trial's launch.
    pub(super) async fn begin(
        &self,
        proposal: &Proposal,
        launch: &LaunchCommand,
        started_at: &str,
    ) -> Result<(), StoreError> {
        let log = &self.run.log_path(proposal.number);
        let begin = TrialBegin { proposal, launch, started_at, log };
        self.run.store.begin_trial(self.run.study.id, &begin).await
    }

    /// Returns a command with its variables, in the redacted form that the database stores.
    fn launch(&self, command: &CommandLine, config: &Config) -> LaunchCommand {
        LaunchCommand::redacted(command, self.run.job.launch_env(self.run.installed.device, config))
    }

    /// Builds the trial of a proposal that is not launched.
    pub(super) fn rejected(&self, proposal: Proposal, rejection: Rejection) -> Trial {
        // A flag that the release lacks cannot be rendered. Then only the study's command is stored.
        let command = command_line(self.run.job, &self.run.installed, &proposal.config, None)
            .unwrap_or_else(|_| CommandLine::from_words(self.run.job.engine.command.clone()));
        Trial {
            launch: self.launch(&command, &proposal.config),
            proposal,
            started_at: self.run.time.timestamp(),
            startup_s: None,
            elapsed_s: 0.0,
            engine_version: None,
            log: None,
            outcome: Outcome::Rejected(rejection),
            probe: None,
        }
    }

    /// Stores a trial with its launch records and the memory figures of its start. `rescored` has the earlier trials whose
    /// value changes by it.
    pub(super) async fn append(
        &self,
        trial: &Trial,
        score: Score,
        records: &LaunchRecords,
        rescored: &[(u32, f64)],
    ) -> Result<(), TuneError> {
        let run = self.run;
        let context = self.context.of_trial(trial);
        let config = run.with_engine_args(&trial.proposal.config);
        let start = trial.log.as_deref().and_then(|log| observed_start(run.job, &config, log));
        let key = start_key(run.job, &run.installed);
        let model = &*run.job.model.argument;
        let record = TrialRecord {
            trial,
            score,
            context: Some(&context),
            start: start.as_ref().map(|start| (model, &key, start)),
            records,
            rescored,
        };
        run.store.append_record(run.study.id, record).await.map_err(|source| unstored(source, trial))
    }

    /// Stores a failure as an incident of its trial.
    pub(super) async fn append_incident(
        &self,
        number: u32,
        failure: &Failure,
        log: Option<&Path>,
    ) -> Result<Incident, TuneError> {
        let incident = self.prepare_incident(number, failure, log).await?;
        self.run.store.append_incident(self.run.study.id, &incident).await?;
        Ok(incident)
    }

    /// Returns the next incident of a trial, and moves its log aside: the next launch begins a new one.
    pub(super) async fn prepare_incident(
        &self,
        number: u32,
        failure: &Failure,
        log: Option<&Path>,
    ) -> Result<Incident, TuneError> {
        let earlier = self.run.store.incidents(&self.run.study, Some(number)).await?;
        let attempt = earlier.last().map_or(1, |last| last.attempt + 1);
        let log = log.map(|log| move_log_aside(log, attempt)).transpose()?.flatten();
        let at = self.run.time.timestamp();
        Ok(Incident { number, attempt, at, failure: failure.clone(), log, paused: false })
    }
}

/// Wraps the error of a failed write. Its text is the last resort for a measurement that the database did not take.
fn unstored(source: StoreError, trial: &Trial) -> TuneError {
    match trial.outcome.measurement() {
        None => source.into(),
        Some(measurement) => {
            let measured = serde_json::json!({"config": trial.proposal.config, "metrics": measurement}).to_string();
            TuneError::Unstored { source, number: trial.proposal.number, measured }
        }
    }
}

/// Renames `trial-0007.log` to `trial-0007.1.log`. Returns `None` if there is no log.
fn move_log_aside(log: &Path, attempt: u32) -> Result<Option<PathBuf>, TuneError> {
    let kept = log.with_extension(format!("{attempt}.log"));
    match std::fs::rename(log, &kept) {
        Ok(()) => Ok(Some(kept)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TuneError::Log { path: kept, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_put_aside_under_names_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("trial-0007.log");
        assert_eq!(move_log_aside(&log, 1).unwrap(), None);
        for attempt in [1, 2] {
            std::fs::write(&log, attempt.to_string()).unwrap();
            let kept = move_log_aside(&log, attempt).unwrap().unwrap();
            assert_eq!(kept, directory.path().join(format!("trial-0007.{attempt}.log")));
            assert_eq!(std::fs::read_to_string(kept).unwrap(), attempt.to_string());
        }
        assert!(!log.exists());
    }
}
