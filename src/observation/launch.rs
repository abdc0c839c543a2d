//! A trial without an outcome, followed by its log.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

use super::log_excerpt::LogExcerpt;
use crate::config::Config;
use crate::engine::{LogReader, PhaseTimeline, StartPhase};
use crate::engines::built_in;
use crate::server::{LogTail, trial_log};
use crate::store::{Study, UnfinishedTrial};
use crate::trial::Origin;

/// The largest age of a launch at the first look for which the durations of its earlier phases are known.
const SEEN_FROM_BEGIN: Duration = Duration::from_secs(2);

/// A trial without an outcome.
#[derive(Clone, Debug)]
pub(crate) struct RunningLaunch {
    pub number: u32,
    pub origin: Origin,
    pub config: Config,
    /// The reason for this configuration.
    pub why: Option<String>,
    pub stage: LaunchStage,
    /// The time since the launch, or since the trial waits for its slot.
    pub elapsed: Duration,
    /// The entered phases of the start, in order. Empty if the engine's log is not understood.
    pub phases: Vec<ObservedPhase>,
    /// The last lines of the log, without control characters and secrets.
    pub log_lines: Vec<String>,
}

/// The stage of a trial without an outcome, as far as its files show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaunchStage {
    /// No tuner runs. The next one launches the trial again.
    Interrupted,
    /// It waits for a slot, or its server is about to start.
    Waiting,
    /// The server starts, or the log does not show how far it is.
    Starting,
    /// The server is up. It is warmed up, measured or stopped.
    Serving,
}

/// A phase of a start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ObservedPhase {
    pub phase: StartPhase,
    /// The time in the phase. `None` if it had begun before the observation.
    pub duration: Option<Duration>,
}

/// The observer of one launch.
#[derive(Debug)]
pub(super) struct LaunchFollower {
    trial: UnfinishedTrial,
    started_at: Option<Timestamp>,
    path: PathBuf,
    tail: LogTail,
    /// `None` if the engine's log is not understood.
    timeline: Option<PhaseTimeline>,
    /// The phase at the first look, if the launch was older then.
    unknown_until: Option<StartPhase>,
    excerpt: LogExcerpt,
    stage: LaunchStage,
    has_looked: bool,
}

impl LaunchFollower {
    pub(super) fn new(database: &Path, study: &Study, trial: UnfinishedTrial) -> Self {
        let path = trial_log(database, &study.name, trial.proposal.number);
        let kind = study.definition.pointer("/engine/kind").and_then(serde_json::Value::as_str);
        let timeline = kind.and_then(built_in).and_then(|engine| engine.log_reader().map(LogReader::timeline));
        Self {
            started_at: trial.started_at.parse().ok(),
            tail: LogTail::new(&path),
            trial,
            path,
            timeline,
            unknown_until: None,
            excerpt: LogExcerpt::default(),
            stage: LaunchStage::Waiting,
            has_looked: false,
        }
    }

    /// Returns whether it follows this launch of the trial. A launch that is repeated begins anew.
    pub(super) fn is_of(&self, trial: &UnfinishedTrial) -> bool {
        (self.trial.proposal.number, &self.trial.started_at) == (trial.proposal.number, &trial.started_at)
    }

    /// Reads the new lines of the log. Returns whether anything has changed.
    pub(super) fn poll(&mut self, now: Timestamp, has_tuner: bool) -> bool {
        let text = self.tail.read_new();
        let elapsed = self.elapsed(now);
        if let Some(timeline) = &mut self.timeline {
            text.split(['\n', '\r']).for_each(|line| timeline.process_line(line, elapsed));
            if !self.has_looked && elapsed > SEEN_FROM_BEGIN && !text.is_empty() {
                self.unknown_until = Some(timeline.phase());
            }
        }
        self.has_looked = true;
        self.excerpt.push(&text);
        let is_up = self.timeline.as_ref().is_some_and(|timeline| timeline.phase() == StartPhase::FirstToken);
        let stage = match (has_tuner, self.excerpt.is_empty() && !self.path.exists(), is_up) {
            (false, ..) => LaunchStage::Interrupted,
            (true, true, _) => LaunchStage::Waiting,
            (true, false, false) => LaunchStage::Starting,
            (true, false, true) => LaunchStage::Serving,
        };
        let has_changed = stage != self.stage || !text.is_empty();
        self.stage = stage;
        has_changed
    }

    fn elapsed(&self, now: Timestamp) -> Duration {
        self.started_at.and_then(|begin| Duration::try_from(now.duration_since(begin)).ok()).unwrap_or_default()
    }

    /// Returns the launch at an instant.
    pub(super) fn launch(&self, now: Timestamp) -> RunningLaunch {
        let elapsed = self.elapsed(now);
        let is_started = matches!(self.stage, LaunchStage::Starting | LaunchStage::Serving);
        RunningLaunch {
            number: self.trial.proposal.number,
            origin: self.trial.proposal.origin.clone(),
            config: self.trial.proposal.config.clone(),
            why: self.trial.proposal.why.clone(),
            stage: self.stage,
            elapsed,
            phases: if is_started { self.phases(elapsed) } else { Vec::new() },
            log_lines: self.excerpt.lines(),
        }
    }

    fn phases(&self, elapsed: Duration) -> Vec<ObservedPhase> {
        let Some(timeline) = &self.timeline else { return Vec::new() };
        let observed = |time: crate::trial::PhaseTime| {
            let phase = StartPhase::ALL.into_iter().find(|phase| phase.name() == time.phase)?;
            let is_known = self.unknown_until.is_none_or(|unknown| phase > unknown);
            let duration = Duration::try_from_secs_f64(time.duration_s).ok().filter(|_| is_known);
            Some(ObservedPhase { phase, duration })
        };
        timeline.clone().end(elapsed).into_iter().filter_map(observed).collect()
    }
}
