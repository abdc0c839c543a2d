//! The `context` of a space. All of it is optional, and unknown fields are ignored; numbers are finite and not negative.

use super::error::ProtocolError;
use super::field::Fields;
use super::parameter::value;
use crate::prior::{Context, DeviceContext, LoadContext, ModelContext};

impl Context {
    /// # Errors
    /// Names the field that is not what it should be, and its value.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, ProtocolError> {
        Ok(Self {
            model: read(fields, "model", ModelContext::read)?,
            device: read(fields, "device", DeviceContext::read)?,
            load: read(fields, "load", LoadContext::read)?,
            limits_s: read(fields, "limits_s", |limits| {
                let one = |name: &String| Ok(limits.amount(name)?.map(|limit| (name.clone(), limit)));
                limits.iter().filter_map(|(name, _)| one(name).transpose()).collect()
            })?,
            defaults: read(fields, "defaults", |defaults| {
                let one = |name: &String| {
                    let expected = || defaults.unfit(name, "a text, a number, true or false");
                    Ok((name.clone(), value(defaults.raw(name)).ok_or_else(expected)?))
                };
                defaults.iter().filter(|(_, json)| !json.is_null()).map(|(name, _)| one(name)).collect()
            })?,
            engine_version: fields.text("engine_version")?.map(str::to_owned),
        })
    }
}

fn read<T: Default>(
    fields: &Fields<'_>,
    key: &str,
    read: impl Fn(&Fields<'_>) -> Result<T, ProtocolError>,
) -> Result<T, ProtocolError> {
    fields.fields(key)?.map_or_else(|| Ok(T::default()), |inner| read(&inner))
}

impl ModelContext {
    fn read(fields: &Fields<'_>) -> Result<Self, ProtocolError> {
        Ok(Self {
            parameters: fields.amount("parameters")?,
            num_hidden_layers: fields.unsigned("num_hidden_layers")?,
            hidden_size: fields.unsigned("hidden_size")?,
            intermediate_size: fields.unsigned("intermediate_size")?,
            num_attention_heads: fields.unsigned("num_attention_heads")?,
            num_key_value_heads: fields.unsigned("num_key_value_heads")?,
            head_dim: fields.unsigned("head_dim")?,
            vocab_size: fields.unsigned("vocab_size")?,
            dtype: fields.text("dtype")?.map(str::to_owned),
            max_model_len: fields.unsigned("max_model_len")?,
        })
    }
}

impl DeviceContext {
    fn read(fields: &Fields<'_>) -> Result<Self, ProtocolError> {
        Ok(Self {
            name: fields.text("name")?.map(str::to_owned),
            count: fields.unsigned("count")?,
            memory_bytes: fields.amount("memory_bytes")?,
        })
    }
}

impl LoadContext {
    fn read(fields: &Fields<'_>) -> Result<Self, ProtocolError> {
        Ok(Self {
            input_tokens: fields.amount("input_tokens")?,
            output_tokens: fields.amount("output_tokens")?,
            shared_prefix_fraction: fields.amount("shared_prefix_fraction")?,
            shared_prefixes: fields.unsigned("shared_prefixes")?,
            concurrency: fields.unsigned("concurrency")?,
            arrival: fields.text("arrival")?.map(str::to_owned),
            rate_per_s: fields.amount("rate_per_s")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    fn context(json: &Json) -> Result<Context, String> {
        let fields = Fields::of(json, "context", "context.".to_owned()).map_err(|error| error.to_string())?;
        Context::read(&fields).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_known_is_read_and_what_is_not_is_left_out() {
        let all = context(&json!({
            "model": {"parameters": 8.0e9, "num_hidden_layers": 32, "dtype": "bfloat16", "rope": {"theta": 1e6}},
            "device": {"name": "h100-sxm", "count": 8, "memory_bytes": 80e9},
            "load": {"input_tokens": 512, "shared_prefix_fraction": 0.25, "concurrency": 400, "arrival": "closed"},
            "limits_s": {"ttft_p99": 4.0, "tpot_p99": null},
            "defaults": {"tp": 1, "gmu": 0.9, "chunked_prefill": true, "kv_cache_dtype": "auto", "lora": null},
            "weather": "fine",
        }))
        .unwrap();
        assert_eq!(
            (all.model.parameters, all.model.num_hidden_layers, all.model.head_dim),
            (Some(8e9), Some(32), None)
        );
        assert_eq!((all.device.count, all.load.concurrency, all.load.shared_prefixes), (Some(8), Some(400), None));
        assert_eq!(all.limits_s.into_iter().collect::<Vec<_>>(), [("ttft_p99".to_owned(), 4.0)]);
        assert_eq!(all.defaults.key(), r#"{"chunked_prefill":true,"gmu":0.9,"kv_cache_dtype":"auto","tp":1}"#);
        assert_eq!(context(&json!({})), Ok(Context::default()));
    }

    #[test]
    fn a_wrong_field_is_named_with_its_value() {
        for (json, expected) in [
            (json!(3), "context is 3, and not an object"),
            (json!({"model": []}), "context.model is [], and not an object"),
            (
                json!({"model": {"parameters": "8b"}}),
                "context.model.parameters is \"8b\", and not a number of at least 0",
            ),
            (
                json!({"device": {"count": 1.5}}),
                "context.device.count is 1.5, and not a whole number from 0 to 18446744073709551615",
            ),
            (json!({"limits_s": {"ttft_p99": -1}}), "context.limits_s.ttft_p99 is -1, and not a number of at least 0"),
            (json!({"defaults": {"tp": [1]}}), "context.defaults.tp is [1], and not a text, a number, true or false"),
            (json!({"load": {"arrival": 4}}), "context.load.arrival is 4, and not a text"),
        ] {
            assert_eq!(context(&json), Err(expected.to_owned()));
        }
    }
}
