//! Models besides the served one, and adapters, that a configuration names: a draft model, a `LoRA` adapter. If one of them is
//! missing, other configurations still start.

use serde_json::Value as Json;

use super::line::Line;
use crate::config::{Config, Value};
use crate::trial::{Failure, FailureKind};

/// Lines above a complaint that may belong to the same chain of exceptions.
const ABOVE: usize = 150;

/// Lines below a complaint that continue its message.
const BELOW: usize = 8;

/// Words of the calls and the code that load something else than the served model.
const PLACES: [&str; 4] = ["speculative", "spec_decode", "draft", "lora"];

/// How an exception of any name says that something is not there.
const MISSING: [&str; 8] = [
    "No such file",
    "not found",
    "No adapter found",
    "does not exist",
    "annot find",
    "Could not find",
    "couldn't find",
    "404 Client Error",
];

/// The models and adapters that `config` names and `fixed`, the part that all configurations of a study share, does not:
/// hub names and paths within any of its values, and whatever a field `model` or `path` holds.
#[must_use]
pub fn own_models(config: &Config, fixed: &Config) -> Vec<String> {
    let mut found = Vec::new();
    for (name, value) in config.iter().filter(|(name, value)| fixed.get(name) != Some(value)) {
        let Value::Text(text) = value else { continue };
        match serde_json::from_str::<Json>(text) {
            Ok(json) if !json.is_string() => names(&json, "", &mut found),
            // `--lora-modules sql=/adapters/sql chat=org/chat`
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
    // Methods of drafting stand in the same place.
    let is_method = ["ngram", "[ngram]", "suffix", "mtp"].contains(&text);
    if !text.is_empty() && !is_method && (is_model || text.contains('/')) {
        found.push(text.to_owned());
    }
}

/// The failure of a start that lacks a model, with the complaint on the line `at`.
pub(super) fn missing(lines: &[Line<'_>], at: usize, message: String, own_models: &[String]) -> Failure {
    if let Some(name) = own_models.iter().find(|name| mentions(&message, name)) {
        return failure(name, &message);
    }
    let region = lines[at.saturating_sub(ABOVE)..(at + BELOW).min(lines.len())].iter();
    let region: Vec<_> = region.filter(|line| !line.is_quiet()).map(Line::message).collect();
    if let Some(name) = own_models.iter().find(|name| region.iter().any(|text| mentions(text, name))) {
        return failure(name, &message);
    }
    // The hub's client does not name what is not in its cache; the calls above it do.
    let is_elsewhere = region.iter().any(|text| PLACES.iter().any(|place| text.contains(place)));
    match own_models {
        [_, ..] if is_elsewhere => failure(&own_models.join("\" or \""), &message),
        _ => Failure { kind: FailureKind::ModelUnavailable, message },
    }
}

/// The model of the configuration's own that an exception says is not there.
pub(super) fn named_as_missing<'a>(told: &str, own_models: &'a [String]) -> Option<&'a str> {
    let name = own_models.iter().find(|name| mentions(told, name))?;
    MISSING.iter().any(|text| told.contains(text)).then_some(name)
}

/// Whether a text contains a model's name, and not that of another one that begins or ends like it. Paths of the hub's cache
/// spell it `models--org--draft`.
fn mentions(text: &str, name: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "_-".contains(c);
    let contains = |name: &str| {
        text.match_indices(name).any(|(at, found)| {
            let (before, after) = (&text[..at], &text[at + found.len()..]);
            let is_longer = after.starts_with(continues)
                || after.strip_prefix('.').is_some_and(|rest| rest.starts_with(char::is_alphanumeric));
            let is_tail = name.starts_with(continues) && before.ends_with(|c| continues(c) && c != '-');
            !is_longer && !is_tail
        })
    };
    contains(name) || (name.contains('/') && contains(&name.replace('/', "--")))
}

pub(super) fn failure(name: &str, message: &str) -> Failure {
    let message = format!("the configuration names \"{name}\", which is not available: {message}");
    Failure { kind: FailureKind::InvalidArgument, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_not_found_within_another_one() {
        for text in
            ["'org/draft'", "org/draft/config.json", "for org/draft.", "/cache/models--org--draft/refs", "=org/draft:"]
        {
            assert!(mentions(text, "org/draft"), "{text}");
        }
        for text in ["org/draft-large", "myorg/draft", "org/draft_2", "org/draft.v2", "models--org--draft-large"] {
            assert!(!mentions(text, "org/draft"), "{text}");
        }
        assert!(mentions("'/models/draft'", "/models/draft"));
    }

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
