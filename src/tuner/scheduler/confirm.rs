//! The confirmation: the winner, the engine's defaults and today's deployment are measured again, because the winner of
//! many noisy trials is partly lucky.

use super::Scheduler;
use crate::config::Config;
use crate::sampler::{PastTrial, Suggestion};
use crate::trial::Origin;
use crate::tuner::TuneError;

impl Scheduler<'_> {
    /// Returns the defaults, the deployment or the best other configuration, the one with the fewest launches first.
    /// Returns `None` after `rounds` further launches of each. A deployment that is the best is measured once a round.
    ///
    /// The best configuration is the first in the ranking of the sampler's model. If that has missed a limit, it is the
    /// next of the ranking. Without a model it is the best mean.
    ///
    /// They alternate, so that a drift of the machine affects them equally.
    pub(super) async fn confirmation(&self, rounds: u32) -> Result<Option<Suggestion>, TuneError> {
        let enough = 1 + rounds as usize;
        let baseline =
            self.run.store.baseline(&self.run.study).await?.map(|baseline| baseline.first.trial.proposal.config);
        let judgement = self.run.store.judgement(&self.run.study).await?;
        let best = self
            .run
            .store
            .leading_configurations(&self.run.study, self.run.job.objective.goal, judgement.as_ref(), 2)
            .await?;
        let challenger = best.into_iter().find(|ranked| Some(&ranked.first.trial.proposal.config) != baseline.as_ref());
        let why = match challenger.as_ref().map(|ranked| ranked.expected.is_some()) {
            Some(true) => "measured again: expected to be the best of all measured configurations",
            _ => "measured again: the best of many noisy measurements is partly lucky",
        };
        let challenger = challenger.map(|ranked| (ranked.first.trial.proposal.config, why));
        let beside = "measured again beside the best, so that a drift of the machine affects all equally";
        let of = |past: &&PastTrial, config: &Config| {
            past.config == *config && past.origin.is_ranked() && past.origin != Origin::Probe
        };
        let launches = |config: &Config| self.history.iter().filter(|past| of(past, config)).count();
        let is_challenger = |config: &Config| challenger.as_ref().is_some_and(|(best, _)| best == config);
        let deployment = self.measured_deployment().filter(|config| !is_challenger(config));
        // A ranking prefers configurations with more measurements. A deployment before the winner would replace it.
        let (first, last) = if deployment.is_some() { (challenger, None) } else { (None, challenger) };
        let baselines = baseline.into_iter().chain(deployment).map(|config| (config, beside));
        let candidates = first.into_iter().chain(baselines).chain(last);
        let candidates = candidates.map(|(config, why)| (launches(&config), config, why));
        let next = candidates.filter(|(launches, ..)| *launches < enough).min_by_key(|(launches, ..)| *launches);
        Ok(next.map(|(_, config, why)| Suggestion { config, why: why.to_owned() }))
    }
}
