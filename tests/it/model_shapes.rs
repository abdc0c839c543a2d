//! `config.json` of every kind: those of real families, and malformed ones.

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use setpoint::facts::{EngineVersion, ModelShape};

use super::exercise::everything;
use super::support::root;

/// Keys that the program reads.
const KEYS: [&str; 30] = [
    "hidden_size",
    "n_embd",
    "d_model",
    "num_hidden_layers",
    "num_attention_heads",
    "n_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "rope_scaling",
    "factor",
    "rope_type",
    "sliding_window",
    "layer_types",
    "sliding_window_pattern",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "num_experts",
    "moe_intermediate_size",
    "first_k_dense_replace",
    "quantization_config",
    "bits",
    "model_type",
    "architectures",
    "text_config",
    "expansion_ratio",
    "attn_config",
    "torch_dtype",
];

fn scalar() -> impl Strategy<Value = Json> {
    prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        (1_u64..200_000).prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        prop::sample::select(vec!["falcon", "mpt", "gemma2", "gpt2", "yarn", "linear", "mxfp4", "float32", "-1", ""])
            .prop_map(Json::from),
    ]
}

fn anything() -> impl Strategy<Value = Json> {
    scalar().prop_recursive(4, 64, 12, |inner| {
        let key = prop::sample::select(KEYS.to_vec()).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Json::from),
            prop::collection::hash_map(key, inner, 0..12).prop_map(|map| Json::Object(map.into_iter().collect())),
        ]
    })
}

/// Returns the fixtures, which are real files.
fn real() -> Vec<Json> {
    let directories = std::fs::read_dir(root().join("tests/fixtures/models")).unwrap().flatten();
    let texts = directories.map(|directory| std::fs::read_to_string(directory.path().join("config.json")).unwrap());
    let mut all: Vec<Json> = texts.map(|text| serde_json::from_str(&text).unwrap()).collect();
    all.sort_by_key(ToString::to_string);
    assert!(all.len() > 5);
    all
}

/// Returns `PROPTEST_CASES`, or a small number, because each case goes through every release and device.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(48)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn no_json_makes_anything_panic(json in anything()) {
        everything(&json);
    }

    #[test]
    fn no_mutation_of_a_real_config_makes_anything_panic(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), anything()), 1..4),
    ) {
        let mut json = which.get(&real()).clone();
        let object = json.as_object_mut().unwrap();
        for (key, value) in changes {
            let keys: Vec<String> = object.keys().cloned().collect();
            object.insert(key.get(&keys).clone(), value);
        }
        everything(&json);
    }
}

#[test]
fn nesting_without_end_is_refused_and_deep_nesting_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let endless = format!("{}1{}", "{\"text_config\":".repeat(100_000), "}".repeat(100_000));
    std::fs::write(directory.path().join("config.json"), endless).unwrap();
    let error = ModelShape::read(directory.path()).unwrap_err().to_string();
    assert!(error.contains("is not JSON: recursion limit exceeded"), "{error}");
    let deep = (0..100).fold(json!({"hidden_size": 8}), |inner, _| json!({ "text_config": inner }));
    everything(&deep);
}

