//! Heads, windows and kinds of layers. Each family of models spells them in its own way.
//!
//! The sources are the configuration classes of `transformers` and `get_total_num_kv_heads` in `vllm/config/model.py`.

use serde_json::Value as Json;

use super::json::ShapeKeys;

/// Names of the key/value heads: most families, Falcon, `ChatGLM`.
const KV_HEADS: [&str; 4] = ["num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"];

/// Returns the number of key/value heads: as many as attention heads if none are named. The second value lists unusable
/// keys.
pub(super) fn kv_heads(text: &Json, kind: Option<&str>, attention_heads: Option<u64>) -> (Option<u64>, Vec<String>) {
    let keys = ShapeKeys::new(text);
    let shares_one =
        keys.flag("multi_query").unwrap_or(false) && !keys.flag("new_decoder_architecture").unwrap_or(false);
    let heads = match kind {
        Some("falcon" | "RefinedWeb" | "RefinedWebModel" | "gpt_bigcode") if shares_one => Some(1),
        // `ChatGLM` names groups even if it does not use them.
        Some("chatglm") if keys.flag("multi_query_attention") == Some(false) => attention_heads,
        Some("mpt" | "dbrx") => {
            let nested = text.get("attn_config").unwrap_or(&Json::Null);
            let nested = ShapeKeys::new(nested);
            let heads = nested.size_or(&["kv_n_heads"], || attention_heads);
            return (heads, nested.into_unusable());
        }
        _ => keys.size_or(&KV_HEADS, || attention_heads),
    };
    (heads, keys.into_unusable())
}

/// Keys of models whose layers keep a state, share one cache, attend in chunks, or have heads of several sizes.
const IRREGULAR: [&str; 10] = [
    "mamba_d_state",
    "ssm_cfg",
    "state_size",
    "attn_layer_period",
    "hybrid_override_pattern",
    "linear_num_value_heads",
    "attn_type_list",
    "num_kv_shared_layers",
    "attention_chunk_size",
    "global_head_dim",
];

/// Returns whether some layers cache something other than keys and values of their own.
pub(super) fn has_irregular_cache(text: &Json, kind: Option<&str>) -> bool {
    let parts = ["mamba", "rwkv", "jamba", "recurrent"];
    let by_kind = kind.is_some_and(|kind| parts.iter().any(|part| kind.contains(part)));
    let of_layers = text.get("layer_types").and_then(Json::as_array).is_some_and(|kinds| {
        kinds.iter().any(|kind| kind.as_str() != Some("sliding_attention") && kind.as_str() != Some("full_attention"))
    });
    let is_set = |key: &&str| text.get(key).is_some_and(|value| !value.is_null() && value.as_u64() != Some(0));
    by_kind || of_layers || IRREGULAR.iter().any(is_set)
}

/// Returns the number of layers with the sliding window: named one by one, or all except each
/// `sliding_window_pattern`-th.
pub(super) fn sliding_layers(text: &Json, kind: Option<&str>, layers: Option<u64>) -> Option<u64> {
    let layers = layers?;
    if let Some(kinds) = text.get("layer_types").and_then(Json::as_array) {
        let sliding = kinds.iter().filter(|kind| kind.as_str() == Some("sliding_attention"));
        return u64::try_from(sliding.count()).ok().map(|sliding| sliding.min(layers));
    }
    let number = |key: &str| text.get(key).and_then(Json::as_u64).filter(|number| *number > 0);
    let stated = number("sliding_window_pattern").or_else(|| number("_sliding_window_pattern"));
    // Defaults of the configuration classes in `transformers`.
    let pattern = stated.or(match kind {
        Some("gemma2") => Some(2),
        Some("gemma3" | "gemma3_text") => Some(6),
        Some("cohere2") => Some(4),
        _ => None,
    });
    match (pattern, number("max_window_layers")) {
        (Some(pattern), _) => Some(layers - layers / pattern),
        // Qwen2's first layers attend to all tokens.
        (None, Some(first)) => Some(layers.saturating_sub(first)),
        (None, None) => Some(layers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn heads_are_found_under_the_keys_of_each_family() {
        for (text, kind, expected) in [
            (json!({"multi_query": true, "new_decoder_architecture": false, "n_head_kv": 8}), "falcon", Some(1)),
            (json!({"multi_query": true, "new_decoder_architecture": true, "n_head_kv": 8}), "falcon", Some(8)),
            (json!({"multi_query": true}), "gpt_bigcode", Some(1)),
            (json!({"multi_query": false}), "gpt_bigcode", Some(32)),
            (json!({"multi_query_group_num": 2, "multi_query_attention": true}), "chatglm", Some(2)),
            (json!({"attn_config": {"kv_n_heads": 4}}), "mpt", Some(4)),
            (json!({}), "opt", Some(32)),
            (json!({"num_key_value_heads": -8}), "llama", None),
        ] {
            assert_eq!(kv_heads(&text, Some(kind), Some(32)).0, expected, "{kind} {text}");
        }
    }

    #[test]
    fn windows_cover_the_layers_that_each_family_means() {
        for (text, kind, expected) in [
            (json!({}), "gemma2", Some(13)),
            (json!({"sliding_window_pattern": 6}), "gemma3_text", Some(22)),
            (json!({"layer_types": ["sliding_attention", "full_attention"]}), "gpt_oss", Some(1)),
            (json!({"max_window_layers": 20}), "qwen2", Some(6)),
            (json!({}), "mistral", Some(26)),
        ] {
            assert_eq!(sliding_layers(&text, Some(kind), Some(26)), expected, "{kind} {text}");
        }
    }

    #[test]
    fn layers_that_keep_a_state_are_noticed() {
        assert!(has_irregular_cache(&json!({"state_size": 16}), Some("mamba")));
        assert!(has_irregular_cache(
            &json!({"layer_types": ["linear_attention", "full_attention"]}),
            Some("qwen3_next")
        ));
        assert!(has_irregular_cache(&json!({"num_kv_shared_layers": 20}), Some("gemma3n_text")));
        let usual = json!({"layer_types": ["sliding_attention"], "num_kv_shared_layers": 0});
        assert!(!has_irregular_cache(&usual, Some("gpt_oss")));
    }
}
