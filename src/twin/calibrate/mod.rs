//! Calibration of the step time by observed runs of one machine.
//!
//! The runs are simulated with a prior step time (a preset or a profile). The fit changes the [`Factors`] on it until
//! the simulated requests have the observed times. For `n` requests of a run, the loss is
//!
//! `10 / n sum rho(r / 0.05) + sum (ln ratio of the means / 0.01)^2 / 2 + sum (ln factor / s)^2 / 2`
//!
//! The `r` are the logarithms of simulated over observed TTFT, TPOT and latency of a request. `rho` is the pseudo-Huber
//! function, which limits the influence of single requests. The second sum is over the means of the three times. If the
//! number of steps is known, it is included with the scale 0.02. The scales 0.05 and 0.01 grow for short times, because
//! these depend on the instant of a request's arrival within a step. The last sum is the prior, with `s` from
//! [`prior_spread`]. It keeps a factor at 1 if the observations contain no information on it.
//!
//! The residuals at the minimum can be larger than these scales, because the machine's speed varies or the model lacks
//! a term. The fit is then repeated with larger scales, at most three times. The prior then has more weight, so that
//! the factors do not follow random deviations.
//!
//! The uncertainty follows from the curvature at the minimum. In units of the prior, the covariance is the inverse of
//! `J^T J + 1`, where `J` is the Jacobian of the residuals. It is widened if the loss rises less than expected along
//! its directions. The result is a local approximation. If two factors can replace each other along a curve, each is
//! more uncertain than its spread, but predictions from both are not.

mod fit;
mod replay;
mod residual;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::settings::Settings;
use super::step_time::{Factors, StepTime, TermFactor};
pub use replay::{ObservedRequest, ReplayError, ReplayedLoad, RequestTimes, replay};

/// Number of factors.
const FACTOR_COUNT: usize = TermFactor::ALL.len();

/// One observed load on an engine.
#[derive(Clone, Debug)]
pub struct ObservedRun {
    pub settings: Settings,
    /// Number of data-parallel engines.
    pub replicas: usize,
    /// The expected step time of this engine before any observation, with all factors at 1.
    pub prior: StepTime,
    /// Requests before the load. Only the prompts that they leave in the engine's cache matter.
    pub earlier_requests: Vec<ObservedRequest>,
    pub load: ReplayedLoad,
    pub requests: Vec<ObservedRequest>,
    /// Number of the engines' steps while they served exactly `requests`, by the server's own counter.
    pub steps: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CalibrateError {
    #[error("{observed} observed requests, at least {least} are needed")]
    TooFew { observed: usize, least: usize },
    #[error("run {run}: {source}")]
    Replay {
        run: usize,
        #[source]
        source: ReplayError,
    },
    #[error("the solver stopped: {0}")]
    Solver(String),
}

/// The result of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The factors at the minimum of the loss.
    pub factors: Factors,
    /// Standard deviation of each factor's natural logarithm.
    pub spread: Factors,
    /// The loss without the prior's part, with all factors at 1.
    pub loss_before: f64,
    /// The same with the calibrated factors.
    pub loss: f64,
    /// Factor on the scales of the residuals, at least 1. It is larger if the machine's speed varies.
    pub noise: f64,
    /// Number of simulated loads.
    pub simulations: u32,
    /// Matrix whose product with its transpose is the covariance of the factors' logarithms.
    root: [[f64; FACTOR_COUNT]; FACTOR_COUNT],
}

impl Calibration {
    /// Returns the prior with its own uncertainty, before any observation.
    #[must_use]
    pub fn none() -> Self {
        let mut calibration = Self {
            factors: Factors::ONE,
            spread: Factors::ONE,
            loss_before: 0.0,
            loss: 0.0,
            noise: 1.0,
            simulations: 0,
            root: [[0.0; FACTOR_COUNT]; FACTOR_COUNT],
        };
        for factor in TermFactor::ALL {
            calibration.spread[factor] = prior_spread(factor);
            calibration.root[factor as usize][factor as usize] = prior_spread(factor);
        }
        calibration
    }

    /// Replaces the factors, and keeps their uncertainty.
    #[must_use]
    pub(crate) fn with_factors(self, factors: Factors) -> Self {
        Self { factors, ..self }
    }

    /// Describes the factors in one line, each with its standard deviation in percent.
    #[must_use]
    pub fn factors_text(&self) -> String {
        let text = |factor: TermFactor| {
            format!("{} {:.2} +- {:.0} %", factor.name(), self.factors[factor], self.spread[factor] * 100.0)
        };
        TermFactor::ALL.map(text).join(", ")
    }

    /// Returns the prior with a negligible uncertainty of the draws.
    #[cfg(test)]
    pub(crate) fn certain() -> Self {
        let mut calibration = Self::none();
        calibration.root.iter_mut().flatten().for_each(|part| *part *= 1e-4);
        calibration
    }

    /// Returns the calibrated step time of an engine, given its prior. Its settings may differ from those of the runs.
    #[must_use]
    pub fn apply(&self, prior: StepTime) -> StepTime {
        prior.scaled(self.factors)
    }

    /// Draws factors from their uncertainty. Their mean is the calibrated factors, and equal numbers give equal
    /// factors. Predictions with several draws give an interval.
    #[must_use]
    pub fn draw(&self, number: u64) -> Factors {
        let mut rng = ChaCha8Rng::seed_from_u64(number);
        let normal: [f64; FACTOR_COUNT] = std::array::from_fn(|_| StandardNormal.sample(&mut rng));
        let mut factors = self.factors;
        for factor in TermFactor::ALL {
            let row = &self.root[factor as usize];
            let shift: f64 = row.iter().zip(normal).map(|(part, normal)| part * normal).sum();
            let variance: f64 = row.iter().map(|part| part * part).sum();
            // The mean of a log-normal variable is above its median. Without the correction, times would be longer on
            // average.
            factors[factor] *= (shift - variance / 2.0).exp();
        }
        factors
    }
}

/// Fits the factors to runs of one machine and one model, with any settings and loads.
///
/// It simulates each run about a hundred times or more. A part of a long run is enough.
///
/// # Errors
/// If fewer than eight requests have times, or a run cannot be simulated.
pub fn calibrate(runs: &[ObservedRun]) -> Result<Calibration, CalibrateError> {
    fit::fit(runs)
}

/// Returns the standard deviation of a factor's logarithm before any observation.
#[must_use]
pub fn prior_spread(factor: TermFactor) -> f64 {
    match factor {
        TermFactor::Weights => 0.1,
        TermFactor::Compute => 0.15,
        TermFactor::Attention => 0.25,
        TermFactor::Launch | TermFactor::Host | TermFactor::Frontend => 0.7,
    }
}

#[cfg(test)]
mod tests;
