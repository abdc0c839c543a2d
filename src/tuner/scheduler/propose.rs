//! The choice of the next trial: the deployment and interference trials first, then tests of rules, the sampler's
//! suggestions, and the confirmation.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::confirm::NextConfirmation;
use super::{NextAction, PendingTrial, Scheduler, looks};
use crate::config::Config;
use crate::job::{SamplerQuestion, past_trial};
use crate::objective::Objective;
use crate::sampler::{KnownOutcome, PastTrial, Suggestion};
use crate::store::{ScoredTrial, StoredProposal};
use crate::trial::{Origin, Proposal};
use crate::tuner::{StudyEnding, TuneError};

/// Reads the rows of a study at the beginning of a run: every proposal, and those without an outcome. Trials of an
/// earlier run that have no outcome are launched again under their numbers. A number that was never stored gets a
/// placeholder in the history.
pub(super) fn read(
    proposed: Vec<StoredProposal>,
    outcomes: Vec<ScoredTrial>,
    objective: &Objective,
) -> (Vec<PastTrial>, VecDeque<PendingTrial>) {
    let mut outcomes: BTreeMap<_, _> = outcomes
        .into_iter()
        .map(|scored| (scored.trial.proposal.number, past_trial(objective, scored.trial, scored.score)))
        .collect();
    let (mut history, mut open) = (Vec::new(), VecDeque::new());
    for row in proposed {
        let StoredProposal { proposal, state, is_earlier } = row;
        // The index in the history is the trial's number.
        while history.len() < proposal.number as usize {
            history.push(PastTrial::new(Origin::EarlierContext, Config::new(), KnownOutcome::Inconclusive));
        }
        if is_earlier {
            history.push(PastTrial::new(Origin::EarlierContext, proposal.config, KnownOutcome::Inconclusive));
            continue;
        }
        let past = outcomes.remove(&proposal.number).unwrap_or_else(|| PastTrial::pending(proposal.clone()));
        let past = looks::with_server(past, proposal.server_of, &history);
        history.push(past);
        if state == "running" {
            open.push_back(PendingTrial::new(proposal));
        }
    }
    (history, open)
}

/// The number of failed launches of a trial in a row after which a probe decides. Only failures of the environment
/// count.
const MAX_FAILURES: u32 = 3;

impl PendingTrial {
    pub(super) fn new(proposal: Proposal) -> Self {
        Self {
            proposal,
            checked: false,
            max_failures: MAX_FAILURES,
            own_failures: Arc::default(),
            needs_isolation: false,
            race: None,
            expected_load: None,
            live_helper: None,
        }
    }
}

