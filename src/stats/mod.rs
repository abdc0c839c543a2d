//! Numbers: conversions between their types, sizes in GiB, samples, the normal distribution, linear algebra.
//!
//! This is the only place that converts with `as`. Each conversion is total and gives the digits of `as`. Functions are
//! deterministic on every machine: elementary functions come from `libm`, and sums have one order.

mod cholesky;
mod convert;
mod gib;
pub(crate) mod normal;
mod sample;
pub(crate) mod small;

pub(crate) use cholesky::{Cholesky, dot};
pub use convert::{Integer, f64_to_i32, f64_to_i64, f64_to_u32, f64_to_u64, f64_to_usize, low_u32, to_f64};
pub use gib::{GIB, gib, gib_text, gib_to_bytes};
pub use sample::percentile;
pub(crate) use sample::{mean, median};
