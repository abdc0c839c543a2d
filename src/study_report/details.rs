//! Everything that a page about a study shows: its findings and all of its trials with their records.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::{StudyCost, StudyReport};
use crate::facts::TrialContext;
use crate::objective::{Goal, rank};
use crate::store::{
    MetricValues, ScoredTrial, Store, StoreError, StoredContext, StoredExplanation, Study, UnfinishedTrial,
};
use crate::study_report::MetricGoal;

/// The findings of a study, and all of its trials with their records.
#[derive(Clone, Debug)]
pub(crate) struct StudyDetails {
    pub report: StudyReport,
    pub cost: StudyCost,
    /// Every trial with an outcome, ordered by number.
    pub trials: Vec<ScoredTrial>,
    pub unfinished: Vec<UnfinishedTrial>,
    /// The contexts of all trials, by their numbers.
    pub contexts: BTreeMap<u32, StoredContext>,
    pub present_context: Option<TrialContext>,
    /// The importance of the parameters; `None` if it was never computed.
    pub explanation: Option<StoredExplanation>,
    /// Samples of the servers over time, by number of the trial.
    pub series: BTreeMap<u32, Json>,
    /// The Pareto fronts that were asked for, each as first trials of its configurations.
    pub fronts: Vec<TrialFront>,
}

/// A Pareto front over two metrics.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrialFront {
    pub goals: [MetricGoal; 2],
    /// The first trials of the front's configurations, ordered by the first metric, the best first.
    pub trials: Vec<u32>,
}

impl StudyDetails {
    /// Reads a study. `fronts` names pairs of metrics. `has_series` decides whether the samples over time are read.
    pub(crate) async fn read(
        store: &Store,
        study: Study,
        is_simulated: bool,
        fronts: &[[MetricGoal; 2]],
        has_series: bool,
    ) -> Result<Self, StoreError> {
        let trials = store.trials(&study).await?;
        let launched = store.launched_within(&study, &[]).await?;
        // The order does not matter, because a front has its own.
        let ranked = rank(&launched, Goal::Maximize);
        let fronts = fronts.iter().map(|goals| {
            let values = metric_values(&trials, goals);
            TrialFront { goals: *goals, trials: super::pareto::first_trials(&ranked, goals, &values) }
        });
        let fronts = fronts.collect();
        Ok(Self {
            cost: StudyCost::read(store, &study, is_simulated).await?,
            unfinished: store.unfinished_trials(&study).await?,
            contexts: store.contexts(&study).await?,
            present_context: store.context(&study).await?,
            explanation: store.explanation(&study).await?,
            series: if has_series { store.telemetry_series(&study).await? } else { BTreeMap::new() },
            report: StudyReport::read(store, study, 5).await?,
            trials,
            fronts,
        })
    }
}

/// Returns the values of two metrics for each measured trial.
fn metric_values(trials: &[ScoredTrial], goals: &[MetricGoal; 2]) -> MetricValues {
    let values = trials.iter().filter_map(|scored| {
        let measurement = scored.trial.outcome.measurement()?;
        let row = goals.iter().map(|goal| measurement.metric(goal.metric)).collect();
        Some((scored.trial.proposal.number, row))
    });
    values.collect()
}
