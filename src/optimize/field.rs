//! One line as JSON, and its objects, read with their place in every error.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use super::error::{ProtocolError, quote};
use crate::document::json::{FieldError, read_object};

/// Parses one line as JSON. Python writes `NaN`, `Infinity` and `-Infinity`, which JSON lacks: they are read as texts
/// of that name.
pub(super) fn parse(line: &[u8]) -> Result<Json, ProtocolError> {
    let text = std::str::from_utf8(line).map_err(|_| ProtocolError::NotText)?;
    serde_json::from_str(text).or_else(|error| {
        let parsed = text.contains("NaN") || text.contains("Infinity");
        let parsed = parsed.then(|| serde_json::from_str(&with_quoted_names(text)).ok()).flatten();
        parsed.ok_or_else(|| ProtocolError::NotJson { reason: error.to_string(), line: quote(text.trim()) })
    })
}

/// Puts the names of numbers that are not finite into quotes, outside of texts.
fn with_quoted_names(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 16);
    let (mut rest, mut within) = (text, false);
    while let Some(first) = rest.chars().next() {
        let name = ["NaN", "-Infinity", "Infinity"].into_iter().find(|name| !within && rest.starts_with(name));
        let taken = match (name, first) {
            (Some(name), _) => {
                quoted.extend(["\"", name, "\""]);
                name.len()
            }
            (None, '\\') if within => {
                let taken = rest.char_indices().nth(2).map_or(rest.len(), |(end, _)| end);
                quoted.push_str(&rest[..taken]);
                taken
            }
            (None, _) => {
                within ^= first == '"';
                quoted.push(first);
                first.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    quoted
}

/// An object of a message, with its name in errors.
#[derive(Clone, Debug)]
pub(super) struct FieldPlace {
    whole: String,
    /// Prefix of a field's name: `context.model.`, `parameter "gmu": `.
    prefix: String,
}

impl FieldPlace {
    /// Returns the place of the message itself.
    pub(super) fn line() -> Self {
        Self { whole: "the line".to_owned(), prefix: String::new() }
    }

    /// Returns the place of an object that errors call `name`, and its fields `NAME.FIELD`.
    pub(super) fn object(name: impl Into<String>) -> Self {
        let whole = name.into();
        Self { prefix: format!("{whole}."), whole }
    }

    /// Returns the place of a parameter by its name, which is known once its description is an object.
    pub(super) fn parameter(name: &str) -> Self {
        let whole = format!("parameter {:?}", quote(name));
        Self { prefix: format!("{whole}: "), whole }
    }

    /// Returns the place of the object in field `key`.
    pub(super) fn inner(&self, key: &str) -> Self {
        Self::object(self.field(key))
    }

    /// Returns the name of one of the object's fields, as errors write it.
    pub(super) fn field(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Reads the object as a `T`.
    ///
    /// # Errors
    /// If `json` is not an object, or if one of its fields is not valid for `T`.
    pub(super) fn read<T: DeserializeOwned>(&self, json: &Json) -> Result<T, ProtocolError> {
        read_object(json).map_err(|FieldError { path, found, expected }| {
            let place = if path.is_empty() { self.whole.clone() } else { self.field(&path) };
            ProtocolError::unexpected(place, &found, expected)
        })
    }

    /// Returns the fields of an object whose field names the caller has chosen.
    ///
    /// # Errors
    /// If `json` is not an object.
    pub(super) fn fields<'j>(&self, json: &'j Json) -> Result<&'j Map<String, Json>, ProtocolError> {
        json.as_object().ok_or_else(|| ProtocolError::unexpected(&self.whole, json, "an object"))
    }

    /// Returns a required field.
    ///
    /// # Errors
    /// If it is missing.
    pub(super) fn required<T>(&self, key: &str, field: Option<T>) -> Result<T, ProtocolError> {
        field.ok_or_else(|| ProtocolError::Missing { place: self.field(key) })
    }

    /// Returns the error for a field with a value that is not `expected`.
    pub(super) fn unexpected(&self, key: &str, found: &Json, expected: impl Into<String>) -> ProtocolError {
        ProtocolError::unexpected(self.field(key), found, expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn numbers_that_are_not_finite_are_read_as_texts_and_texts_stay_as_they_are() {
        let line = r#"{"a": NaN, "b": [-Infinity, Infinity], "NaN": "a \" NaN", "é\\": "\\"}"#;
        let expected = json!({"a": "NaN", "b": ["-Infinity", "Infinity"], "NaN": "a \" NaN", "é\\": "\\"});
        assert_eq!(parse(line.as_bytes()), Ok(expected));
    }

    #[test]
    fn an_invalid_json_line_is_quoted_in_short() {
        let error = parse(format!("{{\"a\": NaN, {}", "x".repeat(500)).as_bytes()).unwrap_err().to_string();
        assert!(error.contains("the line is not JSON") && error.ends_with("xxx..."), "{error}");
        assert!(error.len() < 250, "{error}");
        assert_eq!(parse(&[0xff, 0xfe]), Err(ProtocolError::NotText));
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused(line in "[\\\\\"NaN{}:, Infinityé-]{0,40}") {
            let _ = parse(line.as_bytes());
        }

        #[test]
        fn json_without_special_numbers_is_unchanged(text in ".*", number: i64) {
            let json = json!({"text": text, "number": number});
            prop_assert_eq!(serde_json::from_str::<Json>(&with_quoted_names(&json.to_string())).unwrap(), json);
        }
    }
}
