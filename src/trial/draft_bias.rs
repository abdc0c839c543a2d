//! Detection of loads that flatter speculative decoding with drafts from the text.
//!
//! N-gram and suffix decoding propose the continuation of an earlier occurrence in the text. Models repeat themselves
//! after random tokens, and if a reply must continue behind its end (`ignore_eos`). Such drafts are then accepted more
//! often than in real traffic.

use serde_json::Value as Json;

use crate::config::Config;

/// Kinds of workloads that consist of random tokens.
const RANDOM_KINDS: [&str; 5] = ["random", "trace", "prefix", "conversation", "image"];

/// Parts of the names of methods that draft from the text.
const TEXT_METHODS: [&str; 3] = ["ngram", "suffix", "prompt_lookup"];

/// Returns a warning if a study's load flatters drafts from the text. `definition` is the stored definition of the study.
/// With a configuration its flags decide whether there are such drafts, otherwise the whole search space.
#[must_use]
pub fn draft_bias(definition: &Json, config: Option<&Config>) -> Option<String> {
    let space = &definition["space"];
    let mut texts = config.map_or_else(
        || space_texts(space),
        |config| config.iter().map(|(name, value)| (name, value.to_string())).collect(),
    );
    for (name, value) in arguments(definition) {
        if texts.iter().all(|(known, _)| *known != name) {
            texts.push((name, value));
        }
    }
    let drafts_from_text = |(name, text): &(&str, String)| {
        let text = text.to_lowercase();
        name.contains("spec") && TEXT_METHODS.iter().any(|method| text.contains(method))
    };
    let (flag, _) = texts.iter().find(|text| drafts_from_text(text))?;
    let several = definition["workloads"].as_array();
    let workloads = several.map_or_else(|| vec![&definition["workload"]], |all| all.iter().collect());
    let loads = several.map_or_else(|| vec![&definition["load"]], |all| all.iter().map(|one| &one["load"]).collect());
    let random = workloads.into_iter().any(has_random_tokens);
    let forced = loads.into_iter().any(|load| load["allow_eos"] != Json::Bool(true));
    let (cause, remedy) = match (random, forced) {
        (true, true) => (
            "random tokens and forced reply lengths",
            "measure recorded prompts (workload.kind = \"sharegpt\" or \"jsonl\") with load.allow_eos = true",
        ),
        (true, false) => ("random tokens", "measure recorded prompts (workload.kind = \"sharegpt\" or \"jsonl\")"),
        (false, true) => ("forced reply lengths", "set load.allow_eos = true"),
        (false, false) => return None,
    };
    Some(format!(
        "{cause} flatter the drafts of {flag}: such replies repeat themselves, so more drafts are accepted than in \
         real traffic, and the gain of speculation is too high; {remedy}"
    ))
}

/// Returns the parameters of a space with the texts of their domains, and the fixed flags.
fn space_texts(space: &Json) -> Vec<(&str, String)> {
    let text = |value: &Json| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let fixed = space["fixed"].as_object().into_iter().flatten();
    let parameters = space["parameters"].as_object().into_iter().flatten();
    let domains = parameters.map(|(name, parameter)| (name.as_str(), text(&parameter["domain"])));
    fixed.map(|(name, value)| (name.as_str(), text(value))).chain(domains).collect()
}

/// Returns the flags of `engine.args`, which every launch has, with their values.
fn arguments(definition: &Json) -> Vec<(&str, String)> {
    let words = definition["engine"]["args"].as_array().into_iter().flatten().filter_map(Json::as_str);
    let mut flags: Vec<(&str, String)> = Vec::new();
    for word in words {
        if let Some(flag) = word.strip_prefix("--") {
            let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
            flags.push((name, value.to_owned()));
        } else if let Some((_, value)) = flags.last_mut() {
            value.push_str(word);
        }
    }
    flags
}

/// Returns whether a workload, or a part of a mixture, consists of random tokens.
fn has_random_tokens(workload: &Json) -> bool {
    let parts = workload["part"].as_array();
    workload["kind"].as_str().is_some_and(|kind| RANDOM_KINDS.contains(&kind))
        || parts.is_some_and(|parts| parts.iter().any(has_random_tokens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(kind: &str, allow_eos: bool, domain: &str) -> Json {
        json!({
            "space": {"fixed": {"max-num-seqs": 4}, "parameters": {"spec-method": {"domain": domain}}},
            "workload": {"kind": kind},
            "load": {"allow_eos": allow_eos},
        })
    }

    #[test]
    fn the_warning_names_the_causes_and_the_flag() {
        let warning = |kind: &str, allow_eos: bool| draft_bias(&definition(kind, allow_eos, "None, ngram"), None);
        let both = warning("random", false).unwrap();
        assert!(both.starts_with("random tokens and forced reply lengths flatter the drafts of spec-method"), "{both}");
        assert!(warning("random", true).unwrap().starts_with("random tokens flatter"));
        let forced = warning("sharegpt", false).unwrap();
        assert!(forced.starts_with("forced") && forced.ends_with("set load.allow_eos = true"), "{forced}");
        assert_eq!(warning("sharegpt", true), None);
    }

    #[test]
    fn drafts_of_a_model_are_not_flattered() {
        assert_eq!(draft_bias(&definition("random", false, "None, mtp, eagle3"), None), None);
        let searched = definition("random", false, "None, suffix");
        let config = |method: &str| Config::new().with("spec-method", method).with("tokenizer-mode", "ngram");
        assert_eq!(draft_bias(&searched, Some(&config("None"))), None);
        assert!(draft_bias(&searched, Some(&config("suffix"))).is_some());
    }

    #[test]
    fn flags_of_every_launch_count_unless_the_configuration_replaces_them() {
        let mut fixed = definition("random", false, "None");
        fixed["engine"]["args"] = json!(["--enforce-eager", "--spec-method", "ngram", "--spec-tokens=2"]);
        assert!(draft_bias(&fixed, Some(&Config::new())).is_some());
        assert_eq!(draft_bias(&fixed, Some(&Config::new().with("spec-method", "None"))), None);
    }

    #[test]
    fn every_workload_and_every_part_of_a_mixture_counts() {
        let mut several = definition("jsonl", true, "ngram");
        let entry = |kind: &str, allow_eos: bool| json!({"kind": kind, "load": {"allow_eos": allow_eos}});
        several["workloads"] = json!([entry("jsonl", true), entry("jsonl", false)]);
        assert!(draft_bias(&several, None).unwrap().starts_with("forced"));
        several["workloads"] = json!([entry("jsonl", true)]);
        assert_eq!(draft_bias(&several, None), None);
        let mut mixture = definition("mixture", true, "ngram");
        mixture["workload"]["part"] = json!([{"kind": "jsonl"}, {"kind": "random"}]);
        assert!(draft_bias(&mixture, None).unwrap().starts_with("random tokens flatter"));
    }
}
