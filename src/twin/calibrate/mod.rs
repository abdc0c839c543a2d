//! Calibration of the step time by a machine's own runs.
//!
//! The runs are simulated with the prior, a preset or a profile. A few [`Factors`] on it are moved until the simulated
//! requests have the observed times. For `n` requests of a run, the loss is
//!
//! `10 / n sum rho(r / 0.05) + sum (ln ratio of the means / 0.01)^2 / 2 + sum (ln factor / s)^2 / 2`
//!
//! The `r` are the logarithms of simulated over observed TTFT, TPOT and latency. `rho` is the pseudo-Huber function, so
//! that single requests do not decide. The scales 0.05 and 0.01 grow for short times, because the instant of a
//! request's arrival within a step matters there. The last sum is the prior ([`prior_spread`]): a factor stays at 1 if
//! the observations contain no information on it.
//!
//! The residuals at the minimum can be larger than these scales explain, because the machine's speed varies or the
//! model lacks a term. All scales then grow until they explain them, and the fit is repeated. The prior counts for more
//! then, and no factor is bent to explain chance.
//!
//! The uncertainty is that of the minimum's curvature, checked by moves along it: the inverse of `J^T J + 1` in units
//! of the prior. It is local. If two factors can replace each other along a curve, each is more uncertain than its
//! spread. Their common prediction is not.

mod fit;
mod replay;
mod residual;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::settings::Settings;
use super::step_time::{Factors, StepTime, TermFactor};
pub use replay::{ObservedTimes, ReplayError, ReplayedLoad, RequestTimes, replay};

/// The number of factors.
const N: usize = TermFactor::ALL.len();

/// One load on an engine, with its observations.
#[derive(Clone, Debug)]
pub struct ObservedRun {
    pub settings: Settings,
    /// Data-parallel engines.
    pub replicas: usize,
    /// The expected step time of this engine before any observation, with all factors at 1.
    pub prior: StepTime,
    /// Earlier requests. They matter only for the prompts that they leave in the engine's cache.
    pub before: Vec<ObservedTimes>,
    pub load: ReplayedLoad,
    pub requests: Vec<ObservedTimes>,
    /// The engines' steps while they served exactly these requests, by the server's own counter.
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
    /// The most likely factors.
    pub factors: Factors,
    /// Relative standard deviation of each factor.
    pub spread: Factors,
    /// The loss without the prior's part, for the prior's factors and for the calibrated ones.
    pub loss_before: f64,
    pub loss: f64,
    /// Distance of the observations from the model, as a multiple of the expected one and at least 1. It is larger on a
    /// machine whose speed varies.
    pub noise: f64,
    /// The number of simulated loads.
    pub simulations: u32,
    /// Lower triangle whose product with its transpose is the covariance of the logarithms.
    root: [[f64; N]; N],
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
            root: [[0.0; N]; N],
        };
        for factor in TermFactor::ALL {
            calibration.spread[factor] = prior_spread(factor);
            calibration.root[factor as usize][factor as usize] = prior_spread(factor);
        }
        calibration
    }

    /// Returns the prior with hardly any uncertainty.
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

    /// Draws factors from their uncertainty. On average they are the calibrated ones, and equal numbers give equal
    /// factors. The variation of a prediction over several draws is its interval.
    #[must_use]
    pub fn draw(&self, number: u64) -> Factors {
        let mut rng = ChaCha8Rng::seed_from_u64(number);
        let normal: [f64; N] = std::array::from_fn(|_| StandardNormal.sample(&mut rng));
        let mut factors = self.factors;
        for factor in TermFactor::ALL {
            let row = &self.root[factor as usize];
            let shift: f64 = row.iter().zip(normal).map(|(part, normal)| part * normal).sum();
            let variance: f64 = row.iter().map(|part| part * part).sum();
            // The mean of a log-normal number is above its median, so times would be longer on average.
            factors[factor] *= (shift - variance / 2.0).exp();
        }
        factors
    }
}

/// Fits the factors to runs of one machine and one model, with any settings and loads.
///
/// Costs about a hundred simulations of each run. A part of a long run is enough.
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
