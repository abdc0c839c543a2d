//! Known constraints: what a caller knows to be impossible before it is tried.
//!
//! ```text
//! constraint = sum comparison sum
//! comparison = ">=" | "<=" | "==" | "!=" | ">" | "<"
//! sum        = product (("+" | "-") product)*
//! product    = factor (("*" | "/") factor)*
//! factor     = "-"* (number | parameter | "(" sum ")")
//! ```
//!
//! A parameter is one of the space, and all of its values are numbers. Where several names fit (`max`, `max-len`), the
//! longest is meant. Numbers are 64-bit floats, and are compared as such. A comparison with something that is no number (0/0)
//! does not hold. A constraint does not apply where one of its parameters, or that of its `when`, is not active.

use super::error::ProtocolError;
use super::field::Fields;
use super::parameter::read_when;
use crate::config::{Config, Value};
use crate::space::{Condition, Domain, Parameter};

/// Most parentheses within parentheses.
const DEEPEST: usize = 64;

/// A comparison that every configuration has to keep.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KnownConstraint {
    /// As the caller has written it, without its condition.
    pub(super) text: String,
    when: Option<Condition>,
    left: Expression,
    comparison: Comparison,
    right: Expression,
}

#[derive(Clone, Debug, PartialEq)]
enum Expression {
    Number(f64),
    Parameter(String),
    /// Terms, and whether each is subtracted.
    Sum(Vec<(bool, Expression)>),
    /// Factors, and whether each divides.
    Product(Vec<(bool, Expression)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    AtLeast,
    AtMost,
    Equal,
    Unequal,
    Above,
    Below,
}

/// Longer symbols before their beginnings.
const COMPARISONS: [(&str, Comparison); 6] = [
    (">=", Comparison::AtLeast),
    ("<=", Comparison::AtMost),
    ("==", Comparison::Equal),
    ("!=", Comparison::Unequal),
    (">", Comparison::Above),
    ("<", Comparison::Below),
];

impl KnownConstraint {
    /// # Errors
    /// Says what of the expression cannot be read.
    pub(super) fn read(fields: &Fields<'_>, parameters: &[Parameter]) -> Result<Self, ProtocolError> {
        let when = read_when(fields, parameters)?;
        let text = fields.required("expr", fields.text("expr")?)?;
        let mut parser = Parser { rest: text.trim_start(), parameters, depth: 0 };
        let read = |parser: &mut Parser<'_>| {
            let (left, comparison, right) = (parser.sum()?, parser.comparison()?, parser.sum()?);
            match parser.rest {
                "" => Ok(Self { text: text.to_owned(), when, left, comparison, right }),
                rest => Err(format!("cannot read {rest:?}")),
            }
        };
        read(&mut parser).map_err(|reason| ProtocolError::Expression {
            place: fields.place("expr"),
            expression: text.to_owned(),
            reason,
        })
    }

    /// Whether the configuration keeps it, or it does not apply.
    #[must_use]
    pub(crate) fn holds(&self, config: &Config) -> bool {
        let meant = |condition: &Condition| {
            config.get(&condition.parameter).is_some_and(|value| condition.values.contains(value))
        };
        if !self.when.as_ref().is_none_or(meant) {
            return true;
        }
        match (self.left.value(config), self.right.value(config)) {
            (Some(left), Some(right)) => self.comparison.holds(left, right),
            _ => true,
        }
    }
}

impl Comparison {
    #[expect(clippy::float_cmp, reason = "it is what the caller asks for")]
    fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::AtLeast => left >= right,
            Self::AtMost => left <= right,
            Self::Equal => left == right,
            // By itself it holds where either is no number.
            Self::Unequal => left != right && !left.is_nan() && !right.is_nan(),
            Self::Above => left > right,
            Self::Below => left < right,
        }
    }
}

impl Expression {
    /// `None` where a parameter is absent.
    fn value(&self, config: &Config) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Parameter(name) => config.get_f64(name),
            Self::Sum(terms) => terms.iter().try_fold(0.0, |sum, (minus, term)| {
                let value = term.value(config)?;
                Some(if *minus { sum - value } else { sum + value })
            }),
            Self::Product(factors) => factors.iter().try_fold(1.0, |product, (divides, factor)| {
                let value = factor.value(config)?;
                Some(if *divides { product / value } else { product * value })
            }),
        }
    }
}

struct Parser<'t> {
    rest: &'t str,
    parameters: &'t [Parameter],
    depth: usize,
}

impl<'t> Parser<'t> {
    fn comparison(&mut self) -> Result<Comparison, String> {
        let found = COMPARISONS.iter().find(|(symbol, _)| self.eat(symbol));
        found.map(|(_, comparison)| *comparison).ok_or_else(|| {
            let symbols: Vec<_> = COMPARISONS.iter().map(|(symbol, _)| *symbol).collect();
            format!("expected one of {} before {:?}", symbols.join(" "), self.rest)
        })
    }

    fn sum(&mut self) -> Result<Expression, String> {
        let mut terms = vec![(false, self.product()?)];
        loop {
            let minus = self.eat("-");
            if !minus && !self.eat("+") {
                return Ok(alone_or(terms, Expression::Sum));
            }
            terms.push((minus, self.product()?));
        }
    }

    fn product(&mut self) -> Result<Expression, String> {
        let mut factors = vec![(false, self.factor()?)];
        loop {
            let divides = self.eat("/");
            if !divides && !self.eat("*") {
                return Ok(alone_or(factors, Expression::Product));
            }
            factors.push((divides, self.factor()?));
        }
    }

