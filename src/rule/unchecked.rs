//! What the rules cannot judge, because a fact is not known.

use super::Facts;
use crate::facts::{Device, ModelShape};
use crate::space::Space;

/// Sets the size of the cache on a CPU.
const CPU_CACHE: &str = "VLLM_CPU_KVCACHE_SPACE";

/// What is not checked because `config.json` does not say it, as [`unchecked`] says it.
#[must_use]
pub fn unchecked_of_model(model: &ModelShape) -> Vec<String> {
    let unread = model.unread.iter().map(|key| format!("what depends on the model's {key}"));
    unread.chain(model.unchecked().iter().map(ToString::to_string)).collect()
}

/// What of a space is not checked with these facts, and why: one sentence each, without a full stop.
#[must_use]
pub fn unchecked(space: &Space, facts: &Facts<'_>) -> Vec<String> {
    if !facts.has_rules {
        return vec!["any configuration: no rules are known for this engine".to_owned()];
    }
    let mut list = unchecked_of_model(facts.model);
    if facts.device == Device::Cpu && !facts.env.contains_key(CPU_CACHE) {
        list.push(format!("what fits into the host's memory: {CPU_CACHE} is not set, so the engine sizes its cache"));
    }
    if let Device::Cuda(gpu) = facts.device {
        if gpu.memory.is_none() {
            list.push(
                "defaults that depend on the GPU's memory, and what fits into it: the memory is not known".into(),
            );
        }
        let sizes = || space.parameters.iter().map(|p| p.name.as_str()).chain(space.fixed.iter().map(|(name, _)| name));
        if gpu.count.is_none() && sizes().any(|name| name.ends_with("parallel-size")) {
            list.push("whether there are GPUs enough for the parallel sizes: their number is not known".to_owned());
        }
        if gpu.capability.is_none() {
            list.push("number formats and kernels: the GPU's compute capability is not known".to_owned());
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{EngineVersion, Gpu, ModelShape};

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
            unchecked(&parallel, &Facts::new(&ModelShape::from_json(json), version, device)).len()
        };
        assert_eq!(of(&known, Device::Cpu), 1, "the size of the cache");
        assert_eq!(of(&known, Device::UNKNOWN_GPU), 3);
        let gpu = Gpu { memory: Some(80 << 30), count: Some(8), capability: Some((9, 0)), a100: false, units: &[] };
        assert_eq!(of(&known, Device::Cuda(gpu)), 0);
        assert_eq!(of(&serde_json::json!({"hidden_size": -5}), Device::Cpu), 6);
    }
}
