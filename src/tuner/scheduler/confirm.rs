//! The confirmation: the best configurations, the engine's defaults and today's deployment are launched again in rounds,
//! until the verdict is final or the budget ends. `crate::decision` chooses the launches.

use super::Scheduler;
use crate::config::Config;
use crate::decision::{
    Confirmation, ConfirmationPlan, ConfirmationStep, confirmation_begin, launch_noise, standing_decision,
};
use crate::objective::{Goal, LaunchedTrial};
use crate::sampler::Suggestion;
use crate::store::{RankedConfiguration, StoredDecision};
use crate::trial::Origin;
use crate::tuner::TuneError;

/// The largest number of configurations that may compete.
const MAX_CANDIDATES: u32 = 20;

/// The number of standard deviations of a difference within which two configurations count as rivals.
const RIVAL_DEVIATIONS: f64 = 2.0;

/// The probability of keeping the limits above which a configuration is no risk.
const SURE_PROBABILITY: f64 = 0.95;

/// The next step of the confirmation.
pub(super) enum NextConfirmation {
    Launch(Suggestion),
    /// The verdict is final.
    Settled,
    /// The launches of the confirmation are used, or too few are left for a round.
    Spent,
    /// No configuration can be confirmed.
    NoCandidate,
}

/// The inputs of a confirmation.
pub(super) struct ConfirmationInputs {
    pub(super) launches: Vec<LaunchedTrial>,
    pub(super) defaults: Config,
    defaults_key: String,
    today: Option<Config>,
    today_key: Option<String>,
    /// The best configurations besides the defaults.
    candidates: Vec<RankedConfiguration>,
    pub(super) goal: Goal,
}

impl ConfirmationInputs {
    pub(super) fn confirmation(&self, plan: ConfirmationPlan) -> Confirmation<'_> {
        Confirmation {
            launches: &self.launches,
            goal: self.goal,
            defaults: &self.defaults_key,
            today: self.today_key.as_deref(),
            plan,
        }
    }
}

/// Returns the candidates with those that may break a limit behind each one of a better prospect: the expected value times
/// the probability that the configuration serves and keeps the limits. The others stay in the order of the ranking.
fn by_prospect(candidates: Vec<RankedConfiguration>, goal: Goal) -> Vec<RankedConfiguration> {
    let prospect = |ranked: &RankedConfiguration| {
        ranked.expected.as_ref().map_or(f64::NEG_INFINITY, |expected| match goal {
            Goal::Maximize => expected.value * expected.feasible,
            Goal::Minimize => -expected.value / expected.feasible,
        })
    };
    let is_sure =
        |ranked: &RankedConfiguration| ranked.expected.is_some_and(|expected| expected.feasible >= SURE_PROBABILITY);
    let (mut ordered, risky): (Vec<_>, Vec<_>) = candidates.into_iter().partition(is_sure);
    for candidate in risky {
        let place = ordered.iter().rposition(|other| prospect(other) >= prospect(&candidate));
        ordered.insert(place.map_or(0, |place| place + 1), candidate);
    }
    ordered
}

