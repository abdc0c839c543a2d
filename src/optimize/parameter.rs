//! Conversion of a caller's parameters to a space.

use serde_json::Value as Json;

use super::error::{ProtocolError, quote};
use super::field::FieldPlace;
use super::message::{
    CategoricalChoices, FloatRange, IntRange, NamedItem, NumberGrid, ParameterItem, ParameterKind, WhenItem,
};
use crate::config::{Config, Value};
use crate::document::json::scalar_of;
use crate::space::{Condition, Domain, IntScale, Parameter, Space};
use crate::stats::{f64_to_i64, to_f64};

/// Largest absolute value of an integer bound. Above `2^53` a double does not represent every integer.
const LARGEST: i64 = 1 << 53;

/// Reads the list `params`.
///
/// # Errors
/// If a parameter has a value that cannot be used; the error names both.
pub(super) fn read_space(params: &[Json]) -> Result<Space, ProtocolError> {
    let mut parameters: Vec<Parameter> = Vec::new();
    for (index, json) in params.iter().enumerate() {
        let item = FieldPlace::object(format!("params[{index}]"));
        let NamedItem { name } = item.read(json)?;
        let name = item.required("name", name)?;
        if name.is_empty() {
            return Err(item.unexpected("name", &name.into(), "a name"));
        }
        if parameters.iter().any(|above| above.name == name) {
            return Err(ProtocolError::repeated(item.field("name"), &name.into()));
        }
        let place = FieldPlace::parameter(&name);
        let ParameterItem { kind, when } = place.read(json)?;
        let domain = match place.required("type", kind)? {
            ParameterKind::Bool => Domain::Bool,
            ParameterKind::Categorical => read_choices(&place.read(json)?, &place).map(Domain::Categorical)?,
            ParameterKind::Int => read_int(&place.read(json)?, &place)?,
            ParameterKind::Float => read_float(&place.read(json)?, &place)?,
        };
        let when = read_condition(when, &place, &parameters)?.into_iter().collect();
        parameters.push(Parameter { name, domain, conditions: when, help: None });
    }
    Ok(Space { parameters, fixed: Config::new() })
}

/// Reads the condition of a parameter or of a known constraint, on one of the `parents`. Its values get the type of the
/// parent's own. Values that the parent cannot have are dropped.
pub(super) fn read_condition(
    when: Option<WhenItem>,
    place: &FieldPlace,
    parents: &[Parameter],
) -> Result<Option<Condition>, ProtocolError> {
    let Some(WhenItem { param, values: listed }) = when else { return Ok(None) };
    let place = place.inner("when");
    let parameter = place.required("param", param)?;
    let Some(parent) = parents.iter().find(|parent| parent.name == parameter) else {
        return Err(place.unexpected("param", &parameter.into(), "the name of a parameter above it"));
    };
    let values = listed.iter().flatten().filter_map(|json| to_domain_value(&parent.domain, json));
    let values: Vec<_> = values.collect();
    if values.is_empty() {
        let expected = format!("a list with a value that {parameter:?} can have: {}", parent.domain);
        return Err(place.unexpected("in", &listed.into(), expected));
    }
    Ok(Some(Condition { parameter, values }))
}

fn read_choices(
    CategoricalChoices { choices: listed }: &CategoricalChoices,
    place: &FieldPlace,
) -> Result<Vec<Value>, ProtocolError> {
    let mut choices = Vec::new();
    for json in listed.iter().flatten() {
        let choice = scalar_of(json)
            .ok_or_else(|| place.unexpected("a choice", json, "a text, a 64-bit number, true or false"))?;
        if choices.iter().any(|above| same(above, json)) {
            return Err(ProtocolError::repeated(place.field("a choice"), json));
        }
        choices.push(choice);
    }
    if choices.is_empty() {
        return Err(place.unexpected("choices", &listed.clone().into(), "a list with at least one choice"));
    }
    Ok(choices)
}

fn read_int(range: &IntRange, place: &FieldPlace) -> Result<Domain, ProtocolError> {
    let bound = |key: &str, number: &Json| {
        as_whole_number(present(place, key, number)?)
            .filter(|bound| (-LARGEST..=LARGEST).contains(bound))
            .ok_or_else(|| place.unexpected(key, number, format!("a whole number from -{LARGEST} to {LARGEST}")))
    };
    let (low, high) = (bound("low", &range.low)?, bound("high", &range.high)?);
    let scale = match (range.grid, range.log) {
        (Some(NumberGrid::PowerOfTwo), _) => IntScale::PowerOfTwo,
        (None, Some(true)) => IntScale::Log,
        (None, _) => IntScale::Linear,
    };
    let place = RangePlace { place, low: &range.low, high: &range.high };
    place.check_order(low > high)?;
    if scale == IntScale::Log && low < 1 {
        return Err(place.unusable_low("too low for a logarithmic range"));
    }
    let domain = Domain::int(low, high, scale, 1);
    if domain.is_empty() {
        return Err(place.unusable_high(format!("the range from {low} contains no power of two")));
    }
    Ok(domain)
}

