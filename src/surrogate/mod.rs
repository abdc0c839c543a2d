//! What measured points say of all others: Gaussian processes over mixed spaces, and the normal distribution's tails.
//!
//! Pure numbers, deterministic on every machine: elementary functions come from `libm`, and sums have one order.

mod cholesky;
mod encoding;
mod fit;
mod hypervolume;
mod kernel;
pub mod normal;
mod process;
#[cfg(test)]
mod reference;

pub use encoding::{Axis, Encoding};
pub use hypervolume::{front, log_expected_improvement_2d};
pub use process::{Belief, Data, Draws, Expected, Process};
