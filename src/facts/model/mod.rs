//! A model's shape, read from the `config.json` that lies beside its weights, or from the metadata of a GGUF file.

mod attention;
mod gguf;
mod json;
mod length;
mod quantization;
mod unchecked;
mod weights;

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::facts::EngineVersion;
pub use gguf::is_gguf;
use json::ShapeKeys;
pub use length::ContextLengths;
use quantization::Quantization;
pub use unchecked::UncheckedFact;

/// The shape of a model, for rules, ranges, the memory model and the twin. A key that `config.json` lacks, or whose
/// value is absurd, is `None` and listed in `unread`. It is never guessed.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct ModelShape {
    /// The class that vLLM looks up, such as `Qwen2ForCausalLM`.
    pub architecture: Option<String>,
    /// The family's name in `transformers`, such as `qwen2`.
    pub model_type: Option<String>,
    pub hidden_size: Option<u64>,
    pub layers: Option<u64>,
    pub attention_heads: Option<u64>,
    /// Key/value heads; equal to the attention heads if the model has no grouped-query attention.
    pub kv_heads: Option<u64>,
    pub head_dim: Option<u64>,
    pub intermediate_size: Option<u64>,
    /// Whether the MLP has a third matrix, for its gate.
    pub gated_mlp: bool,
    pub vocab_size: Option<u64>,
    pub tied_embeddings: bool,
    /// As the checkpoint spells it, such as `bfloat16`.
    pub dtype: Option<String>,
    /// Bytes of one activation, and of one weight if the checkpoint is not quantised.
    pub dtype_bytes: u64,
    /// The number of tokens that attention looks back, if it is limited.
    pub sliding_window: Option<u64>,
    /// The number of layers with this window; `None` without a window, or if `config.json` does not state it.
    pub sliding_layers: Option<u64>,
    /// The sizes of multi-head latent attention, if the model caches latent vectors instead of keys and values.
    pub latent: Option<LatentAttention>,
    /// The experts of the layers; `None` for a dense model.
    pub experts: Option<ExpertLayers>,
    /// The checkpoint's own quantisation method, such as `awq` or `fp8`.
    pub quantization: Option<String>,
    /// Bits of one quantised weight, if the checkpoint states them.
    pub quantization_bits: Option<u64>,
    /// Whether the checkpoint's columns are ordered by activation within groups (`desc_act` of GPTQ).
    pub activation_order: bool,
    /// Whether the checkpoint's quantisation is symmetric, if it states that (`sym` of GPTQ).
    pub symmetric_quantization: Option<bool>,
    pub multimodal: bool,
    pub encoder_decoder: bool,
    /// Whether some layers cache something other than keys and values of their own.
    pub irregular_cache: bool,
    /// Bytes of the checkpoint's weights, if they are in the directory of `config.json`.
    pub checkpoint_bytes: Option<u64>,
    /// Names of the weight files in the directory of `config.json`; `None` if there are none.
    pub weight_files: Option<Vec<String>>,
    pub lengths: ContextLengths,
    /// Keys whose values could not be used, each with the reason.
    pub unusable_keys: Vec<String>,
}

/// Sizes of the vectors that multi-head latent attention caches for each token and layer, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentAttention {
    pub kv_lora_rank: u64,
    pub qk_rope_head_dim: u64,
}

impl LatentAttention {
    /// Returns the number of cached elements of one token in one layer.
    #[must_use]
    pub const fn elements(self) -> u64 {
        self.kv_lora_rank.saturating_add(self.qk_rope_head_dim)
    }
}

/// The layers of a mixture-of-experts model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertLayers {
    /// Routed experts of a layer.
    pub count: u64,
    /// Intermediate size of one routed expert.
    pub intermediate_size: Option<u64>,
    /// Routed experts that one token passes.
    pub per_token: Option<u64>,
    /// Experts that every token passes.
    pub shared: u64,
    /// Layers at the beginning that have no experts.
    pub dense_layers: u64,
}

/// Families that are encoder-decoders although their configuration does not state it.
const ENCODER_DECODER: [&str; 4] = ["bart", "mbart", "t5", "whisper"];

/// Families that share one matrix between input and output if `config.json` does not state it, named as in
/// `transformers`.
const TIED: [&str; 10] =
    ["gpt2", "gpt_bigcode", "opt", "bloom", "falcon", "mpt", "gemma", "gemma2", "gemma3", "gemma3_text"];

/// Families whose MLP has two matrices, named as in `transformers`.
const PLAIN_MLP: [&str; 12] = [
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "gptj",
    "opt",
    "falcon",
    "mpt",
    "bloom",
    "phi",
    "starcoder2",
    "whisper",
    "nemotron",
];

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
    #[error("cannot read the GGUF file {}: {source}", path.display())]
    Gguf { path: PathBuf, source: std::io::Error },
}

