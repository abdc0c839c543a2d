//! The values that one parameter may take.

use crate::config::Value;
use crate::stats::{f64_to_i32, f64_to_i64, f64_to_u32, f64_to_usize, to_f64};

/// The distribution of integers over their range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntScale {
    Linear,
    Log,
    PowerOfTwo,
}

/// The values of a parameter. Bounds are inclusive.
#[derive(Clone, Debug, PartialEq)]
pub enum Domain {
    /// `low` and `high` are multiples of `multiple_of`, and powers of two with `IntScale::PowerOfTwo`.
    Int {
        low: i64,
        high: i64,
        scale: IntScale,
        multiple_of: i64,
    },
    Float {
        low: f64,
        high: f64,
        /// Whether values are spread evenly on a logarithmic scale.
        log: bool,
    },
    Bool,
    Categorical(Vec<Value>),
}

/// The number of significant digits of a sampled float, so that a launch command can be read and typed.
const SIGNIFICANT_DIGITS: i32 = 3;

/// The smallest number of rounding steps in a float's range, or in the range of its logarithms. In a narrow range they
/// need more digits.
const FEWEST_STEPS: f64 = 1000.0;

impl Domain {
    /// Creates an integer range. Its bounds move inwards to the nearest values that the scale and the multiple allow.
    #[must_use]
    pub fn int(low: i64, high: i64, scale: IntScale, multiple_of: i64) -> Self {
        let (low, high) = match scale {
            IntScale::PowerOfTwo => (ceil_power(low), floor_power(high)),
            // The negated quotient of the negated bound rounds upwards.
            IntScale::Linear | IntScale::Log => {
                (-(-low).div_euclid(multiple_of) * multiple_of, high.div_euclid(multiple_of) * multiple_of)
            }
        };
        Self::Int { low, high, scale, multiple_of }
    }

    /// Returns whether no value is left, for instance after the model's length narrowed the range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Int { low, high, .. } => low > high,
            Self::Float { low, high, .. } => low > high,
            Self::Bool => false,
            Self::Categorical(values) => values.is_empty(),
        }
    }

    /// Returns the value at this coordinate of `[0, 1)`. Uniform coordinates give values that are uniform on the
    /// domain's scale.
    #[must_use]
    pub fn decode(&self, coordinate: f64) -> Value {
        let unit = coordinate.clamp(0.0, 1.0 - f64::EPSILON);
        match self {
            Self::Bool => Value::Bool(unit >= 0.5),
            Self::Categorical(values) => values[f64_to_usize(unit * to_f64(values.len()))].clone(),
            Self::Int { low, high, scale: IntScale::PowerOfTwo, .. } => {
                let (first, last) = (low.ilog2(), high.ilog2());
                Value::Int(1 << (first + f64_to_u32(unit * f64::from(last - first + 1))))
            }
            Self::Int { low, high, scale, multiple_of } => {
                let (first, last) = (low / multiple_of, high / multiple_of);
                let step = if *scale == IntScale::Log {
                    f64_to_i64(geometric(to_f64(first), to_f64(last + 1), unit))
                } else {
                    first + f64_to_i64(unit * to_f64(last - first + 1))
                };
                Value::Int(step.clamp(first, last) * multiple_of)
            }
            Self::Float { low, high, log } => Value::Float(short(
                if *log { geometric(*low, *high, unit) } else { low + unit * (high - low) },
                (*low, *high, *log),
            )),
        }
    }

    /// Returns whether a value is a choice of the domain, or lies in its range. A number between two steps of a range
    /// lies in it.
    #[must_use]
    pub fn spans(&self, value: &Value) -> bool {
        match self {
            Self::Bool => value.as_bool().is_some(),
            Self::Categorical(values) => values.contains(value),
            Self::Int { low, high, .. } => value.as_i64().is_some_and(|number| (*low..=*high).contains(&number)),
            Self::Float { low, high, .. } => value.as_f64().is_some_and(|number| (*low..=*high).contains(&number)),
        }
    }

    /// Returns every value if there are at most `limit` of them.
    #[must_use]
    pub fn values(&self, limit: usize) -> Option<Vec<Value>> {
        let values: Vec<_> = match self {
            Self::Bool => vec![Value::Bool(false), Value::Bool(true)],
            Self::Categorical(values) => values.clone(),
            Self::Int { low, high, scale: IntScale::PowerOfTwo, .. } => {
                (low.ilog2()..=high.ilog2()).map(|exponent| Value::Int(1 << exponent)).collect()
            }
            Self::Int { low, high, multiple_of, .. } => {
                let count = (high - low) / multiple_of + 1;
                let few = usize::try_from(count).is_ok_and(|count| count <= limit);
                few.then(|| (0..count).map(|i| Value::Int(low + i * multiple_of)).collect())?
            }
            Self::Float { low, high, .. } if low >= high => vec![Value::Float(*low)],
            Self::Float { .. } => return None,
        };
        (values.len() <= limit).then_some(values)
    }
}

/// Formats the range for people: `1 to 1024, powers of two`.
impl std::fmt::Display for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool => f.write_str("true or false"),
            Self::Categorical(values) => {
                f.write_str(&values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
            }
            Self::Int { low, high, scale, multiple_of } => {
                write!(f, "{low} to {high}")?;
                match scale {
                    IntScale::PowerOfTwo => write!(f, ", powers of two")?,
                    IntScale::Log => write!(f, ", logarithmic")?,
                    IntScale::Linear => {}
                }
                if *multiple_of > 1 { write!(f, ", multiples of {multiple_of}") } else { Ok(()) }
            }
            Self::Float { low, high, log } => {
                write!(f, "{low} to {high}{}", if *log { ", logarithmic" } else { "" })
            }
        }
    }
}

