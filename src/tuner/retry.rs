//! Launches that failed for a reason of their environment: kept, launched again after a wait, and a pause of the study where
//! that does not help. What is broken at night is broken for every configuration.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::trial::{Launched, asked};
use super::vitals::LEAST_DISK;
use super::{Ending, Event, Stop, TuneError, Tuner, is_rule_test};
use crate::store::{Incident, Study, now};
use crate::trial::{Blame, Failure, FailureKind, Outcome, Trial};

/// Launches of a trial in a row that may fail for a reason of the environment before the study pauses.
const MOST_FAILURES: u32 = 3;

/// Each wait is so many times as long as the one before.
const LONGER: u32 = 5;

/// Failures of the environment since a trial was begun or its launch has had another outcome.
#[derive(Debug, Default)]
pub(super) struct Patience {
    failures: u32,
    since: Option<String>,
}

/// A study that waits for a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Pause {
    /// Launches that failed in a row.
    pub failures: u32,
    /// When the first of them failed, as the database writes it.
    pub since: String,
    /// The last of them.
    pub last: Incident,
    /// What to do.
    pub hint: String,
}

impl Patience {
    /// Counts a failure; `Some` is how long to wait before the next launch, `None` ends the patience.
    fn lose(&mut self, at: &str, first_wait: Duration) -> Option<Duration> {
        self.since.get_or_insert_with(|| at.to_owned());
        self.failures += 1;
        (self.failures < MOST_FAILURES).then(|| first_wait.saturating_mul(LONGER.saturating_pow(self.failures - 1)))
    }

    /// Something else came of a launch.
    fn restore(&mut self) {
        *self = Self::default();
    }
}

/// The failure that says nothing about the configuration.
pub(super) fn incident(outcome: &Outcome) -> Option<&Failure> {
    outcome.failure().filter(|failure| failure.kind.blame() == Blame::Environment)
}

impl Tuner<'_> {
    /// Decides about a launch that has ended: `Ok(None)` is to launch again.
    pub(super) async fn settle(
        &self,
        study: &Study,
        patience: &mut Patience,
        launched: Launched,
        again_at_once: bool,
    ) -> Result<Option<ControlFlow<Ending, Launched>>, TuneError> {
        let Some(failure) = incident(&launched.trial.outcome) else {
            patience.restore();
            return Ok(Some(ControlFlow::Continue(launched)));
        };
        // The rule predicts a failure, whichever kind the log makes of it: this one says nothing about the environment.
        if is_rule_test(&launched.trial.proposed_by) && !again_at_once {
            return Ok(Some(ControlFlow::Continue(launched)));
        }
        let number = launched.trial.number;
        let incident = self.keep_incident(study, number, failure, launched.trial.log.as_deref()).await?;
        if let Some(left_behind) = launched.left_behind {
            return Err(left_behind.into());
        }
        let wait =
            if again_at_once { Some(Duration::ZERO) } else { patience.lose(&incident.at, self.job.engine.retry_after) };
        let Some(wait) = wait else {
            // An engine that crashes without a word looks killed. What has paused the study before is then its own fault.
            if incident.failure.kind == FailureKind::Killed && incident.attempt >= 2 * MOST_FAILURES {
                let trial = Trial { log: incident.log, ..launched.trial };
                return Ok(Some(ControlFlow::Continue(Launched { trial, ..launched })));
            }
            let since = patience.since.clone().unwrap_or_else(now);
            let hint = self.remedy(incident.failure.kind);
            let pause = Box::new(Pause { failures: patience.failures, since, last: incident, hint });
            return Ok(Some(ControlFlow::Break(Ending::Paused(pause))));
        };
        (self.observer)(Event::Retry { incident: Box::new(incident), wait });
        let mut stop = self.stop.clone();
        Ok(tokio::select! {
            biased;
            () = asked(&mut stop, Stop::Gently) => Some(ControlFlow::Break(Ending::Interrupted)),
            () = tokio::time::sleep(wait) => None,
        })
    }

    /// Stores what happened, and puts the log aside: the next launch begins a new one.
    pub(super) async fn keep_incident(
        &self,
        study: &Study,
        number: u32,
        failure: &Failure,
        log: Option<&Path>,
    ) -> Result<Incident, TuneError> {
        let earlier = self.store.incidents(study, Some(number)).await?;
        let attempt = earlier.last().map_or(1, |last| last.attempt + 1);
        let log = log.map(|log| put_aside(log, attempt)).transpose()?.flatten();
        let incident = Incident { number, attempt, at: now(), failure: failure.clone(), log };
        self.store.append_incident(study.id, &incident).await?;
        Ok(incident)
    }

    /// What a person can do about a failure of the environment.
    fn remedy(&self, kind: FailureKind) -> String {
        let what = match kind {
            FailureKind::DeviceBusy => "see with `nvidia-smi` which processes hold the device, and end them".to_owned(),
            FailureKind::DeviceLost => {
                "see with `nvidia-smi` and `dmesg` (Xid lines) whether the device, its driver and its fabric \
                                        manager still work; reset the device or restart the machine"
                    .to_owned()
            }
            FailureKind::PortInUse => {
                "see with `ss -ltnp` which processes listen, and end what is left over".to_owned()
            }
            FailureKind::ModelUnavailable => format!(
                "make the model {:?} readable here: its path or name, the cache (HF_HOME), the token (HF_TOKEN)",
                self.job.model.argument
            ),
            FailureKind::Network => "check the network, name resolution and NCCL_SOCKET_IFNAME".to_owned(),
            FailureKind::Disk => match scarce(&self.places()) {
                Some(scarce) => format!("free some space: {scarce}"),
                None => "free some space, inodes or open files (`df -h`, `df -i`, `ulimit -n`)".to_owned(),
            },
            FailureKind::Killed => {
                "find out who ends it: `journalctl -k`, a limit of the scheduler or container, another \
                                    user; where it is killed again and again the trial fails, and the study goes on"
                    .to_owned()
            }
            _ => "see the log".to_owned(),
        };
        format!("{what}; then run the same command again, which goes on with this trial")
    }

    /// Where an engine and the tuner write.
    fn places(&self) -> Vec<PathBuf> {
        vec![self.log_directory(), std::env::temp_dir(), PathBuf::from("/dev/shm")]
    }
}

