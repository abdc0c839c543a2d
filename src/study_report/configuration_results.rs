//! A configuration with all its measurements.

use crate::objective::Score;
use crate::stats::to_f64;
use crate::store::{RankedConfiguration, ScoredTrial, Store, StoreError, Study};

/// A configuration with all its measurements.
#[derive(Clone, Debug)]
pub(crate) struct ConfigurationResults {
    pub ranked: RankedConfiguration,
    /// Its measured trials, in the order of their numbers.
    pub measured_trials: Vec<ScoredTrial>,
}

/// A metric over several measurements of one configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MetricSpread {
    pub mean: f64,
    /// The smallest and the largest of the measured values.
    pub low: f64,
    pub high: f64,
    pub measurements: usize,
}

impl ConfigurationResults {
    /// Reads all measurements of a configuration.
    pub(crate) async fn read(store: &Store, study: &Study, ranked: RankedConfiguration) -> Result<Self, StoreError> {
        let mut repeats = Vec::with_capacity(ranked.trials.len());
        for number in &ranked.trials {
            repeats.extend(store.trial(study, *number).await?);
        }
        Ok(Self { ranked, measured_trials: repeats })
    }

    /// Returns the mean and the range of a metric; `None` if no measurement has it.
    #[must_use]
    pub(crate) fn metric(&self, name: &str) -> Option<MetricSpread> {
        let measured =
            self.measured_trials.iter().filter_map(|scored| scored.trial.outcome.measurement()?.metric(name));
        let values: Vec<_> = measured.collect();
        let mean = values.iter().sum::<f64>() / to_f64(values.len());
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        Some(MetricSpread { mean, low, high, measurements: values.len() })
    }

    /// Returns the numbers of the trials whose measurement was disturbed.
    #[must_use]
    pub(crate) fn disturbed(&self) -> Vec<u32> {
        let disturbed = self.measured_trials.iter().filter(|scored| scored.is_disturbed());
        disturbed.map(|scored| scored.trial.proposal.number).collect()
    }

    /// Returns whether one of its measurements was over a limit.
    #[must_use]
    pub(crate) fn is_over_a_limit(&self) -> bool {
        self.measured_trials.iter().any(|scored| matches!(scored.score, Score::Infeasible { .. }))
    }
}
