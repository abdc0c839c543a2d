//! Reads values of a TOML file, with errors that a person can act on.

use std::collections::BTreeMap;
use std::time::Duration;

use toml::de::DeValue;

use crate::config::{Config, Value};
use crate::stats::to_f64;

/// A value that can be read from TOML. An error states the expected and the found value.
pub trait FromToml: Sized {
    /// Converts a TOML value.
    ///
    /// # Errors
    /// If the value is of another type or out of the type's range.
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String>;

    /// Returns the accepted kind of value with its article, such as `a string`.
    fn kind() -> String;

    /// Returns the plural of the kind, such as `strings`.
    fn kinds() -> String {
        let kind = Self::kind();
        format!("{}s", kind.trim_start_matches("an ").trim_start_matches("a "))
    }
}

/// Returns the type and text of a value, for errors.
pub(super) fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("string {text:?}"),
        DeValue::Integer(number) => format!("integer {}", number.as_str()),
        DeValue::Float(number) => format!("float {}", number.as_str()),
        DeValue::Boolean(flag) => format!("boolean {flag}"),
        other => other.type_str().to_owned(),
    }
}

fn unexpected<T: FromToml>(found: &DeValue<'_>) -> String {
    format!("expected {}, found {}", T::kind(), describe(found))
}

impl FromToml for String {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        value.as_str().map(str::to_owned).ok_or_else(|| unexpected::<Self>(value))
    }

    fn kind() -> String {
        "a string".to_owned()
    }
}

impl FromToml for bool {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| unexpected::<Self>(value))
    }

    fn kind() -> String {
        "true or false".to_owned()
    }
}

impl FromToml for i64 {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let Some(number) = value.as_integer() else { return Err(unexpected::<Self>(value)) };
        Self::from_str_radix(&number.as_str().replace('_', ""), number.radix()).map_err(|error| error.to_string())
    }

    fn kind() -> String {
        "an integer".to_owned()
    }
}

macro_rules! unsigned {
    ($($kind:ty),+) => {$(
        impl FromToml for $kind {
            fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
                let number = i64::from_toml(value)?;
                Self::try_from(number).map_err(|_| format!("{number} is not between 0 and {}", Self::MAX))
            }

            fn kind() -> String {
                i64::kind()
            }
        }
    )+};
}
unsigned!(u32, u64, usize);

impl FromToml for f64 {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match value {
            DeValue::Float(number) => number.as_str().replace('_', "").parse().map_err(|_| "not a number".to_owned()),
            DeValue::Integer(_) => i64::from_toml(value).map(to_f64),
            _ => Err(unexpected::<Self>(value)),
        }
    }

    fn kind() -> String {
        "a number".to_owned()
    }
}

/// Text such as `15m`, `1h30m` or `500ms`, or a number of seconds.
impl FromToml for Duration {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let example = "write it like \"90s\", \"15m\" or \"8h\"";
        let Some(text) = value.as_str() else {
            return match f64::from_toml(value) {
                Ok(seconds) => Self::try_from_secs_f64(seconds).map_err(|_| format!("{seconds} is not a duration")),
                Err(_) => Err(unexpected::<Self>(value)),
            };
        };
        let duration: jiff::SignedDuration =
            text.parse().map_err(|_| format!("{text:?} is not a duration; {example}"))?;
        Self::try_from(duration).map_err(|_| format!("{text:?} is negative; {example}"))
    }

    fn kind() -> String {
        "a duration".to_owned()
    }
}

impl FromToml for Value {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        match value {
            DeValue::Boolean(flag) => Ok(Self::Bool(*flag)),
            DeValue::Integer(_) => i64::from_toml(value).map(Self::Int),
            DeValue::Float(_) => f64::from_toml(value).map(Self::Float),
            DeValue::String(text) => Ok(Self::Text(text.to_string())),
            _ => Err(unexpected::<Self>(value)),
        }
    }

    fn kind() -> String {
        "a boolean, a number or a string".to_owned()
    }

    fn kinds() -> String {
        "values".to_owned()
    }
}

impl<T: FromToml> FromToml for Vec<T> {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let Some(items) = value.as_array() else { return Err(unexpected::<Self>(value)) };
        items.iter().map(|item| T::from_toml(item.get_ref())).collect()
    }

    fn kind() -> String {
        format!("an array of {}", T::kinds())
    }

    fn kinds() -> String {
        format!("arrays of {}", T::kinds())
    }
}

impl<T: FromToml> FromToml for BTreeMap<String, T> {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let Some(table) = value.as_table() else { return Err(unexpected::<Self>(value)) };
        let entry = |(key, value): (&toml::Spanned<toml::de::DeString<'_>>, &toml::Spanned<DeValue<'_>>)| {
            let name = key.get_ref().to_string();
            T::from_toml(value.get_ref()).map_err(|problem| format!("{name}: {problem}")).map(|value| (name, value))
        };
        table.iter().map(entry).collect()
    }

    fn kind() -> String {
        format!("a table of {}", T::kinds())
    }
}

impl FromToml for Config {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        BTreeMap::<String, Value>::from_toml(value).map(|entries| entries.into_iter().collect())
    }

    fn kind() -> String {
        BTreeMap::<String, Value>::kind()
    }
}
