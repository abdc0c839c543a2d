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
/// If the database cannot be read, or the study's time of creation is unreadable.
pub(super) async fn draw_variables(run: &StudyRun<'_>, trial: u32) -> Result<BTreeMap<String, String>, StoreError> {
    let incidents = run.store.incidents(&run.study, Some(trial)).await?;
    let retry = u32::try_from(incidents.len()).unwrap_or(u32::MAX);
    let draw = LaunchDraw { study_seed: run.job.seed, trial, retry };
    let created = run.store.creation_time(&run.study)?;
    Ok(run.job.engine.engine.launch_variables(draw, age(created, Timestamp::now())))
}

/// Returns the time since a study was created; 0 if the clock was set back.
fn age(created: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(created)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_a_study_is_the_time_since_its_creation() {
        let at = |text: &str| text.parse().unwrap();
        let now = at("2026-02-01T10:00:00Z");
        assert_eq!(age(at("2026-02-01T08:30:00.500Z"), now), Duration::from_millis(5_399_500));
        assert_eq!(age(at("2026-02-01T11:00:00Z"), now), Duration::ZERO);
    }
}
