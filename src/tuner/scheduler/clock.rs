//! The time of a run: the time left, the expected duration of launches, and the reserve for the confirmation.

use std::time::Duration;

use jiff::Timestamp;

use crate::engine::StartPhase;
use crate::stats::percentile;
use crate::trial::{Origin, Outcome, Startup, Trial};
use crate::tuner::time::RunTime;

/// The factor between the confirmation's reserve and its expected duration: durations of launches vary.
const MARGIN: f64 = 1.1;

/// The percentile of the study's launches that serves as the expected duration.
const EXPECTED_PERCENTILE: f64 = 75.0;

/// The clock of a run.
#[derive(Debug)]
pub(super) struct RunClock {
    time: RunTime,
    /// The budget's time, from the beginning of the run to its end.
    limit: Option<Duration>,
    /// The expected duration of a launch before any is measured; `None` if it is not known.
    expected: Option<Duration>,
    /// The measured launches of the study.
    launches: Vec<ClockedLaunch>,
    /// Seconds from the end of a launch of this run to the next one. They include the suggestion, the storage of the
    /// trial, and a wait for memory that is still in use.
    gaps_s: Vec<f64>,
    last_end: Option<Timestamp>,
}

/// A measured launch.
#[derive(Debug)]
struct ClockedLaunch {
    config_key: String,
    /// The duration, including the stop and the release of the memory.
    duration: Duration,
    /// The time of the imports, which is a part of the duration. Only the first fast start takes it.
    imports: Duration,
    is_fast: bool,
    is_of_search: bool,
}

impl RunClock {
    pub(super) fn new(time: RunTime, limit: Option<Duration>, expected: Option<Duration>) -> Self {
        Self { time, limit, expected, launches: Vec::new(), gaps_s: Vec::new(), last_end: None }
    }

    /// Learns from a launch. Failures are left out: a start-up timeout is no evidence about a working launch.
    pub(super) fn learn(&mut self, trial: &Trial, startup: Option<&Startup>) {
        let is_launch = !matches!(trial.proposal.origin, Origin::Interference | Origin::LiveLook);
        if matches!(trial.outcome, Outcome::Measured(_)) && is_launch {
            self.launches.push(ClockedLaunch {
                config_key: trial.proposal.config.key(),
                duration: Duration::from_secs_f64(trial.elapsed_s.max(0.0)),
                imports: startup.map(imports).unwrap_or_default(),
                is_fast: trial.launch.is_fast,
                is_of_search: trial.proposal.origin.is_of_search(),
            });
        }
    }

    /// Learns from a launch of this run, and from the time since the one before. Between concurrent launches that time
    /// is zero.
    pub(super) fn learn_now(&mut self, trial: &Trial, startup: Option<&Startup>) {
        self.learn(trial, startup);
        let Ok(began) = trial.started_at.parse::<Timestamp>() else { return };
        if let Some(last) = self.last_end.filter(|_| trial.proposal.server_of.is_none()) {
            self.gaps_s.push(began.duration_since(last).as_secs_f64().max(0.0));
        }
        self.last_end = began.checked_add(Duration::from_secs_f64(trial.elapsed_s.max(0.0))).ok();
    }

    /// Returns the expected time from the end of a launch to the next one.
    pub(super) fn expected_gap(&self) -> Duration {
        let mut seconds = self.gaps_s.clone();
        seconds.sort_by(f64::total_cmp);
        percentile(&seconds, EXPECTED_PERCENTILE).map(Duration::from_secs_f64).unwrap_or_default()
    }

