//! The search space: parameters, their ranges and conditions, and the conversion of a point of the unit cube to a
//! [`Config`].

mod domain;
mod domain_text;
mod expression;
mod file;

use std::collections::BTreeSet;

use crate::config::{Config, Value};

pub use domain::{Domain, IntScale};
pub(crate) use domain::{geometric, short};
pub(crate) use file::read_parameters;
pub use file::{SpaceFile, built_in, built_in_for, built_in_paths, read_built_in};

/// A condition for a parameter: another parameter has one of these values.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub parameter: String,
    pub values: Vec<Value>,
}

impl Condition {
    fn holds(&self, config: &Config) -> bool {
        config.get(&self.parameter).is_some_and(|value| self.values.contains(value))
    }
}

/// A flag that varies.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub name: String,
    pub domain: Domain,
    /// If one of these conditions does not hold, the parameter is inactive and absent from the configuration.
    pub conditions: Vec<Condition>,
    /// The parameter's effect and relevance, in one line.
    pub help: Option<String>,
}

/// The parameters, parents before their children, and the flags that are equal in every trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Space {
    pub parameters: Vec<Parameter>,
    pub fixed: Config,
}

impl Space {
    /// Returns the number of coordinates of a point: one for each parameter, active or not.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.parameters.len()
    }

    /// Returns the configuration at a point of `[0, 1)^dimensions`. Inactive parameters are absent.
    #[must_use]
    pub fn decode(&self, point: &[f64]) -> Config {
        self.assemble(|index| point.get(index).map(|coordinate| self.parameters[index].domain.decode(*coordinate)))
    }

    /// Returns the configuration with the chosen value for each active parameter's index; `None` omits it.
    #[must_use]
    pub fn assemble(&self, choose: impl Fn(usize) -> Option<Value>) -> Config {
        let mut config = self.fixed.clone();
        for (index, parameter) in self.parameters.iter().enumerate() {
            if parameter.conditions.iter().all(|condition| condition.holds(&config))
                && let Some(value) = choose(index)
            {
                config.set(parameter.name.clone(), value);
            }
        }
        config
    }

    /// Returns every configuration if there are at most `limit` of them.
    #[must_use]
    pub fn enumerate(&self, limit: usize) -> Option<Vec<Config>> {
        let mut configs = vec![self.fixed.clone()];
        for parameter in &self.parameters {
            let values = parameter.domain.values(limit)?;
            let mut extended = Vec::new();
            for config in configs {
                if parameter.conditions.iter().all(|condition| condition.holds(&config)) {
                    extended.extend(values.iter().map(|value| config.clone().with(&parameter.name, value.clone())));
                } else {
                    extended.push(config);
                }
                if extended.len() > limit {
                    return None;
                }
            }
            configs = extended;
        }
        Some(configs)
    }

    /// Returns this space with the named parameters only.
    #[must_use]
    pub fn retain_only(mut self, names: &BTreeSet<String>) -> Self {
        self.parameters.retain(|parameter| names.contains(&parameter.name));
        self
    }

    /// Returns a parameter that can never be active, and the parameter that it depends on. The latter is neither fixed
    /// nor listed before it.
    #[must_use]
    pub fn orphan(&self) -> Option<(&str, &str)> {
        self.parameters.iter().enumerate().find_map(|(index, parameter)| {
            let known = |parent: &str| {
                self.fixed.get(parent).is_some() || self.parameters[..index].iter().any(|above| above.name == parent)
            };
            let missing = parameter.conditions.iter().find(|condition| !known(&condition.parameter))?;
            Some((parameter.name.as_str(), missing.parameter.as_str()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parameter(name: &str, domain: Domain, when: Vec<Condition>) -> Parameter {
        Parameter { name: name.to_owned(), domain, conditions: when, help: None }
    }

    fn space() -> Space {
        let only_when_chunked =
            Condition { parameter: "enable-chunked-prefill".to_owned(), values: vec![Value::Bool(true)] };
        Space {
            parameters: vec![
                parameter("enable-chunked-prefill", Domain::Bool, vec![]),
                parameter("max-num-seqs", Domain::int(1, 1024, IntScale::PowerOfTwo, 1), vec![]),
                parameter(
                    "max-num-batched-tokens",
                    Domain::int(512, 4096, IntScale::Log, 512),
                    vec![only_when_chunked],
                ),
            ],
            fixed: Config::new().with("gpu-memory-utilization", 0.9),
        }
    }

    #[test]
    fn a_conditional_parameter_is_absent_while_its_condition_does_not_hold() {
        let off = space().decode(&[0.0, 0.5, 0.5]);
        assert_eq!(off.to_string(), "enable-chunked-prefill=false gpu-memory-utilization=0.9 max-num-seqs=32");
        let on = space().decode(&[0.9, 0.5, 0.99]);
        assert_eq!(on.get_i64("max-num-batched-tokens"), Some(4096));
    }

    #[test]
    fn enumeration_counts_inactive_parameters_once() {
        // 11 powers of two without chunking, 11 times 8 multiples of 512 with it.
        assert_eq!(space().enumerate(1000).map(|configs| configs.len()), Some(11 + 11 * 8));
        assert_eq!(space().enumerate(98), None);
    }

    proptest! {
        #[test]
        fn every_point_decodes_to_an_enumerated_configuration(point in proptest::collection::vec(0.0..1.0, 3)) {
            let keys: BTreeSet<_> = space().enumerate(1000).unwrap_or_default().iter().map(Config::key).collect();
            prop_assert!(keys.contains(&space().decode(&point).key()));
        }
    }
}