impl Scheduler<'_> {
    /// Returns the next step of the confirmation, and stores its plan before its first launch.
    pub(super) async fn next_confirmation(&mut self) -> Result<NextConfirmation, TuneError> {
        let Some(inputs) = self.confirmation_inputs().await? else { return Ok(NextConfirmation::NoCandidate) };
        let keys: Vec<_> = inputs.candidates.iter().map(|best| best.first.trial.proposal.config.key()).collect();
        let candidates: Vec<&str> = keys.iter().map(String::as_str).collect();
        let stored = self.present_confirmation(&inputs.launches).await?;
        if stored.as_ref().and_then(|stored| stored.ablation.as_ref()).is_some_and(|plan| plan.launches > 0) {
            return Ok(NextConfirmation::Settled);
        }
        if stored.is_none()
            && self.settled_winner.is_some()
            && candidates.first() == self.settled_winner.as_deref().as_ref()
        {
            return Ok(NextConfirmation::Settled);
        }
        let plan = stored.as_ref().map_or_else(|| self.plan_confirmation(&inputs), |stored| stored.plan);
        let key = match inputs.confirmation(plan).step(&candidates) {
            ConfirmationStep::Launch(key) => key,
            ConfirmationStep::Settled => return Ok(NextConfirmation::Settled),
            ConfirmationStep::Spent => return Ok(NextConfirmation::Spent),
            ConfirmationStep::NoCandidate => return Ok(NextConfirmation::NoCandidate),
        };
        let Some(config) = self.known_config(key) else { return Ok(NextConfirmation::NoCandidate) };
        if stored.is_none() {
            let began_at = u32::try_from(self.history.len()).unwrap_or(u32::MAX);
            let stored = StoredDecision { began_at, plan, ablation: None, decision: None };
            self.run.store.store_decision(&self.run.study, &stored).await?;
        }
        let is_baseline = config == inputs.defaults || inputs.today.as_ref() == Some(&config);
        let why = if is_baseline {
            "measured again beside the best, so that a drift of the machine affects all equally"
        } else {
            "measured again: the best of many noisy measurements is partly lucky"
        };
        Ok(NextConfirmation::Launch(Suggestion::new(config, why)))
    }

    /// Computes the decision of the present confirmation with its ablation, and stores it.
    pub(super) async fn decide(&mut self) -> Result<(), TuneError> {
        self.open_ablation = None;
        if let Some(inputs) = self.confirmation_inputs().await?
            && let Some(mut stored) = self.present_confirmation(&inputs.launches).await?
        {
            let confirmation = inputs.confirmation(stored.plan);
            stored.decision = confirmation.decide();
            if let Some(full) = stored.decision.clone() {
                self.reduce(&inputs, &mut stored, full).await?;
            }
            self.run.store.store_decision(&self.run.study, &stored).await?;
        }
        self.read_settled_winner().await
    }

    /// Returns the configuration with this key among those of the study.
    pub(super) fn known_config(&self, key: &str) -> Option<Config> {
        self.history.iter().map(|past| &past.config).find(|config| config.key() == key).cloned()
    }

    /// Reads the winners of the settled confirmations. Configurations of an ablation that did not win are beaten.
    async fn read_settled_winner(&mut self) -> Result<(), TuneError> {
        let confirmations = self.run.store.confirmations(&self.run.study).await?;
        let decisions: Vec<_> = confirmations.into_iter().filter_map(|stored| stored.decision).collect();
        let settled = || decisions.iter().filter(|decision| decision.is_settled);
        self.settled_winner = settled().next().and(standing_decision(&decisions)).map(|best| best.winner.clone());
        let beaten =
            settled().map(|decision| &decision.winner).filter(|winner| self.settled_winner.as_ref() != Some(*winner));
        let tested = self.history.iter().filter(|past| past.origin == Origin::Ablation).map(|past| past.config.key());
        let tested = tested.filter(|key| self.settled_winner.as_ref() != Some(key));
        self.beaten_winners = beaten.cloned().chain(tested).collect();
        Ok(())
    }

    pub(super) async fn confirmation_inputs(&self) -> Result<Option<ConfirmationInputs>, TuneError> {
        let (store, study) = (self.run.store, &self.run.study);
        let Some(defaults) = self.defaults().map(|past| past.config.clone()) else { return Ok(None) };
        let mut launches = store.launched_within(study, &[]).await?;
        launches.sort_by_key(|trial| trial.number);
        let judgement = store.judgement(study).await?;
        let goal = self.run.job.objective.goal;
        let mut candidates = store.leading_configurations(study, goal, judgement.as_ref(), MAX_CANDIDATES).await?;
        candidates.retain(|best| {
            let config = &best.first.trial.proposal.config;
            *config != defaults && !self.beaten_winners.contains(&config.key())
        });
        let candidates = by_prospect(candidates, goal);
        let today = self.measured_deployment();
        let (defaults_key, today_key) = (defaults.key(), today.as_ref().map(Config::key));
        Ok(Some(ConfirmationInputs { launches, defaults, defaults_key, today, today_key, candidates, goal }))
    }

    /// Returns the stored confirmation that the last launches belong to.
    pub(super) async fn present_confirmation(
        &self,
        launches: &[LaunchedTrial],
    ) -> Result<Option<StoredDecision>, TuneError> {
        let Some(first) = confirmation_begin(launches, self.run.job.objective.goal) else { return Ok(None) };
        let mut stored = self.run.store.confirmations(&self.run.study).await?;
        // The plan is stored before the first launch, which may have been rejected.
        stored.retain(|stored| stored.began_at <= first);
        Ok(stored.pop())
    }

    /// Plans a confirmation within the launches that are left.
    fn plan_confirmation(&self, inputs: &ConfirmationInputs) -> ConfirmationPlan {
        let left = self.run.job.budget.trials.map_or(u32::MAX, |trials| trials.saturating_sub(self.launches()));
        ConfirmationPlan::new(
            self.confirmation_launches().min(left),
            self.launches_per_round() - 1,
            self.rival_count(inputs),
        )
    }

    /// Returns the number of configurations that the search cannot distinguish from the best.
    fn rival_count(&self, inputs: &ConfirmationInputs) -> u32 {
        let Some(best) = inputs.candidates.first() else { return 0 };
        let noise = launch_noise(&inputs.launches, self.run.job.objective.goal).between_launches;
        let estimate = |ranked: &RankedConfiguration| match ranked.expected {
            Some(expected) => Some((expected.value, expected.deviation)),
            None => Some((ranked.value, noise? / f64::from(ranked.measurements.max(1)).sqrt())),
        };
        let Some((value, deviation)) = estimate(best) else { return 1 };
        let is_rival = |other: &&RankedConfiguration| {
            estimate(other).is_some_and(|(other, other_deviation)| {
                let spread = (deviation * deviation + other_deviation * other_deviation).sqrt();
                (other / value - 1.0).abs() <= RIVAL_DEVIATIONS * spread
            })
        };
        u32::try_from(inputs.candidates.iter().filter(is_rival).count()).unwrap_or(u32::MAX)
    }
}
