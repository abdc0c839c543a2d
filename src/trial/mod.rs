//! What was tried and what happened.

mod measurement;

pub use measurement::{Distribution, Measurement};
