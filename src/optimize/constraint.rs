//! Known constraints: comparisons that exclude configurations before any of them is measured.
//!
//! The grammar is that of [`Comparison`]. A name is that of a parameter of the space that has only numbers as values.
//! If several names fit (`max`, `max-len`), the longest is meant. A constraint does not apply to a configuration if its
//! `when` does not hold, or if one of its parameters is inactive.

use serde_json::Value as Json;

use super::error::ProtocolError;
use super::field::FieldPlace;
use super::message::KnownConstraintItem;
use super::parameter::read_condition;
use crate::config::{Config, Value};
use crate::expression::{Comparison, NameMatch, NameResolver, begins_as_number, is_word_character};
use crate::space::{Condition, Domain, Parameter};

/// A comparison that every configuration has to keep.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KnownConstraint {
    /// As the caller has written it, without its condition.
    pub(super) text: String,
    condition: Option<Condition>,
    /// A comparison of parameters by their names.
    comparison: Comparison<String>,
}

impl KnownConstraint {
    /// Reads an item of `known_constraints`. Its names are those of `parameters`.
    ///
    /// # Errors
    /// If a part of the expression cannot be read; the error names it.
    pub(super) fn read(json: &Json, place: &FieldPlace, parameters: &[Parameter]) -> Result<Self, ProtocolError> {
        let KnownConstraintItem { expr, when } = place.read(json)?;
        let when = read_condition(when, place, parameters)?;
        let text = place.required("expr", expr)?;
        match Comparison::parse(&text, &ParameterNames(parameters)) {
            Ok(comparison) => Ok(Self { text, condition: when, comparison }),
            Err(reason) => Err(ProtocolError::Expression { place: place.field("expr"), expression: text, reason }),
        }
    }

    /// Returns whether the configuration keeps the constraint, or the constraint does not apply.
    #[must_use]
    pub(crate) fn holds(&self, config: &Config) -> bool {
        let meant = |condition: &Condition| {
            config.get(&condition.parameter).is_some_and(|value| condition.values.contains(value))
        };
        if !self.condition.as_ref().is_none_or(meant) {
            return true;
        }
        self.comparison.holds(&|name: &String| config.get_f64(name).ok_or(Inactive)).unwrap_or(true)
    }
}

/// A parameter of a constraint that a configuration does not have.
struct Inactive;

/// The names of a space's parameters.
struct ParameterNames<'t>(&'t [Parameter]);

impl NameResolver for ParameterNames<'_> {
    type Name = String;

    const EXPECTED: &'static str = "a parameter";

    /// Finds the parameter with the longest name that begins the text as a whole word.
    fn name(&self, text: &str) -> Result<Option<NameMatch<String>>, String> {
        let here = |parameter: &&Parameter| {
            let after = text.strip_prefix(parameter.name.as_str());
            after.is_some_and(|after| !after.starts_with(is_word_character))
        };
        match self.0.iter().filter(here).max_by_key(|parameter| parameter.name.len()) {
            Some(parameter) if !is_numeric(&parameter.domain) => {
                Err(format!("the values of {:?} are not numbers", parameter.name))
            }
            found => {
                Ok(found.map(|parameter| NameMatch { name: parameter.name.clone(), length: parameter.name.len() }))
            }
        }
    }

    /// Reads finite numbers; `inf` and `nan` are words.
    fn number(&self, word: &str) -> Option<f64> {
        word.parse().ok().filter(|number: &f64| number.is_finite() && begins_as_number(word))
    }
}

