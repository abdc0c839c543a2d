//! Configurations as points: one coordinate for each parameter.
//!
//! Numbers lie between 0 and 1 on their own scale. Bools and choices are the index of their value. An inactive
//! parameter lies in the middle, so that two configurations without it do not differ in it. If only one of two
//! configurations has it, they differ in the parameter on which it depends.

use std::borrow::Borrow;

use crate::config::{Config, Value};
use crate::space::{Domain, IntScale, Space, geometric, short};
use crate::stats::{f64_to_i64, f64_to_u32, f64_to_usize, to_f64};

/// The kind of a coordinate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum EncodedAxis {
    /// From 0 to 1. `step` is the distance of neighbours, 0 if there are no steps.
    Number { step: f64 },
    /// `count` values without an order.
    Choice { count: usize },
    /// A prior's prediction at the point, in units of its spread. The values follow it as far as the data confirm.
    Trend,
    /// 0 for the way of measuring that predictions are for. Otherwise the size of a difference from it, whose effect is
    /// linear.
    Difference,
}

/// Conversion of a configuration of a space to a point and back.
#[derive(Clone, Debug)]
pub(crate) struct Encoding<'a> {
    space: &'a Space,
    /// Values of parameters that a configuration does not set.
    defaults: &'a Config,
    pub axes: Vec<EncodedAxis>,
    /// For each condition of each parameter the index of the parameter that it tests, if that varies.
    parents: Vec<Vec<Option<usize>>>,
}

/// Coordinate of an inactive parameter.
pub(super) const NOT_ACTIVE: f64 = 0.5;

impl<'a> Encoding<'a> {
    #[must_use]
    pub(crate) fn new(space: &'a Space, defaults: &'a Config) -> Self {
        let axes = space.parameters.iter().map(|parameter| axis(&parameter.domain)).collect();
        let place = |above: usize, name: &str| space.parameters[..above].iter().position(|known| known.name == name);
        let parents = space.parameters.iter().enumerate().map(|(index, parameter)| {
            parameter.conditions.iter().map(|condition| place(index, &condition.parameter)).collect()
        });
        Self { space, defaults, axes, parents: parents.collect() }
    }

    /// Returns the point of a configuration. A choice that is not known, or is none of the parameter's, lies in the middle:
    /// many engines do not document every default, and a space may leave a default out. `None` if an active number is not
    /// set and has no known default, or is not finite.
    #[must_use]
    pub(crate) fn point(&self, config: &Config) -> Option<Vec<f64>> {
        self.point_with(config, Some(NOT_ACTIVE))
    }

    /// Returns whether a configuration lies in the space: each active parameter has a known value, and each choice is one
    /// of the parameter's.
    #[must_use]
    pub(crate) fn contains(&self, config: &Config) -> bool {
        self.point_with(config, None).is_some()
    }

    /// Returns the point of a configuration. `unknown` is the coordinate of a choice without one.
    fn point_with(&self, config: &Config, unknown: Option<f64>) -> Option<Vec<f64>> {
        let with_defaults = self.defaults.merged(config);
        let mut active: Vec<Option<&Value>> = Vec::with_capacity(self.axes.len());
        let mut point = Vec::with_capacity(self.axes.len());
        for (index, parameter) in self.space.parameters.iter().enumerate() {
            let is_active = self.is_active(index, &active, &with_defaults);
            let value = with_defaults.get(&parameter.name).filter(|_| is_active);
            let is_choice = matches!(parameter.domain, Domain::Bool | Domain::Categorical(_));
            let known = value.and_then(|value| coordinate(&parameter.domain, value));
            point.push(if !is_active {
                NOT_ACTIVE
            } else if is_choice {
                known.or(unknown)?
            } else {
                known?
            });
            active.push(value);
        }
        Some(point)
    }

    /// Returns whether a parameter is active, given the values of the active ones before it and the flags that do not
    /// vary.
    fn is_active<V: Borrow<Value>>(&self, index: usize, active: &[Option<V>], others: &Config) -> bool {
        self.space.parameters[index].conditions.iter().zip(&self.parents[index]).all(|(condition, parent)| {
            let value = match parent {
                Some(parent) => active[*parent].as_ref().map(Borrow::borrow),
                None => others.get(&condition.parameter),
            };
            value.is_some_and(|value| condition.values.contains(value))
        })
    }

