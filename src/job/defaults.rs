//! Values of the parameters that a configuration leaves to the engine. Without them a model of the measurements could
//! not place the engine's defaults, which are always measured first.

use super::Job;
use crate::config::{Config, Value};
use crate::facts::{Device, EngineVersion, HostLimits};
use crate::rule::Facts;
use crate::space::{Domain, Space};

impl Job {
    /// Returns the values that the engine of this release chooses for the space's parameters on this device. Unknown
    /// values are left out.
    #[must_use]
    pub fn default_values(&self, version: EngineVersion, device: Device, host: HostLimits) -> Config {
        let arguments = self.engine.arguments(version);
        resolve(self.search_space(), &arguments, &self.facts(version, device, host))
    }
}

/// Returns the values that the engine chooses for the space's parameters, in the types of their domains. Unknown values
/// are left out. The launch in question sets only the fixed flags and `arguments`.
pub(super) fn resolve(space: &Space, arguments: &Config, facts: &Facts<'_>) -> Config {
    let Some(engine) = facts.engine else { return Config::new() };
    let always = space.fixed.merged(arguments);
    let resolved = engine.resolve(&always, facts);
    let free = space.parameters.iter().filter(|parameter| always.get(&parameter.name).is_none());
    let known = free.filter_map(|parameter| {
        let value =
            resolved.value(&parameter.name).or_else(|| engine.default_value(&parameter.name, &always, facts))?;
        Some((parameter.name.clone(), typed(&parameter.domain, value)?))
    });
    known.collect()
}

/// Converts a value to the domain's type. In a categorical domain the choice that is numerically equal is taken, if
/// any.
fn typed(domain: &Domain, value: Value) -> Option<Value> {
    let same =
        |choice: &&Value| **choice == value || choice.as_f64().is_some_and(|number| Some(number) == value.as_f64());
    match domain {
        Domain::Categorical(choices) => Some(choices.iter().find(same).cloned().unwrap_or(value)),
        Domain::Bool => value.as_bool().map(Value::Bool),
        Domain::Int { .. } => value.as_i64().map(Value::Int),
        Domain::Float { .. } => value.as_f64().map(Value::Float),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Device, ModelShape};
    use crate::space::{IntScale, Parameter};

    fn parameter(name: &str, domain: Domain) -> Parameter {
        Parameter { name: name.to_owned(), domain, conditions: Vec::new(), help: None }
    }

    #[test]
    fn resolved_defaults_have_the_types_of_the_space() {
        let int = || Domain::int(1, 4096, IntScale::Log, 1);
        let parameters = vec![
            parameter("max-num-seqs", int()),
            parameter("max-num-batched-tokens", int()),
            parameter("gpu-memory-utilization", Domain::Float { low: 0.5, high: 0.95, log: false }),
            parameter("enable-prefix-caching", Domain::Bool),
            parameter("block-size", Domain::Categorical(vec![Value::Float(16.0), Value::Int(32)])),
            parameter("kv-cache-dtype", Domain::Categorical(vec!["fp8".into(), "auto".into()])),
            parameter("tensor-parallel-size", int()),
            parameter("async-scheduling", Domain::Bool),
            parameter("moe-backend", Domain::Categorical(vec!["triton".into()])),
        ];
        let space = Space { parameters, fixed: Config::new().with("max-num-batched-tokens", 512_i64) };
        let model = ModelShape::from_json(&serde_json::json!({"max_position_embeddings": 4096}));
        let facts =
            Facts::new(crate::engines::vllm::VLLM_RULES, &model, "0.32.0".parse().unwrap(), Device::gpu_of(24 << 30));
        let arguments = Config::new().with("tensor-parallel-size", 2_i64);
        let expected = Config::new()
            .with("max-num-seqs", 256_i64)
            .with("gpu-memory-utilization", 0.92)
            .with("enable-prefix-caching", true)
            .with("block-size", 16.0)
            .with("kv-cache-dtype", "auto")
            .with("async-scheduling", true);
        assert_eq!(resolve(&space, &arguments, &facts), expected);
        let on_cpu = Facts { device: Device::Cpu, ..facts };
        assert_eq!(resolve(&space, &arguments, &on_cpu).get_bool("async-scheduling"), Some(false));
    }
}
