//! State of a run, collected from its events for the live line and the rows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::report::TrialRows;
use crate::stats::{median, to_f64};
use crate::tuner::{BudgetPlan, FigureSource, StudyEstimate, TrialPhase, TunerEvent};

/// The most a running launch counts as done, because its stop follows.
const MAX_OPEN_SHARE: f64 = 0.98;

pub(super) struct ProgressState {
    /// Trials to launch, if the budget limits them.
    pub(super) trials: Option<u32>,
    /// Number of the trial that the live line names: that of the last event, or the next one after an outcome.
    pub(super) number: u32,
    /// Launched trials that have an outcome, including those of earlier runs.
    pub(super) launched: u32,
    /// Trials without an outcome.
    pub(super) open: BTreeMap<u32, OpenTrial>,
    /// The best feasible value so far.
    pub(super) best: Option<f64>,
    /// The part of `launched` that belongs to this run, and the run's start. They give the remaining time.
    launched_here: u32,
    began: Option<Instant>,
    pub(super) plan: Option<BudgetPlan>,
    /// Seconds of a start and of the rest of a launch, as estimated before the first launch of this run. `None` if they
    /// would be a guess.
    estimate: Option<(f64, f64)>,
    /// Seconds of the starts and of the rests of this run's launches.
    measured_s: Vec<(f64, f64)>,
    pub(super) rows: TrialRows,
    /// The value of the engine's defaults.
    pub(super) baseline: Option<f64>,
    /// The last header, and the number of rows below it.
    pub(super) header: Option<String>,
    pub(super) rows_below_header: usize,
}

/// State of a trial without an outcome: its phase, and the number of the phase's requests that have ended.
pub(super) struct OpenTrial {
    pub(super) phase: TrialPhase,
    /// The beginning of the phase and of the trial.
    pub(super) since: Instant,
    began: Instant,
    pub(super) done: usize,
    /// 0 if it is not known.
    pub(super) total: usize,
    pub(super) tokens_per_s: Option<f64>,
}

impl OpenTrial {
    /// Returns the share of a measurement's requests that have ended. Zero in other phases.
    fn share_of_requests(&self) -> f64 {
        match self.phase {
            TrialPhase::Measuring if self.total > 0 => to_f64(self.done) / to_f64(self.total),
            TrialPhase::Stopping => 1.0,
            _ => 0.0,
        }
    }
}

impl ProgressState {
    pub(super) fn new(rows: TrialRows, trials: Option<u32>) -> Self {
        Self {
            trials,
            number: 0,
            launched: 0,
            open: BTreeMap::new(),
            best: None,
            launched_here: 0,
            began: None,
            plan: None,
            estimate: None,
            measured_s: Vec::new(),
            rows,
            baseline: None,
            header: None,
            rows_below_header: 0,
        }
    }

    pub(super) fn set_estimate(&mut self, estimate: &StudyEstimate) {
        let is_guess = matches!(estimate.source, FigureSource::Guess);
        self.estimate = (!is_guess).then_some((estimate.startup_s, estimate.load_s));
    }

    pub(super) fn follow(&mut self, event: &TunerEvent, now: Instant) {
        match event {
            TunerEvent::Begin { stored, launched, best, .. } => {
                self.number = u32::try_from(*stored).unwrap_or(u32::MAX);
                self.launched = *launched;
                self.best = *best;
                self.began = Some(now);
            }
            TunerEvent::Launch(proposal) => self.number = proposal.number,
            TunerEvent::Phase { number, phase } => {
                self.number = *number;
                let began = self.open.get(number).map_or(now, |open| open.began);
                // A load that is driven again begins anew, and so does a launch that is repeated.
                let began = if *phase == TrialPhase::Starting { now } else { began };
                let (phase, since) = (*phase, now);
                self.open.insert(*number, OpenTrial { phase, since, began, done: 0, total: 0, tokens_per_s: None });
            }
            TunerEvent::Progress { number, done, total, tokens_per_s } => {
                if let Some(open) = self.open.get_mut(number) {
                    (open.done, open.total, open.tokens_per_s) = (*done, *total, *tokens_per_s);
                }
            }
            TunerEvent::TrialEnded { trial, best, launched, .. } => {
                self.open.remove(&trial.trial.proposal.number);
                // The next trial is checked before it is launched.
                self.number = trial.trial.proposal.number + 1;
                self.launched_here += launched.saturating_sub(self.launched);
                self.launched = *launched;
                self.best = *best;
                if let (Some(startup), Some(_)) = (trial.trial.startup_s, trial.trial.outcome.measurement()) {
                    self.measured_s.push((startup, (trial.trial.elapsed_s - startup).max(0.0)));
                }
            }
            TunerEvent::Plan(plan) => self.plan = Some(plan.clone()),
            _ => {}
        }
    }