    fn factor(&mut self) -> Result<Expression, String> {
        let mut negative = false;
        while self.eat("-") {
            negative = !negative;
        }
        let factor = self.operand()?;
        Ok(if negative { Expression::Sum(vec![(true, factor)]) } else { factor })
    }

    fn operand(&mut self) -> Result<Expression, String> {
        if self.eat("(") {
            self.depth += 1;
            if self.depth > DEEPEST {
                return Err(format!("more than {DEEPEST} parentheses within each other"));
            }
            let inner = self.sum()?;
            self.depth -= 1;
            return if self.eat(")") { Ok(inner) } else { Err(format!("expected \")\" before {:?}", self.rest)) };
        }
        if let Some(parameter) = self.parameter() {
            if !is_numeric(&parameter.domain) {
                return Err(format!("the values of {:?} are not numbers", parameter.name));
            }
            self.rest = self.rest[parameter.name.len()..].trim_start();
            return Ok(Expression::Parameter(parameter.name.clone()));
        }
        let end = number_end(self.rest);
        let (word, rest) = self.rest.split_at(end);
        let number = word.parse().ok().filter(|number: &f64| number.is_finite() && begins_number(word));
        let number = number.ok_or_else(|| match word {
            "" => format!("expected a number or a parameter before {:?}", self.rest),
            _ => format!("{word:?} is neither a number nor a parameter"),
        })?;
        self.rest = rest.trim_start();
        Ok(Expression::Number(number))
    }

    /// The parameter with the longest name that stands here as a whole word.
    fn parameter(&self) -> Option<&'t Parameter> {
        let here = |parameter: &&'t Parameter| {
            let after = self.rest.strip_prefix(parameter.name.as_str());
            after.is_some_and(|after| !after.starts_with(is_word))
        };
        self.parameters.iter().filter(here).max_by_key(|parameter| parameter.name.len())
    }

    fn eat(&mut self, symbol: &str) -> bool {
        let rest = self.rest.strip_prefix(symbol);
        self.rest = rest.map_or(self.rest, str::trim_start);
        rest.is_some()
    }
}

fn alone_or(mut items: Vec<(bool, Expression)>, several: fn(Vec<(bool, Expression)>) -> Expression) -> Expression {
    match items.pop() {
        Some((_, alone)) if items.is_empty() => alone,
        last => {
            items.extend(last);
            several(items)
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

/// Words such as `inf` and `nan` are numbers to the parser of floats, and not here.
fn begins_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit() || c == '.')
}

/// Where the word ends that stands at the beginning; the sign of an exponent (`1e-3`) belongs to a number.
fn number_end(text: &str) -> usize {
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let exponent = matches!(before, 'e' | 'E') && matches!(c, '+' | '-') && begins_number(text);
        if !is_word(c) && !exponent {
            return at;
        }
        before = c;
    }
    text.len()
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
    use serde_json::{Value as Json, json};

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
        let fields = Fields::of(json, "", "known_constraints[0].".to_owned()).unwrap();
        KnownConstraint::read(&fields, &space().parameters).map_err(|error| error.to_string())
    }

    fn holds(expr: &str) -> bool {
        let config = json!({"a": 7, "b": 2.5, "a-b": 3, "chunked": false, "block": 16.5, "kind": "x"});
        let config = read_config(&space(), &config).unwrap();
        read(&json!({"expr": expr})).unwrap().holds(&config)
    }

    #[test]
    fn comparisons_say_what_they_say() {
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
        ] {
            assert_eq!(holds(expr), expected, "{expr}");
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
    fn what_cannot_be_read_is_said() {
        for (expr, expected) in [
            ("", "expected a number or a parameter before \"\""),
            ("a", "expected one of >= <= == != > < before \"\""),
            ("a = 3", "expected one of >= <= == != > < before \"= 3\""),
            ("a >= ", "expected a number or a parameter before \"\""),
            ("a >= 3 >= 2", "cannot read \">= 2\""),
            ("(a >= 3", "expected \")\" before \">= 3\""),
            ("c >= 3", "\"c\" is neither a number nor a parameter"),
            ("a >= inf", "\"inf\" is neither a number nor a parameter"),
            ("a >= 1e999", "\"1e999\" is neither a number nor a parameter"),
            ("a >= 3x", "\"3x\" is neither a number nor a parameter"),
            ("chunked == 1", "the values of \"chunked\" are not numbers"),
            ("kind == 1", "the values of \"kind\" are not numbers"),
        ] {
            let expected = format!("known_constraints[0].expr: {expected} in {expr:?}");
            assert_eq!(read(&json!({"expr": expr})), Err(expected), "{expr}");
        }
        let deep = read(&json!({"expr": "(".repeat(100_000)})).unwrap_err();
        assert!(deep.contains("more than 64 parentheses"), "{}", &deep[..100]);
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
        fn sums_and_products_are_those_of_arithmetic(x in -50_i64..50, y in 1_i64..50, z in -50_i64..50) {
            // With integers this small, 64-bit floats are exact but for the quotient, which both sides round alike.
            let expected = to_f64(x) - to_f64(y) * to_f64(z) + to_f64(x) / to_f64(y);
            let expr = format!("{x} - {y} * {z} + {x} / {y} == {expected:?}");
            prop_assert!(holds(&expr), "{}", expr);
        }
    }
}
