//! The winner and the engine's defaults, measured again: the winner of many noisy trials is partly lucky.

use super::slots::CROWD;
use super::{TuneError, Tuner};
use crate::config::Config;
use crate::sampler::Past;
use crate::store::Study;

/// The name under which a configuration is measured again.
pub const CONFIRMATION: &str = "confirmation";

impl Tuner<'_> {
    /// The defaults or the best other configuration, whichever was launched less often; `None` when both were often
    /// enough.
    ///
    /// They take turns, so that a drift of the machine meets both alike.
    pub(super) async fn confirm(
        &self,
        study: &Study,
        history: &[Past],
    ) -> Result<Option<(&'static str, Config)>, TuneError> {
        let enough = 1 + self.job.budget.confirmations() as usize;
        let baseline = self.store.measurements_of(study, 0).await?.map(|baseline| baseline.first.trial.config);
        let best = self.store.best(study, self.job.objective.goal, 2).await?;
        let mut configs = best.into_iter().map(|ranked| ranked.first.trial.config);
        let challenger = configs.find(|config| Some(config) != baseline.as_ref());
        let of = |past: &&Past, config: &Config| past.config == *config && past.proposed_by != CROWD;
        let launches = |config: &Config| history.iter().filter(|past| of(past, config)).count();
        let candidates = baseline.into_iter().chain(challenger).map(|config| (launches(&config), config));
        let next = candidates.filter(|(launches, _)| *launches < enough).min_by_key(|(launches, _)| *launches);
        Ok(next.map(|(_, config)| (CONFIRMATION, config)))
    }
}
