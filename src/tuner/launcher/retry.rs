//! Repetitions of launches that failed because of their environment. Each failure is stored as an incident, and its
//! trial is launched again after a wait. If that does not help, a probe decides (`scheduler::probe`).

use std::sync::Arc;
use std::time::Duration;

use super::{EndedTrial, LaunchEnd};
use crate::store::Incident;
use crate::trial::{Blame, Failure, Origin, Outcome, Trial};
use crate::tuner::journal::Journal;
use crate::tuner::run::StudyRun;
use crate::tuner::scheduler::{FailureClass, PendingTrial};
use crate::tuner::{StopRequest, StudyEnding, TuneError, TunerEvent};

/// The factor between two consecutive waits.
const WAIT_FACTOR: u32 = 5;

/// Decides after each launch of a trial whether it is launched again.
pub(super) struct RetryPolicy<'l> {
    run: &'l StudyRun<'l>,
    journal: &'l Journal<'l>,
    failures: FailuresInRow,
}

/// Failures of the environment since the trial was begun.
#[derive(Debug, Default)]
struct FailuresInRow {
    /// The number of failed launches in a row that ends the retries.
    limit: u32,
    /// Failures that a probe has attributed to configurations: a further launch would fail as well.
    own_failures: Arc<[FailureClass]>,
    count: u32,
    since: Option<String>,
}

/// A launch whose environment failed until the retries were exhausted. Its incidents are stored, and its trial has no
/// outcome.
pub(in crate::tuner) struct UnresolvedFailure {
    /// The trial, with the last failure as its outcome.
    pub(in crate::tuner) ended: EndedTrial,
    pub(in crate::tuner) last: Incident,
    /// Launches that failed in a row.
    pub(in crate::tuner) failures: u32,
    /// Time of the first of them, as the database writes it.
    pub(in crate::tuner) since: String,
}

/// A study that waits for a person.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPause {
    /// Launches that failed in a row.
    pub failures: u32,
    /// Time of the first of them, as the database writes it.
    pub since: String,
    /// The last of them.
    pub last: Incident,
    /// The evidence against the environment.
    pub evidence: PauseEvidence,
    /// The next step for the user.
    pub hint: String,
}

/// The reason why a pause blames the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseEvidence {
    /// This probe failed. It had a configuration that was measured before, or the engine's defaults.
    Probe(u32),
    /// No configuration has ever been measured, and the engine's defaults failed in the same way.
    NothingWorks,
}

impl<'l> RetryPolicy<'l> {
    pub(super) fn new(run: &'l StudyRun<'l>, journal: &'l Journal<'l>, pending: &PendingTrial) -> Self {
        let (most, own) = (pending.max_failures, Arc::clone(&pending.own_failures));
        Self { run, journal, failures: FailuresInRow { limit: most, own_failures: own, ..FailuresInRow::default() } }
    }
}

impl FailuresInRow {
    /// Counts a failure. Returns the wait before the next launch; `None` if the retries are exhausted.
    fn add(&mut self, at: &str, failure: &Failure, first_wait: Duration) -> Option<Duration> {
        self.since.get_or_insert_with(|| at.to_owned());
        self.count += 1;
        let is_worth_another = self.count < self.limit && !self.own_failures.contains(&FailureClass::of(failure));
        is_worth_another.then(|| first_wait.saturating_mul(WAIT_FACTOR.saturating_pow(self.count - 1)))
    }
}

/// Returns the failure, if the environment caused it: it is no evidence about the configuration.
pub(in crate::tuner) fn environment_failure(outcome: &Outcome) -> Option<&Failure> {
    outcome.failure().filter(|failure| failure.kind.blame() == Blame::Environment)
}

