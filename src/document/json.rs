//! Reads JSON of other programs with serde. Every error contains the place, the value and the expected type.
//!
//! A field that is null counts as absent, and unknown fields are ignored unless the type denies them. Functions with
//! a `Deserializer` are for `#[serde(deserialize_with = "...")]` of optional fields, in types with `#[serde(default)]`.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, StringDeserializer};
use serde::de::{DeserializeOwned, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;
use serde_path_to_error::Segment;

use crate::config::{Config, Value};

/// A value of the wrong type or range for its field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldError {
    /// The path of the field from the object that was read: `model.parameters`, `items[2].name`. Empty for that object
    /// itself.
    pub path: String,
    pub found: Json,
    /// A phrase: "a number of at least 0".
    pub expected: String,
}

/// Serde's descriptions of types, with the words of our messages.
const PHRASES: [(&str, &str); 5] = [
    ("a string", "a text"),
    ("a boolean", "true or false"),
    ("a sequence", "a list"),
    ("u64", "a whole number from 0 to 18446744073709551615"),
    ("a nonzero u32", "a whole number from 1 to 4294967295"),
];

/// Reads an object.
///
/// # Errors
/// The first field that cannot be read.
pub(crate) fn read_object<T: DeserializeOwned>(json: &Json) -> Result<T, FieldError> {
    let read: Result<Object<T>, _> = serde_path_to_error::deserialize(json);
    read.map(|object| object.0).map_err(|error| {
        let (mut path, mut found) = (String::new(), json);
        for segment in error.path() {
            match segment {
                Segment::Seq { index } => {
                    path.extend(["[", &index.to_string(), "]"]);
                    found = found.get(index).unwrap_or(&Json::Null);
                }
                Segment::Map { key } => {
                    path.extend([if path.is_empty() { "" } else { "." }, key]);
                    found = found.get(key).unwrap_or(&Json::Null);
                }
                Segment::Enum { .. } | Segment::Unknown => {}
            }
        }
        FieldError { path, found: found.clone(), expected: expected(&error.inner().to_string()) }
    })
}

/// Returns the expected type from the text of an error. The functions below create errors that contain nothing else.
fn expected(error: &str) -> String {
    let phrase = error.rsplit_once(", expected ").map_or(error, |(_, phrase)| phrase);
    let known = PHRASES.iter().find(|(serde, _)| *serde == phrase);
    known.map_or_else(|| phrase.replace('`', ""), |(_, phrase)| (*phrase).to_owned())
}

/// A `T` that is written as an object. Serde alone would also read structs from lists.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(ObjectVisitor(PhantomData))
            .and_then(|read| read.map(Self).ok_or_else(|| D::Error::custom("an object")))
    }
}

/// A visitor that returns `None` for null.
struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }

    fn visit_unit<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }
}

/// Reads an object.
pub(crate) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    deserializer.deserialize_any(ObjectVisitor(PhantomData))
}

/// Reads an object. Null gives the default.
pub(crate) fn object_or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    object(deserializer).map(Option::unwrap_or_default)
}

/// Reads one of the words that `T` is written as.
pub(crate) fn word<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| T::deserialize::<StringDeserializer<D::Error>>(text.into_deserializer())).transpose()
}

/// Reads a finite number that is not negative.
pub(crate) fn amount<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    checked(deserializer, "a number of at least 0", amount_of)
}

/// Reads amounts by name, without those that are null.
pub(crate) fn amounts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let amounts: BTreeMap<String, Amount> = object_or_default(deserializer)?;
    Ok(amounts.into_iter().filter_map(|(name, amount)| Some((name, amount.0?))).collect())
}

/// Reads values by name, without those that are null.
pub(crate) fn values<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
    let values: BTreeMap<String, Scalar> = object_or_default(deserializer)?;
    Ok(values.into_iter().filter_map(|(name, value)| Some((name, value.0?))).collect())
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Amount(#[serde(deserialize_with = "amount")] Option<f64>);

struct Scalar(Option<Value>);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        checked(deserializer, "a text, a number, true or false", scalar_of).map(Self)
    }
}

fn checked<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &str,
    read: impl Fn(&Json) -> Option<T>,
) -> Result<Option<T>, D::Error> {
    match Json::deserialize(deserializer)? {
        Json::Null => Ok(None),
        json => read(&json).map(Some).ok_or_else(|| D::Error::custom(expected)),
    }
}

/// Returns a finite number that is not negative.
pub(crate) fn amount_of(json: &Json) -> Option<f64> {
    json.as_f64().filter(|number| number.is_finite() && *number >= 0.0)
}

/// Returns a scalar with its JSON type. `None` for other values and for integers beyond 64 bits.
pub(crate) fn scalar_of(json: &Json) -> Option<Value> {
    match json {
        Json::Bool(flag) => Some(Value::Bool(*flag)),
        Json::String(text) => Some(Value::Text(text.clone())),
        Json::Number(number) if number.is_f64() => number.as_f64().map(Value::Float),
        Json::Number(number) => number.as_i64().map(Value::Int),
        Json::Null | Json::Array(_) | Json::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Outer {
        #[serde(deserialize_with = "object_or_default")]
        inner: Inner,
        items: Option<Vec<u64>>,
        #[serde(deserialize_with = "amounts")]
        limits: BTreeMap<String, f64>,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Inner {
        text: Option<String>,
        flag: Option<bool>,
        count: Option<std::num::NonZeroU32>,
        #[serde(deserialize_with = "amount")]
        amount: Option<f64>,
        #[serde(deserialize_with = "word")]
        color: Option<Color>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Color {
        Red,
        Green,
        Blue,
    }

    #[test]
    fn null_counts_as_absent_and_unknown_fields_are_ignored() {
        let json = json!({"inner": null, "items": null, "limits": {"a": null, "b": 1}, "other": {"x": 1}});
        let read: Outer = read_object(&json).unwrap();
        assert_eq!(read, Outer { limits: BTreeMap::from([("b".to_owned(), 1.0)]), ..Outer::default() });
    }

    #[test]
    fn errors_name_the_place_the_value_and_what_is_expected() {
        for (json, path, found, expected) in [
            (json!([]), "", json!([]), "an object"),
            (json!(null), "", json!(null), "an object"),
            (json!({"inner": []}), "inner", json!([]), "an object"),
            (json!({"items": {}}), "items", json!({}), "a list"),
            (json!({"items": [1, -2]}), "items[1]", json!(-2), "a whole number from 0 to 18446744073709551615"),
            (json!({"limits": {"a": -1}}), "limits.a", json!(-1), "a number of at least 0"),
            (json!({"inner": {"text": 4}}), "inner.text", json!(4), "a text"),
            (json!({"inner": {"flag": "x, expected y"}}), "inner.flag", json!("x, expected y"), "true or false"),
            (json!({"inner": {"count": 0}}), "inner.count", json!(0), "a whole number from 1 to 4294967295"),
            (json!({"inner": {"amount": "NaN"}}), "inner.amount", json!("NaN"), "a number of at least 0"),
            (json!({"inner": {"color": "pink"}}), "inner.color", json!("pink"), "one of red, green, blue"),
            (json!({"inner": {"color": {"red": null}}}), "inner.color", json!({"red": null}), "a text"),
        ] {
            let error = FieldError { path: path.to_owned(), found, expected: expected.to_owned() };
            assert_eq!(read_object::<Outer>(&json), Err(error));
        }
    }
}
