//! What a study's trials have shown of the machine.

use crate::cli::failure::{Failure, INVALID};
use crate::job::Job;
use crate::store::Store;
use crate::twin::Calibration;

/// The calibration from the measured trials of a study, on the model and engine of `job`.
///
/// # Errors
/// When there is no such study, or its trials cannot calibrate.
pub(super) async fn calibrate(store: &Store, study: &str, job: &Job) -> Result<Calibration, Failure> {
    if store.study(study).await?.is_none() {
        return Err(Failure::new(INVALID, format!("there is no study {study:?} in {}", store.path().display()))
            .with_hint("`setpoint studies` lists those that there are"));
    }
    let message = format!("{} cannot be calibrated from trials yet", job.name);
    Err(Failure::unexpected(message)
        .with_hint("leave --calibrate out; the ranges are then those of an unknown machine"))
}
