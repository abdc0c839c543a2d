//! The form of a JSON value: its possible fields and their types, with the conversions of pydantic's lax mode.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value as Json;

use super::FlagBounds;

/// One type of `forms.json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum JsonForm {
    Any,
    Bool,
    Int(FlagBounds),
    Float(FlagBounds),
    Optional(Box<Self>),
    AnyOf(Vec<Self>),
    /// One of these values, without conversion.
    OneOf(Vec<Json>),
    /// The name of a member, in upper or lower case, or its number.
    Member(Vec<String>),
    List(Box<Self>),
    Map(Box<Self>),
    #[serde(untagged)]
    Plain(PlainForm),
    #[serde(untagged)]
    Object(ObjectForm),
}

/// A type without bounds, written as its name.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PlainForm {
    Int,
    Float,
    Str,
}

/// The fields of an object with their types, and the names of its required fields. Other fields are invalid.
#[derive(Debug, Deserialize)]
pub(super) struct ObjectForm {
    object: BTreeMap<String, JsonForm>,
    #[serde(default)]
    required: Vec<String>,
}

impl JsonForm {
    /// Returns the reason why a value is invalid: the path of the field and the problem, in pydantic's wording.
    pub(super) fn refuse(&self, value: &Json) -> Option<String> {
        self.find_error_at("", value)
    }

    fn find_error_at(&self, path: &str, value: &Json) -> Option<String> {
        let wrong = |what: &str| {
            let place = if path.is_empty() { String::new() } else { format!("{path}: ") };
            Some(format!("{place}{what}, input_value={value}"))
        };
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match self {
            Self::Any => None,
            Self::Bool => {
                if as_bool(value) {
                    None
                } else {
                    wrong("Input should be a valid boolean")
                }
            }
            Self::Plain(PlainForm::Str) => {
                if value.is_string() {
                    None
                } else {
                    wrong("Input should be a valid string")
                }
            }
            Self::Plain(PlainForm::Int) => {
                if as_integer(value).is_some() {
                    None
                } else {
                    wrong(INTEGER)
                }
            }
            Self::Plain(PlainForm::Float) => {
                if as_float(value).is_some() {
                    None
                } else {
                    wrong(NUMBER)
                }
            }
            Self::Int(bounds) => match as_integer(value) {
                Some(number) => {
                    bounds.find_broken_bound(number).and_then(|exhaustion_reason| wrong(&exhaustion_reason))
                }
                None => wrong(INTEGER),
            },
            Self::Float(bounds) => match as_float(value) {
                Some(number) => {
                    bounds.find_broken_bound(number).and_then(|exhaustion_reason| wrong(&exhaustion_reason))
                }
                None => wrong(NUMBER),
            },
            Self::Optional(_) if value.is_null() => None,
            Self::Optional(form) => form.find_error_at(path, value),
            Self::AnyOf(forms) if forms.iter().any(|form| form.find_error_at(path, value).is_none()) => None,
            Self::AnyOf(forms) => forms.first().and_then(|form| form.find_error_at(path, value)),
            Self::OneOf(values) if values.contains(value) => None,
            Self::OneOf(values) => {
                let all: Vec<_> = values.iter().map(ToString::to_string).collect();
                wrong(&format!("Input should be one of {}", all.join(", ")))
            }
            Self::Member(names) => {
                let known = match value {
                    Json::String(name) => names.iter().any(|known| known.eq_ignore_ascii_case(name)),
                    _ => value.as_u64().is_some_and(|number| number < names.len() as u64),
                };
                if known { None } else { wrong(&format!("Input should be one of {}", names.join(", "))) }
            }
            Self::List(form) => match value {
                Json::Array(items) => items.iter().find_map(|item| form.find_error_at(path, item)),
                _ => wrong("Input should be a valid list"),
            },
            Self::Map(form) => match value {
                Json::Object(items) => items.iter().find_map(|(name, item)| form.find_error_at(&below(name), item)),
                _ => wrong("Input should be a valid dictionary"),
            },
            Self::Object(ObjectForm { object, required }) => match value {
                Json::Object(items) => items
                    .iter()
                    .find_map(|(name, item)| match object.get(name) {
                        Some(form) => form.find_error_at(&below(name), item),
                        None => Some(format!("{}: Unexpected keyword argument", below(name))),
                    })
                    .or_else(|| {
                        let missing = required.iter().find(|name| !items.contains_key(*name))?;
                        Some(format!("{}: Field required", below(missing)))
                    }),
                _ => wrong("Input should be an object"),
            },
        }
    }
}

const INTEGER: &str = "Input should be a valid integer";
const NUMBER: &str = "Input should be a valid number";

/// Returns whether pydantic reads the value as a boolean. It accepts these words and numbers.
fn as_bool(value: &Json) -> bool {
    const WORDS: [&str; 12] = ["0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"];
    match value {
        Json::Bool(_) => true,
        Json::Number(number) => number.as_f64().is_some_and(|number| [0.0, 1.0].contains(&number)),
        Json::String(text) => WORDS.iter().any(|word| word.eq_ignore_ascii_case(text)),
        _ => false,
    }
}

fn as_integer(value: &Json) -> Option<f64> {
    let whole = |number: f64| (number.fract() == 0.0).then_some(number);
    match value {
        Json::String(text) => text.trim().parse().ok().and_then(whole),
        _ => as_float(value).and_then(whole),
    }
}

fn as_float(value: &Json) -> Option<f64> {
    match value {
        Json::Bool(on) => Some(f64::from(u8::from(*on))),
        Json::Number(number) => number.as_f64(),
        Json::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[expect(clippy::needless_pass_by_value, reason = "what `json!` makes is handed over")]
    fn refuse(form: Json, value: Json) -> Option<String> {
        serde_json::from_value::<JsonForm>(form).unwrap().refuse(&value)
    }

    #[test]
    fn fields_are_known_and_have_their_types_and_bounds() {
        let form = json!({"object": {"a": "int", "b": {"optional": {"int": {"gt": 0}}}, "c": {"list": "str"}}});
        let check = |value| refuse(form.clone(), value);
        assert_eq!(check(json!({"a": "7", "b": null, "c": ["x"]})), None);
        assert_eq!(check(json!({"a": 1.5})), Some("a: Input should be a valid integer, input_value=1.5".to_owned()));
        assert_eq!(check(json!({"b": 0})), Some("b: Input should be greater than 0, input_value=0".to_owned()));
        assert_eq!(check(json!({"c": [1]})), Some("c: Input should be a valid string, input_value=1".to_owned()));
        assert_eq!(check(json!({"d": 1})), Some("d: Unexpected keyword argument".to_owned()));
        assert!(check(json!([])).is_some());
    }

    #[test]
    fn members_are_found_by_name_in_any_letters_and_by_number() {
        let form = json!({"member": ["NONE", "FULL"]});
        for value in [json!("none"), json!("FULL"), json!(1)] {
            assert_eq!(refuse(form.clone(), value), None);
        }
        assert!(refuse(form.clone(), json!("HALF")).is_some() && refuse(form, json!(2)).is_some());
    }

    #[test]
    fn one_of_several_forms_is_enough_and_required_fields_must_be_there() {
        let form = json!({"object": {"a": {"any_of": ["int", {"one_of": ["x"]}]}, "k": "bool"}, "required": ["k"]});
        assert_eq!(refuse(form.clone(), json!({"a": "x", "k": "yes"})), None);
        assert!(refuse(form.clone(), json!({"a": "y", "k": true})).is_some());
        assert_eq!(refuse(form, json!({"a": 1})), Some("k: Field required".to_owned()));
    }
}
