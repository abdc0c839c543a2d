//! Models and adapters that a configuration names besides the served model.

use serde_json::Value as Json;

use crate::config::{Config, Value};

/// Returns the models and adapters that `config` names in flags that differ from `fixed`. `fixed` has the flags that
/// all configurations of a study share. Any text with a slash counts as a hub name or path. Without a slash, the value
/// of a flag or JSON field counts if its name is `path` or ends with `model`.
#[must_use]
pub fn own_models(config: &Config, fixed: &Config) -> Vec<String> {
    let mut found = Vec::new();
    for (name, value) in config.iter().filter(|(name, value)| fixed.get(name) != Some(value)) {
        let Value::Text(text) = value else { continue };
        match serde_json::from_str::<Json>(text) {
            Ok(json) if !json.is_string() => names(&json, "", &mut found),
            // For instance `--lora-modules sql=/adapters/sql chat=org/chat`.
            _ => text.split_whitespace().for_each(|word| {
                let word = word.split_once('=').map_or(word, |(_, path)| path);
                match serde_json::from_str::<Json>(word) {
                    Ok(json @ Json::Object(_)) => names(&json, "", &mut found),
                    _ => add(word, name, &mut found),
                }
            }),
        }
    }
    found.sort();
    found.dedup();
    found
}

fn names(json: &Json, field: &str, found: &mut Vec<String>) {
    match json {
        Json::String(text) => add(text, field, found),
        Json::Array(items) => items.iter().for_each(|item| names(item, field, found)),
        Json::Object(fields) => fields.iter().for_each(|(field, value)| names(value, field, found)),
        _ => {}
    }
}

fn add(text: &str, field: &str, found: &mut Vec<String>) {
    let is_model = field == "path" || field.ends_with("model");
    // Drafting methods occur in the same fields as models.
    let is_method = ["ngram", "[ngram]", "suffix", "mtp"].contains(&text);
    if !text.is_empty() && !is_method && (is_model || text.contains('/')) {
        found.push(text.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_of_the_configuration_are_those_that_the_fixed_part_does_not_name() {
        let draft = r#"{"method": "eagle3", "model": "org/draft", "num_speculative_tokens": 3}"#;
        let fixed = Config::new().with("lora-modules", "sql=/adapters/sql").with("dtype", "auto");
        let config = fixed.clone().with("speculative-config", draft).with("attention-backend", "FLASH_ATTN");
        assert_eq!(own_models(&config, &fixed), ["org/draft"]);
        assert_eq!(own_models(&config, &Config::new()), ["/adapters/sql", "org/draft"]);
        let v0 = Config::new().with("speculative-model", "[ngram]").with("num-speculative-tokens", 4_i64);
        assert!(own_models(&v0, &Config::new()).is_empty());
        let v0 = Config::new().with("speculative-model", "draft");
        assert_eq!(own_models(&v0, &Config::new()), ["draft"]);
        let adapters = Config::new().with("lora-modules", r#"{"name": "a", "path": "adapter"} b=org/b"#);
        assert!(own_models(&adapters, &Config::new()).contains(&"org/b".to_owned()));
        let ngram = r#"{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}"#;
        assert!(own_models(&Config::new().with("speculative-config", ngram), &Config::new()).is_empty());
    }
}
