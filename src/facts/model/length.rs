//! The longest sequence that a model was made for, as vLLM derives it (`_get_and_verify_max_len` in `vllm/config`).

use serde_json::Value as Json;

use super::json::ShapeKeys;
use crate::facts::EngineVersion;
use crate::stats::{f64_to_u64, to_f64};

/// vLLM takes the smallest of these that are present.
const KEYS: [&str; 9] = [
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
];

/// vLLM's own assumption if the configuration names no length.
const FALLBACK: u64 = 2048;

/// Larger factors of stretched positions are treated as mistakes.
const LARGEST_FACTOR: f64 = 1e6;

/// The inputs for a model's length, in tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContextLengths {
    /// The smallest length that `config.json` states.
    pub stated: Option<u64>,
    /// `original_max_position_embeddings` at the top level, beside the other lengths.
    pub original: Option<u64>,
    pub scaling: Option<RopeScaling>,
}

/// The stretching of rotary positions.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeScaling {
    /// `rope_type`, such as `yarn`.
    pub kind: String,
    pub factor: f64,
    /// The length before stretching.
    pub original: Option<u64>,
}

impl ContextLengths {
    /// Creates lengths of exactly `tokens`.
    #[must_use]
    pub fn of(tokens: u64) -> Self {
        Self { stated: Some(tokens), ..Self::default() }
    }

    pub(super) fn read(text: &Json, keys: &ShapeKeys<'_>) -> Self {
        // If present, `model_max_length` decides alone, even if it is the longer one.
        let stated = keys.size(&["model_max_length"]).or_else(|| keys.smallest(&KEYS));
        let scaling = ["rope_scaling", "rope_parameters"].iter().find_map(|key| {
            // Gemma 3 states a length that is already stretched.
            let gemma3 = text.get("model_type").and_then(Json::as_str).is_some_and(|kind| kind.contains("gemma3"));
            let scaling = text.get(key).filter(|scaling| scaling.is_object() && !gemma3)?;
            let kind = scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(Json::as_str)?;
            let factor = scaling.get("factor").and_then(Json::as_f64).filter(|f| *f > 0.0 && *f <= LARGEST_FACTOR);
            let original = ShapeKeys::new(scaling).size(&["original_max_position_embeddings"]);
            Some(RopeScaling { kind: kind.to_owned(), factor: factor.unwrap_or(1.0), original })
        });
        let original = text.get("original_max_position_embeddings").and_then(Json::as_u64);
        Self { stated, original, scaling }
    }

    /// Returns the longest sequence that the model supports, in tokens, as a release derives it.
    #[must_use]
    pub fn longest(&self, version: EngineVersion) -> u64 {
        let Some(stated) = self.stated else { return FALLBACK };
        self.scaling.as_ref().map_or(stated, |scaling| scaling.stretch(stated, version))
    }

    /// Returns the length that a release uses without `max-model-len`, in tokens.
    #[must_use]
    pub fn default_length(&self, version: EngineVersion) -> u64 {
        let long = self.scaling.as_ref().filter(|scaling| scaling.kind == "longrope" && version >= UNSTRETCHED_FROM);
        let original = long.and_then(|scaling| self.original.or(scaling.original));
        original.unwrap_or_else(|| self.longest(version))
    }
}

/// The first release that runs a model with `longrope` at the length before stretching, because its quality is better
/// there.
const UNSTRETCHED_FROM: EngineVersion = EngineVersion::V0_20;

impl RopeScaling {
    fn stretch(&self, stated: u64, version: EngineVersion) -> u64 {
        let base = match self.kind.as_str() {
            // Configurations of these kinds state the length after stretching.
            "su" | "longrope" | "llama3" | "mrope" | "default" => return stated,
            // Since 0.32 vLLM reads the stated length of `yarn` in the same way.
            "yarn" if version >= EngineVersion::V0_32 => return stated,
            "yarn" => self.original.unwrap_or(stated),
            _ => stated,
        };

        f64_to_u64(to_f64(base) * self.factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn longest(config: &Json, version: &str) -> u64 {
        ContextLengths::read(config, &ShapeKeys::new(config)).longest(version.parse().unwrap())
    }

    #[test]
    fn linear_scaling_stretches_the_length_and_llama3_does_not() {
        let with = |kind: &str, version: &str| {
            let scaling = json!({"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 2048});
            longest(&json!({"max_position_embeddings": 4096, "rope_scaling": scaling}), version)
        };
        assert_eq!((with("linear", "0.32.0"), with("llama3", "0.32.0")), (16384, 4096));
        assert_eq!((with("yarn", "0.20.2"), with("yarn", "0.32.0")), (8192, 4096));
    }

    #[test]
    fn longrope_may_be_stretched_but_is_not_by_default() {
        let scaling = json!({"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]});
        let config = json!({
            "max_position_embeddings": 16384, "original_max_position_embeddings": 2048, "rope_scaling": scaling
        });
        let lengths = ContextLengths::read(&config, &ShapeKeys::new(&config));
        let at =
            |version: &str| version.parse().map(|version| (lengths.default_length(version), lengths.longest(version)));
        assert_eq!((at("0.12.0"), at("0.32.0")), (Ok((16384, 16384)), Ok((2048, 16384))));
    }

    #[test]
    fn a_stated_model_max_length_decides_alone() {
        let config = json!({"max_position_embeddings": 4096, "model_max_length": 16384});
        assert_eq!(longest(&config, "0.32.0"), 16384);
    }

    #[test]
    fn without_a_stated_length_vllm_assumes_one() {
        assert_eq!(longest(&json!({}), "0.32.0"), 2048);
    }
}