impl ModelShape {
    /// Reads `model/config.json` and, if they are there, the weights' sizes. Of a GGUF file, reads the metadata.
    ///
    /// # Errors
    /// If the file is absent or unreadable, or not a JSON object.
    pub fn read(model: &Path) -> Result<Self, ModelError> {
        if model.is_file() {
            return Self::read_gguf(model);
        }
        let path = model.join("config.json");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(ModelError::NoConfig(model.to_owned()));
            }
            Err(source) => return Err(ModelError::Unreadable { path, source }),
        };
        let json: Json =
            serde_json::from_str(&text).map_err(|source| ModelError::NotJson { path: path.clone(), source })?;
        if !json.is_object() {
            return Err(ModelError::NotAnObject(path));
        }
        let mut shape = Self::from_json(&json);
        shape.checkpoint_bytes = weights::checkpoint_bytes(model);
        shape.weight_files = weights::files(model);
        Ok(shape)
    }

    fn read_gguf(path: &Path) -> Result<Self, ModelError> {
        let config = gguf::read_config(path).map_err(|source| ModelError::Gguf { path: path.to_owned(), source })?;
        Ok(Self { checkpoint_bytes: gguf::model_bytes(path), ..Self::from_json(&config) })
    }

    /// Returns the shape that a parsed `config.json` describes. Multimodal models nest the language model's keys.
    #[must_use]
    pub fn from_json(json: &Json) -> Self {
        let text = json::language_model(json);
        let keys = ShapeKeys::new(text);
        let model_type = json.get("model_type").and_then(Json::as_str).map(str::to_owned);
        let kind = text.get("model_type").and_then(Json::as_str).or(model_type.as_deref());
        let hidden_size = keys.size(&["hidden_size", "n_embd", "d_model"]);
        let attention_heads =
            keys.size(&["num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"]);
        let layers = keys.size(&["num_hidden_layers", "n_layer", "num_layers", "n_layers"]);
        let dtype =
            keys.text(&["dtype", "torch_dtype"]).or_else(|| ShapeKeys::new(json).text(&["dtype", "torch_dtype"]));
        // Qwen2 states a window that it does not use.
        let uses_window = text.get("use_sliding_window").and_then(Json::as_bool).unwrap_or(true);
        let sliding_window = keys.size(&["sliding_window"]).filter(|_| uses_window);
        let kv_lora_rank = keys.size(&["kv_lora_rank"]);
        let expert_count = keys.size(&["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"]);
        let quantization = Quantization::read(json, text);
        let (kv_heads, unread_heads) = attention::kv_heads(text, kind, attention_heads);
        // These families state the size only if it differs from the usual one.
        let inner = || match kind? {
            "gpt2" | "gpt_bigcode" | "gptj" | "falcon" | "bloom" => product([4, hidden_size?]),
            "mpt" => product([keys.size_or(&["expansion_ratio"], || Some(4))?, hidden_size?]),
            _ => None,
        };
        let mut shape = Self {
            architecture: json
                .get("architectures")
                .and_then(|names| names.get(0))
                .and_then(Json::as_str)
                .map(str::to_owned),
            gated_mlp: kind.is_none_or(|kind| !PLAIN_MLP.contains(&kind)),
            hidden_size,
            layers,
            attention_heads,
            kv_heads,
            head_dim: keys
                .size_or(&["head_dim", "kv_channels"], || Some(hidden_size? / attention_heads?))
                .filter(|size| *size > 0),
            intermediate_size: keys
                .size_or(&["intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"], inner)
                .filter(|size| *size <= json::LARGEST_SIZE),
            vocab_size: keys.size(&["vocab_size", "padded_vocab_size"]),
            tied_embeddings: keys
                .flag("tie_word_embeddings")
                .unwrap_or_else(|| kind.is_some_and(|kind| TIED.contains(&kind))),
            dtype_bytes: if dtype.as_deref().is_some_and(|dtype| dtype.ends_with("float32")) { 4 } else { 2 },
            dtype,
            sliding_window,
            sliding_layers: sliding_window.and_then(|_| attention::sliding_layers(text, kind, layers)),
            latent: kv_lora_rank.map(|kv_lora_rank| LatentAttention {
                kv_lora_rank,
                qk_rope_head_dim: keys.size(&["qk_rope_head_dim"]).unwrap_or(0),
            }),
            experts: expert_count.map(|count| ExpertLayers {
                count,
                intermediate_size: keys.size(&["moe_intermediate_size", "expert_ffn_hidden_size"]),
                per_token: keys.size(&[
                    "num_experts_per_tok",
                    "num_experts_per_token",
                    "experts_per_token",
                    "moe_topk",
                ]),
                shared: keys.size(&["n_shared_experts", "num_shared_experts"]).unwrap_or(0),
                dense_layers: keys.size(&["first_k_dense_replace"]).unwrap_or(0),
            }),
            quantization: quantization.method,
            quantization_bits: quantization.bits,
            activation_order: quantization.activation_order,
            symmetric_quantization: quantization.symmetric,
            multimodal: ["vision_config", "audio_config", "thinker_config"].iter().any(|key| json.get(key).is_some()),
            encoder_decoder: json
                .get("is_encoder_decoder")
                .and_then(Json::as_bool)
                .unwrap_or_else(|| kind.is_some_and(|kind| ENCODER_DECODER.contains(&kind))),
            irregular_cache: attention::has_irregular_cache(text, kind),
            checkpoint_bytes: None,
            weight_files: None,
            lengths: ContextLengths::read(text, &keys),
            model_type,
            unusable_keys: Vec::new(),
        };
        shape.unusable_keys = keys.into_unusable();
        shape.unusable_keys.extend(unread_heads);
        shape
    }

    /// Returns the longest sequence that the model was made for, in tokens, as a release derives it.
    #[must_use]
    pub fn max_model_len(&self, version: EngineVersion) -> u64 {
        self.lengths.longest(version)
    }

    /// Returns the main properties that decide the memory, as one text. Models with equal texts are treated as equal.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
        let sizes = [
            ("hidden", self.hidden_size),
            ("layers", self.layers),
            ("heads", self.attention_heads),
            ("kv", self.kv_heads),
            ("head", self.head_dim),
            ("mlp", self.intermediate_size),
            ("vocab", self.vocab_size),
            ("latent", self.latent.map(LatentAttention::elements)),
            ("experts", self.experts.map(|experts| experts.count)),
            ("window", self.sliding_window),
            ("dtype", Some(self.dtype_bytes)),
            ("bits", self.quantization_bits),
            ("tied", Some(u64::from(self.tied_embeddings))),
            ("checkpoint", self.checkpoint_bytes),
        ];
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".to_owned());
        let sizes: Vec<_> = sizes.into_iter().map(|(name, size)| format!("{name}={}", number(size))).collect();
        format!("{} {} {}", text(&self.architecture), text(&self.quantization), sizes.join(" "))
    }

    /// Returns the number of weights of a dense decoder with gated MLP, from its shape. Mixture-of-experts models have
    /// more.
    #[must_use]
    pub fn dense_parameters(&self) -> Option<u64> {
        let (hidden, layers, head_dim) = (self.hidden_size?, self.layers?, self.head_dim?);
        let heads = 2 * self.attention_heads? + 2 * self.kv_heads?;
        let layer = product([hidden, head_dim, heads])?.checked_add(product([3, hidden, self.intermediate_size?])?)?;
        let embeddings = product([hidden, self.vocab_size?, if self.tied_embeddings { 1 } else { 2 }])?;
        product([layers, layer])?.checked_add(embeddings)
    }
}

