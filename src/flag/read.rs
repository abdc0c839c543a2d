//! Conversion of one value's text to the value, as the parser of the release does it.

use std::num::IntErrorKind;

use serde_json::Value as Json;

use super::{Flag, FlagError, FlagKind};
use crate::config::Value;
use crate::stats::f64_to_i64;

impl Flag {
    /// Reads the text of this flag's value.
    ///
    /// # Errors
    /// If the text has the wrong form or is not one of the choices.
    pub fn read(&self, text: &str) -> Result<Value, FlagError> {
        let wrong = |expected| FlagError::WrongType { name: self.name.to_owned(), expected, value: text.to_owned() };
        // `None` and the empty text are no valid elements of a list of integers.
        if self.is_unset(text) && !self.properties.of_integers {
            return Ok(Value::Text(text.to_owned()));
        }
        let value = match self.kind() {
            // The engine encodes `auto`, the longest length that fits, as -1.
            FlagKind::Int if self.properties.auto_is_minus_one && is_auto(text) => Value::Int(-1),
            FlagKind::Int if self.properties.human => {
                human_integer(text).map(Value::Int).ok_or_else(|| wrong("human_readable_int"))?
            }
            FlagKind::Int => integer(text).map(Value::Int).ok_or_else(|| wrong("int"))?,
            FlagKind::Float => float(text).map(Value::Float).ok_or_else(|| wrong("float"))?,
            FlagKind::Json => return self.check_json(text).map(|()| Value::Text(text.to_owned())),
            FlagKind::TextOrJson if text.trim().starts_with('{') && text.trim().ends_with('}') => {
                return self.check_json(text).map(|()| Value::Text(text.to_owned()));
            }
            FlagKind::List if self.properties.of_integers => {
                let bad = text.split_whitespace().find(|item| integer(item).is_none());
                return match bad {
                    Some(_) => Err(wrong("int")),
                    None => Ok(Value::Text(text.to_owned())),
                };
            }
            _ if self.properties.folded => Value::Text(text.to_lowercase().replace('-', "_")),
            _ => Value::Text(text.to_owned()),
        };
        self.check_choice(&value)?;
        Ok(value)
    }

    /// Checks whether the parser of this release accepts the value.
    ///
    /// # Errors
    /// If the value has the wrong type or form, or is not one of the choices.
    pub fn check(&self, value: &Value) -> Result<(), FlagError> {
        match (self.kind(), value) {
            // A flag of unknown kind may be a switch.
            (FlagKind::Bool | FlagKind::Other, Value::Bool(_)) => Ok(()),
            (FlagKind::Int, Value::Int(_)) | (FlagKind::Float, Value::Float(_)) => self.check_choice(value),
            (FlagKind::Bool, _) => {
                Err(FlagError::ExplicitBool { name: self.name.to_owned(), value: value.to_string() })
            }
            (_, Value::Text(text)) => self.read(text).map(drop),
            (_, Value::Bool(true)) if self.properties.bare => Ok(()),
            (_, Value::Bool(_)) => Err(FlagError::MissingValue(self.name.to_owned())),
            _ => self.read(&value.to_string()).map(drop),
        }
    }

    /// Checks the value against the choices of this release.
    ///
    /// # Errors
    /// If the release restricts this flag to choices and `value` is none of them.
    pub fn check_choice(&self, value: &Value) -> Result<(), FlagError> {
        match self.choices() {
            Some(choices) if !choices.contains(value) => Err(FlagError::InvalidChoice {
                name: self.name.to_owned(),
                value: value.to_string(),
                choices: choices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            }),
            _ => Ok(()),
        }
    }

    /// Returns whether this text leaves an optional flag unset.
    #[must_use]
    pub fn is_unset(&self, text: &str) -> bool {
        self.properties.optional && (text.is_empty() || text == "None")
    }

    /// Returns the reason why the configuration class behind a JSON flag would refuse the value, in pydantic's
    /// wording. `None` if the fields are not recorded or the value is well-formed.
    #[must_use]
    pub fn find_field_error(&self, json: &Json) -> Option<String> {
        self.properties.form?.refuse(json)
    }

