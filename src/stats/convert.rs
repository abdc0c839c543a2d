//! Conversions between integers and floating-point numbers that lose digits or saturate instead of failing.
#![expect(clippy::cast_precision_loss, reason = "`to_f64` rounds to the nearest double, as its documentation states")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, which is the contract here"
)]

/// An integer type with values that a double cannot represent exactly.
pub trait Integer: Copy {
    /// Returns the nearest double. It is exact up to 2^53.
    fn nearest(self) -> f64;
}

macro_rules! integers {
    ($($integer:ty),*) => {
        $(impl Integer for $integer {
            #[inline]
            fn nearest(self) -> f64 {
                self as f64
            }
        })*
    };
}

integers!(u64, usize, i64, u128);

/// Returns the double nearest to an integer: exactly the integer up to 2^53.
#[inline]
#[must_use]
pub fn to_f64<I: Integer>(integer: I) -> f64 {
    integer.nearest()
}

macro_rules! saturating {
    ($($name:ident -> $integer:ident),*) => {
        $(
            #[doc = concat!("Truncates towards zero. Values out of the range of `", stringify!($integer), "` saturate; NaN gives 0.")]
            #[inline]
            #[must_use]
            pub fn $name(number: f64) -> $integer {
                number as $integer
            }
        )*
    };
}

saturating!(f64_to_i32 -> i32, f64_to_i64 -> i64, f64_to_u32 -> u32, f64_to_u64 -> u64, f64_to_usize -> usize);

/// Returns the lower 32 bits.
#[inline]
#[must_use]
pub fn low_u32(bits: u64) -> u32 {
    (bits & 0xffff_ffff) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_round_to_the_nearest_double() {
        let found = [to_f64(3_u64), to_f64(3_usize), to_f64(-3_i64), to_f64(3_u128)];
        assert_eq!(found.map(f64::to_bits), [3.0, 3.0, -3.0, 3.0].map(f64::to_bits));
        let (next, most) = (to_f64((1_u64 << 53) + 1), to_f64(u64::MAX));
        assert_eq!([next, most].map(f64::to_bits), [53.0, 64.0].map(f64::exp2).map(f64::to_bits));
    }

    #[test]
    fn numbers_are_truncated_and_saturate() {
        assert_eq!([2.9, -2.9, 1e99, f64::NAN].map(f64_to_i64), [2, -2, i64::MAX, 0]);
        assert_eq!([2.9, -2.9, 1e99, f64::NAN].map(f64_to_i32), [2, -2, i32::MAX, 0]);
        assert_eq!([2.9, -2.9, f64::INFINITY, f64::NAN].map(f64_to_u32), [2, 0, u32::MAX, 0]);
        assert_eq!([2.9, -2.9, 1e99, f64::NAN].map(f64_to_u64), [2, 0, u64::MAX, 0]);
        assert_eq!([2.9, -2.9, 1e99, f64::NAN].map(f64_to_usize), [2, 0, usize::MAX, 0]);
    }

    #[test]
    fn the_lower_half_of_the_bits_remains() {
        assert_eq!(low_u32(0x1234_5678_9abc_def0), 0x9abc_def0);
    }
}