    /// Returns the configuration nearest to a point.
    #[must_use]
    pub(crate) fn config(&self, point: &[f64]) -> Config {
        self.space.assemble(|index| Some(value(&self.space.parameters[index].domain, point[index])))
    }

    /// Moves a point to that of the nearest configuration, without building the configuration.
    pub(crate) fn snap(&self, point: &mut [f64]) {
        let mut values: Vec<Option<Value>> = Vec::with_capacity(point.len());
        for (index, parameter) in self.space.parameters.iter().enumerate() {
            let holds = self.is_active(index, &values, &self.space.fixed);
            let nearest = holds.then(|| value(&parameter.domain, point[index]));
            point[index] =
                nearest.as_ref().and_then(|nearest| coordinate(&parameter.domain, nearest)).unwrap_or(NOT_ACTIVE);
            values.push(nearest);
        }
    }
}

/// Maximum number of steps of a range that counts as stepped rather than continuous.
const FEW_STEPS: f64 = 64.0;

fn axis(domain: &Domain) -> EncodedAxis {
    match domain {
        Domain::Bool => EncodedAxis::Choice { count: 2 },
        Domain::Categorical(values) => EncodedAxis::Choice { count: values.len() },
        Domain::Float { .. } => EncodedAxis::Number { step: 0.0 },
        Domain::Int { low, high, scale, multiple_of } => {
            let steps = match scale {
                IntScale::PowerOfTwo => f64::from(high.ilog2() - low.ilog2()),
                IntScale::Linear => to_f64(high - low) / to_f64(*multiple_of),
                IntScale::Log => f64::INFINITY,
            };
            EncodedAxis::Number { step: if steps <= FEW_STEPS { 1.0 / steps.max(1.0) } else { 0.0 } }
        }
    }
}

/// Returns the scale of a number: its ends, and whether it is logarithmic.
fn number_scale(domain: &Domain) -> Option<(f64, f64, bool)> {
    match *domain {
        Domain::Int { low, high, scale, .. } => Some((to_f64(low), to_f64(high), scale != IntScale::Linear && low > 0)),
        Domain::Float { low, high, log } => Some((low, high, log && low > 0.0)),
        Domain::Bool | Domain::Categorical(_) => None,
    }
}

fn coordinate(domain: &Domain, value: &Value) -> Option<f64> {
    let index = match domain {
        Domain::Bool => usize::from(value.as_bool()?),
        Domain::Categorical(values) => values.iter().position(|known| known == value)?,
        Domain::Int { .. } | Domain::Float { .. } => {
            let (low, high, log) = number_scale(domain)?;
            let number = value.as_f64().filter(|number| number.is_finite())?;
            if low >= high {
                return Some(NOT_ACTIVE);
            }
            let place = if log {
                libm::log(number.max(low) / low) / libm::log(high / low)
            } else {
                (number - low) / (high - low)
            };
            // A default may lie outside of the searched range.
            return Some(place.clamp(0.0, 1.0));
        }
    };
    Some(to_f64(index))
}

fn value(domain: &Domain, coordinate: f64) -> Value {
    let number = |(low, high, log): (f64, f64, bool)| {
        let unit = coordinate.clamp(0.0, 1.0);
        if log { geometric(low, high, unit) } else { low + unit * (high - low) }
    };
    match domain {
        Domain::Bool => Value::Bool(coordinate >= 0.5),
        Domain::Categorical(values) => values[f64_to_usize(coordinate.max(0.0)).min(values.len() - 1)].clone(),
        Domain::Int { low, high, scale: IntScale::PowerOfTwo, .. } => {
            let (first, last) = (f64::from(low.ilog2()), f64::from(high.ilog2()));
            Value::Int(1 << f64_to_u32(libm::round(first + coordinate.clamp(0.0, 1.0) * (last - first))))
        }
        Domain::Int { low, high, multiple_of, .. } => {
            let multiple = to_f64(*multiple_of);
            let nearest = number_scale(domain).map_or(0.0, number) / multiple;
            Value::Int((f64_to_i64(libm::round(nearest)) * multiple_of).clamp(*low, *high))
        }
        Domain::Float { low, high, log } => {
            Value::Float(short(number_scale(domain).map_or(*low, number), (*low, *high, *log)))
        }
    }
}

#[cfg(test)]
mod tests;