fn is_numeric(domain: &Domain) -> bool {
    match domain {
        Domain::Int { .. } | Domain::Float { .. } => true,
        Domain::Categorical(values) => values.iter().all(|value| matches!(value, Value::Int(_) | Value::Float(_))),
        Domain::Bool => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimize::parameter::{read_config, read_space};
    use crate::space::Space;
    use crate::stats::to_f64;
    use proptest::prelude::*;
    use serde_json::json;

    fn space() -> Space {
        let params = json!([
            {"name": "a", "type": "int", "low": -100, "high": 100},
            {"name": "b", "type": "float", "low": 0, "high": 10},
            {"name": "a-b", "type": "int", "low": 0, "high": 9},
            {"name": "chunked", "type": "bool"},
            {"name": "block", "type": "categorical", "choices": [8, 16.5]},
            {"name": "only", "type": "int", "low": 0, "high": 9, "when": {"param": "chunked", "in": [true]}},
            {"name": "kind", "type": "categorical", "choices": ["x", 1]},
        ]);
        read_space(params.as_array().unwrap()).unwrap()
    }

    fn read(json: &Json) -> Result<KnownConstraint, String> {
        let place = FieldPlace::object("known_constraints[0]");
        KnownConstraint::read(json, &place, &space().parameters).map_err(|error| error.to_string())
    }

    fn holds(expr: &str) -> bool {
        let config = json!({"a": 7, "b": 2.5, "a-b": 3, "chunked": false, "block": 16.5, "kind": "x"});
        let config = read_config(&space(), &config).unwrap();
        read(&json!({"expr": expr})).unwrap().holds(&config)
    }

    #[test]
    fn comparisons_are_evaluated() {
        for (expr, expected) in [
            ("a >= 7", true),
            ("a>7", false),
            ("a <= 6.5", false),
            ("a < 7.5", true),
            ("a == 7", true),
            ("a != 7", false),
            ("a != 8", true),
            ("1 + 2 * 3 == a", true),
            ("(1 + 2) * 3 == a + 2", true),
            ("a - 2 - 1 == 4", true),
            ("a / 2 / 2 == 1.75", true),
            ("100 / (a + b + 0.5) == 1e+1", true),
            ("  --a == - - 7 ", true),
            ("-a + 14 == a", true),
            ("2*-a == -14", true),
            ("a-b == 3", true),
            ("a - b == 4.5", true),
            ("block == 16.5", true),
            ("b >= 25e-1", true),
            ("0 / (a - 7) == 0", false),
            ("0 / (a - 7) != 0", false),
            ("1 / (a - 7) > 1e300", true),
            ("only > 100", true),
            ("a > 100 + 0 * only", true),
            ("min(a, b) == 2.5", true),
            ("max (a - b, - a) + 1 == 5.5", true),
            ("max(a, only) > 100", true),
        ] {
            assert_eq!(holds(expr), expected, "{expr}");
        }
    }

    #[test]
    fn a_parameter_may_have_the_name_of_a_function() {
        let params = json!([
            {"name": "max", "type": "int", "low": 0, "high": 9},
            {"name": "max-len", "type": "int", "low": 0, "high": 9},
        ]);
        let parameters = read_space(params.as_array().unwrap()).unwrap().parameters;
        let config = Config::new().with("max", 2_i64).with("max-len", 5_i64);
        for expr in ["max == 2", "max-len == 5", "max - 1 == 1", "max(max, max-len) == 5", "(max) * max-len == 10"] {
            let constraint = KnownConstraint::read(&json!({"expr": expr}), &FieldPlace::line(), &parameters);
            assert!(constraint.unwrap().holds(&config), "{expr}");
        }
    }

    #[test]
    fn a_constraint_with_a_condition_applies_only_then() {
        let constraint = read(&json!({"when": {"param": "chunked", "in": [false]}, "expr": "a >= 10"})).unwrap();
        let with = |a: i64, chunked: bool| Config::new().with("a", a).with("chunked", chunked);
        assert!(!constraint.holds(&with(9, false)));
        assert!(constraint.holds(&with(10, false)) && constraint.holds(&with(9, true)));
        assert!(constraint.holds(&Config::new().with("a", 9_i64)), "its parameter is not active");
    }

    #[test]
    fn an_unreadable_expression_is_reported() {
        for (expr, expected) in [
            ("", "expected a number or a parameter before \"\""),
            ("a", "expected one of >= <= == != > < before \"\""),
            ("a = 3", "expected one of >= <= == != > < before \"= 3\""),
            ("a >= ", "expected a number or a parameter before \"\""),
            ("a >= 3 >= 2", "cannot read \">= 2\""),
            ("(a >= 3", "expected \")\" before \">= 3\""),
            ("c >= 3", "\"c\" is neither a number nor a parameter"),
            ("a >= inf", "\"inf\" is neither a number nor a parameter"),
            ("min >= 3", "expected \"(\" after the function \"min\""),
            ("min(a) >= 3", "expected \",\" before \") >= 3\""),
            ("a >= 1e999", "\"1e999\" is neither a number nor a parameter"),
            ("a >= 3x", "\"3x\" is neither a number nor a parameter"),
            ("chunked == 1", "the values of \"chunked\" are not numbers"),
            ("kind == 1", "the values of \"kind\" are not numbers"),
        ] {
            let expected = format!("known_constraints[0].expr: {expected} in {expr:?}");
            assert_eq!(read(&json!({"expr": expr})), Err(expected), "{expr}");
        }
        let deep = read(&json!({"expr": "(".repeat(100_000)})).unwrap_err();
        assert!(deep.contains("more than 64 nested parentheses"), "{}", &deep[..100]);
        assert_eq!(read(&json!({})), Err("known_constraints[0].expr is missing".to_owned()));
        let orphan = read(&json!({"expr": "a > 1", "when": {"param": "z", "in": [1]}})).unwrap_err();
        assert!(orphan.starts_with("known_constraints[0].when.param is \"z\""), "{orphan}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(expr in "[ab0-9.e()+*/<>=! -]{0,30}") {
            let _ = read(&json!({"expr": expr}));
        }

        #[test]
        fn sums_and_products_follow_arithmetic(x in -50_i64..50, y in 1_i64..50, z in -50_i64..50) {
            // With integers this small, 64-bit floats are exact but for the quotient, which both sides round alike.
            let expected = to_f64(x) - to_f64(y) * to_f64(z) + to_f64(x) / to_f64(y);
            let expr = format!("{x} - {y} * {z} + {x} / {y} == {expected:?}");
            prop_assert!(holds(&expr), "{}", expr);
        }
    }
}