/// `trial-0007.log` as `trial-0007.1.log`; `None` where there is no log.
fn put_aside(log: &Path, attempt: u32) -> Result<Option<PathBuf>, TuneError> {
    let kept = log.with_extension(format!("{attempt}.log"));
    match std::fs::rename(log, &kept) {
        Ok(()) => Ok(Some(kept)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TuneError::Log { path: kept, source }),
    }
}

/// The places of which less than a twentieth is free, of space or of files, or less space than a launch may leave.
fn scarce(places: &[PathBuf]) -> Option<String> {
    let full = places.iter().filter_map(|place| {
        let space = nix::sys::statvfs::statvfs(place).ok()?;
        let is_low = |free: u64, all: u64, least: u64| all > 0 && free < least.max(all / 20);
        let least = LEAST_DISK / space.fragment_size().max(1);
        let low = is_low(space.blocks_available(), space.blocks(), least)
            || is_low(space.files_available(), space.files(), 0);
        let free = (space.blocks_available() * space.fragment_size()) >> 20;
        low.then(|| format!("{} has {free} MiB and {} files left", place.display(), space.files_available()))
    });
    let full: Vec<_> = full.collect();
    (!full.is_empty()).then(|| full.join(", "))
}

impl std::fmt::Display for Pause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { failures, since, last, .. } = self;
        let Failure { kind, message } = &last.failure;
        write!(f, "the study is paused: {failures} launches in a row failed since {since} for reasons that are not ")?;
        write!(f, "their configurations', most recently trial {} with {kind}: {message}", last.number)?;
        last.log.as_ref().map_or(Ok(()), |log| write!(f, " (log {})", log.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_with_the_third_failure_in_a_row_and_comes_back_with_any_outcome() {
        let second = Duration::from_secs(1);
        let mut patience = Patience::default();
        assert_eq!(patience.lose("a", second), Some(second));
        patience.restore();
        assert_eq!(["b", "c"].map(|at| patience.lose(at, second)), [Some(second), Some(5 * second)]);
        assert_eq!((patience.lose("d", second), patience.since.as_deref()), (None, Some("b")));
        assert_eq!(Patience::default().lose("a", Duration::MAX), Some(Duration::MAX));
    }

    #[test]
    fn logs_are_put_aside_under_names_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("trial-0007.log");
        assert_eq!(put_aside(&log, 1).unwrap(), None);
        for attempt in [1, 2] {
            std::fs::write(&log, attempt.to_string()).unwrap();
            let kept = put_aside(&log, attempt).unwrap().unwrap();
            assert_eq!(kept, directory.path().join(format!("trial-0007.{attempt}.log")));
            assert_eq!(std::fs::read_to_string(kept).unwrap(), attempt.to_string());
        }
        assert!(!log.exists());
    }

    #[test]
    fn a_place_without_blocks_or_without_existence_is_not_called_full() {
        assert_eq!(scarce(&[PathBuf::from("/proc"), PathBuf::from("/no/such/place")]), None);
    }

    #[test]
    fn only_failures_of_the_environment_are_incidents() {
        for kind in FailureKind::ALL {
            let outcome = crate::tuner::trial::failed(kind, String::new());
            assert_eq!(incident(&outcome).is_some(), kind.blame() == Blame::Environment, "{kind}");
        }
    }
}
