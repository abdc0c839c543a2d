//! Typed access to a candidate's flags for rules. An optional flag with the value `None` counts as not given.

use serde_json::{Map, Value as Json};

use super::Candidate;
use crate::config::Value;
use crate::facts::Device;

impl Candidate<'_> {
    /// Returns whether a switch is on. A switch that is not given is off.
    #[must_use]
    pub fn is_on(&self, name: &str) -> bool {
        self.config.get_bool(name) == Some(true)
    }

    /// Returns a number. `None` if the flag is not given or has the value `None`.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        self.config.get_i64(name)
    }

    /// Returns a number, or the engine's default if the flag is not given.
    #[must_use]
    pub fn number_or(&self, name: &str, default: i64) -> i64 {
        self.config.get_i64(name).unwrap_or(default)
    }

    /// Returns a text. `None` if the flag is not given, is empty or has the value `None`.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.config.get_str(name).filter(|text| !text.is_empty() && *text != "None")
    }

    /// Returns whether the flag is given, with a value other than the empty text and `None`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        match self.config.get(name) {
            None => false,
            Some(Value::Text(text)) => !text.is_empty() && text != "None",
            Some(_) => true,
        }
    }

    /// Returns the value of a JSON flag. `None` if it is not given or not valid JSON.
    #[must_use]
    pub fn json(&self, name: &str) -> Option<Json> {
        serde_json::from_str(self.text(name)?).ok()
    }

    /// Returns the fields of a JSON flag. `None` if it is not given or no object.
    #[must_use]
    pub fn fields(&self, name: &str) -> Option<Map<String, Json>> {
        match self.json(name)? {
            Json::Object(fields) => Some(fields),
            _ => None,
        }
    }

    #[must_use]
    pub fn on_cpu(&self) -> bool {
        self.facts.device == Device::Cpu
    }

    /// Returns whether the model has experts.
    #[must_use]
    pub fn is_moe(&self) -> bool {
        self.facts.model.experts.is_some()
    }
}
