//! Distributions of parameters as Optuna stores them. Each value of a parameter lies within its distribution, also if
//! the study's space does not contain it: dashboards and samplers rely on that.

use serde_json::json;

use crate::config::Value;
use crate::export::database::content::clean;
use crate::space::{Domain, IntScale};
use crate::stats::to_f64;

/// The largest integer up to which Optuna's floats contain every integer.
const MAX_EXACT: u64 = 1 << 53;

/// A distribution of Optuna.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OptunaDistribution {
    Int { low: i64, high: i64, log: bool, step: i64 },
    Float { low: f64, high: f64, log: bool },
    Categorical(Vec<Value>),
}

impl OptunaDistribution {
    /// Returns the distribution of a parameter with this domain and these values in trials. `None` as the domain means
    /// that the space does not contain the parameter.
    pub(super) fn of(domain: Option<&Domain>, values: &[&Value]) -> Self {
        let is_exact = |value: &&Value| value.as_i64().is_none_or(|int| int.unsigned_abs() <= MAX_EXACT);
        let is_number = values.iter().all(|value| value.as_f64().is_some() && is_exact(value));
        let ints: Option<Vec<i64>> = values.iter().map(|value| value.as_i64()).collect();
        match (domain, ints) {
            (Some(Domain::Categorical(choices)), _) => Self::Categorical(choices_with(choices, values)),
            (Some(Domain::Bool), _) => {
                Self::Categorical(choices_with(&[Value::Bool(false), Value::Bool(true)], values))
            }
            _ if !is_number => Self::Categorical(choices_with(&[], values)),
            (Some(Domain::Int { low, high, scale, multiple_of }), Some(ints)) => {
                ints_of((*low, *high), *scale, *multiple_of, &ints)
            }
            (None, Some(ints)) => ints_of((i64::MAX, i64::MIN), IntScale::Linear, 1, &ints),
            (Some(Domain::Float { low, high, log }), _) => floats_of((*low, *high), *log, values),
            // The text of a float's domain looks like that of integers if its bounds are whole.
            (Some(Domain::Int { low, high, scale, .. }), None) => {
                floats_of((to_f64(*low), to_f64(*high)), *scale == IntScale::Log, values)
            }
            (None, None) => floats_of((f64::INFINITY, f64::NEG_INFINITY), false, values),
        }
    }

    /// Returns Optuna's JSON, as its `distribution_to_json` writes it.
    pub(super) fn json(&self) -> String {
        let (name, attributes) = match self {
            Self::Int { low, high, log, step } => {
                ("IntDistribution", json!({"log": log, "step": step, "low": low, "high": high}))
            }
            Self::Float { low, high, log } => {
                ("FloatDistribution", json!({"step": null, "low": low, "high": high, "log": log}))
            }
            Self::Categorical(choices) => {
                let shown = |choice: &Value| choice.as_str().map_or_else(|| choice.clone(), |text| clean(text).into());
                let choices: Vec<Value> = choices.iter().map(shown).collect();
                ("CategoricalDistribution", json!({ "choices": choices }))
            }
        };
        json!({"name": name, "attributes": attributes}).to_string()
    }

    /// Returns the number that Optuna stores for a value: an index of a choice, or the number itself.
    pub(super) fn internal(&self, value: &Value) -> Option<f64> {
        match self {
            Self::Int { .. } | Self::Float { .. } => value.as_f64(),
            Self::Categorical(choices) => choices.iter().position(|choice| choice == value).map(to_f64),
        }
    }
}

/// Returns the choices, and the values that are not among them. A choice that was read from text gets the type of the
/// value with the same text.
fn choices_with(choices: &[Value], values: &[&Value]) -> Vec<Value> {
    let typed = |choice: &Value| {
        let text = choice.to_string();
        let same = values.iter().find(|value| value.to_string() == text);
        same.map_or_else(|| choice.clone(), |value| (*value).clone())
    };
    let mut all: Vec<_> = choices.iter().map(typed).collect();
    for value in values {
        if !all.contains(value) {
            all.push((*value).clone());
        }
    }
    all
}