impl Scheduler<'_> {
    /// Returns the number of launches that count for the budget. It includes running launches, and trials that wait for
    /// a probe.
    pub(super) fn launches(&self) -> u32 {
        let paid = self.running.values().filter(|running| running.is_paid).count();
        self.launched.saturating_add(u32::try_from(paid + self.held_trial_count()).unwrap_or(u32::MAX))
    }

    /// Returns a new proposal, or the next step if there is none.
    pub(super) async fn propose(&mut self) -> Result<ControlFlow<NextAction, PendingTrial>, TuneError> {
        let job = self.run.job;
        let idle = self.running.is_empty();
        let end =
            |ending: StudyEnding| ControlFlow::Break(if idle { NextAction::End(ending) } else { NextAction::Wait });
        let launched = self.launches();
        if job.repeat.is_some() {
            return Ok(self.propose_repeat().unwrap_or_else(|| end(StudyEnding::Repeated)));
        }
        if job.budget.trials.is_some_and(|trials| launched >= trials) {
            return Ok(end(StudyEnding::TrialsSpent));
        }
        if self.is_time_spent() {
            return Ok(end(StudyEnding::TimeSpent));
        }
        // The defaults are launched with any time left: without them there is nothing to compare with.
        let is_short = !self.history.is_empty() && !self.clock.has_time(self.clock.search_launch() + self.reserve());
        if is_short && !self.has_challenger() {
            return Ok(end(StudyEnding::TimeSpent));
        }
        let number = self.history.len();
        let crowd = self.next_interference_trial();
        // The number of concurrent trials depends on the interference, so no further trial begins before it is known.
        if crowd.is_none() && self.at_a_time.is_none() && number > 0 {
            return Ok(ControlFlow::Break(NextAction::Wait));
        }
        // The engine is asked about the rules after the first launch of a run, because it is still being imported until
        // then. In a new study this launch is the defaults. In a study with two or more trials it is the next
        // suggestion under the stored verdicts.
        let is_asked = number > 1 && !self.scope.empty && !self.preflighter.has_accepted().await;
        let is_due = !self.rules_checked && !is_asked && (number > 0 || self.scope.empty);
        if is_due && !self.check_rules_with_engine().await? {
            return Ok(end(StudyEnding::Interrupted));
        }
        let is_search_over = is_short || self.is_confirming();
        if !is_search_over && let Some(suggestion) = self.next_baseline_repeat() {
            return Ok(self.proposal(Origin::BaselineRepeat, suggestion, None));
        }
        if let Some((origin, suggestion)) = self.next_first_point(is_short, is_search_over) {
            return Ok(self.proposal(origin, suggestion, None));
        }
        if let Some(config) = crowd {
            let why = "the defaults on all slots at once, to measure the interference of concurrent trials".to_owned();
            return Ok(self.proposal(Origin::Interference, Suggestion::new(config, why), None));
        }
        if Box::pin(self.is_rule_test_due()).await? {
            if !idle {
                return Ok(ControlFlow::Break(NextAction::Wait));
            }
            if let Some(suggestion) = Box::pin(self.begin_rule_test()).await? {
                return Ok(self.proposal(Origin::RuleTest, suggestion, None));
            }
        }
        if let Some(suggestion) = self.defaults_after_refutation() {
            return Ok(self.proposal(Origin::Baseline, suggestion, None));
        }
        if idle {
            self.calibrate_prior().await?;
        }
        let question = self.question().await;
        self.report_refuted_knobs(&question);
        let verdict = self.judge_by(&question).await?;
        let gain = verdict.as_ref().and_then(|verdict| verdict.next_gain);
        let converged = verdict.as_ref().and_then(|verdict| self.converged(verdict));
        let confirming = converged.is_some() || is_search_over;
        if !confirming && let Some((origin, suggestion)) = ask_sampler(&question).await {
            return Ok(self.proposal(origin, suggestion, gain));
        }
        // The confirmation, and the end of the search, depend on all outcomes.
        if !idle {
            return Ok(ControlFlow::Break(NextAction::Wait));
        }
        let confirmation = Box::pin(self.next_confirmation()).await?;
        if let NextConfirmation::Launch(suggestion) = confirmation {
            if !self.clock.has_time(self.clock.plain_launch_of(&suggestion.config.key())) {
                return Ok(end(StudyEnding::TimeSpent));
            }
            return Ok(self.proposal(Origin::Confirmation, suggestion, None));
        }
        if let Some(suggestion) = self.next_ablation().await? {
            if !self.clock.has_time(self.clock.plain_launch_of(&suggestion.config.key())) {
                return Ok(end(StudyEnding::TimeSpent));
            }
            return Ok(self.proposal(Origin::Ablation, suggestion, None));
        }
        if let Some(ending) = converged {
            return Ok(end(ending));
        }
        // A further trial may become the best, and then has to be confirmed as well.
        if !self.clock.has_time(self.clock.search_launch() + self.reserve()) {
            return Ok(end(self.ending_without_time(&confirmation)));
        }
        match (confirmation, self.unused_launches()) {
            (NextConfirmation::Settled, Some(unused)) => return Ok(end(StudyEnding::Settled { unused })),
            // Too few launches are left for another round.
            (NextConfirmation::Spent, _) if self.is_confirming() => return Ok(end(StudyEnding::TrialsSpent)),
            _ => {}
        }
        // Time and launches that the confirmation does not need go back to the search.
        if confirming && let Some((origin, suggestion)) = ask_sampler(&question).await {
            return Ok(self.proposal(origin, suggestion, gain));
        }
        let removal = self.scope.removal.clone();
        Ok(end(if self.scope.empty { StudyEnding::NothingAllowed(removal) } else { StudyEnding::SpaceExhausted }))
    }

    /// Returns the proposal of the configuration that the run repeats; `None` if it was already proposed.
    fn propose_repeat(&mut self) -> Option<ControlFlow<NextAction, PendingTrial>> {
        let config = self.repeat.take()?;
        let why = "the winner again, in turn with the winner of another engine".to_owned();
        Some(self.proposal(Origin::Turn, Suggestion::new(config, why), None))
    }

    /// Returns the ending of a run whose time is too short for a further trial and its confirmation.
    fn ending_without_time(&self, confirmation: &NextConfirmation) -> StudyEnding {
        match self.clock.time_left().filter(|_| self.clock.has_time(self.clock.search_launch())) {
            Some(unused) if matches!(confirmation, NextConfirmation::Settled) => StudyEnding::SettledEarly { unused },
            _ => StudyEnding::TimeSpent,
        }
    }

    /// Returns the trial of the engine's defaults in the present context; `None` before it has a number.
    pub(super) fn defaults(&self) -> Option<&PastTrial> {
        self.history.iter().find(|past| past.origin == Origin::Baseline)
    }

    /// Puts the defaults first if the context has changed since the last trial.
    pub(super) fn queue_new_baseline(&mut self) {
        if self.history.is_empty() || self.defaults().is_some() {
            return;
        }
        let config = self.scope.search.space.fixed.clone();
        let why = "the context has changed: the defaults in the new context are the new baseline".to_owned();
        if let ControlFlow::Continue(baseline) = self.proposal(Origin::Baseline, Suggestion::new(config, why), None) {
            self.waiting.push_front(baseline);
        }
    }

    /// Returns whether there is a configuration to confirm besides the defaults.
    pub(super) fn has_challenger(&self) -> bool {
        let defaults = self.defaults().map(|past| past.config.key());
        self.best_key.is_some() && self.best_key != defaults
            || self.history.iter().any(|past| past.measured().is_some() && Some(past.config.key()) != defaults)
    }

    /// Turns a suggestion into a proposal with a number.
    fn proposal(
        &mut self,
        origin: Origin,
        suggestion: Suggestion,
        expected_gain: Option<f64>,
    ) -> ControlFlow<NextAction, PendingTrial> {
        ControlFlow::Continue(PendingTrial::new(self.add_proposal(origin, suggestion, expected_gain)))
    }

    /// Adds a proposal with the next number to the history.
    pub(super) fn add_proposal(
        &mut self,
        origin: Origin,
        suggestion: Suggestion,
        expected_gain: Option<f64>,
    ) -> Proposal {
        let number = u32::try_from(self.history.len()).unwrap_or(u32::MAX);
        let Suggestion { config, why, expected } = suggestion;
        let why = Some(why).filter(|why| !why.is_empty());
        let proposal = Proposal { number, origin, why, expected_gain, expected, config, server_of: None };
        self.history.push(PastTrial::pending(proposal.clone()));
        proposal
    }
}

/// Returns the sampler's suggestion. A model of many trials takes a second, and the launches are monitored meanwhile.
async fn ask_sampler(question: &Arc<SamplerQuestion>) -> Option<(Origin, Suggestion)> {
    super::judge::ask_on_thread(question, SamplerQuestion::next).await
}
