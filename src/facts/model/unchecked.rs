//! Checks that cannot be made because `config.json` lacks their inputs.

use std::fmt;

use super::ModelShape;

/// A check that is left out, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncheckedFact {
    /// The name of the check.
    pub check: &'static str,
    pub reason: String,
}

impl fmt::Display for UncheckedFact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.reason)
    }
}

impl ModelShape {
    /// Returns the checks that are impossible for this shape, with the missing keys of each.
    #[must_use]
    pub fn unchecked_facts(&self) -> Vec<UncheckedFact> {
        let heads = [("num_attention_heads", self.attention_heads.is_some())];
        let kv_heads = [("num_key_value_heads", self.kv_heads.is_some())];
        let memory = [
            ("num_hidden_layers", self.layers.is_some()),
            ("hidden_size", self.hidden_size.is_some()),
            ("num_key_value_heads", self.kv_heads.is_some() || self.latent.is_some()),
            ("head_dim", self.head_dim.is_some() || self.latent.is_some()),
            ("intermediate_size", self.intermediate_size.is_some() || self.expert_size().is_some()),
            ("vocab_size", self.vocab_size.is_some()),
        ];
        let checks = [
            ("split of the attention heads over tensor-parallel devices", &heads[..]),
            ("split of the key/value heads over tensor-parallel devices", &kv_heads[..]),
            ("device memory", &memory[..]),
        ];
        let mut unchecked: Vec<_> = checks.iter().filter_map(|(check, keys)| missing_inputs(check, keys)).collect();
        let other = [
            (self.encoder_decoder, "encoder-decoder models also cache the encoder's output"),
            (self.irregular_cache, "some layers cache other data than their own keys and values"),
        ];
        unchecked.extend(
            other
                .into_iter()
                .filter(|(applies, _)| *applies)
                .map(|(_, reason)| UncheckedFact { check: "device memory", reason: reason.to_owned() }),
        );
        if self.lengths.stated.is_none() {
            let reason = "config.json states no length; the engine's default is assumed".to_owned();
            unchecked.push(UncheckedFact { check: "the model's own length", reason });
        }
        unchecked
    }

    fn expert_size(&self) -> Option<u64> {
        self.experts?.intermediate_size
    }
}

fn missing_inputs(check: &'static str, keys: &[(&str, bool)]) -> Option<UncheckedFact> {
    let missing: Vec<_> = keys.iter().filter(|(_, known)| !known).map(|(key, _)| *key).collect();
    let reason = || format!("config.json lacks {}", missing.join(", "));
    (!missing.is_empty()).then(|| UncheckedFact { check, reason: reason() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_keys_are_reported_with_the_check_that_needs_them() {
        let whole = json!({"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 9,
            "vocab_size": 99, "max_position_embeddings": 128});
        assert_eq!(ModelShape::from_json(&whole).unchecked_facts(), []);
        let partly = json!({"num_attention_heads": 4, "max_position_embeddings": 128, "num_hidden_layers": 2,
            "intermediate_size": 9});
        let unchecked: Vec<_> =
            ModelShape::from_json(&partly).unchecked_facts().iter().map(ToString::to_string).collect();
        let expected = "device memory: config.json lacks hidden_size, head_dim, vocab_size";
        assert_eq!(unchecked, [expected]);
        assert_eq!(ModelShape::from_json(&json!({})).unchecked_facts().len(), 4);
    }
}
