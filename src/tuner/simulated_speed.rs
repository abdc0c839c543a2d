//! The speed of the launches of a study in virtual time.

use std::time::Duration;

use super::run::StudyRun;
use crate::store::StoreError;
use crate::twin::{LaunchDraw, SpeedVariation};

/// The speeds of the launches of a study whose engine has noise between launches.
pub(super) struct SimulatedSpeeds {
    variation: SpeedVariation,
    /// Seconds of the device's clock per second of the study's clock.
    time_scale: f64,
    /// The total time of the launches of earlier runs: the clock of each run begins at zero, and no drift is repeated.
    earlier: Duration,
}

impl SimulatedSpeeds {
    /// Returns the speeds of a study; `None` if its launches repeat exactly.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub(super) async fn of_study(run: &StudyRun<'_>) -> Result<Option<Self>, StoreError> {
        let engine = &run.job.engine;
        let simulated = engine.engine.simulated(&engine.args).filter(|simulated| simulated.variation.is_some());
        let Some(simulated) = simulated else { return Ok(None) };
        let trials = run.store.trials(&run.study).await?;
        let earlier_s = trials.iter().map(|scored| scored.trial.elapsed_s).sum();
        let earlier = Duration::try_from_secs_f64(earlier_s).unwrap_or_default();
        Ok(Some(Self { variation: simulated.variation, time_scale: simulated.time_scale, earlier }))
    }

    /// Returns the factor on all times of a trial's launch, `delay_s` seconds from now.
    pub(super) fn slowness(&self, run: &StudyRun<'_>, trial: u32, delay_s: f64) -> f64 {
        // Launches in virtual time have no incidents, and hence no repetitions.
        let draw = LaunchDraw { study_seed: run.job.seed, trial, retry: 0 };
        let study_s = (self.earlier + run.time.elapsed()).as_secs_f64() + delay_s;
        let study_time = Duration::try_from_secs_f64(study_s * self.time_scale).unwrap_or(Duration::MAX);
        self.variation.draw(draw).slowness(study_time)
    }
}
