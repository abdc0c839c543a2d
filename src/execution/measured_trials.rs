//! The stored trials that calibrate the twin.

use crate::predict::MeasuredTrial;
use crate::stats::f64_to_u64;
use crate::store::{Store, StoreError, Study};
use crate::trial::{Outcome, Startup, Trial};

/// Trials that cannot calibrate, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnusableTrials {
    pub not_measured: usize,
    /// Trials that ran beside others, so their step times are not those of the configuration alone.
    pub not_alone: usize,
    pub without_replies: usize,
}

/// Returns a trial for the calibration. `None` if it was not measured, was not alone on the host, or has no stored
/// replies. It is then counted in `unusable`.
///
/// # Errors
/// If the database cannot be read.
pub async fn measured_trial(
    store: &Store,
    study: &Study,
    trial: &Trial,
    startup: Option<&Startup>,
    unusable: &mut UnusableTrials,
) -> Result<Option<MeasuredTrial>, StoreError> {
    let Outcome::Measured(measurement) = &trial.outcome else {
        unusable.not_measured += 1;
        return Ok(None);
    };
    if store.placement(study, trial.proposal.number).await?.is_some_and(|placement| !placement.alone) {
        unusable.not_alone += 1;
        return Ok(None);
    }
    let Some(replies) = store.replies(study, trial.proposal.number).await? else {
        unusable.without_replies += 1;
        return Ok(None);
    };
    let blocks = startup.and_then(|startup| startup.resolved.get("num-gpu-blocks"));
    let steps = measurement.server.get("engine_steps").map(|steps| f64_to_u64(steps.round()));
    let blocks = blocks.and_then(|blocks| blocks.parse().ok());
    Ok(Some(MeasuredTrial { config: trial.proposal.config.clone(), replies, steps, blocks }))
}
