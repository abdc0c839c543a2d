//! What the rules cannot judge, because a fact is not known.

use super::Facts;
use crate::facts::ModelShape;
use crate::space::Space;

/// What is not checked because `config.json` does not say it, as [`unchecked`] says it.
#[must_use]
pub fn unchecked_of_model(model: &ModelShape) -> Vec<String> {
    let unread = model.unread.iter().map(|key| format!("what depends on the model's {key}"));
    unread.chain(model.unchecked().iter().map(ToString::to_string)).collect()
}

/// What of a space is not checked with these facts, and why: one sentence each, without a full stop.
#[must_use]
pub fn unchecked(space: &Space, facts: &Facts<'_>) -> Vec<String> {
    let Some(engine) = facts.engine else {
        return vec!["any configuration: no rules are known for this engine".to_owned()];
    };
    let mut list = unchecked_of_model(facts.model);
    list.extend(engine.unchecked(space, facts));
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Device, EngineVersion, Gpu};
    use crate::rule::VLLM;

    #[test]
    fn each_unknown_fact_is_named_once() {
        let known = serde_json::json!({
            "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4096,
            "num_hidden_layers": 4, "intermediate_size": 512, "max_position_embeddings": 4096
        });
        let version = EngineVersion::V0_32;
        let fixed = crate::config::Config::new().with("tensor-parallel-size", 2_i64);
        let parallel = Space { parameters: vec![], fixed };
        let of = |json: &serde_json::Value, device| {
            unchecked(&parallel, &Facts::new(VLLM, &ModelShape::from_json(json), version, device)).len()
        };
        assert_eq!(of(&known, Device::Cpu), 1, "the size of the cache");
        assert_eq!(of(&known, Device::UNKNOWN_GPU), 3);
        let gpu = Gpu { memory: Some(80 << 30), count: Some(8), capability: Some((9, 0)), a100: false, units: &[] };
        assert_eq!(of(&known, Device::Cuda(gpu)), 0);
        assert_eq!(of(&serde_json::json!({"hidden_size": -5}), Device::Cpu), 6);
    }
}
