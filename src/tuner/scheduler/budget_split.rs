//! The split of the budget: launches of the search, repeated baselines, and the confirmation.

use std::time::Duration;

use super::{PendingTrial, Scheduler};
use crate::sampler::{KnownOutcome, PastTrial, Suggestion};
use crate::stats::f64_to_u32;
use crate::trial::Origin;
use crate::tuner::{BudgetPlan, TunerEvent};

/// Returns whether a trial belongs to the confirmation or the ablation.
fn is_of_decision(past: &PastTrial) -> bool {
    matches!(past.origin, Origin::Confirmation | Origin::Ablation)
}

/// Rounds that confirm another winner after a settled confirmation, and launches of its ablation.
const ROUNDS_OF_ANOTHER_WINNER: u32 = 2;
const ABLATION_OF_ANOTHER_WINNER: u32 = 24;

impl Scheduler<'_> {
    /// Returns the expected number of launches of the study in all; `None` if it is not limited or not known yet. The time
    /// left counts as plain launches: a number of fast starts would give the confirmation more than its share of the time.
    pub(super) fn total_launches(&self) -> Option<u32> {
        let launch = self.clock.plain_launch_of("") + self.clock.expected_gap();
        let left = self.clock.time_left().filter(|_| !launch.is_zero());
        let by_time = left.map(|left| f64_to_u32(left.as_secs_f64() / launch.as_secs_f64()));
        let by_time = by_time.map(|left| self.launches().saturating_add(left));
        by_time.into_iter().chain(self.run.job.budget.trials).min()
    }

    /// Returns the number of launches of the next confirmation. None is needed while the confirmed winner is the best.
    pub(super) fn confirmation_launches(&self) -> u32 {
        let per_round = self.launches_per_round();
        let launches = self.run.job.budget.confirmation_launches(self.total_launches(), per_round);
        match &self.settled_winner {
            None => launches,
            Some(winner) if self.is_challenged(winner) => launches.min(ROUNDS_OF_ANOTHER_WINNER * per_round),
            Some(_) => 0,
        }
    }

    /// Returns the number of launches of the next ablation. That of a settled confirmation is under way or finished.
    pub(super) fn ablation_launches(&self) -> u32 {
        let launches = self.run.job.budget.ablation_launches(self.total_launches());
        match &self.settled_winner {
            None => launches,
            Some(winner) if self.is_challenged(winner) => launches.min(ABLATION_OF_ANOTHER_WINNER),
            Some(_) => 0,
        }
    }

    /// Returns whether another configuration looks better than the confirmed winner, and has not been beaten.
    fn is_challenged(&self, winner: &String) -> bool {
        self.best_key.as_ref().is_some_and(|best| best != winner && !self.beaten_winners.contains(best))
    }

    /// Returns the number of launches left to the search. `None` without a limit on trials.
    pub(super) fn search_launches_left(&self) -> Option<u32> {
        let left = self.run.job.budget.trials?.saturating_sub(self.launches());
        Some(left.saturating_sub(self.confirmation_launches() + self.ablation_launches()))
    }

    /// Returns whether the next launches belong to the confirmation or the ablation.
    pub(super) fn is_confirming(&self) -> bool {
        self.open_ablation.is_some() || self.search_launches_left() == Some(0) || self.unused_launches().is_some()
    }

    /// Returns the number of launches that are left directly after a settled confirmation, if they are too few for a
    /// further search with the confirmation of its winner.
    pub(super) fn unused_launches(&self) -> Option<u32> {
        let is_settled = self.settled_winner.is_some() && self.history.last().is_some_and(is_of_decision);
        let left = self.run.job.budget.trials?.saturating_sub(self.launches());
        let ablation = self.run.job.budget.ablation_launches(self.total_launches()).min(ABLATION_OF_ANOTHER_WINNER);
        (is_settled && left <= ROUNDS_OF_ANOTHER_WINNER * self.launches_per_round() + ablation).then_some(left)
    }

    /// Returns the defaults if it is time to measure them again: directly after their first launch, and at intervals.
    pub(super) fn next_baseline_repeat(&self) -> Option<Suggestion> {
        let defaults = self.defaults()?;
        // The rounds of a confirmation measure them in any case.
        if self.history.last().is_some_and(is_of_decision) {
            return None;
        }
        let launches = self.history.iter().filter(|past| past.config == defaults.config && past.origin.is_ranked());
        let are_measured = |past: &PastTrial| past.measured().is_some();
        let (measured, others): (Vec<_>, Vec<_>) = launches.partition(|past| are_measured(past));
        // Defaults that fail, or are under way, are not launched beside each other.
        if measured.is_empty() || others.iter().any(|past| !matches!(past.outcome, KnownOutcome::Inconclusive)) {
            return None;
        }
        let searched = self.history.iter().filter(|past| past.origin.is_search_trial()).count();
        let searched = u32::try_from(searched).unwrap_or(u32::MAX);
        let due = self.run.job.budget.baseline_launches(self.total_launches(), searched);
        let why = "the defaults again: the difference shows the noise between launches and the drift of the machine";
        let launched = |past: &&PastTrial| matches!(past.origin, Origin::Baseline | Origin::BaselineRepeat);
        let launched = self.history.iter().filter(launched).count();
        (launched < due as usize).then(|| Suggestion::new(defaults.config.clone(), why))
    }

    /// Returns the time of the next confirmation; zero before there is anything to confirm, and thus until a configuration
    /// keeps every limit.
    pub(super) fn reserve(&self) -> Duration {
        let launches = self.confirmation_launches();
        if self.clock.limit().is_none() || self.best_key.is_none() || !self.has_challenger() || launches == 0 {
            return Duration::ZERO;
        }
        let defaults = self.defaults().map(|past| past.config.key()).unwrap_or_default();
        // An empty key stands for a configuration that is not known yet. It takes the usual duration.
        let best = self.best_key.clone().filter(|best| *best != defaults).unwrap_or_default();
        let ablation = self.clock.reserve(std::iter::once(best.as_str()), self.ablation_launches());
        if launches < self.launches_per_round() {
            return self.clock.reserve(std::iter::once(best.as_str()), launches) + ablation;
        }
        let deployment = self.deployment_to_confirm().map(|config| config.key()).filter(|key| *key != best);
        let rounds = launches / self.launches_per_round();
        let keys: Vec<_> = [defaults, best].into_iter().chain(deployment).collect();
        self.clock.reserve(keys.iter().map(String::as_str), rounds) + ablation
    }

    /// Returns whether a waiting trial fits into the time left, and leaves enough for the confirmation.
    pub(super) fn has_time_for(&self, waiting: &PendingTrial) -> bool {
        let (origin, key) = (&waiting.proposal.origin, waiting.proposal.config.key());
        let own =
            if origin.is_of_search() { self.clock.search_launch_of(&key) } else { self.clock.plain_launch_of(&key) };
        let is_search = !matches!(
            origin,
            Origin::Baseline
                | Origin::BaselineRepeat
                | Origin::Deployment
                | Origin::Confirmation
                | Origin::Turn
                | Origin::Ablation
                | Origin::Probe
        );
        let reserve = if is_search { self.reserve() } else { Duration::ZERO };
        self.clock.has_time(own + reserve)
    }

    /// Shows the plan of the budget, at first and when it has changed enough.
    pub(super) fn show_plan(&mut self) {
        // One launch needs no plan.
        if self.run.job.repeat.is_some() {
            return;
        }
        let budget = &self.run.job.budget;
        let launches = self.total_launches();
        let confirmations = budget.confirmation_launches(launches, self.launches_per_round());
        let ablations = budget.ablation_launches(launches);
        let others = confirmations + ablations;
        let search = |baselines: u32| launches.map(|all| all.saturating_sub(others).saturating_sub(baselines));
        let baselines = 1 + u32::from(self.deployment_to_confirm().is_some());
        let repeats = budget.baseline_launches(launches, search(baselines + 1).unwrap_or(0)) - 1;
        let plan = BudgetPlan {
            trials: budget.trials,
            baseline_repeats: repeats,
            confirmations,
            ablations,
            has_rounds: confirmations >= self.launches_per_round(),
            confirms_deployment: self.deployment_to_confirm().is_some(),
            time: self.clock.limit(),
            remaining_time: self.clock.time_left(),
            launch: Some(self.clock.search_launch()).filter(|launch| !launch.is_zero()),
            reserve: self.reserve(),
        };
        if self.plan.as_ref().is_none_or(|shown| plan.differs_from(shown)) {
            self.run.emit(TunerEvent::Plan(plan.clone()));
            self.plan = Some(plan);
        }
    }
}
