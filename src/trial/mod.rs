//! What was tried and what happened.

mod measurement;

pub use measurement::{Direction, Distribution, Measurement};
