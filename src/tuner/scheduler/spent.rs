//! What the study's launches have cost, so that the sampler can weigh by it what further ones promise.

use std::collections::BTreeMap;

use crate::cost::{LaunchCosts, ObservedLaunch};
use crate::store::Scored;
use crate::trial::{Origin, Startup, Trial};
use crate::tuner::TuneError;
use crate::tuner::run::StudyRun;
use crate::twin::DevicePreset;

/// All of it is stored, so that a run that takes the study up again knows the same.
pub(super) struct Spent {
    preset: &'static DevicePreset,
    /// By the trials' numbers.
    started: BTreeMap<u32, ObservedLaunch>,
}

impl Spent {
    /// `None` where the twin does not know how this engine starts: what trials have cost as a whole is all there is then.
    pub(super) async fn read(run: &StudyRun<'_>, outcomes: &[Scored]) -> Result<Option<Self>, TuneError> {
        let is_simulated = !run.job.engine.engine.computes();
        let Some(preset) = run.installed.preset(run.job).ok().filter(|_| !is_simulated) else {
            return Ok(None);
        };
        let mut startups = run.store.startups(&run.study).await?;
        let mut spent = Self { preset, started: BTreeMap::new() };
        for Scored { trial, .. } in outcomes {
            spent.add(trial, startups.remove(&trial.proposal.number));
        }
        Ok(Some(spent))
    }

    /// A trial that has an outcome. What the defaults take beside themselves is not what a launch takes.
    pub(super) fn add(&mut self, trial: &Trial, startup: Option<Startup>) {
        if let Some(startup) = startup.filter(|_| trial.proposal.origin != Origin::Interference) {
            self.started.insert(trial.proposal.number, ObservedLaunch::new(trial, startup));
        }
    }

    /// A trial whose outcome was taken back.
    pub(super) fn forget(&mut self, number: u32) {
        self.started.remove(&number);
    }

    pub(super) fn launches(&self) -> LaunchCosts {
        LaunchCosts { preset: self.preset, started: self.started.values().cloned().collect() }
    }
}
