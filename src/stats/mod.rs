//! Conversions between number types.
//!
//! This is the only place that converts with `as`. Each conversion is total and gives the digits of `as`.

mod convert;

pub use convert::{Integer, f64_to_i32, f64_to_i64, f64_to_u32, f64_to_u64, f64_to_usize, low_u32, to_f64};
