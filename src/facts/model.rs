//! A model's shape, read from the `config.json` that lies beside its weights.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

/// What rules, ranges and the twin need to know of a model. A key that `config.json` lacks is `None`, never a guess.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    pub architecture: Option<String>,
    pub hidden_size: Option<u64>,
    pub layers: Option<u64>,
    pub attention_heads: Option<u64>,
    /// Key/value heads; equal to the attention heads where the model has no grouped-query attention.
    pub kv_heads: Option<u64>,
    pub head_dim: Option<u64>,
    pub intermediate_size: Option<u64>,
    pub vocab_size: Option<u64>,
    pub tied_embeddings: bool,
    /// Bytes of one weight.
    pub dtype_bytes: u64,
    /// Tokens that attention looks back, where it is limited.
    pub sliding_window: Option<u64>,
    /// The longest sequence that the model was made for, in tokens, as vLLM derives it from the configuration.
    pub max_model_len: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("model directory {} has no config.json", .0.display())]
    NoConfig(PathBuf),
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{} is not JSON: {source}", path.display())]
    NotJson { path: PathBuf, source: serde_json::Error },
    #[error("{} is not a JSON object", .0.display())]
    NotAnObject(PathBuf),
}

/// vLLM takes the smallest of these that are present (`_get_and_verify_max_len` in `vllm/config`).
const LENGTH_KEYS: [&str; 9] = [
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
const FALLBACK_LENGTH: u64 = 2048;

impl ModelShape {
    /// Reads `directory/config.json`.
    ///
    /// # Errors
    /// When the file is absent, unreadable or not a JSON object.
    pub fn read(directory: &Path) -> Result<Self, ModelError> {
        let path = directory.join("config.json");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(ModelError::NoConfig(directory.to_owned()));
            }
            Err(source) => return Err(ModelError::Unreadable { path, source }),
        };
        let json: Json =
            serde_json::from_str(&text).map_err(|source| ModelError::NotJson { path: path.clone(), source })?;
        if json.is_object() { Ok(Self::from_json(&json)) } else { Err(ModelError::NotAnObject(path)) }
    }

    /// The shape that a parsed `config.json` describes. Multimodal models nest the language model's keys.
    #[must_use]
    pub fn from_json(json: &Json) -> Self {
        let text = ["text_config", "llm_config", "language_config"]
            .iter()
            .find_map(|key| json.get(key).filter(|nested| nested.is_object()))
            .unwrap_or(json);
        let number =
            |keys: &[&str]| keys.iter().find_map(|key| text.get(key).and_then(Json::as_u64)).filter(|n| *n > 0);
        let hidden_size = number(&["hidden_size", "n_embd", "d_model"]);
        let attention_heads = number(&["num_attention_heads", "n_head", "num_heads"]);
        let dtype = text.get("dtype").or_else(|| text.get("torch_dtype")).and_then(Json::as_str).unwrap_or("bfloat16");
        // Qwen2 names a window that it does not use.
        let uses_window = text.get("use_sliding_window").and_then(Json::as_bool).unwrap_or(true);
        Self {
            architecture: json
                .get("architectures")
                .and_then(|names| names.get(0))
                .and_then(Json::as_str)
                .map(str::to_owned),
            hidden_size,
            layers: number(&["num_hidden_layers", "n_layer", "num_layers"]),
            attention_heads,
            kv_heads: number(&["num_key_value_heads", "num_kv_heads"]).or(attention_heads),
            head_dim: number(&["head_dim"]).or_else(|| Some(hidden_size? / attention_heads?)),
            intermediate_size: number(&["intermediate_size", "n_inner", "ffn_dim"]),
            vocab_size: number(&["vocab_size"]),
            tied_embeddings: text.get("tie_word_embeddings").and_then(Json::as_bool).unwrap_or(false),
            dtype_bytes: if dtype.ends_with("float32") { 4 } else { 2 },
            sliding_window: number(&["sliding_window"]).filter(|_| uses_window),
            max_model_len: derive_length(text),
        }
    }

    /// Bytes of key/value cache per token on one device, plain attention: `2 * layers * kv_heads * head_dim * bytes`.
    #[must_use]
    pub fn kv_bytes_per_token(&self) -> Option<u64> {
        Some(2 * self.layers? * self.kv_heads? * self.head_dim? * self.dtype_bytes)
    }

    /// Number of weights of a dense decoder with gated MLP, from its shape. Mixture-of-experts models have more.
    #[must_use]
    pub fn dense_parameters(&self) -> Option<u64> {
        let (hidden, layers, head_dim) = (self.hidden_size?, self.layers?, self.head_dim?);
        let attention = hidden * head_dim * (2 * self.attention_heads? + 2 * self.kv_heads?);
        let mlp = 3 * hidden * self.intermediate_size?;
        let embeddings = hidden * self.vocab_size? * if self.tied_embeddings { 1 } else { 2 };
        Some(layers * (attention + mlp) + embeddings)
    }
}

fn derive_length(text: &Json) -> u64 {
    let shortest = LENGTH_KEYS.iter().filter_map(|key| text.get(key).and_then(Json::as_u64)).filter(|n| *n > 0).min();
    let Some(length) = shortest else { return FALLBACK_LENGTH };
    let scaling = text.get("rope_scaling").or_else(|| text.get("rope_parameters"));
    let kind = scaling.and_then(|s| s.get("rope_type").or_else(|| s.get("type"))).and_then(Json::as_str);
    let factor = scaling.and_then(|s| s.get("factor")).and_then(Json::as_f64).filter(|f| *f > 1.0);
    match (kind, factor) {
        // These state the final length themselves; yarn does so from vLLM 0.32.
        (Some("su" | "longrope" | "llama3" | "yarn" | "mrope" | "default") | None, _) | (_, None) => length,
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a length in tokens times a small factor"
        )]
        (Some(_), Some(factor)) => (length as f64 * factor) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_qwen2_config_gives_its_shape() {
        let shape = ModelShape::from_json(&json!({
            "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864,
            "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151_936,
            "max_position_embeddings": 32768, "sliding_window": 32768, "use_sliding_window": false,
            "tie_word_embeddings": true, "torch_dtype": "bfloat16"
        }));
        assert_eq!(shape.max_model_len, 32768);
        assert_eq!(shape.head_dim, Some(64));
        assert_eq!(shape.sliding_window, None);
        assert_eq!(shape.kv_bytes_per_token(), Some(12_288));
        let parameters = shape.dense_parameters().unwrap_or_default();
        assert!((490_000_000..500_000_000).contains(&parameters), "{parameters}");
    }

    #[test]
    fn nested_text_configs_are_found_and_missing_keys_stay_unknown() {
        let shape = ModelShape::from_json(&json!({"text_config": {"num_hidden_layers": 3, "seq_length": 512}}));
        assert_eq!((shape.layers, shape.max_model_len), (Some(3), 512));
        assert_eq!((shape.kv_heads, shape.kv_bytes_per_token()), (None, None));
    }

    #[test]
    fn linear_rope_scaling_stretches_the_length_and_llama3_does_not() {
        let with = |kind: &str| {
            let config = json!({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": kind, "factor": 4.0}});
            ModelShape::from_json(&config).max_model_len
        };
        assert_eq!((with("linear"), with("llama3")), (16384, 4096));
    }

    #[test]
    fn a_directory_without_config_is_named() -> std::io::Result<()> {
        let directory = tempfile::tempdir()?;
        let error = ModelShape::read(directory.path()).map_err(|error| error.to_string());
        let name = directory.path().display();
        assert_eq!(error, Err(format!("model directory {name} has no config.json")));
        Ok(())
    }
}
