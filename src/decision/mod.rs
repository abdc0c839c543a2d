//! The decision of a study: the launches that confirm a winner, and the verdict that they support.
//!
//! A launch has noise of its own, and the machine drifts over a night. The confirmation therefore launches the
//! candidates and the baselines in rounds, a randomised complete block design with a reversed order in every second
//! round. The model of a launch is
//!
//! ```text
//! ln(value) = configuration + round + noise
//! ```
//!
//! The effect of a round is a free parameter. It takes up all drift between rounds, and the reversal cancels linear drift
//! within them. Least squares give the differences, and the residuals of all rounds give the noise (G. Box, J. Hunter
//! and W. Hunter, "Statistics for Experimenters", 2005, chapter 4). Intervals use Student's distribution.
//!
//! With several finalists the first rounds select the leader, and the interval comes from the rounds after them: a choice
//! by the same launches would make it too good. The interval is computed after each round, so its level is corrected for
//! repeated looks (`boundary`).

mod ablation;
mod blocks;
mod boundary;
mod confirmation;
mod engines;
mod least_squares;
mod plan;
mod reduced;
#[cfg(test)]
mod simulation_tests;
mod standing;
mod verdict;

pub use ablation::{Ablation, AblationPlan, AblationResult, AblationStep, ChangedFlag, FlagEffect, FlagFinding};
pub use confirmation::{Confirmation, ConfirmationStep, confirmation_begin, launch_noise};
pub use engines::{EngineStanding, compare_engines};
pub use plan::ConfirmationPlan;
pub(crate) use standing::standing_decision;
pub use verdict::{Decision, GainInterval, MeasuredNoise, Verdict, VerdictKind};
