//! What a machine's own runs tell of its step time.
//!
//! The runs are simulated with the prior, a preset or a profile, and a few [`Factors`] on it are moved until the
//! simulated requests have the times that were observed. What is minimised is, for `n` requests of a run,
//!
//! `10 / n sum rho(r / 0.05) + sum (ln ratio of the means / 0.01)^2 / 2 + sum (ln factor / s)^2 / 2`
//!
//! with `r` the logarithms of simulated over observed TTFT, TPOT and latency, and `rho` the pseudo-Huber function, which
//! keeps single requests from deciding. The scales 0.05 and 0.01 grow for times so short that it matters where in a
//! step a request came. The last sum is the prior ([`prior_spread`]): a factor that the observations say
//! nothing of stays at 1.
//!
//! Where what is left at the minimum is larger than these scales explain, because the machine is now faster and now slower
//! or the model lacks a term, all scales grow until they do, and the fit is repeated: then the prior counts for more, and
//! no factor is bent to explain what is chance.
//!
//! The uncertainty is that of the minimum's curvature, checked by moving along it: the inverse of `J^T J + 1` in units of
//! the prior. It is local: where two factors can stand in for each other along a curve, each is more uncertain than
//! its spread says, and what they predict together is not.

mod fit;
mod replay;
mod residual;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::settings::Settings;
use super::step_time::{Factor, Factors, StepTime};
pub use replay::{Load, Observed, ReplayError, Times, replay};

/// The number of factors.
const N: usize = Factor::ALL.len();

/// One load on an engine, and what was seen of it.
#[derive(Clone, Debug)]
pub struct Run {
    pub settings: Settings,
    /// Data-parallel engines.
    pub replicas: usize,
    /// What is expected of this engine before anything was seen of it, with all factors at 1.
    pub prior: StepTime,
    /// What the engine was asked before, as far as it matters: prompts that are in its cache.
    pub before: Vec<Observed>,
    pub load: Load,
    pub requests: Vec<Observed>,
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

/// What was learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The most likely ones.
    pub factors: Factors,
    /// Relative standard deviation of each.
    pub spread: Factors,
    /// What was minimised, with the prior's factors and with the calibrated ones.
    pub loss_before: f64,
    pub loss: f64,
    /// How many times as far from the model as expected the observations are, at least 1: of runs on a machine that is
    /// now faster and now slower.
    pub noise: f64,
    /// Simulated loads.
    pub simulations: u32,
    /// Lower triangle whose product with its transpose is the covariance of the logarithms.
    root: [[f64; N]; N],
}

impl Calibration {
    /// Nothing observed: the prior with its own uncertainty.
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
        for factor in Factor::ALL {
            calibration.spread[factor] = prior_spread(factor);
            calibration.root[factor as usize][factor as usize] = prior_spread(factor);
        }
        calibration
    }

    /// The prior with hardly any uncertainty.
    #[cfg(test)]
    pub(crate) fn certain() -> Self {
        let mut calibration = Self::none();
        calibration.root.iter_mut().flatten().for_each(|part| *part *= 1e-4);
        calibration
    }

    /// The calibrated step time of an engine, given its prior. It may have other settings than those of the runs.
    #[must_use]
    pub fn apply(&self, prior: StepTime) -> StepTime {
        prior.scaled(self.factors)
    }

    /// Factors that are as likely as their uncertainty says, and on average the calibrated ones; equal numbers give equal
    /// ones. What a prediction varies by over some of them is its interval.
    #[must_use]
    pub fn draw(&self, number: u64) -> Factors {
        let mut rng = ChaCha8Rng::seed_from_u64(number);
        let normal: [f64; N] = std::array::from_fn(|_| StandardNormal.sample(&mut rng));
        let mut factors = self.factors;
        for factor in Factor::ALL {
            let row = &self.root[factor as usize];
            let shift: f64 = row.iter().zip(normal).map(|(part, normal)| part * normal).sum();
            let variance: f64 = row.iter().map(|part| part * part).sum();
            // The mean of a log-normal number is above its median, and times would be longer on average.
            factors[factor] *= (shift - variance / 2.0).exp();
        }
        factors
    }
}

/// Fits the factors to the runs, which share them: one machine and one model, any settings and loads.
///
/// Costs about a hundred simulations of each run; of long ones a part is enough.
///
/// # Errors
/// When fewer than eight requests have times, or a run cannot be simulated.
pub fn calibrate(runs: &[Run]) -> Result<Calibration, CalibrateError> {
    fit::fit(runs)
}

/// How far off a factor may be before anything is observed: the standard deviation of its logarithm.
#[must_use]
pub fn prior_spread(factor: Factor) -> f64 {
    match factor {
        Factor::Weights => 0.1,
        Factor::Compute => 0.15,
        Factor::Attention => 0.25,
        Factor::Launch | Factor::Host | Factor::Frontend => 0.7,
    }
}

#[cfg(test)]
mod tests;