    /// Returns the budget's time; `None` without a limit.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Returns the time left; `None` without a limit.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.time.elapsed()))
    }

    /// Returns whether this much time is left. For an unknown duration, zero, any time left is enough.
    pub(super) fn has_time(&self, needed: Duration) -> bool {
        self.time_left().is_none_or(|left| !left.is_zero() && left >= needed)
    }

    /// Returns the expected duration of the next launch of the search, from its spawn until its memory is released. Zero
    /// if nothing is known.
    pub(super) fn search_launch(&self) -> Duration {
        if self.starts_fast() {
            // The waiting processes have imported the engine.
            let fast = self.launches.iter().filter(|launch| launch.is_fast);
            return usual(fast.map(|launch| launch.duration.saturating_sub(launch.imports))).unwrap_or_default();
        }
        usual(self.launches.iter().map(|launch| launch.duration)).or(self.expected).unwrap_or_default()
    }

    /// Returns the expected duration of a launch of the search with a configuration, by its key.
    pub(super) fn search_launch_of(&self, config_key: &str) -> Duration {
        if self.starts_fast() { self.search_launch() } else { self.plain_launch_of(config_key) }
    }

    /// Returns whether the launches of the search are fast starts. A run that gives them up has plain ones afterwards.
    fn starts_fast(&self) -> bool {
        self.launches.iter().rfind(|launch| launch.is_of_search).is_some_and(|launch| launch.is_fast)
    }

    /// Returns the expected duration of a plain launch of a configuration, by its key: the longest of its own plain
    /// launches, if it has any. Without any plain launch in the study, the longest fast start shows the time of one,
    /// because the first of them imports the engine.
    pub(super) fn plain_launch_of(&self, config_key: &str) -> Duration {
        let plain = || self.launches.iter().filter(|launch| !launch.is_fast);
        let own_plain = plain().filter(|launch| launch.config_key == config_key).map(|launch| launch.duration).max();
        let longest_fast = || self.launches.iter().map(|launch| launch.duration).max();
        own_plain
            .or_else(|| usual(plain().map(|launch| launch.duration)))
            .or_else(longest_fast)
            .or(self.expected)
            .unwrap_or_default()
    }

    /// Returns the time for the confirmation: `rounds` launches of each of these configurations.
    pub(super) fn reserve<'a>(&self, config_keys: impl Iterator<Item = &'a str>, rounds: u32) -> Duration {
        let round: Duration = config_keys.map(|key| self.plain_launch_of(key) + self.expected_gap()).sum();
        round.mul_f64(MARGIN).saturating_mul(rounds)
    }
}

/// Returns the time of the imports of a start. They take nearly all of the two phases.
fn imports(startup: &Startup) -> Duration {
    let is_import =
        |phase: &str| [StartPhase::Import, StartPhase::Processes].iter().any(|import| import.name() == phase);
    let seconds =
        startup.phases.iter().filter(|time| is_import(&time.phase)).map(|time| time.duration_s.max(0.0)).sum();
    Duration::from_secs_f64(seconds)
}

