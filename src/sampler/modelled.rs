//! The configurations that a sampler's model can place. Today's deployment may set flags outside of the space.

use crate::config::{Config, Value};
use crate::space::Space;
use crate::surrogate::Encoding;

/// Returns whether a model over `space` can place a configuration without distortion: each flag is a value of the space,
/// a fixed one, or the engine's default, and the configuration has a point. The point of a number outside of its range
/// would be that of the range's end, where another configuration lies.
#[must_use]
pub(crate) fn is_modelled(space: &Space, defaults: &Config, config: &Config) -> bool {
    let is_placed = |name: &str, value: &Value| {
        let is_usual = [&space.fixed, defaults].into_iter().any(|known| known.get(name) == Some(value));
        let mut own = space.parameters.iter().filter(|parameter| parameter.name == name);
        is_usual || own.any(|parameter| parameter.domain.spans(value))
    };
    config.iter().all(|(name, value)| is_placed(name, value)) && Encoding::new(space, defaults).point(config).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{Domain, IntScale, Parameter};

    #[test]
    fn a_configuration_outside_of_the_space_is_not_modelled() {
        let parameter =
            |name: &str, domain| Parameter { name: name.to_owned(), domain, conditions: Vec::new(), help: None };
        let parameters = vec![
            parameter("max-num-seqs", Domain::int(16, 256, IntScale::PowerOfTwo, 1)),
            parameter("gpu-memory-utilization", Domain::Float { low: 0.5, high: 0.9, log: false }),
            parameter("kv-cache-dtype", Domain::Categorical(vec!["auto".into(), "fp8".into()])),
            parameter("enable-prefix-caching", Domain::Bool),
        ];
        let space = Space { parameters, fixed: Config::new().with("max-model-len", 2048_i64) };
        let defaults = Config::new()
            .with("max-num-seqs", 1024_i64)
            .with("gpu-memory-utilization", 0.92)
            .with("kv-cache-dtype", "auto")
            .with("enable-prefix-caching", true);
        let is_modelled = |config: Config| is_modelled(&space, &defaults, &space.fixed.merged(&config));
        assert!(is_modelled(Config::new()));
        assert!(is_modelled(Config::new().with("max-num-seqs", 100_i64)), "between two steps");
        assert!(is_modelled(Config::new().with("max-num-seqs", 1024_i64)), "the default itself");
        assert!(is_modelled(Config::new().with("kv-cache-dtype", "fp8").with("enable-prefix-caching", false)));
        for (flag, value) in [
            ("max-num-seqs", Value::Int(512)),
            ("max-num-seqs", Value::Text("many".to_owned())),
            ("gpu-memory-utilization", Value::Float(0.95)),
            ("gpu-memory-utilization", Value::Float(f64::NAN)),
            ("kv-cache-dtype", "int8".into()),
            ("enable-prefix-caching", Value::Int(1)),
            ("max-num-batched-tokens", Value::Int(8192)),
        ] {
            assert!(!is_modelled(Config::new().with(flag, value.clone())), "{flag} {value}");
        }
    }

    #[test]
    fn a_configuration_without_a_known_number_is_not_modelled() {
        let domain = Domain::int(1, 8, IntScale::Linear, 1);
        let parameters = vec![Parameter { name: "a".to_owned(), domain, conditions: Vec::new(), help: None }];
        let space = Space { parameters, fixed: Config::new() };
        assert!(!is_modelled(&space, &Config::new(), &Config::new()));
        assert!(is_modelled(&space, &Config::new(), &Config::new().with("a", 2_i64)));
    }
}
