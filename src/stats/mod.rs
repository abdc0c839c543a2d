//! Numbers: conversions between their types, sizes in GiB, hashes, samples, the normal and Student's distribution, linear algebra.
//!
//! Only this module has `as` conversions that may lose digits or saturate. None of them fails. Functions give the same
//! result on every machine: elementary functions come from `libm`, and sums have a fixed order.

mod cholesky;
mod convert;
mod gib;
mod hash;
pub(crate) mod normal;
mod sample;
pub(crate) mod student;
pub(crate) mod small;

pub(crate) use cholesky::{Cholesky, dot};
pub use convert::{Integer, f64_to_i32, f64_to_i64, f64_to_u32, f64_to_u64, f64_to_usize, low_u32, to_f64};
pub use gib::{GIB, gib, gib_text, gib_to_bytes};
pub use hash::Fnv1a;
pub use sample::percentile;
pub(crate) use sample::{log_sum_exp, mean, median};