fn read_float(range: &FloatRange, place: &FieldPlace) -> Result<Domain, ProtocolError> {
    let bound = |key: &str, number: &Json| {
        let finite = present(place, key, number)?.as_f64().filter(|bound| bound.is_finite());
        finite.ok_or_else(|| place.unexpected(key, number, "a finite number"))
    };
    let (low, high) = (bound("low", &range.low)?, bound("high", &range.high)?);
    let log = range.log.unwrap_or(false);
    let place = RangePlace { place, low: &range.low, high: &range.high };
    place.check_order(low > high)?;
    if log && low <= 0.0 {
        return Err(place.unusable_low("too low for a logarithmic range"));
    }
    if !(high - low).is_finite() || log && !(high / low).is_finite() {
        return Err(place.unusable_high(format!("too far from low, {low}, for 64-bit numbers")));
    }
    Ok(Domain::Float { low, high, log })
}

/// Returns a required field that is not null.
fn present<'j>(place: &FieldPlace, key: &str, json: &'j Json) -> Result<&'j Json, ProtocolError> {
    place.required(key, Some(json).filter(|json| !json.is_null()))
}

/// A range with its place in errors.
struct RangePlace<'p> {
    place: &'p FieldPlace,
    low: &'p Json,
    high: &'p Json,
}

impl RangePlace<'_> {
    fn check_order(&self, is_reversed: bool) -> Result<(), ProtocolError> {
        if is_reversed { Err(self.unusable_low(format!("above high, {}", self.high))) } else { Ok(()) }
    }

    fn unusable_low(&self, problem: impl Into<String>) -> ProtocolError {
        ProtocolError::unusable(self.place.field("low"), self.low, problem)
    }

    fn unusable_high(&self, problem: impl Into<String>) -> ProtocolError {
        ProtocolError::unusable(self.place.field("high"), self.high, problem)
    }
}

/// Converts `json` to a value of `domain` in the domain's own type: 1 may be a float, and 2.0 an integer. `None` if the
/// domain lacks the value.
pub(super) fn to_domain_value(domain: &Domain, json: &Json) -> Option<Value> {
    match domain {
        Domain::Bool => json.as_bool().map(Value::Bool),
        Domain::Categorical(choices) => choices.iter().find(|choice| same(choice, json)).cloned(),
        Domain::Int { low, high, scale, multiple_of } => {
            let number =
                as_whole_number(json).filter(|number| (low..=high).contains(&number) && number % multiple_of == 0)?;
            (*scale != IntScale::PowerOfTwo || number.count_ones() == 1).then_some(Value::Int(number))
        }
        Domain::Float { low, high, .. } => {
            json.as_f64().filter(|number| (low..=high).contains(&number)).map(Value::Float)
        }
    }
}

/// Returns whether two values are equal, numbers as numbers.
fn same(value: &Value, json: &Json) -> bool {
    match value {
        Value::Bool(flag) => json.as_bool() == Some(*flag),
        Value::Text(text) => json.as_str() == Some(text),
        Value::Int(number) => as_whole_number(json) == Some(*number),
        Value::Float(number) => json.as_f64() == Some(*number),
    }
}

/// Returns an integer, also if it is written as 2.0.
fn as_whole_number(json: &Json) -> Option<i64> {
    let exact = |number: &f64| number.fract() == 0.0 && number.abs() <= to_f64(LARGEST);
    json.as_i64().or_else(|| json.as_f64().filter(exact).map(f64_to_i64))
}

