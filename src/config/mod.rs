//! A configuration: engine flags and their values. The names are without the leading dashes.

mod resolved;
mod value;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use resolved::ResolvedConfig;
pub use value::Value;

/// Flag names (`max-num-seqs`) and their values. A flag that is absent keeps the engine's default.
///
/// The entries are sorted by name. Equal configurations therefore have the same [`Config::key`].
///
/// The entries are a list and not a map, because rules look up hundreds of names among a few flags. A linear search is
/// fast there: most comparisons of names end at their lengths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config(Vec<(String, Value)>);

impl Config {
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Sets one flag, and replaces its earlier value.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        let (name, value) = (name.into(), value.into());
        match self.0.binary_search_by(|(known, _)| known.as_str().cmp(&name)) {
            Ok(index) => self.0[index].1 = value,
            Err(index) => self.0.insert(index, (name, value)),
        }
    }

    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    #[must_use]
    pub fn get_i64(&self, name: &str) -> Option<i64> {
        self.get(name).and_then(Value::as_i64)
    }

    #[must_use]
    pub fn get_f64(&self, name: &str) -> Option<f64> {
        self.get(name).and_then(Value::as_f64)
    }

    #[must_use]
    pub fn get_bool(&self, name: &str) -> Option<bool> {
        self.get(name).and_then(Value::as_bool)
    }

    #[must_use]
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(Value::as_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `self` with every flag of `other` set over it.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let mut merged = self.clone();
        for (name, value) in &other.0 {
            merged.set(name.as_str(), value.clone());
        }
        merged
    }

    /// Returns the flags of `self`, except those that `other` sets to the same value.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        self.0.iter().filter(|(name, value)| other.get(name) != Some(value)).cloned().collect()
    }

    /// Returns this configuration with one flag as in `other`, which may lack it.
    #[must_use]
    pub fn with_flag_of(&self, other: &Self, name: &str) -> Self {
        let mut config = self.clone();
        match other.get(name) {
            Some(value) => config.set(name, value.clone()),
            None => config.remove(name),
        }
        config
    }

    /// Removes a flag, so that the engine's default applies.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| known != name);
    }

    /// Returns the canonical text of this configuration. Equal configurations have equal keys.
    #[must_use]
    pub fn key(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("(engine defaults)");
        }
        for (index, (name, value)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{name}={value}")?;
        }
        Ok(())
    }
}

impl FromIterator<(String, Value)> for Config {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(pairs: I) -> Self {
        // If a name is given twice, its last value wins.
        Self(pairs.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect())
    }
}

impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::<String, Value>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_configurations_have_one_key_whatever_the_order() {
        let a = Config::new().with("b", 1_i64).with("a", true);
        let b = Config::new().with("a", true).with("b", 1_i64);
        assert_eq!(a.key(), b.key());
        assert_eq!(a.key(), r#"{"a":true,"b":1}"#);
    }

    #[test]
    fn a_config_survives_json() -> Result<(), serde_json::Error> {
        let config = Config::new().with("f", 0.25).with("i", 3_i64).with("s", "fp8").with("b", false);
        assert_eq!(serde_json::from_str::<Config>(&config.key())?, config);
        Ok(())
    }

    proptest::proptest! {
        #[test]
        fn every_number_comes_back_from_the_database_as_it_was(number in proptest::num::f64::NORMAL) {
            let config = Config::new().with("f", number);
            proptest::prop_assert_eq!(serde_json::from_str::<Config>(&config.key()).unwrap(), config);
        }
    }

    #[test]
    fn values_equal_to_another_configuration_can_be_left_out() {
        let all = Config::new().with("a", 1_i64).with("b", 2_i64).with("c", 3_i64);
        assert_eq!(all.without(&Config::new().with("a", 1_i64).with("b", 9_i64)).to_string(), "b=2 c=3");
    }

    #[test]
    fn merging_lets_the_later_value_win() {
        let merged = Config::new().with("a", 1_i64).with("b", 2_i64).merged(&Config::new().with("a", 3_i64));
        assert_eq!(merged.to_string(), "a=3 b=2");
    }
}
