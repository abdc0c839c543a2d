//! Reading a candidate's flags as rules need them: an optional flag that is given as `None` counts as not given.

use serde_json::{Map, Value as Json};

use super::Candidate;
use crate::config::Value;
use crate::facts::Device;

impl Candidate<'_> {
    /// Whether a switch is on. `false` where it is not given.
    #[must_use]
    pub fn on(&self, name: &str) -> bool {
        self.config.get_bool(name) == Some(true)
    }

    /// A number, or `None` where the flag is not given or given as `None`.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<i64> {
        self.config.get_i64(name)
    }

    /// A number, or what the engine takes where the flag is not given.
    #[must_use]
    pub fn number_or(&self, name: &str, default: i64) -> i64 {
        self.config.get_i64(name).unwrap_or(default)
    }

    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.config.get_str(name).filter(|text| !text.is_empty() && *text != "None")
    }

    /// Whether the flag is given with a value.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        match self.config.get(name) {
            None => false,
            Some(Value::Text(text)) => !text.is_empty() && text != "None",
            Some(_) => true,
        }
    }

    /// A JSON flag.
    #[must_use]
    pub fn json(&self, name: &str) -> Option<Json> {
        serde_json::from_str(self.text(name)?).ok()
    }

    /// The fields of a JSON flag; none where it is not given or no object.
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

    /// Whether the model has experts.
    #[must_use]
    pub fn is_moe(&self) -> bool {
        self.facts.model.experts.is_some()
    }
}
