//! Launches that failed for a reason of their environment: each is kept as an incident, and its trial is launched again after a
//! wait. If that does not help, a probe decides (`scheduler::probe`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{EndedTrial, LaunchEnd, asked};
use crate::store::{Incident, Study, now};
use crate::trial::{Blame, Failure, FailureKind, Origin, Outcome, Trial};
use crate::tuner::scheduler::FailureClass;
use crate::tuner::watchdog::LEAST_DISK;
use crate::tuner::{Ending, Event, Stop, TuneError, Tuner};

/// Each wait is so many times as long as the one before.
const LONGER: u32 = 5;

/// Failures of the environment since a trial was begun or its launch has had another outcome.
#[derive(Debug, Default)]
pub(in crate::tuner) struct Patience {
    /// Launches that may fail in a row.
    most: u32,
    /// Failures that a probe has shown to be configurations' own: no further launch mends them.
    own: Arc<[FailureClass]>,
    failures: u32,
    since: Option<String>,
}

/// A launch whose environment failed until the patience ended. Its incidents are stored, and its trial has no outcome.
pub(in crate::tuner) struct Unresolved {
    /// With the last failure as its outcome.
    pub(in crate::tuner) ended: EndedTrial,
    pub(in crate::tuner) last: Incident,
    /// Launches that failed in a row.
    pub(in crate::tuner) failures: u32,
    /// Time of the first of them, as the database writes it.
    pub(in crate::tuner) since: String,
}

/// A study that waits for a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Pause {
    /// Launches that failed in a row.
    pub failures: u32,
    /// Time of the first of them, as the database writes it.
    pub since: String,
    /// The last of them.
    pub last: Incident,
    /// The evidence against the environment.
    pub evidence: PauseEvidence,
    /// The next step of a person.
    pub hint: String,
}

/// The reason why a pause blames the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseEvidence {
    /// This probe failed, with a configuration that was measured before or with the engine's defaults.
    Probe(u32),
    /// No configuration has ever been measured, and the engine's defaults failed alike.
    NothingWorks,
}

impl Patience {
    pub(in crate::tuner) fn new(most: u32, own: Arc<[FailureClass]>) -> Self {
        Self { most, own, ..Self::default() }
    }

    /// Counts a failure. Returns the wait before the next launch; `None` ends the patience.
    fn lose(&mut self, at: &str, failure: &Failure, first_wait: Duration) -> Option<Duration> {
        self.since.get_or_insert_with(|| at.to_owned());
        self.failures += 1;
        let is_worth_another = self.failures < self.most && !self.own.contains(&FailureClass::of(failure));
        is_worth_another.then(|| first_wait.saturating_mul(LONGER.saturating_pow(self.failures - 1)))
    }
}

/// The failure that says nothing about the configuration.
pub(in crate::tuner) fn incident(outcome: &Outcome) -> Option<&Failure> {
    outcome.failure().filter(|failure| failure.kind.blame() == Blame::Environment)
}

