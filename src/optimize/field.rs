//! One line as JSON, and an object's fields, read with their place in every error.

use serde_json::{Map, Value as Json};

use super::error::{ProtocolError, quote};

/// One line as JSON. Python writes `NaN`, `Infinity` and `-Infinity`, which JSON has not: they are read as texts of that name.
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

/// The fields of one object. A field that is null counts as absent, an unknown one is nobody's business.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Json>,
    /// What stands before a field's name in an error: `context.model.`, `parameter "gmu": `.
    prefix: String,
}

impl<'a> Fields<'a> {
    /// # Errors
    /// When `json` is no object; `place` says which.
    pub(super) fn of(json: &'a Json, place: &str, prefix: String) -> Result<Self, ProtocolError> {
        let map = json.as_object().ok_or_else(|| ProtocolError::unfit(place, json, "an object"))?;
        Ok(Self { map, prefix })
    }

    /// The same fields under a better name.
    pub(super) fn named(self, prefix: String) -> Self {
        Self { prefix, ..self }
    }

    pub(super) fn place(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// A present field; an absent one reads as null.
    pub(super) fn raw(&self, key: &str) -> &'a Json {
        self.map.get(key).unwrap_or(&Json::Null)
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Json> {
        self.map.get(key).filter(|json| !json.is_null())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a String, &'a Json)> + use<'a> {
        self.map.iter()
    }

    pub(super) fn unfit(&self, key: &str, expected: impl Into<String>) -> ProtocolError {
        ProtocolError::unfit(self.place(key), self.raw(key), expected)
    }

    fn read<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a Json) -> Option<T>,
    ) -> Result<Option<T>, ProtocolError> {
        self.get(key).map(|json| read(json).ok_or_else(|| self.unfit(key, expected))).transpose()
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, ProtocolError> {
        self.read(key, "a text", Json::as_str)
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ProtocolError> {
        self.read(key, "true or false", Json::as_bool)
    }

    /// A finite number.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ProtocolError> {
        self.read(key, "a finite number", |json| json.as_f64().filter(|number| number.is_finite()))
    }

    /// A finite number that is not negative.
    pub(super) fn amount(&self, key: &str) -> Result<Option<f64>, ProtocolError> {
        self.read(key, "a number of at least 0", |json| json.as_f64().filter(|n| n.is_finite() && *n >= 0.0))
    }

    /// A number of things, 1 or more.
    pub(super) fn count(&self, key: &str) -> Result<Option<u32>, ProtocolError> {
        let count = |json: &Json| json.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
        self.read(key, "a whole number from 1 to 4294967295", count)
    }

    pub(super) fn unsigned(&self, key: &str) -> Result<Option<u64>, ProtocolError> {
        self.read(key, "a whole number from 0 to 18446744073709551615", Json::as_u64)
    }

    /// Items; none where the field is absent.
    pub(super) fn list(&self, key: &str) -> Result<&'a [Json], ProtocolError> {
        Ok(self.read(key, "a list", |json| json.as_array().map(Vec::as_slice))?.unwrap_or_default())
    }

    /// An object's fields, each named `KEY.FIELD` in errors.
    pub(super) fn fields(&self, key: &str) -> Result<Option<Self>, ProtocolError> {
        let place = self.place(key);
        self.get(key).map(|json| Self::of(json, &place, format!("{place}."))).transpose()
    }

    /// `field` of one of the readers, which must be there.
    pub(super) fn required<T>(&self, key: &str, field: Option<T>) -> Result<T, ProtocolError> {
        field.ok_or_else(|| ProtocolError::Missing { place: self.place(key) })
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
    fn what_is_no_json_is_quoted_shortened() {
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
        fn json_without_names_of_numbers_is_what_it_is(text in ".*", number: i64) {
            let json = json!({"text": text, "number": number});
            prop_assert_eq!(serde_json::from_str::<Json>(&with_quoted_names(&json.to_string())).unwrap(), json);
        }
    }
}
