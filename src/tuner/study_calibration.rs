//! Calibration of the twin by a study's own trials. The prior is then computed anew with the calibrated step times.
//!
//! The result depends on the stored trials alone, so that a resumed run has an equal prior.

use super::run::StudyRun;
use super::study_priors::twin_question;
use crate::execution::{UnusableTrials, measured_trial};
use crate::predict::calibrate_from_trials;
use crate::store::StoreError;
use crate::trial::{Origin, Trial};
use crate::twin::Calibration;

/// Least seconds of launches between two calibrations. A calibration and the prior that follows take some seconds.
const LEAST_BETWEEN_S: f64 = 40.0;
/// Maximum number of trials in one calibration.
const MAX_TRIALS: usize = 3;

/// Returns whether a trial's measurement may calibrate. The launches after the search come too late for its prior.
pub(super) fn may_calibrate(trial: &Trial) -> bool {
    trial.outcome.measurement().is_some()
        && trial.proposal.origin.is_ranked()
        && !matches!(trial.proposal.origin, Origin::Confirmation | Origin::Turn | Origin::Ablation)
}

/// Returns the number of trials that the latest calibration uses: the first ones of those with these durations in
/// seconds. A calibration is due after the first trial, and whenever the number has grown by half.
pub(super) fn calibrated_count(durations: &[f64]) -> usize {
    let (mut last, mut since_s) = (0, 0.0);
    for (index, duration) in durations.iter().enumerate() {
        since_s += duration;
        let count = index + 1;
        if count >= (last + 1).max(last * 3 / 2) && since_s >= LEAST_BETWEEN_S {
            (last, since_s) = (count, 0.0);
        }
    }
    last
}

/// Calibrates the twin by the first `count` trials that [may calibrate](may_calibrate). Returns the reason if it is not
/// possible.
///
/// # Errors
/// If the database cannot be read.
pub(super) async fn calibrate_by_trials(
    run: &StudyRun<'_>,
    count: usize,
) -> Result<Result<Calibration, String>, StoreError> {
    let unknown = Calibration::none();
    let question = twin_question(run.job, &run.installed, run.job.search_space().fixed.clone(), &unknown);
    let question = match question {
        Ok(question) => question,
        Err(why) => return Ok(Err(why)),
    };
    let (mut tried, mut unusable) = (Vec::new(), UnusableTrials::default());
    let trials = run.store.present_trials(&run.study).await?;
    for scored in trials.iter().filter(|scored| may_calibrate(&scored.trial)).take(count) {
        let startup = run.store.startup(&run.study, scored.trial.proposal.number).await?;
        tried.extend(measured_trial(run.store, &run.study, &scored.trial, startup.as_ref(), &mut unusable).await?);
    }
    Ok(calibrate_from_trials(&question, &tried, MAX_TRIALS).map_err(|error| error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibrations_become_rarer_and_take_a_small_share_of_the_time() {
        let counts = |duration: f64, trials: usize| -> Vec<usize> {
            let durations = vec![duration; trials];
            let mut counts: Vec<_> = (1..=trials).map(|count| calibrated_count(&durations[..count])).collect();
            counts.dedup();
            counts
        };
        assert_eq!(counts(60.0, 30), [1, 2, 3, 4, 6, 9, 13, 19, 28]);
        assert_eq!(counts(4.0, 45), [0, 10, 20, 30, 45], "ten launches take 40 s");
        assert_eq!(calibrated_count(&[]), 0);
    }
}
