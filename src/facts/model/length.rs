//! The longest sequence that a model was made for, as vLLM derives it (`_get_and_verify_max_len` in `vllm/config`).

use std::path::Path;

use serde_json::Value as Json;

use super::json::Keys;
use crate::facts::EngineVersion;

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

/// vLLM's own assumption where the configuration names no length.
const FALLBACK: u64 = 2048;

/// Positions that are stretched further are a mistake.
const LARGEST_FACTOR: f64 = 1e6;

/// Tokenizers that know no limit state 10^30.
const UNLIMITED: f64 = 1e12;

/// What the length is derived from, in tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lengths {
    /// The smallest length that `config.json` states.
    pub stated: Option<u64>,
    /// `model_max_length` of `tokenizer_config.json`.
    pub tokenizer: Option<u64>,
    pub scaling: Option<RopeScaling>,
}

/// How rotary positions are stretched.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeScaling {
    pub kind: String,
    pub factor: f64,
    /// The length before stretching.
    pub original: Option<u64>,
}

impl Lengths {
    /// Lengths of exactly `tokens`.
    #[must_use]
    pub fn of(tokens: u64) -> Self {
        Self { stated: Some(tokens), ..Self::default() }
    }

    pub(super) fn read(text: &Json, keys: &Keys<'_>) -> Self {
        let stated = keys.smallest(&KEYS);
        let scaling = ["rope_scaling", "rope_parameters"].iter().find_map(|key| {
            let scaling = text.get(key).filter(|scaling| scaling.is_object())?;
            let kind = scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(Json::as_str)?;
            let factor = scaling.get("factor").and_then(Json::as_f64).filter(|f| *f > 0.0 && *f <= LARGEST_FACTOR);
            let original = Keys::new(scaling).size(&["original_max_position_embeddings"]);
            Some(RopeScaling { kind: kind.to_owned(), factor: factor.unwrap_or(1.0), original })
        });
        Self { stated, tokenizer: None, scaling }
    }

    /// What a release derives, in tokens.
    #[must_use]
    pub fn longest(&self, version: EngineVersion) -> u64 {
        let Some(stated) = self.stated else { return FALLBACK };
        let scaled = self.scaling.as_ref().map_or(stated, |scaling| scaling.stretch(stated, version));
        // From 0.10 the tokenizer's limit counts as well.
        let tokenizer = self.tokenizer.filter(|_| version >= EngineVersion::new(0, 10, 0));
        tokenizer.map_or(scaled, |limit| scaled.min(limit))
    }
}

impl RopeScaling {
    fn stretch(&self, stated: u64, version: EngineVersion) -> u64 {
        let base = match self.kind.as_str() {
            // These state the final length themselves.
            "su" | "longrope" | "llama3" | "mrope" | "default" => return stated,
            // yarn does so from 0.32.
            "yarn" if version >= EngineVersion::new(0, 32, 0) => return stated,
            "yarn" => self.original.unwrap_or(stated),
            _ => stated,
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a length in tokens times a factor; the conversion saturates"
        )]
        let stretched = (base as f64 * self.factor) as u64;
        stretched
    }
}

/// `model_max_length` beside the model, where it is a limit.
pub(super) fn of_tokenizer(directory: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(directory.join("tokenizer_config.json")).ok()?;
    let json: Json = serde_json::from_str(&text).ok()?;
    let length = json.get("model_max_length").and_then(Json::as_f64).filter(|n| *n >= 1.0 && *n < UNLIMITED)?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 10^12")]
    let length = length as u64;
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn longest(config: &Json, version: &str) -> u64 {
        Lengths::read(config, &Keys::new(config)).longest(version.parse().unwrap())
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
    fn the_tokenizers_limit_counts_from_0_10() {
        let lengths = Lengths { tokenizer: Some(1024), ..Lengths::of(4096) };
        let at = |version: &str| lengths.longest(version.parse().unwrap());
        assert_eq!((at("0.8.5"), at("0.10.2")), (4096, 1024));
    }

    #[test]
    fn without_a_stated_length_vllm_assumes_one() {
        assert_eq!(longest(&json!({}), "0.32.0"), 2048);
    }
}
