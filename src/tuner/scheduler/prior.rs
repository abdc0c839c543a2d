//! The sampler's priors, and the calibration of the twin's by the study's own trials.

use std::collections::BTreeSet;

use super::Scheduler;
use crate::job::{JobSearch, TWIN_PRIOR};
use crate::prior::TWIN_SOURCE;
use crate::sampler::SamplerPrior;
use crate::tuner::run::StudyRun;
use crate::tuner::study_calibration::{calibrate_by_trials, calibrated_count};
use crate::tuner::{TuneError, read_priors};
use crate::twin::Calibration;

/// Returns the number of trials that calibrate the twin's prior. With several slots it is the baseline at most, because
/// concurrent trials slow each other down.
pub(super) fn calibrated_trials(run: &StudyRun<'_>, durations: &[f64]) -> usize {
    let job = run.job;
    // The times of single requests are stored for one workload at one load only.
    let has_replies = job.objective.joint.is_none() && job.objective.load_goal.is_none();
    let is_wanted =
        job.calibrate_prior && job.sampler.uses_priors() && job.priors.iter().any(|name| name == TWIN_PRIOR);
    let most = if run.slots.parallel() > 1 { durations.len().min(1) } else { durations.len() };
    if has_replies && is_wanted { calibrated_count(&durations[..most]) } else { 0 }
}

/// Returns the priors that the study requests, the twin's calibrated by the first `trials` trials. Reports the notices
/// that are not in `noticed`.
pub(super) async fn read(
    run: &StudyRun<'_>,
    search: &JobSearch<'_>,
    trials: usize,
    noticed: &mut BTreeSet<String>,
) -> Result<Vec<SamplerPrior>, TuneError> {
    let (calibration, note) = match trials {
        0 => (Calibration::none(), None),
        _ => match calibrate_by_trials(run, trials).await? {
            Ok(calibration) => (calibration, Some(calibrated_note(&run.job.name))),
            Err(why) => (Calibration::none(), Some(format!("prior {TWIN_PRIOR}: not calibrated: {why}"))),
        },
    };
    let (priors, notes) = read_priors(run.job, &run.installed, Some(run.store), search, &calibration).await?;
    for text in notes.into_iter().chain(note) {
        if noticed.insert(text.clone()) {
            run.notice(text);
        }
    }
    Ok(priors)
}

fn calibrated_note(study: &str) -> String {
    format!(
        "prior {TWIN_PRIOR}: calibrated by the trials of this study; `setpoint predict --calibrate {study}` shows the \
         factors"
    )
}

impl Scheduler<'_> {
    /// Calibrates the twin and computes its prior anew if enough further trials were measured. The computation takes
    /// some seconds, so nothing runs meanwhile.
    pub(super) async fn calibrate_prior(&mut self) -> Result<(), TuneError> {
        let trials = calibrated_trials(self.run, &self.calibrating_s);
        if trials == self.calibrated_trials || !self.priors.iter().any(|prior| prior.name == TWIN_SOURCE) {
            return Ok(());
        }
        self.calibrated_trials = trials;
        self.priors = read(self.run, &self.scope.search, trials, &mut self.noticed).await?;
        Ok(())
    }
}