/// Reads a configuration, with every value in its parameter's type.
///
/// # Errors
/// If the configuration is not a member of the space. It has an unknown name or a value out of range, it lacks an
/// active parameter, or it sets an inactive one (null counts as absent).
pub(super) fn read_config(space: &Space, json: &Json) -> Result<Config, ProtocolError> {
    let place = FieldPlace::object("config");
    let fields = place.fields(json)?;
    for (name, json) in fields {
        if !space.parameters.iter().any(|parameter| parameter.name == *name) {
            return Err(ProtocolError::unusable(place.field(&quote(name)), json, "not a parameter of the space"));
        }
    }
    let mut given = Vec::new();
    for Parameter { name, domain, .. } in &space.parameters {
        let read = |json| to_domain_value(domain, json).ok_or_else(|| place.unexpected(name, json, domain.to_string()));
        given.push(fields.get(name).filter(|json| !json.is_null()).map(read).transpose()?);
    }
    let config = space.assemble(|index| given[index].clone());
    // `whole` has a placeholder for each value that is not given. A parameter in it but not in `config` is missing.
    let whole = space.assemble(|index| Some(given[index].clone().unwrap_or(Value::Bool(false))));
    for (Parameter { name, .. }, value) in space.parameters.iter().zip(&given) {
        match (value, config.get(name), whole.get(name)) {
            (Some(_), None, _) => {
                let problem = "must be absent, because its condition does not hold";
                return Err(ProtocolError::unusable(place.field(name), &fields[name], problem));
            }
            (None, _, Some(_)) => return Err(ProtocolError::Missing { place: place.field(name) }),
            _ => {}
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn error(params: &Json) -> String {
        read_space(params.as_array().unwrap()).unwrap_err().to_string()
    }

    fn space() -> Space {
        let params = json!([
            {"name": "method", "type": "categorical", "choices": ["none", "ngram", 1, 2.0, true]},
            {"name": "tokens", "type": "int", "low": 1, "high": 8, "when": {"param": "method", "in": ["ngram", 2, "old"]}},
            {"name": "depth", "type": "int", "low": 3, "high": 100, "grid": "pow2", "when": {"param": "tokens", "in": [4.0]}},
            {"name": "share", "type": "float", "low": 0.5, "high": 0.98},
            {"name": "rate", "type": "float", "low": 0.001, "high": 10, "log": true, "help": "unknown fields are ignored"},
            {"name": "seqs", "type": "int", "low": 8, "high": 1024, "log": true},
            {"name": "eager", "type": "bool", "when": null},
        ]);
        read_space(params.as_array().unwrap()).unwrap()
    }

    #[test]
    fn every_kind_of_parameter_is_read_with_its_condition() {
        let space = space();
        let domains: Vec<_> = space.parameters.iter().map(|parameter| parameter.domain.to_string()).collect();
        let expected = [
            "none, ngram, 1, 2, true",
            "1 to 8",
            "4 to 64, powers of two",
            "0.5 to 0.98",
            "0.001 to 10, logarithmic",
            "8 to 1024, logarithmic",
            "true or false",
        ];
        assert_eq!(domains, expected);
        assert_eq!(space.parameters[1].conditions[0].values, [Value::from("ngram"), Value::Float(2.0)]);
        assert_eq!(space.parameters[2].conditions[0].values, [Value::Int(4)]);
    }

    #[test]
    fn an_invalid_parameter_is_refused_with_name_and_value() {
        let x = |more: Json| {
            let mut parameter = json!({"name": "x", "type": "int", "low": 1, "high": 4});
            parameter.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!([{"name": "a", "type": "bool"}, parameter])
        };
        for (params, expected) in [
            (json!([3]), "params[0] is 3, expected an object"),
            (json!([{"type": "bool"}]), "params[0].name is missing"),
            (json!([{"name": "", "type": "bool"}]), "params[0].name is \"\", expected a name"),
            (x(json!({"name": "a"})), "params[1].name repeats \"a\""),
            (x(json!({"type": null})), "parameter \"x\": type is missing"),
            (
                x(json!({"type": "real"})),
                "parameter \"x\": type is \"real\", expected one of int, float, bool, categorical",
            ),
            (x(json!({"low": null})), "parameter \"x\": low is missing"),
            (x(json!({"low": 5})), "parameter \"x\": low is 5: above high, 4"),
            (x(json!({"low": 0, "log": true})), "parameter \"x\": low is 0: too low for a logarithmic range"),
            (x(json!({"low": 3, "high": 3, "grid": "pow2"})), "high is 3: the range from"),
            (x(json!({"grid": "pow3"})), "parameter \"x\": grid is \"pow3\", expected pow2"),
            (x(json!({"log": 1})), "parameter \"x\": log is 1, expected true or false"),
            (x(json!({"high": 2.5})), "parameter \"x\": high is 2.5, expected a whole number"),
            (
                x(json!({"high": 1e300})),
                "parameter \"x\": high is 1e+300, expected a whole number from -9007199254740992 to",
            ),
            (x(json!({"high": "NaN"})), "parameter \"x\": high is \"NaN\", expected a whole number"),
            (
                x(json!({"type": "float", "high": "Infinity"})),
                "parameter \"x\": high is \"Infinity\", expected a finite number",
            ),
            (x(json!({"type": "float", "low": 5.5})), "parameter \"x\": low is 5.5: above high, 4"),
            (x(json!({"type": "float", "low": 0.0, "log": true})), "low is 0.0: too low for a logarithmic range"),
            (x(json!({"type": "float", "low": -1e308, "high": 1e308})), "high is 1e+308: too far from low"),
            (
                x(json!({"type": "float", "low": 1e-300, "high": 1e300, "log": true})),
                "high is 1e+300: too far from low",
            ),
            (
                x(json!({"type": "categorical"})),
                "parameter \"x\": choices is null, expected a list with at least one choice",
            ),
            (
                x(json!({"type": "categorical", "choices": []})),
                "choices is [], expected a list with at least one choice",
            ),
            (x(json!({"type": "categorical", "choices": ["a", "a"]})), "parameter \"x\": a choice repeats \"a\""),
            (x(json!({"type": "categorical", "choices": [1, 1.0]})), "parameter \"x\": a choice repeats 1.0"),
            (
                x(json!({"type": "categorical", "choices": [null]})),
                "parameter \"x\": a choice is null, expected a text",
            ),
            (x(json!({"type": "categorical", "choices": [u64::MAX]})), "a choice is 18446744073709551615, expected"),
            (
                x(json!({"when": {"param": "b", "in": [1]}})),
                "parameter \"x\": when.param is \"b\", expected the name of a parameter above",
            ),
            (
                x(json!({"when": {"param": "x", "in": [1]}})),
                "parameter \"x\": when.param is \"x\", expected the name of a parameter above",
            ),
            (x(json!({"when": {"in": [1]}})), "parameter \"x\": when.param is missing"),
            (
                x(json!({"when": {"param": "a", "in": []}})),
                "parameter \"x\": when.in is [], expected a list with a value that \"a\" can",
            ),
            (
                x(json!({"when": {"param": "a", "in": ["true"]}})),
                "when.in is [\"true\"], expected a list with a value that \"a\" can have",
            ),
        ] {
            let error = error(&params);
            assert!(error.contains(expected), "{error}\n{expected}");
        }
    }

    #[test]
    fn a_child_before_its_parent_is_refused() {
        let params = json!([
            {"name": "child", "type": "bool", "when": {"param": "parent", "in": [true]}},
            {"name": "parent", "type": "bool"},
        ]);
        assert!(error(&params).contains("parameter \"child\": when.param is \"parent\""));
    }

    #[test]
    fn a_configuration_is_read_in_the_types_of_its_parameters() {
        let config = json!({
            "method": 2, "tokens": 4.0, "depth": 16, "share": 0.5, "rate": 1, "seqs": 9, "eager": false,
        });
        let key = read_config(&space(), &config).unwrap().key();
        assert_eq!(key, r#"{"depth":16,"eager":false,"method":2.0,"rate":1.0,"seqs":9,"share":0.5,"tokens":4}"#);
    }

    #[test]
    fn a_configuration_outside_of_the_space_is_refused_with_name_and_value() {
        let with = |name: &str, value: Json| {
            let mut config =
                json!({"method": "none", "share": 0.5, "rate": 1.0, "seqs": 9, "eager": false, "tokens": null});
            config[name] = value;
            read_config(&space(), &config).map_err(|error| error.to_string())
        };
        assert!(with("seqs", json!(1024)).is_ok());
        for (name, value, expected) in [
            ("seqs", json!(7), "config.seqs is 7, expected 8 to 1024, logarithmic"),
            ("seqs", json!(9.5), "config.seqs is 9.5, expected 8 to 1024, logarithmic"),
            ("share", json!(0.981), "config.share is 0.981, expected 0.5 to 0.98"),
            ("share", json!("NaN"), "config.share is \"NaN\", expected 0.5 to 0.98"),
            ("eager", json!(0), "config.eager is 0, expected true or false"),
            ("eager", json!(null), "config.eager is missing"),
            ("method", json!("eagle"), "config.method is \"eagle\", expected none, ngram, 1, 2, true"),
            ("method", json!("ngram"), "config.tokens is missing"),
            ("tokens", json!(3), "config.tokens is 3: must be absent, because its condition does not hold"),
            ("depth", json!(4), "config.depth is 4: must be absent, because its condition does not hold"),
            ("block", json!(16), "config.block is 16: not a parameter of the space"),
        ] {
            assert_eq!(with(name, value), Err(expected.to_owned()));
        }
        assert_eq!(read_config(&space(), &json!(null)).unwrap_err().to_string(), "config is null, expected an object");
    }

    proptest! {
        #[test]
        fn a_decoded_configuration_is_read_back_unchanged(point in proptest::collection::vec(0.0..1.0, 7)) {
            let config = space().decode(&point);
            let json = serde_json::from_str(&config.key()).unwrap();
            prop_assert_eq!(read_config(&space(), &json), Ok(config));
        }
    }
}