/// Returns the product, if it can be represented.
fn product<const N: usize>(factors: [u64; N]) -> Option<u64> {
    factors.into_iter().try_fold(1_u64, u64::checked_mul)
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
        assert_eq!(shape.max_model_len(EngineVersion::LATEST), 32768);
        assert_eq!(shape.head_dim, Some(64));
        assert_eq!(shape.sliding_window, None);
        assert_eq!(shape.kv_heads, Some(2));
        let parameters = shape.dense_parameters().unwrap_or_default();
        assert!((490_000_000..500_000_000).contains(&parameters), "{parameters}");
        assert_eq!(shape.unusable_keys, Vec::<String>::new());
    }

    #[test]
    fn nested_text_configs_are_found_and_missing_keys_stay_unknown() {
        let shape = ModelShape::from_json(&json!({"text_config": {"num_hidden_layers": 3, "seq_length": 512}}));
        assert_eq!((shape.layers, shape.max_model_len(EngineVersion::LATEST)), (Some(3), 512));
        assert_eq!((shape.kv_heads, shape.dense_parameters()), (None, None));
    }

    #[test]
    fn experts_latent_attention_and_quantisation_are_read() {
        let shape = ModelShape::from_json(&json!({
            "n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
            "kv_lora_rank": 512, "qk_rope_head_dim": 64, "quantization_config": {"quant_method": "FP8"}
        }));
        let experts =
            ExpertLayers { count: 256, intermediate_size: Some(2048), per_token: None, shared: 1, dense_layers: 3 };
        assert_eq!(shape.experts, Some(experts));
        assert_eq!(shape.latent, Some(LatentAttention { kv_lora_rank: 512, qk_rope_head_dim: 64 }));
        assert_eq!(shape.quantization.as_deref(), Some("fp8"));
    }

    #[test]
    fn absurd_numbers_are_named_and_not_used() {
        let shape = ModelShape::from_json(&json!({
            "hidden_size": -5, "num_hidden_layers": 1e30, "num_attention_heads": "many", "vocab_size": u64::MAX,
            "max_position_embeddings": 4096
        }));
        assert_eq!(
            (shape.hidden_size, shape.layers, shape.attention_heads, shape.vocab_size),
            (None, None, None, None)
        );
        assert_eq!(shape.unusable_keys.len(), 4, "{:?}", shape.unusable_keys);
        assert_eq!(shape.unusable_keys[0], "hidden_size: -5 is not a size between 1 and 4294967296");
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
