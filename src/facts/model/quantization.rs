//! The quantisation of a checkpoint.

use serde_json::Value as Json;

/// Method, bits of one weight, and the properties that only GPTQ states.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Quantization {
    pub(super) method: Option<String>,
    pub(super) bits: Option<u64>,
    /// Whether columns are ordered by activation within groups.
    pub(super) activation_order: bool,
    pub(super) symmetric: Option<bool>,
}

impl Quantization {
    /// Reads the whole document and its part on the language model, which multimodal models nest.
    pub(super) fn read(json: &Json, text: &Json) -> Self {
        let of = |key: &str| json.get(key).or_else(|| text.get(key)).filter(|own| own.is_object());
        let Some(own) = of("quantization_config").or_else(|| of("compression_config")) else { return Self::default() };
        let method = own.get("quant_method").and_then(Json::as_str).map(str::to_lowercase);
        let bits = stated(own).or(match method.as_deref() {
            Some("fp8" | "fbgemm_fp8") => Some(8),
            Some("mxfp4") => Some(4),
            _ => None,
        });
        let flag = |key: &str| own.get(key).and_then(Json::as_bool);
        // With one group per output channel the order has no effect.
        let groups = own.get("group_size").and_then(Json::as_i64) != Some(-1);
        let activation_order = groups && flag("desc_act") == Some(true);
        Self { method, bits, activation_order, symmetric: flag("sym") }
    }
}

/// Returns the stated bits. AWQ and GPTQ name the bits, bitsandbytes a switch, compressed-tensors a group of layers.
fn stated(own: &Json) -> Option<u64> {
    let number = |value: &Json| value.as_u64().filter(|bits| (1..=32).contains(bits));
    let direct = ["bits", "w_bit"].iter().find_map(|key| number(own.get(key)?));
    let on = |key: &str| own.get(key).and_then(Json::as_bool) == Some(true);
    let switch = || [("load_in_4bit", 4), ("load_in_8bit", 8)].into_iter().find(|(key, _)| on(key));
    let groups = || {
        let group = own.get("config_groups")?.as_object()?.values().next()?;
        number(group.get("weights")?.get("num_bits")?)
    };
    direct.or_else(|| switch().map(|(_, bits)| bits)).or_else(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_order_of_columns_counts_only_within_groups() {
        for (group_size, expected) in [(128, true), (-1, false)] {
            let own =
                json!({"quant_method": "gptq", "bits": 4, "group_size": group_size, "desc_act": true, "sym": true});
            let read = Quantization::read(&json!({"quantization_config": own}), &json!({}));
            assert_eq!((read.activation_order, read.symmetric), (expected, Some(true)), "{group_size}");
        }
    }

    #[test]
    fn bits_are_found_under_the_keys_of_each_method() {
        for (own, method, bits) in [
            (json!({"quant_method": "AWQ", "bits": 4}), Some("awq"), Some(4)),
            (json!({"quant_method": "bitsandbytes", "load_in_8bit": true}), Some("bitsandbytes"), Some(8)),
            (
                json!({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}),
                Some("compressed-tensors"),
                Some(8),
            ),
            (json!({"quant_method": "fp8"}), Some("fp8"), Some(8)),
            (json!({"quant_method": 7, "bits": -4}), None, None),
            (json!([]), None, None),
        ] {
            let read = Quantization::read(&json!({"quantization_config": own}), &json!({}));
            assert_eq!((read.method.as_deref(), read.bits), (method, bits), "{own}");
        }
    }
}
