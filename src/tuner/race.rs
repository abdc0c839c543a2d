//! The race of a trial: the value that its load must be able to reach, and the precision that is enough.

use super::TuneError;
use super::run::StudyRun;
use crate::decision::launch_noise;
use crate::metrics::RaceTarget;
use crate::objective::{LaunchResult, LaunchedTrial};
use crate::trial::Origin;

/// Minimum number of measured trials before any other races. The best of fewer is no reference.
const MIN_MEASURED: usize = 3;
/// The noise between launches as long as no configuration was launched twice, as a share of the value.
const DEFAULT_LAUNCH_NOISE: f64 = 0.02;
/// Degrees of freedom that the default counts for beside repeated launches. Two equal launches are no proof of a machine
/// without noise.
const DEFAULT_FREEDOM: f64 = 2.0;
/// The probability that a configuration as good as the best does not lose. A lost race is no lost trial: its
/// value is measured, only over a shorter window.
const CONFIDENCE: f64 = 0.8;

/// Returns the race of a trial of this origin. Trials that others are compared with cannot lose it. `None` for tests of
/// rules and of the environment, and before a few trials are measured. The loads of several workloads never race, because
/// none of them decides alone.
///
/// # Errors
/// If the database cannot be read.
pub(super) async fn race_target(run: &StudyRun<'_>, origin: &Origin) -> Result<Option<RaceTarget>, TuneError> {
    let (job, objective) = (run.job, &run.job.objective);
    let can_lose = matches!(origin, Origin::Sampler(_) | Origin::Start | Origin::Caller | Origin::LiveLook);
    let is_reference = matches!(
        origin,
        Origin::Baseline
            | Origin::BaselineRepeat
            | Origin::Deployment
            | Origin::Confirmation
            | Origin::Turn
            | Origin::Ablation
    );
    // A search for the highest load ends once that load is certainly too low.
    let is_raced = objective.load_goal.is_some() || RaceTarget::is_raced(&objective.metric, &job.load.arrival);
    if !(can_lose || is_reference) || !job.load.race || !is_raced {
        return Ok(None);
    }
    let launches = run.store.launched_within(&run.study, &[]).await?;
    let measured = launches.iter().filter(|launch| matches!(launch.result, LaunchResult::Measured(_))).count();
    if measured < MIN_MEASURED {
        return Ok(None);
    }
    let best = run.store.best(&run.study, objective.goal, 1).await?.pop();
    Ok(best.map(|best| RaceTarget {
        metric: objective.metric.clone(),
        goal: objective.goal,
        incumbent: best.value,
        incumbent_launches: best.measurements,
        launch_noise: expected_noise(&launches, objective.goal),
        confidence: CONFIDENCE,
        can_lose,
    }))
}

/// Returns the standard deviation between launches, as a share of the value: that of repeated configurations, drawn
/// towards the default while they are few.
fn expected_noise(launches: &[LaunchedTrial], goal: crate::objective::Goal) -> f64 {
    let found = launch_noise(launches, goal);
    let freedom = found.between_launches.map_or(0.0, |_| crate::stats::to_f64(found.freedom));
    let squares =
        found.between_launches.unwrap_or(0.0).powi(2) * freedom + DEFAULT_LAUNCH_NOISE.powi(2) * DEFAULT_FREEDOM;
    (squares / (freedom + DEFAULT_FREEDOM)).sqrt()
}