    /// Returns the expected seconds of a start and of the rest of a launch.
    fn expected_s(&self) -> Option<(f64, f64)> {
        let of = |part: fn(&(f64, f64)) -> f64| median(self.measured_s.iter().map(part));
        of(|both| both.0).zip(of(|both| both.1)).or(self.estimate)
    }

    /// Returns the expected duration of a start.
    pub(super) fn expected_start(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.expected_s()?.0).ok()
    }

    /// Returns the share of a running launch that is done, from 0 to 1.
    fn share(&self, open: &OpenTrial, now: Instant) -> f64 {
        let Some((start_s, rest_s)) = self.expected_s() else { return open.share_of_requests().min(MAX_OPEN_SHARE) };
        let total_s = (start_s + rest_s).max(f64::MIN_POSITIVE);
        let passed_s = now.saturating_duration_since(open.began).as_secs_f64();
        let share = match open.phase {
            TrialPhase::Checking => 0.0,
            TrialPhase::Starting => passed_s.min(start_s) / total_s,
            _ => passed_s.max(start_s) / total_s,
        };
        share.min(MAX_OPEN_SHARE)
    }

    /// Returns the sum of the shares of the running launches.
    fn open_shares(&self, now: Instant) -> f64 {
        self.open.values().map(|open| self.share(open, now)).sum()
    }

    /// Returns the time since the beginning of the run.
    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        self.began.map(|began| now.saturating_duration_since(began)).unwrap_or_default()
    }

    /// Returns the used shares of the budget's trials and of its time, from 0 to 1. `None` for a budget without that
    /// limit.
    pub(super) fn used(&self, now: Instant) -> (Option<f64>, Option<f64>) {
        let by_trials = self.trials.filter(|trials| *trials > 0);
        let by_trials = by_trials.map(|trials| (f64::from(self.launched) + self.open_shares(now)) / f64::from(trials));
        let limit = self.plan.as_ref().and_then(|plan| plan.time).filter(|time| !time.is_zero());
        let by_time = limit.map(|time| self.elapsed(now).as_secs_f64() / time.as_secs_f64());
        (by_trials.map(|share| share.min(1.0)), by_time.map(|share| share.min(1.0)))
    }

    /// Estimates the time until the budget is spent: the shorter of the times by launches and by duration.
    pub(super) fn time_left(&self, now: Instant) -> Option<Duration> {
        let by_trials = || {
            let left = f64::from(self.trials?.saturating_sub(self.launched)) - self.open_shares(now);
            // The time between launches counts as well, so the run's own pace is better than the launches' durations.
            let pace = match self.launched_here {
                0 => self.expected_s().map(|(start_s, rest_s)| start_s + rest_s)?,
                launched => (self.elapsed(now).as_secs_f64()) / (f64::from(launched) + self.open_shares(now)),
            };
            Duration::try_from_secs_f64(left.max(0.0) * pace).ok()
        };
        let limit = self.plan.as_ref().and_then(|plan| plan.time);
        let by_time = limit.map(|time| time.saturating_sub(self.elapsed(now)));
        match (by_trials(), by_time) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
