//! The reason for which a study has no best configuration.

use super::StudyReport;
use crate::store::{Store, StoreError};
use crate::trial::FailureKind;

/// The reason for which a study has no best configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NoWinner {
    /// No trial was measured.
    Unmeasured {
        /// Launches that failed.
        failed: usize,
        furthest: FurthestPhase,
    },
    /// Every measurement lacks the objective's metric.
    WithoutValue {
        measured: usize,
        metric: String,
        /// Number of the first measured trial.
        first: u32,
    },
    /// Every measurement exceeds a limit.
    OverLimits { measured: usize },
}

/// The furthest phase that the launches of a study reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FurthestPhase {
    /// No server became ready.
    Starting,
    /// A server became ready, but no load was driven to its end.
    Ready,
    /// A load was driven, but its measurement is not valid.
    Loaded,
}

impl NoWinner {
    /// Reads the reason from the trials of a study without a winner.
    pub(crate) async fn read(store: &Store, report: &StudyReport) -> Result<Self, StoreError> {
        let mut trials = store.trials(&report.study).await?;
        // Live looks rank no configuration.
        trials.retain(|scored| scored.trial.proposal.server_of.is_none());
        let measured: Vec<_> = trials.iter().filter(|scored| scored.trial.outcome.measurement().is_some()).collect();
        let Some(first) = measured.first() else {
            let failed: Vec<_> =
                trials.iter().filter_map(|scored| Some((scored, scored.trial.outcome.failure()?.kind))).collect();
            let is_loaded = |kind| matches!(kind, FailureKind::RequestErrors | FailureKind::ClientBound);
            let furthest = if failed.iter().any(|(_, kind)| is_loaded(*kind)) {
                FurthestPhase::Loaded
            } else if failed.iter().any(|(scored, _)| scored.trial.startup_s.is_some()) {
                FurthestPhase::Ready
            } else {
                FurthestPhase::Starting
            };
            return Ok(Self::Unmeasured { failed: failed.len(), furthest });
        };
        let (first, measured_count) = (first.trial.proposal.number, measured.len());
        if measured.iter().all(|scored| scored.score.value().is_none()) {
            let metric = report.objective.as_ref().map_or("the objective", |objective| objective.metric.as_str());
            return Ok(Self::WithoutValue { measured: measured_count, metric: metric.to_owned(), first });
        }
        Ok(Self::OverLimits { measured: measured_count })
    }
}
