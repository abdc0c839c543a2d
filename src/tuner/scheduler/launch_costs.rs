//! The costs of the study's launches, so that the sampler can divide expected gains by expected costs.

use std::collections::BTreeMap;

use crate::cost::{LaunchCostData, ObservedLaunch};
use crate::store::ScoredTrial;
use crate::trial::{Origin, Startup, Trial};
use crate::tuner::TuneError;
use crate::tuner::run::StudyRun;
use crate::twin::DevicePreset;

/// Launches with their phases, by trial. All of it is stored, so a resumed run has equal data.
pub(super) struct LaunchCostHistory {
    preset: &'static DevicePreset,
    /// By the trials' numbers.
    launches: BTreeMap<u32, ObservedLaunch>,
}

impl LaunchCostHistory {
    /// Reads the stored launches. Returns `None` for the simulated engine, and if the twin cannot simulate this
    /// engine's start. Then only the total costs of trials are available.
    pub(super) async fn read(run: &StudyRun<'_>, outcomes: &[ScoredTrial]) -> Result<Option<Self>, TuneError> {
        let is_simulated = !run.job.engine.engine.runs_model();
        let Some(preset) = run.installed.preset(run.job).ok().filter(|_| !is_simulated) else {
            return Ok(None);
        };
        let mut startups = run.store.startups(&run.study).await?;
        let mut spent = Self { preset, launches: BTreeMap::new() };
        for ScoredTrial { trial, .. } in outcomes {
            spent.add(trial, startups.remove(&trial.proposal.number));
        }
        Ok(Some(spent))
    }

    /// Adds a finished trial. Interference trials are skipped: they share the host, so their duration is not that of a
    /// normal launch.
    pub(super) fn add(&mut self, trial: &Trial, startup: Option<Startup>) {
        if let Some(startup) = startup.filter(|_| trial.proposal.origin != Origin::Interference) {
            self.launches.insert(trial.proposal.number, ObservedLaunch::new(trial, startup));
        }
    }

    /// Removes a trial whose outcome was withdrawn.
    pub(super) fn forget(&mut self, number: u32) {
        self.launches.remove(&number);
    }

    /// Returns the costs of all launches, for the question to the sampler.
    pub(super) fn launches(&self) -> LaunchCostData {
        LaunchCostData { preset: self.preset, launches: self.launches.values().cloned().collect() }
    }
}
