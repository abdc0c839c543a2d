//! What measurements say of configurations that were not measured.

mod hypervolume;
pub mod normal;

pub use hypervolume::{front, hypervolume, log_expected_improvement_2d};
