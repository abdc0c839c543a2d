//! State of a run, collected from its events for the live line.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::coarse;
use crate::report::number;
use crate::tuner::{BudgetPlan, TrialPhase, TunerEvent};

#[derive(Default)]
pub(super) struct ProgressState {
    /// Trials to launch, if the budget limits them.
    trials: Option<u32>,
    /// Number of the trial that the live line names: that of the last event, or the next one after an outcome.
    number: u32,
    /// Launched trials that have an outcome, including those of earlier runs.
    launched: u32,
    /// Trials without an outcome.
    pub(super) open: BTreeMap<u32, OpenTrial>,
    /// The best feasible value so far.
    best: Option<f64>,
    /// The part of `launched` that belongs to this run, and the run's start. They give the remaining time.
    launched_here: u32,
    began: Option<Instant>,
    plan: Option<BudgetPlan>,
}

/// State of a trial without an outcome: its phase, and the number of the phase's requests that have ended.
#[derive(Default)]
pub(super) struct OpenTrial {
    phase: Option<TrialPhase>,
    pub(super) done: usize,
    pub(super) total: usize,
}

impl ProgressState {
    pub(super) fn new(trials: Option<u32>) -> Self {
        Self { trials, ..Self::default() }
    }

    pub(super) fn follow(&mut self, event: &TunerEvent) {
        match event {
            TunerEvent::Begin { stored, launched, best, .. } => {
                self.number = u32::try_from(*stored).unwrap_or(u32::MAX);
                self.launched = *launched;
                self.best = *best;
                self.began = Some(Instant::now());
            }
            TunerEvent::Launch(proposal) => self.number = proposal.number,
            TunerEvent::Phase { number, phase } => {
                self.number = *number;
                self.open.insert(*number, OpenTrial { phase: Some(*phase), ..OpenTrial::default() });
            }
            TunerEvent::Progress { number, done, total } => {
                let open = self.open.entry(*number).or_default();
                (open.done, open.total) = (*done, *total);
            }
            TunerEvent::TrialEnded { trial, best, launched, .. } => {
                self.open.remove(&trial.trial.proposal.number);
                // The next trial is checked before it is launched.
                self.number = trial.trial.proposal.number + 1;
                self.launched_here += launched.saturating_sub(self.launched);
                self.launched = *launched;
                self.best = *best;
            }
            TunerEvent::Plan(plan) => self.plan = Some(plan.clone()),
            TunerEvent::Space(_)
            | TunerEvent::LeftoversEnded { .. }
            | TunerEvent::StopCommandFailed { .. }
            | TunerEvent::Preflight { .. }
            | TunerEvent::MemoryHeld { .. }
            | TunerEvent::WrongRule(_)
            | TunerEvent::RuleTested { .. }
            | TunerEvent::RuleSetAside { .. }
            | TunerEvent::ResolvedValuesDiffer { .. }
            | TunerEvent::SampleVoided { .. }
            | TunerEvent::Disturbed { .. }
            | TunerEvent::Retry { .. }
            | TunerEvent::Paused(_)
            | TunerEvent::Interference { .. }
            | TunerEvent::SlotsSetAside { .. }
            | TunerEvent::NoFurtherTrials { .. }
            | TunerEvent::FurtherError { .. }
            | TunerEvent::Notice { .. }
            | TunerEvent::RunEnded(_) => {}
        }
    }

    /// Returns a text such as `trial 5, launch 3 of 16, measuring, best 1234, about 40 s left`. The trial's number may
    /// exceed the launch's, because rejected trials have numbers but no launches. With several open trials:
    /// `8 trials, launches 3 to 10 of 16, 2 starting, 6 measuring, ...`.
    pub(super) fn live_text(&self) -> String {
        let of = self.trials.map(|trials| format!(" of {trials}")).unwrap_or_default();
        let best = self.best.map(|best| format!(", best {}", number(best))).unwrap_or_default();
        let left = self.time_left().map(|left| format!(", about {} left", coarse(left))).unwrap_or_default();
        let reserve = self.plan.as_ref().filter(|plan| !plan.reserve.is_zero());
        let reserve = reserve.map(|plan| format!(", {} of it for the confirmation", coarse(plan.reserve)));
        let left = format!("{left}{}", reserve.unwrap_or_default());
        let most = self.trials.unwrap_or(u32::MAX);
        let first = self.launched.saturating_add(1).min(most);
        let what = match self.open.len() {
            0 | 1 => {
                let phase = self.open.values().find_map(|open| open.phase);
                let phase = phase.map(|phase| format!(", {phase}")).unwrap_or_default();
                format!("trial {}, launch {first}{of}{phase}", self.number)
            }
            several => {
                let last = self.launched.saturating_add(u32::try_from(several).unwrap_or(u32::MAX)).min(most);
                let count = |phase| self.open.values().filter(|open| open.phase == Some(phase)).count();
                let phases =
                    TrialPhase::ALL.map(|phase| (phase, count(phase))).into_iter().filter(|(_, count)| *count > 0);
                let phases: Vec<_> = phases.map(|(phase, count)| format!("{count} {phase}")).collect();
                format!("{several} trials, launches {first} to {last}{of}, {}", phases.join(", "))
            }
        };
        format!("{what}{best}{left}")
    }

    /// Estimates the time until the budget is spent: the shorter of the times by launches and by duration.
    fn time_left(&self) -> Option<Duration> {
        let began = self.began?;
        let by_trials = || {
            let left = self.trials?.saturating_sub(self.launched);
            Some(began.elapsed().checked_div(self.launched_here)? * left)
        };
        let by_time = self.plan.as_ref().and_then(|plan| plan.time).map(|time| time.saturating_sub(began.elapsed()));
        match (by_trials(), by_time) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_trial_is_shown_with_its_phase_and_several_as_counts_per_phase() {
        let mut state = ProgressState::new(Some(16));
        state.follow(&TunerEvent::Begin { study: "s".to_owned(), stored: 2, launched: 2, best: Some(1234.0) });
        assert_eq!(state.live_text(), "trial 2, launch 3 of 16, best 1234");
        state.follow(&TunerEvent::Phase { number: 2, phase: TrialPhase::Starting });
        assert_eq!(state.live_text(), "trial 2, launch 3 of 16, starting, best 1234");
        for number in 3..5 {
            state.follow(&TunerEvent::Phase { number, phase: TrialPhase::Measuring });
            state.follow(&TunerEvent::Progress { number, done: 5, total: 10 });
        }
        assert_eq!(state.live_text(), "3 trials, launches 3 to 5 of 16, 1 starting, 2 measuring, best 1234");
        assert_eq!(state.open.values().map(|open| open.done).sum::<usize>(), 10);
    }
}
