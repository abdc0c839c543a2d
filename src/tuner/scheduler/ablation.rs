//! The ablation: flags of the confirmed winner are put back to the defaults, and those without an effect are left out.
//! `crate::decision` chooses the launches.

use std::sync::Arc;

use super::Scheduler;
use super::confirm::ConfirmationInputs;
use super::judge::ask_on_thread;
use crate::config::Config;
use crate::decision::{Ablation, AblationPlan, AblationStep, ChangedFlag, Decision, MeasuredNoise, VerdictKind};
use crate::job::SamplerQuestion;
use crate::objective::Goal;
use crate::sampler::{KnownOutcome, Suggestion};
use crate::store::StoredDecision;
use crate::tuner::TuneError;

/// The number of launches of the shortest test.
const MIN_LAUNCHES: u32 = 4;

/// The largest number of launches of an ablation that the study does not request.
const MAX_LEFT_LAUNCHES: u32 = 40;

impl Scheduler<'_> {
    /// Returns the next launch of the ablation of the confirmed winner. `None` if none is under way.
    pub(super) async fn next_ablation(&self) -> Result<Option<Suggestion>, TuneError> {
        if self.open_ablation.is_none() {
            return Ok(None);
        }
        let Some(inputs) = self.confirmation_inputs().await? else { return Ok(None) };
        let Some(stored) = self.present_confirmation(&inputs.launches).await? else { return Ok(None) };
        let Some(full) = inputs.confirmation(stored.plan).decide() else { return Ok(None) };
        let (Some(plan), rejected) = (&stored.ablation, self.rejected_by_ablation()) else { return Ok(None) };
        let Some(winner) = self.known_config(&plan.winner) else { return Ok(None) };
        match ablation(&inputs, plan, &winner, &rejected, full.noise).step() {
            AblationStep::Launch(config, flags) => Ok(Some(Suggestion::new(config, why(&flags)))),
            AblationStep::Done => Ok(None),
        }
    }

    /// Replaces the decision `full` of a confirmation by that of its ablation. Plans the ablation if the verdict has just
    /// become final.
    pub(super) async fn reduce(
        &mut self,
        inputs: &ConfirmationInputs,
        stored: &mut StoredDecision,
        full: Decision,
    ) -> Result<(), TuneError> {
        if !full.is_settled || full.verdict.over_defaults.kind != VerdictKind::Better {
            return Ok(());
        }
        let Some(winner) = self.known_config(&full.winner) else { return Ok(()) };
        // A plan without launches is made again, because a later run may have a larger budget.
        let plan = match stored.ablation.take().filter(|plan| plan.launches > 0) {
            Some(plan) => plan,
            None => self.plan_ablation(inputs, &winner, stored.plan.launches.saturating_sub(full.launches)).await,
        };
        let rejected = self.rejected_by_ablation();
        let ablation = ablation(inputs, &plan, &winner, &rejected, full.noise);
        let decision = inputs.confirmation(stored.plan).reduce(full, &ablation);
        let is_open = decision.ablation.as_ref().is_some_and(|result| !result.is_complete);
        self.open_ablation = is_open.then_some(stored.began_at);
        (stored.decision, stored.ablation) = (Some(decision), Some(plan));
        Ok(())
    }

    /// Plans an ablation of `winner`. `unused` is the number of launches that the confirmation did not need. A single
    /// changed flag needs no launches, because its effect is the gain over the defaults.
    ///
    /// An ablation that the study does not request has the launches that are left after a search that expects too little of
    /// further trials. Before that, they find better winners in the search.
    async fn plan_ablation(&self, inputs: &ConfirmationInputs, winner: &Config, unused: u32) -> AblationPlan {
        let budget = &self.run.job.budget;
        let began_at = u32::try_from(self.history.len()).unwrap_or(u32::MAX);
        let is_changed = |(flag, value): &(&str, &crate::config::Value)| inputs.defaults.get(flag) != Some(*value);
        let changed: Vec<_> = winner.iter().filter(is_changed).collect();
        let left = budget.trials.map_or(u32::MAX, |trials| trials.saturating_sub(self.launches()));
        let launches = match budget.ablation {
            None if self.has_search_converged().await => left.min(MAX_LEFT_LAUNCHES),
            None | Some(0) => 0,
            Some(_) => left.min(budget.ablation_launches(self.total_launches()) + unused),
        };
        let launches = if changed.len() < 2 || launches < MIN_LAUNCHES { 0 } else { launches };
        let question = self.question().await;
        let expected = if launches == 0 {
            vec![None; changed.len()]
        } else {
            let names = changed.iter().map(|(flag, _)| (*flag).to_owned()).collect();
            expected_losses(question.clone(), winner.clone(), inputs.defaults.clone(), names, inputs.goal).await
        };
        let flags = changed.into_iter().zip(expected).map(|((flag, value), expected)| ChangedFlag {
            name: flag.to_owned(),
            expected,
            is_default: question.default_value(flag) == Some(value),
        });
        AblationPlan::new(began_at, winner.key(), launches, flags.collect())
    }

    /// Returns whether the model expects too little of further trials.
    async fn has_search_converged(&self) -> bool {
        let question = self.question().await;
        let judgement = ask_on_thread(&question, SamplerQuestion::judge).await;
        let judgement = judgement.map(|judgement| self.judgement(question.sampler_name(), &judgement));
        judgement.is_some_and(|judgement| self.converged(&judgement).is_some())
    }

    /// Returns the keys of tested configurations that rules or engine have rejected.
    fn rejected_by_ablation(&self) -> Vec<String> {
        let rejected = self.history.iter().filter(|past| matches!(past.outcome, KnownOutcome::Rejected));
        rejected.map(|past| past.config.key()).collect()
    }
}

fn ablation<'a>(
    inputs: &'a ConfirmationInputs,
    plan: &'a AblationPlan,
    winner: &'a Config,
    rejected: &'a [String],
    noise: MeasuredNoise,
) -> Ablation<'a> {
    let (launches, defaults, goal) = (&inputs.launches, &inputs.defaults, inputs.goal);
    Ablation { launches, goal, winner, defaults, plan, rejected, noise }
}

/// Returns the share of the value that the sampler's model expects to be lost without each flag.
async fn expected_losses(
    question: Arc<SamplerQuestion>,
    winner: Config,
    defaults: Config,
    flags: Vec<String>,
    goal: Goal,
) -> Vec<Option<f64>> {
    let work = move || {
        let without = flags.iter().map(|flag| winner.with_flag_of(&defaults, flag));
        let configs: Vec<Config> = std::iter::once(winner.clone()).chain(without).collect();
        let expected = question.expect(&configs);
        let loss = |other: Option<f64>| {
            let ratio = libm::log(expected[0]? / other?);
            Some(match goal {
                Goal::Maximize => ratio,
                Goal::Minimize => -ratio,
            })
            .filter(|loss| loss.is_finite())
        };
        expected[1..].iter().map(|other| loss(*other)).collect()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(losses) => losses,
        // Nobody cancels the task, so it has panicked. The panic is passed on.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Returns the reason of a launch.
fn why(flags: &[String]) -> String {
    format!("measured in pairs with and without {}: a flag without a proven effect is left out", flags.join(", "))
}
