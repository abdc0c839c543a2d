//! Parameters as coordinates of a density.

use crate::config::{Config, Value};
use crate::sampler::SamplerAsk;
use crate::space::{Domain, IntScale};
use crate::stats::to_f64;

/// One parameter. The position of a choice is the index of its value. The position of a number is the coordinate, 0 to
/// 1, that decodes to it.
#[derive(Debug)]
pub(super) struct ParzenAxis<'a> {
    domain: &'a Domain,
    pub(super) kind: AxisKind,
}

#[derive(Debug)]
pub(super) enum AxisKind {
    Choice {
        count: usize,
    },
    /// The positions of all its values, ascending; empty if there are more than `FEW_VALUES`.
    Number {
        cells: Vec<f64>,
    },
}

/// A position for each parameter; `None` if it is inactive, or if its value is unknown.
pub(super) type Position = Vec<Option<f64>>;

/// Maximum number of values of a range with a discrete density. Larger ranges have a continuous one.
const FEW_VALUES: usize = 64;

impl<'a> ParzenAxis<'a> {
    pub(super) fn new(domain: &'a Domain) -> Self {
        let kind = match domain {
            Domain::Bool => AxisKind::Choice { count: 2 },
            Domain::Categorical(values) => AxisKind::Choice { count: values.len() },
            Domain::Int { .. } | Domain::Float { .. } => {
                let values = domain.values(FEW_VALUES).unwrap_or_default();
                AxisKind::Number { cells: values.iter().filter_map(|value| coordinate(domain, value)).collect() }
            }
        };
        Self { domain, kind }
    }

    /// Returns the position of a value. A number outside of the range gets that of the nearest end. `None` for a value
    /// of another kind.
    fn position(&self, value: &Value) -> Option<f64> {
        match &self.kind {
            AxisKind::Choice { .. } => index(self.domain, value),
            AxisKind::Number { cells } => {
                let at = coordinate(self.domain, value)?;
                let above = cells.partition_point(|cell| *cell < at);
                let beside =
                    [above.checked_sub(1), Some(above)].into_iter().flatten().filter_map(|place| cells.get(place));
                let nearer = |a: &&f64, b: &&f64| (**a - at).abs().total_cmp(&(**b - at).abs());
                Some(beside.min_by(nearer).copied().unwrap_or(at))
            }
        }
    }
}

/// Returns the position of a configuration. A parameter that it does not set has the engine's default, if that is
/// known.
pub(super) fn position(ask: &SamplerAsk<'_>, axes: &[ParzenAxis<'_>], config: &Config) -> Position {
    let get = |name: &str| config.get(name).or_else(|| ask.defaults.get(name));
    let of = |(index, axis): (usize, &ParzenAxis<'_>)| {
        let parameter = &ask.space.parameters[index];
        let holds = |parent: &str, values: &[Value]| get(parent).is_some_and(|value| values.contains(value));
        let is_active = parameter.conditions.iter().all(|condition| holds(&condition.parameter, &condition.values));
        if is_active { axis.position(get(&parameter.name)?) } else { None }
    };
    axes.iter().enumerate().map(of).collect()
}

/// Returns the index of a choice's value, or `None` for a value that the domain lacks.
fn index(domain: &Domain, value: &Value) -> Option<f64> {
    let index = match domain {
        Domain::Bool => usize::from(value.as_bool()?),
        Domain::Categorical(values) => values.iter().position(|known| known == value)?,
        Domain::Int { .. } | Domain::Float { .. } => return None,
    };
    Some(to_f64(index))
}

/// Returns the middle of the coordinates that [`Domain::decode`] maps to this number.
fn coordinate(domain: &Domain, value: &Value) -> Option<f64> {
    let number = value.as_f64().filter(|number| number.is_finite())?;
    let coordinate = match *domain {
        Domain::Bool | Domain::Categorical(_) => return None,
        Domain::Int { low, high, scale: IntScale::PowerOfTwo, .. } => {
            let first = f64::from(low.ilog2());
            let exponent = libm::log2(number.max(to_f64(low)));
            (exponent - first + 0.5) / (f64::from(high.ilog2()) - first + 1.0)
        }
        Domain::Int { low, high, scale, multiple_of } => {
            let multiple = to_f64(multiple_of);
            let (first, last) = (to_f64(low) / multiple, to_f64(high) / multiple);
            let step = (number / multiple).max(first) + 0.5;
            if scale == IntScale::Log {
                libm::log(step / first) / libm::log((last + 1.0) / first)
            } else {
                (step - first) / (last - first + 1.0)
            }
        }
        Domain::Float { low, high, .. } if low >= high => 0.5,
        Domain::Float { low, high, log: true } => libm::log(number.max(low) / low) / libm::log(high / low),
        Domain::Float { low, high, log: false } => (number - low) / (high - low),
    };
    Some(coordinate.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_value_decodes_from_its_own_position(unit in 0.0..1.0, low in 1_i64..500, width in 0_i64..5000) {
            let float = |log| Domain::Float { low: to_f64(low), high: to_f64(low + width) + 0.5, log };
            let domains = [
                Domain::int(low, low + width, IntScale::Linear, 1),
                Domain::int(low, low + width, IntScale::Log, 1),
                Domain::int(low, low + width, IntScale::PowerOfTwo, 1),
                Domain::int(low, low + width, IntScale::Linear, 7),
                float(true),
                float(false),
            ];
            for domain in domains.into_iter().filter(|domain| !domain.is_empty()) {
                let value = domain.decode(unit);
                let again = domain.decode(coordinate(&domain, &value).unwrap());
                let (value, again) = (value.as_f64().unwrap(), again.as_f64().unwrap());
                // The last digit of a float may be rounded in the other direction.
                let tolerance = if matches!(domain, Domain::Float { .. }) { 0.01 * value } else { 0.0 };
                prop_assert!((value - again).abs() <= tolerance, "{again} is not {value} of {domain}");
            }
        }
    }

    #[test]
    fn foreign_values_map_to_the_nearest_bound_or_to_none() {
        let domain = Domain::int(1, 1024, IntScale::PowerOfTwo, 1);
        let axis = ParzenAxis::new(&domain);
        assert_eq!(axis.position(&Value::Int(4096)), axis.position(&Value::Int(1024)));
        assert_eq!(axis.position(&Value::Int(-5)), axis.position(&Value::Int(1)));
        assert_eq!(axis.position(&Value::Int(3)), axis.position(&Value::Int(4)));
        assert_eq!(axis.position(&Value::from("auto")), None);
        assert_eq!(ParzenAxis::new(&Domain::Bool).position(&Value::Int(1)), None);
    }
}