fn usual(durations: impl Iterator<Item = Duration>) -> Option<Duration> {
    let mut seconds: Vec<_> = durations.map(|duration| duration.as_secs_f64()).collect();
    seconds.sort_by(f64::total_cmp);
    percentile(&seconds, EXPECTED_PERCENTILE).map(Duration::from_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::trial::{Failure, FailureKind, LaunchCommand, Measurement, PhaseTime};

    const SECOND: Duration = Duration::from_secs(1);

    fn launch(seqs: i64, elapsed_s: f64) -> Trial {
        let config = Config::new().with("max-num-seqs", seqs);
        let example = Trial::example(0, "auto", Outcome::Measured(Measurement::default()));
        Trial { elapsed_s, ..example.with_config(config) }
    }

    #[test]
    fn the_expected_duration_of_a_launch_is_that_of_its_configuration_or_of_the_study() {
        let mut clock = RunClock::new(RunTime::machine(), None, Some(90 * SECOND));
        assert_eq!(clock.search_launch(), 90 * SECOND);
        for (seqs, elapsed_s) in [(1, 10.0), (2, 20.0), (3, 30.0), (4, 40.0), (5, 50.0), (2, 22.0)] {
            clock.learn(&launch(seqs, elapsed_s), None);
        }
        let timeout = Failure { kind: FailureKind::StartupTimeout, message: String::new() };
        clock.learn(&Trial { outcome: Outcome::Failed(timeout), ..launch(6, 900.0) }, None);
        let mut interference = launch(7, 900.0);
        interference.proposal.origin = Origin::Interference;
        clock.learn(&interference, None);
        assert!((clock.search_launch().as_secs_f64() - 37.5).abs() < 1e-9, "{:?}", clock.search_launch());
        let key = |seqs| launch(seqs, 0.0).proposal.config.key();
        assert_eq!(clock.plain_launch_of(&key(2)), 22 * SECOND);
        assert_eq!(clock.plain_launch_of(&key(9)), clock.search_launch());
        let reserve = clock.reserve([&*key(2), &*key(1)].into_iter(), 2);
        assert!((reserve.as_secs_f64() - 2.0 * 1.1 * 32.0).abs() < 1e-9, "{reserve:?}");
    }

    #[test]
    fn a_fast_start_is_no_evidence_for_the_time_of_a_plain_one() {
        let mut clock = RunClock::new(RunTime::machine(), None, None);
        let fast = |seqs, elapsed_s| {
            let trial = launch(seqs, elapsed_s);
            Trial { launch: LaunchCommand { is_fast: true, ..trial.launch.clone() }, ..trial }
        };
        let key = |seqs: i64| launch(seqs, 0.0).proposal.config.key();
        // The first one imports the engine.
        for (seqs, elapsed_s) in [(1, 40.0), (2, 8.0), (3, 8.0), (4, 8.0), (5, 8.0)] {
            clock.learn(&fast(seqs, elapsed_s), None);
        }
        assert_eq!(clock.search_launch(), 8 * SECOND);
        assert_eq!(clock.plain_launch_of(&key(2)), 40 * SECOND);
        clock.learn(&launch(2, 33.0), None);
        assert_eq!(clock.plain_launch_of(&key(2)), 33 * SECOND);
        assert_eq!(clock.plain_launch_of(&key(3)), 33 * SECOND, "as long as the plain ones");
    }

    #[test]
    fn the_first_fast_start_shows_the_times_of_both_ways() {
        let mut clock = RunClock::new(RunTime::machine(), None, None);
        let key = |seqs: i64| launch(seqs, 0.0).proposal.config.key();
        let fast = |seqs, elapsed_s| {
            let trial = launch(seqs, elapsed_s);
            Trial { launch: LaunchCommand { is_fast: true, ..trial.launch.clone() }, ..trial }
        };
        let startup = |import, processes| {
            let phases = [("import", import), ("processes", processes), ("kv_cache", 2.0)];
            let phases = phases.map(|(phase, duration_s)| PhaseTime { phase: phase.to_owned(), duration_s });
            Startup { phases: phases.into(), ..Startup::default() }
        };
        clock.learn(&fast(1, 42.0), Some(&startup(10.0, 20.0)));
        assert_eq!(clock.search_launch_of(&key(2)), 12 * SECOND);
        assert_eq!(clock.search_launch_of(&key(1)), 12 * SECOND, "the next launch of the search does not import");
        assert_eq!(clock.plain_launch_of(&key(2)), 42 * SECOND);
        // Fast starts that are given up are no longer expected.
        clock.learn(&launch(3, 44.0), Some(&startup(10.0, 20.0)));
        assert_eq!(clock.search_launch_of(&key(2)), 44 * SECOND);
    }

    #[test]
    fn the_reserve_includes_the_time_between_launches() {
        let mut clock = RunClock::new(RunTime::machine(), None, None);
        // 8 s of launch and 2 s until the next one.
        for start in ["2026-01-02T03:00:00Z", "2026-01-02T03:00:10Z", "2026-01-02T03:00:20Z"] {
            clock.learn_now(&Trial { started_at: start.to_owned(), ..launch(1, 8.0) }, None);
        }
        let reserve = clock.reserve([&*launch(1, 0.0).proposal.config.key()].into_iter(), 1);
        assert!((reserve.as_secs_f64() - 1.1 * 10.0).abs() < 1e-9, "{reserve:?}");
    }

    #[test]
    fn every_launch_fits_without_a_limit_and_none_at_its_end() {
        assert!(RunClock::new(RunTime::machine(), None, None).has_time(Duration::MAX));
        let clock = RunClock::new(RunTime::simulated(), Some(60 * SECOND), None);
        assert!(clock.has_time(59 * SECOND) && !clock.has_time(61 * SECOND));
        clock.time.advance_to(60 * SECOND);
        assert!(!clock.has_time(Duration::ZERO), "an unknown duration needs some time as well");
    }
}
