//! Variables for the random speed of a simulated engine's launch.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::store::StoreError;
use crate::tuner::run::StudyRun;
use crate::twin::LaunchDraw;

/// Returns the variables of the next launch of a trial. Every launch that ended without an outcome has left an incident,
/// so that a repetition is another draw. An interrupted launch has measured nothing, and its repetition draws the same.
///
/// # Errors
/// If the database cannot be read.
pub(super) async fn draw_variables(run: &StudyRun<'_>, trial: u32) -> Result<BTreeMap<String, String>, StoreError> {
    let incidents = run.store.incidents(&run.study, Some(trial)).await?;
    let retry = u32::try_from(incidents.len()).unwrap_or(u32::MAX);
    let draw = LaunchDraw { study_seed: run.job.seed, trial, retry };
    Ok(run.job.engine.engine.launch_variables(draw, age(&run.study.created_at, Timestamp::now())))
}

/// Returns the time since a study was created. It is 0 if the clock was set back, or if the stored time is unreadable.
fn age(created_at: &str, now: Timestamp) -> Duration {
    let created: Option<Timestamp> = created_at.parse().ok();
    created.and_then(|created| Duration::try_from(now.duration_since(created)).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_a_study_is_the_time_since_its_creation() {
        let now = "2026-02-01T10:00:00Z".parse().unwrap();
        assert_eq!(age("2026-02-01T08:30:00.500Z", now), Duration::from_millis(5_399_500));
        assert_eq!(age("2026-02-01T11:00:00Z", now), Duration::ZERO);
        assert_eq!(age("", now), Duration::ZERO);
    }
}
