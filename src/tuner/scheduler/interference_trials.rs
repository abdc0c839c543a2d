//! The measurement of interference, before several trials run at a time.

use super::Scheduler;
use crate::config::Config;
use crate::trial::Origin;
use crate::tuner::slots::Interference;
use crate::tuner::{TuneError, TunerEvent};

impl Scheduler<'_> {
    /// Returns the configuration of the next interference trial, the defaults. Returns `None` if enough of these trials
    /// exist or none is needed.
    pub(super) fn next_interference_trial(&self) -> Option<Config> {
        let defaults = self.defaults().filter(|_| self.at_a_time.is_none())?;
        let present = self.history.iter().filter(|past| past.origin == Origin::Interference).count();
        (present < self.interference_trial_count(&defaults.config)).then(|| defaults.config.clone())
    }

    /// Returns the number of interference trials: the launches of the defaults that run at once.
    fn interference_trial_count(&self, defaults: &Config) -> usize {
        let needed = self.pool.needed(self.scope.search.devices_needed(defaults));
        let fit = self.pool.slots().count() / needed;
        self.run.slots.parallel().min(fit)
    }

    /// Decides how many trials run at a time, once the defaults have been measured alone and on all slots at once.
    pub(super) async fn judge_interference(&mut self) -> Result<(), TuneError> {
        let (store, slots) = (self.run.store, &self.run.slots);
        let defaults = self.history.iter().position(|past| past.origin == Origin::Baseline);
        let Some(number) = defaults.and_then(|number| u32::try_from(number).ok()) else { return Ok(()) };
        let Some(alone) = store.trial(&self.run.study, number).await? else { return Ok(()) };
        let crowd = self.interference_trial_count(&alone.trial.proposal.config);
        let mut together = store.present_trials(&self.run.study).await?;
        together.retain(|scored| scored.trial.proposal.origin == Origin::Interference);
        let goal = self.run.job.objective.goal;
        let interference = Interference::of(&alone, &together, goal, slots.max_interference());
        let at_a_time = match &interference {
            Some(_) if crowd > 1 && together.len() < crowd => return Ok(()),
            Some(found) if crowd > 1 && found.is_too_much() => 1,
            // The interference is acceptable, or there is nothing to compare: the defaults have failed or take every
            // slot.
            _ => slots.parallel(),
        };
        self.run.emit(TunerEvent::Interference { found: interference.filter(|_| crowd > 1), at_a_time });
        self.at_a_time = Some(at_a_time);
        Ok(())
    }
}