impl Tuner<'_> {
    /// Decides about a launch that has ended; `None` is to launch again.
    pub(in crate::tuner) async fn settle(
        &self,
        study: &Study,
        patience: &mut Patience,
        ended: EndedTrial,
        again_at_once: bool,
    ) -> Result<Option<LaunchEnd>, TuneError> {
        let Some(failure) = incident(&ended.trial.outcome) else {
            return Ok(Some(LaunchEnd::Outcome(ended)));
        };
        // The rule predicts a failure, whichever kind the log makes of it: this one says nothing about the environment.
        if ended.trial.proposal.origin == Origin::RuleTest && !again_at_once {
            return Ok(Some(LaunchEnd::Outcome(ended)));
        }
        let number = ended.trial.proposal.number;
        let last = self.keep_incident(study, number, failure, ended.trial.log.as_deref()).await?;
        if let Some(left_behind) = ended.left_behind {
            return Err(left_behind.into());
        }
        let first_wait = self.job.engine.retry_after;
        let wait = if again_at_once { Some(Duration::ZERO) } else { patience.lose(&last.at, failure, first_wait) };
        let Some(wait) = wait else {
            let since = patience.since.take().unwrap_or_else(|| last.at.clone());
            let trial = Trial { log: last.log.clone(), ..ended.trial };
            let ended = EndedTrial { trial, ..ended };
            let unresolved = Unresolved { ended, last, failures: patience.failures, since };
            return Ok(Some(LaunchEnd::Unresolved(Box::new(unresolved))));
        };
        (self.observer)(Event::Retry { incident: Box::new(last), wait });
        let mut stop = self.stop.clone();
        Ok(tokio::select! {
            biased;
            () = asked(&mut stop, Stop::Gently) => Some(LaunchEnd::Ended(Ending::Interrupted)),
            () = tokio::time::sleep(wait) => None,
        })
    }

    /// Stores a failure as an incident of its trial.
    pub(in crate::tuner) async fn keep_incident(
        &self,
        study: &Study,
        number: u32,
        failure: &Failure,
        log: Option<&Path>,
    ) -> Result<Incident, TuneError> {
        let incident = self.incident(study, number, failure, log).await?;
        self.store.append_incident(study.id, &incident).await?;
        Ok(incident)
    }

    /// Returns the next incident of a trial, and puts its log aside: the next launch begins a new one.
    pub(in crate::tuner) async fn incident(
        &self,
        study: &Study,
        number: u32,
        failure: &Failure,
        log: Option<&Path>,
    ) -> Result<Incident, TuneError> {
        let earlier = self.store.incidents(study, Some(number)).await?;
        let attempt = earlier.last().map_or(1, |last| last.attempt + 1);
        let log = log.map(|log| put_aside(log, attempt)).transpose()?.flatten();
        Ok(Incident { number, attempt, at: now(), failure: failure.clone(), log, paused: false })
    }

    /// Returns the next step of a person after a failure of the environment.
    pub(in crate::tuner) fn remedy(&self, failure: &Failure) -> String {
        let what = match failure.kind {
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
                "find out who ends it: `journalctl -k`, a limit of the scheduler or container, another user".to_owned()
            }
            FailureKind::WrongServer => "see with `ss -ltnp` and in the log what answers on the port and under which name: \
                                         a wrapper or a configuration of the engine may set --served-model-name or --port"
                .to_owned(),
            FailureKind::RequestErrors if failure.message.contains("another API key") => {
                "see in the log which API key the engine was started with: a wrapper or a configuration of the engine may \
                 set it"
                    .to_owned()
            }
            _ => "see the log for what has changed on this machine".to_owned(),
        };
        format!("{what}; then run the same command again, which goes on where this run has stopped")
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
        let Self { failures, since, last, evidence, .. } = self;
        let Failure { kind, message } = &last.failure;
        let launches = if *failures == 1 { "launch" } else { "launches in a row" };
        write!(f, "the study is paused: {failures} {launches} failed since {since} for reasons that are not ")?;
        write!(f, "their configurations', most recently trial {} with {kind}: {message}", last.number)?;
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

    #[test]
    fn patience_ends_with_the_third_failure_in_a_row() {
        let second = Duration::from_secs(1);
        let full = Failure { kind: FailureKind::Disk, message: "full".to_owned() };
        let mut patience = Patience::new(3, Arc::default());
        assert_eq!(["b", "c"].map(|at| patience.lose(at, &full, second)), [Some(second), Some(5 * second)]);
        assert_eq!((patience.lose("d", &full, second), patience.since.as_deref()), (None, Some("b")));
        assert_eq!(Patience::new(3, Arc::default()).lose("a", &full, Duration::MAX), Some(Duration::MAX));
    }

    #[test]
    fn there_is_no_second_launch_for_what_a_probe_has_blamed_on_configurations_or_for_a_trial_that_had_its_pause() {
        let full = Failure { kind: FailureKind::Disk, message: "full".to_owned() };
        let own: Arc<[FailureClass]> = [FailureClass::of(&full)].into();
        assert_eq!(Patience::new(3, own).lose("a", &full, Duration::from_secs(1)), None);
        assert_eq!(Patience::new(1, Arc::default()).lose("a", &full, Duration::from_secs(1)), None);
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
            let outcome = crate::tuner::launcher::failed(kind, String::new());
            assert_eq!(incident(&outcome).is_some(), kind.blame() == Blame::Environment, "{kind}");
        }
    }
}