/// Returns the number at a share of a logarithmic range. `libm` gives the same result on every machine.
pub(crate) fn geometric(low: f64, high: f64, share: f64) -> f64 {
    low * libm::exp(share * libm::log(high / low))
}

/// Returns the nearest number with few digits within a float's range.
pub(crate) fn short(number: f64, (low, high, log): (f64, f64, bool)) -> f64 {
    let range = if log { number * libm::log(high / low) } else { high - low };
    round(number, range / FEWEST_STEPS).clamp(low, high)
}

fn ceil_power(value: i64) -> i64 {
    u64::try_from(value).ok().and_then(u64::checked_next_power_of_two).map_or(1, u64::cast_signed).max(1)
}

fn floor_power(value: i64) -> i64 {
    if value < 1 { 0 } else { 1 << value.ilog2() }
}

/// Rounds to the usual number of significant digits, or to more if the last digit would be coarser than `step`.
fn round(value: f64, step: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let usual = SIGNIFICANT_DIGITS - 1 - f64_to_i32(libm::log10(value.abs()).floor());
    let fine = if step > 0.0 && step.is_finite() { f64_to_i32(-libm::log10(step).floor()) } else { usual };
    let digits = usual.max(fine);
    // Division by a power of ten, not multiplication by its inverse, gives the double nearest to the decimal.
    let rounded = if digits >= 0 {
        let scale = 10_f64.powi(digits);
        (value * scale).round() / scale
    } else {
        let scale = 10_f64.powi(-digits);
        (value / scale).round() * scale
    };
    // For extreme exponents the scale or the product overflows. Such a value needs no rounding.
    if rounded.is_finite() { rounded } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_move_inwards_to_the_grid() {
        assert_eq!(
            Domain::int(3, 1000, IntScale::PowerOfTwo, 1),
            Domain::Int { low: 4, high: 512, scale: IntScale::PowerOfTwo, multiple_of: 1 }
        );
        assert_eq!(
            Domain::int(100, 1000, IntScale::Linear, 64),
            Domain::Int { low: 128, high: 960, scale: IntScale::Linear, multiple_of: 64 }
        );
        assert!(Domain::int(513, 1000, IntScale::PowerOfTwo, 1).is_empty());
    }

    #[test]
    fn both_ends_of_every_range_are_reached() {
        for domain in [
            Domain::int(1, 7, IntScale::Linear, 1),
            Domain::int(1, 8192, IntScale::Log, 1),
            Domain::int(256, 16384, IntScale::Log, 256),
            Domain::int(1, 256, IntScale::PowerOfTwo, 1),
        ] {
            let Domain::Int { low, high, .. } = domain else { continue };
            assert_eq!(domain.decode(0.0), Value::Int(low), "{domain}");
            assert_eq!(domain.decode(1.0), Value::Int(high), "{domain}");
        }
    }

    #[test]
    fn floats_are_short_enough_to_type() {
        let domain = Domain::Float { low: 0.0, high: 2.0, log: false };
        assert_eq!(domain.decode(0.118_097_962), Value::Float(0.236));
        assert_eq!(domain.decode(0.7), Value::Float(1.4));
        let wide = Domain::Float { low: 0.0, high: 1e6, log: false };
        assert_eq!(wide.decode(0.123_456), Value::Float(123_000.0));
        let decades = Domain::Float { low: 0.001, high: 10.0, log: true };
        assert_eq!(decades.decode(0.51), Value::Float(0.11));
    }

    #[test]
    fn a_narrow_range_has_more_digits() {
        let share = Domain::Float { low: 0.5, high: 0.98, log: false };
        assert_eq!(share.decode(0.123_456_7), Value::Float(0.5593));
        let far = Domain::Float { low: 1000.0, high: 1001.0, log: false };
        assert_eq!(far.decode(0.123_456_7), Value::Float(1000.123));
    }

    #[test]
    fn the_largest_doubles_stay_finite() {
        for (low, high) in [(0.0, 5e-324), (1e-310, 1e-309), (-1e307, 1e307), (1e15, 1e15 + 2.0)] {
            for unit in [0.0, 1e-3, 0.3, 0.999] {
                let value = Domain::Float { low, high, log: false }.decode(unit).as_f64().unwrap();
                assert!((low..=high).contains(&value), "{value} of {low} to {high}");
            }
        }
    }

    proptest! {
        #[test]
        fn integers_stay_on_their_grid(unit in 0.0..1.0, low in 1_i64..5000, width in 0_i64..5000, multiple in 1_i64..300) {
            for scale in [IntScale::Linear, IntScale::Log, IntScale::PowerOfTwo] {
                let domain = Domain::int(low, low + width, scale, multiple);
                if domain.is_empty() { continue }
                let value = domain.decode(unit).as_i64().unwrap_or_default();
                prop_assert!((low..=low + width).contains(&value), "{value} of {domain}");
                prop_assert!(scale == IntScale::PowerOfTwo && value.count_ones() == 1 || value % multiple == 0);
            }
        }

        #[test]
        fn floats_stay_in_their_range(unit in 0.0..1.0, low in 0.001..10.0, width in 0.0..10.0, log: bool) {
            let value = Domain::Float { low, high: low + width, log }.decode(unit).as_f64().unwrap_or_default();
            prop_assert!((low..=low + width).contains(&value));
        }

        #[test]
        fn linear_floats_are_at_most_a_thousandth_of_their_range_from_the_exact_point(
            unit in 0.0..1.0, low in -100.0..100.0_f64, width in 0.01..100.0_f64,
        ) {
            let value = Domain::Float { low, high: low + width, log: false }.decode(unit).as_f64().unwrap_or(f64::NAN);
            prop_assert!((value - (low + unit * width)).abs() <= width / 1000.0);
        }
    }
}