/// Optuna has no powers of two: they are on its logarithmic scale, which has no steps.
fn ints_of((low, high): (i64, i64), scale: IntScale, multiple_of: i64, values: &[i64]) -> OptunaDistribution {
    let low = values.iter().copied().fold(low, i64::min);
    let high = values.iter().copied().fold(high, i64::max);
    let log = scale != IntScale::Linear && low >= 1;
    let is_on_grid = |value: &i64| value.checked_sub(low).is_some_and(|distance| distance % multiple_of == 0);
    let has_steps = !log && scale == IntScale::Linear && values.iter().chain([&high]).all(is_on_grid);
    OptunaDistribution::Int { low, high, log, step: if has_steps { multiple_of } else { 1 } }
}

fn floats_of((low, high): (f64, f64), log: bool, values: &[&Value]) -> OptunaDistribution {
    let numbers = || values.iter().filter_map(|value| value.as_f64());
    let (low, high) = (numbers().fold(low, f64::min), numbers().fold(high, f64::max));
    OptunaDistribution::Float { low, high, log: log && low > 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, values: &[Value]) -> OptunaDistribution {
        OptunaDistribution::of(Domain::from_text(text).as_ref(), &values.iter().collect::<Vec<_>>())
    }

    #[test]
    fn ranges_keep_their_scale_and_contain_every_value() {
        let int = |low, high, log, step| OptunaDistribution::Int { low, high, log, step };
        let ints = |values: &[i64]| values.iter().map(|value| Value::Int(*value)).collect::<Vec<_>>();
        for (text, values, expected) in [
            ("1 to 1024, powers of two", ints(&[4, 256]), int(1, 1024, true, 1)),
            ("512 to 8192, logarithmic, multiples of 256", ints(&[512]), int(512, 8192, true, 1)),
            ("0 to 640, multiples of 64", ints(&[64, 128]), int(0, 640, false, 64)),
            ("0 to 640, multiples of 64", ints(&[100]), int(0, 640, false, 1)),
            ("1 to 8", ints(&[16]), int(1, 16, false, 1)),
            ("1 to 8, logarithmic", ints(&[0]), int(0, 8, false, 1)),
            ("", ints(&[3, 9]), int(3, 9, false, 1)),
        ] {
            assert_eq!(of(text, &values), expected, "{text}");
        }
        let float = |low, high, log| OptunaDistribution::Float { low, high, log };
        assert_eq!(of("0.5 to 0.98", &[Value::Float(0.9)]), float(0.5, 0.98, false));
        assert_eq!(of("1 to 8, logarithmic", &[Value::Float(1.5)]), float(1.0, 8.0, true), "whole bounds");
        assert_eq!(of("", &[Value::Float(1.5), Value::Int(3)]), float(1.5, 3.0, false));
    }

    #[test]
    fn choices_keep_their_order_and_get_the_types_of_the_values() {
        let text = |text: &str| Value::Text(text.to_owned());
        let distribution = of("16, 32, auto", &[text("32"), text("other")]);
        let choices = vec![Value::Int(16), text("32"), text("auto"), text("other")];
        assert_eq!(distribution, OptunaDistribution::Categorical(choices));
        assert_eq!(distribution.internal(&text("auto")), Some(2.0));
        assert_eq!(distribution.internal(&text("32")), Some(1.0));
        let mixed = of("1 to 8", &[Value::Int(3), text("auto")]);
        assert_eq!(mixed, OptunaDistribution::Categorical(vec![Value::Int(3), text("auto")]));
        let large = of("", &[Value::Int(i64::MAX)]);
        assert_eq!(large, OptunaDistribution::Categorical(vec![Value::Int(i64::MAX)]), "no float has its value");
        let bools = of("true or false", &[Value::Bool(true)]);
        assert_eq!(bools.internal(&Value::Bool(true)), Some(1.0));
    }

    #[test]
    fn the_json_is_that_of_optuna() {
        let parse = |text: String| serde_json::from_str::<serde_json::Value>(&text).unwrap();
        let int = OptunaDistribution::Int { low: 1, high: 8, log: true, step: 1 };
        let expected = json!({"name": "IntDistribution", "attributes": {"log": true, "step": 1, "low": 1, "high": 8}});
        assert_eq!(parse(int.json()), expected);
        let choices = OptunaDistribution::Categorical(vec![Value::Bool(false), Value::from("a\"b")]);
        let expected = json!({"name": "CategoricalDistribution", "attributes": {"choices": [false, "a\"b"]}});
        assert_eq!(parse(choices.json()), expected);
    }
}
