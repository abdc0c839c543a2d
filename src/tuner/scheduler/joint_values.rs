//! The joint values of launches on several workloads. They depend on the other launches, so that an outcome may change
//! the values of earlier trials.

use crate::objective::{Objective, Score, WorkloadValues};
use crate::sampler::{KnownOutcome, PastTrial};
use crate::trial::Trial;

/// The values of the ranked launches on each workload, in the present context. Empty for a study of one workload.
#[derive(Debug, Default)]
pub(super) struct JointValues(Vec<WorkloadValues>);

/// Returns the values of a measured trial on each workload.
fn values_of(objective: &Objective, trial: &Trial) -> Option<WorkloadValues> {
    let (number, key) = (trial.proposal.number, trial.proposal.config.key());
    objective.workload_values(number, &key, trial.outcome.measurement()?)
}

impl JointValues {
    pub(super) fn of(objective: &Objective, launches: &[Trial]) -> Self {
        let ranked = launches.iter().filter(|trial| trial.proposal.origin.is_ranked());
        Self(ranked.filter_map(|trial| values_of(objective, trial)).collect())
    }

    /// Adds an outcome. Returns its score, and the trials of `history` whose value it changes with their new values.
    pub(super) fn score(
        &mut self,
        objective: &Objective,
        trial: &Trial,
        history: &[PastTrial],
    ) -> (Score, Vec<(u32, f64)>) {
        if objective.joint.is_none() {
            return (objective.score(&trial.outcome), Vec::new());
        }
        let own = values_of(objective, trial);
        if trial.proposal.origin.is_ranked() {
            self.0.extend(own.clone());
        }
        let value = own.and_then(|own| objective.joint_values(&[own], &self.0).pop());
        let score = objective.score_of(&trial.outcome, value);
        let values = objective.joint_values(&self.0, &self.0);
        let changed = self.0.iter().map(|launch| launch.number).zip(values).filter(|(number, value)| {
            let known = history.get(*number as usize).and_then(PastTrial::measured);
            let reading = known.and_then(|numbers| numbers.values.first());
            reading.is_some_and(|reading| reading.value.to_bits() != value.to_bits())
        });
        (score, changed.collect())
    }
}

/// Replaces the values of trials.
pub(super) fn replace(history: &mut [PastTrial], values: &[(u32, f64)]) {
    for (number, value) in values {
        let past = history.get_mut(*number as usize);
        if let Some(KnownOutcome::Measured(numbers)) = past.map(|past| &mut past.outcome)
            && let Some(reading) = numbers.values.first_mut()
        {
            reading.value = *value;
        }
    }
}