    /// Returns whether the parser itself validates the fields of this JSON flag. Otherwise the configuration classes
    /// do so later.
    fn parser_reads_fields(&self) -> bool {
        !self.properties.by_classes
    }

    fn check_json(&self, text: &str) -> Result<(), FlagError> {
        if !self.properties.recorded {
            return Ok(());
        }
        let problem = |problem| FlagError::Form { name: self.name.to_owned(), problem };
        let json: Json = if self.properties.form.is_some() && self.parser_reads_fields() {
            serde_json::from_str(text).or_else(|error| serde_json::from_str(&expand(text)).map_err(|_| error))
        } else {
            serde_json::from_str(text)
        }
        .map_err(|_| problem(format!("Value {text} cannot be converted to JSON.")))?;
        if !self.parser_reads_fields() {
            return Ok(());
        }
        self.find_field_error(&json).map_or(Ok(()), |reason| Err(problem(reason)))
    }
}

/// Writes numbers such as `80g` outside of quotes in full, like `_expand_json_human_readable_numbers` in vLLM.
fn expand(text: &str) -> String {
    let mut expanded = String::with_capacity(text.len());
    for (index, part) in text.split('"').enumerate() {
        if index > 0 {
            expanded.push('"');
        }
        if index % 2 == 1 {
            expanded.push_str(part);
            continue;
        }
        for token in part.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '.')) {
            let word = token.trim_end_matches(|c: char| !(c.is_alphanumeric() || c == '.'));
            match human_integer(word).filter(|_| word.ends_with(|c: char| c.is_ascii_alphabetic())) {
                Some(number) => {
                    expanded.push_str(&number.to_string());
                    expanded.push_str(&token[word.len()..]);
                }
                None => expanded.push_str(token),
            }
        }
    }
    expanded
}

fn is_auto(text: &str) -> bool {
    text.trim().eq_ignore_ascii_case("auto")
}

/// Parses a number like Python's `int`: with blanks around it, a sign, and underscores between digits. Python's
/// integers have no limit. A number outside the range of `i64` is read as the nearest one in it.
pub(super) fn integer(text: &str) -> Option<i64> {
    let text = text.trim();
    match text.parse::<i64>() {
        Ok(number) => Some(number),
        Err(error) => match error.kind() {
            IntErrorKind::PosOverflow => Some(i64::MAX),
            IntErrorKind::NegOverflow => Some(i64::MIN),
            _ => integer(&without_underscores(text)?),
        },
    }
}

/// Parses a number like Python's `float`.
fn float(text: &str) -> Option<f64> {
    let text = text.trim();
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => without_underscores(text)?.parse().ok(),
    }
}

fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let digit = |index: Option<usize>| index.and_then(|index| bytes.get(index)).is_some_and(u8::is_ascii_digit);
    let between = |index: usize| digit(index.checked_sub(1)) && digit(Some(index + 1));
    let fine = text.contains('_') && text.match_indices('_').all(|(index, _)| between(index));
    fine.then(|| text.replace('_', ""))
}

/// Parses an integer like vLLM's `human_readable_int`: `2k` is 2000, `1.5k` is 1500, and `2K` is 2048.
pub(super) fn human_integer(text: &str) -> Option<i64> {
    const SCALES: [(char, f64); 4] = [('k', 1e3), ('m', 1e6), ('g', 1e9), ('t', 1e12)];
    let text = text.trim();
    let last = text.chars().next_back()?;
    let digits = &text[..text.len() - last.len_utf8()];
    let plain = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((_, scale)) = SCALES.iter().find(|(letter, _)| *letter == last) {
        let fits = match digits.split_once('.') {
            Some((whole, fraction)) => plain(whole) && plain(fraction),
            None => plain(digits),
        };
        let number: f64 = digits.parse().ok().filter(|_| fits)?;
        return Some(f64_to_i64(number * scale));
    }
    let binary = SCALES.iter().position(|(letter, _)| letter.to_ascii_uppercase() == last);
    if let Some(power) = binary {
        let number: i64 = digits.parse().ok().filter(|_| plain(digits))?;
        return 1024_i64.checked_pow(u32::try_from(power).ok()? + 1).and_then(|scale| number.checked_mul(scale));
    }
    integer(text)
}
