//! The expected cost of a trial; the acquisition is divided by it.
//!
//! Source: J. Snoek, H. Larochelle and R. Adams, "Practical Bayesian optimization of machine learning algorithms",
//! 2012, section 3.2: expected improvement per second, with a Gaussian process of the logarithm of the cost.

use super::models::of_values;
use crate::config::Config;
use crate::sampler::{KnownOutcome, PastTrial, SamplerAsk};
use crate::surrogate::{Encoding, Process, ProcessData};

/// Maximum number of costs in the fit, evenly chosen.
const MAX_FITTED_COSTS: usize = 150;

pub(super) enum ExpectedCost<'a> {
    /// The cost is unknown or the same everywhere.
    Equal,
    /// The cost function of the question.
    Given(&'a dyn Fn(&Config) -> f64),
    /// A cost learnt from the earlier trials.
    Learnt(Box<LearntCost>),
}

/// A process of the logarithms of the costs, and the range of the observed logarithms.
pub(super) struct LearntCost {
    process: Process,
    range: [f64; 2],
}

impl<'a> ExpectedCost<'a> {
    /// Returns the question's own cost, or else a cost learnt from the earlier trials.
    pub(super) fn of(ask: &SamplerAsk<'a>, encoding: &Encoding<'_>) -> Self {
        let learnt = || LearntCost::of(ask, encoding).map_or(Self::Equal, |learnt| Self::Learnt(learnt.into()));
        ask.cost.map_or_else(learnt, Self::Given)
    }

    pub(super) fn is_equal(&self) -> bool {
        matches!(self, Self::Equal)
    }

    /// Returns the logarithm of the cost, or 0 if it is unknown.
    pub(super) fn log(&self, point: &[f64], config: &Config) -> f64 {
        match self {
            Self::Equal => 0.0,
            Self::Given(cost) => log(cost(config)).unwrap_or(0.0),
            Self::Learnt(learnt) => learnt.log(point),
        }
    }
}

impl LearntCost {
    /// Fits a process to the costs of the history. `None` if no measured trial has a cost, or if all costs are equal.
    fn of(ask: &SamplerAsk<'_>, encoding: &Encoding<'_>) -> Option<Self> {
        let told = |past: &PastTrial| {
            let failed = match past.outcome {
                KnownOutcome::Measured(_) => false,
                KnownOutcome::Failed => true,
                KnownOutcome::Pending | KnownOutcome::Inconclusive | KnownOutcome::Rejected => return None,
            };
            Some((encoding.point(&past.config)?, log(past.cost?)?, failed))
        };
        let mut told: Vec<_> = ask.history.iter().filter_map(told).collect();
        let mut measured: Vec<_> = told.iter().filter(|(.., failed)| !failed).map(|(_, cost, _)| *cost).collect();
        measured.sort_by(f64::total_cmp);
        let usual = *measured.get(measured.len() / 2)?;
        for (_, cost, failed) in &mut told {
            if *failed {
                // A failure ends early. Its low cost must not attract the search.
                *cost = cost.max(usual);
            }
        }
        let of = |choose: fn(f64, f64) -> f64| told.iter().map(|(_, cost, _)| *cost).reduce(choose);
        let range = [of(f64::min)?, of(f64::max)?];
        if range[0] >= range[1] {
            return None;
        }
        let variances = vec![0.0; told.len()];
        let (points, targets) = told.into_iter().map(|(point, cost, _)| (point, cost)).unzip();
        let data = ProcessData { points, targets, variances }.evenly(MAX_FITTED_COSTS);
        Some(Self { process: Process::fit(&encoding.axes, &data, &of_values(), &[])?, range })
    }

    /// Returns the logarithm of the cost, within the observed range. An extrapolating process would lead to ever
    /// cheaper trials of no use.
    fn log(&self, point: &[f64]) -> f64 {
        self.process.mean(point).clamp(self.range[0], self.range[1])
    }
}

fn log(cost: f64) -> Option<f64> {
    (cost.is_finite() && cost > 0.0).then(|| libm::log(cost))
}

#[cfg(test)]
mod tests;