impl RetryPolicy<'_> {
    /// Decides about an ended launch. Returns `None`, after the wait between the two launches, if the trial is to be
    /// launched again. `again_at_once` skips the wait, and the failure does not count.
    ///
    /// # Errors
    /// If the incident cannot be stored, or if the launch left processes behind.
    pub(super) async fn decide(
        &mut self,
        ended: EndedTrial,
        again_at_once: bool,
    ) -> Result<Option<LaunchEnd>, TuneError> {
        let Some(failure) = environment_failure(&ended.trial.outcome) else {
            return Ok(Some(LaunchEnd::Outcome(ended)));
        };
        // The tested rule predicts a failure. The failure is therefore no evidence about the environment, even if the
        // log suggests such a kind.
        if ended.trial.proposal.origin == Origin::RuleTest && !again_at_once {
            return Ok(Some(LaunchEnd::Outcome(ended)));
        }
        let number = ended.trial.proposal.number;
        let last = self.journal.append_incident(number, failure, ended.trial.log.as_deref()).await?;
        if let Some(left_behind) = ended.left_behind {
            return Err(left_behind.into());
        }
        let first_wait = self.run.job.engine.retry_after;
        let wait = if again_at_once { Some(Duration::ZERO) } else { self.failures.add(&last.at, failure, first_wait) };
        let Some(wait) = wait else {
            let since = self.failures.since.take().unwrap_or_else(|| last.at.clone());
            let trial = Trial { log: last.log.clone(), ..ended.trial };
            let ended = EndedTrial { trial, ..ended };
            let unresolved = UnresolvedFailure { ended, last, failures: self.failures.count, since };
            return Ok(Some(LaunchEnd::Unresolved(Box::new(unresolved))));
        };
        self.run.emit(TunerEvent::Retry { incident: Box::new(last), wait });
        Ok(tokio::select! {
            biased;
            () = self.run.wait_for_stop(StopRequest::Graceful) => Some(LaunchEnd::RunEnded(StudyEnding::Interrupted)),
            () = tokio::time::sleep(wait) => None,
        })
    }
}

impl std::fmt::Display for RetryPause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { failures, since, last, evidence, .. } = self;
        let Failure { kind, message } = &last.failure;
        let launches = if *failures == 1 { "launch" } else { "launches in a row" };
        write!(f, "the study is paused: {failures} {launches} failed since {since} because of ")?;
        write!(f, "the environment, most recently trial {} with {kind}: {message}", last.number)?;
        match evidence {
            PauseEvidence::Probe(probe) if *probe == last.number => {
                f.write_str("; this was the probe, whose configuration is known to work")?;
            }
            PauseEvidence::Probe(probe) => write!(f, "; the probe, trial {probe}, failed as well")?,
            PauseEvidence::NothingWorks => f.write_str("; no configuration has worked yet, the defaults included")?,
        }
        last.log.as_ref().map_or(Ok(()), |log| write!(f, " (log {})", log.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::FailureKind;

    fn failures(most: u32, own: Arc<[FailureClass]>) -> FailuresInRow {
        FailuresInRow { limit: most, own_failures: own, ..FailuresInRow::default() }
    }

    #[test]
    fn there_is_no_retry_after_the_third_failure_in_a_row() {
        let second = Duration::from_secs(1);
        let full = Failure { kind: FailureKind::Disk, message: "full".to_owned() };
        let mut patience = failures(3, Arc::default());
        assert_eq!(["b", "c"].map(|at| patience.add(at, &full, second)), [Some(second), Some(5 * second)]);
        assert_eq!((patience.add("d", &full, second), patience.since.as_deref()), (None, Some("b")));
        assert_eq!(failures(3, Arc::default()).add("a", &full, Duration::MAX), Some(Duration::MAX));
    }

    #[test]
    fn failures_attributed_to_configurations_and_trials_after_a_pause_are_not_retried() {
        let full = Failure { kind: FailureKind::Disk, message: "full".to_owned() };
        let own: Arc<[FailureClass]> = [FailureClass::of(&full)].into();
        assert_eq!(failures(3, own).add("a", &full, Duration::from_secs(1)), None);
        assert_eq!(failures(1, Arc::default()).add("a", &full, Duration::from_secs(1)), None);
    }

    #[test]
    fn only_failures_of_the_environment_are_incidents() {
        for kind in FailureKind::ALL {
            let outcome = crate::tuner::launcher::failed(kind, String::new());
            assert_eq!(environment_failure(&outcome).is_some(), kind.blame() == Blame::Environment, "{kind}");
        }
    }
}
