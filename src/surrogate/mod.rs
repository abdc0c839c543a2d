//! Predictions from measured points for all others: Gaussian processes over mixed spaces.
//!
//! Pure numbers, deterministic on every machine: elementary functions come from `libm`, and sums have a fixed order.

mod encoding;
mod fit;
mod hypervolume;
mod kernel;
mod process;
#[cfg(test)]
mod reference;

pub(crate) use encoding::{EncodedAxis, Encoding};
pub(crate) use hypervolume::{front, log_expected_improvement_2d};
pub(crate) use process::{HyperPriors, PosteriorBelief, Process, ProcessData};