/// Reads `config.json` of real families, shortened to the keys that the program reads.
#[test]
fn families_are_read_as_they_write_themselves() {
    let shape = |json: Json| {
        let shape = ModelShape::from_json(&json);
        assert_eq!(shape.unusable_keys, Vec::<String>::new(), "{json}");
        shape
    };
    let falcon = shape(json!({"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "multi_query": true, "new_decoder_architecture": false, "vocab_size": 65024}));
    assert_eq!((falcon.kv_heads, falcon.head_dim, falcon.intermediate_size), (Some(1), Some(64), Some(18_176)));
    let falcon = shape(json!({"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "n_head_kv": 8,
        "num_attention_heads": 128, "multi_query": true, "new_decoder_architecture": true, "num_kv_heads": 8}));
    assert_eq!(falcon.kv_heads, Some(8));
    let gpt2 = shape(json!({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "n_inner": null, "vocab_size": 50257}));
    assert_eq!(
        (gpt2.intermediate_size, gpt2.kv_heads, gpt2.tied_embeddings, gpt2.gated_mlp),
        (Some(3072), Some(12), true, false)
    );
    assert_eq!(gpt2.max_model_len(EngineVersion::LATEST), 1024);
    let starcoder = shape(json!({"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40,
        "n_inner": 24576, "multi_query": true, "n_positions": 8192}));
    assert_eq!((starcoder.kv_heads, starcoder.head_dim), (Some(1), Some(128)));
    let mpt = shape(json!({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4,
        "max_seq_len": 2048, "vocab_size": 50432, "attn_config": {"attn_type": "multihead_attention"}}));
    assert_eq!((mpt.intermediate_size, mpt.kv_heads, mpt.layers), (Some(16_384), Some(32), Some(32)));
    let chatglm = shape(json!({"model_type": "chatglm", "hidden_size": 4096, "num_layers": 28, "kv_channels": 128,
        "num_attention_heads": 32, "multi_query_attention": true, "multi_query_group_num": 2, "padded_vocab_size": 65024,
        "ffn_hidden_size": 13696, "seq_length": 32768}));
    assert_eq!((chatglm.kv_heads, chatglm.head_dim, chatglm.vocab_size), (Some(2), Some(128), Some(65_024)));
    assert_eq!((chatglm.intermediate_size, chatglm.layers), (Some(13_696), Some(28)));
    let opt = shape(json!({"model_type": "opt", "hidden_size": 1024, "word_embed_proj_dim": 512, "ffn_dim": 4096,
        "num_hidden_layers": 24, "num_attention_heads": 16, "max_position_embeddings": 2048, "vocab_size": 50272}));
    assert_eq!((opt.intermediate_size, opt.tied_embeddings), (Some(4096), true));
    let mixtral = shape(json!({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "num_experts_per_tok": 2, "sliding_window": null, "vocab_size": 32000}));
    assert_eq!(mixtral.experts.map(|experts| (experts.count, experts.per_token)), Some((8, Some(2))));
    let gemma = shape(json!({"model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26, "head_dim": 256,
        "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096}));
    assert_eq!((gemma.head_dim, gemma.sliding_layers, gemma.tied_embeddings), (Some(256), Some(13), true));
    let phi = shape(json!({"model_type": "phi3", "max_position_embeddings": 131_072, "hidden_size": 3072,
        "original_max_position_embeddings": 4096, "num_attention_heads": 32, "sliding_window": 262_144,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.1]}}));
    assert_eq!(phi.max_model_len(EngineVersion::new(0, 12, 0)), 131_072);
    let vision = shape(json!({"model_type": "qwen2_vl", "text_config": {"model_type": "qwen2_vl_text",
        "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2},
        "vision_config": {"hidden_size": 1280}}));
    assert_eq!((vision.hidden_size, vision.kv_heads, vision.multimodal), (Some(1536), Some(2), true));
    let whisper = shape(json!({"model_type": "whisper", "is_encoder_decoder": true, "d_model": 1280,
        "num_hidden_layers": 32, "decoder_layers": 32, "max_target_positions": 448}));
    assert!(
        whisper.encoder_decoder
            && whisper.unchecked_facts().iter().any(|unchecked| unchecked.reason.contains("encoder"))
    );
    let mamba = shape(json!({"model_type": "mamba", "hidden_size": 768, "state_size": 16, "num_hidden_layers": 24}));
    assert!(mamba.irregular_cache && mamba.attention_heads.is_none());
    let oss = shape(real().into_iter().find(|json| json["model_type"] == "gpt_oss").unwrap());
    assert_eq!((oss.sliding_window, oss.sliding_layers), (Some(128), oss.layers.map(|layers| layers / 2)));
}
