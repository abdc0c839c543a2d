//! Models and adapters that a configuration names besides the served model: a draft model, a `LoRA` adapter. If one of
//! them is missing, other configurations still start.

use super::line::LogLine;
use crate::trial::{Failure, FailureKind};

/// The number of lines above a complaint that may belong to the same chain of exceptions.
const ABOVE: usize = 150;

/// The number of lines below a complaint that may continue its message.
const BELOW: usize = 8;

/// Parts of a traceback's lines that indicate the loading of another model than the served one.
const LOADER_MARKS: [&str; 4] = ["speculative", "spec_decode", "draft", "lora"];

/// Texts about something missing, in exceptions of any name.
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

/// Returns the failure of a start that lacks a model, with the complaint on the line `at`.
pub(super) fn missing_model_failure(
    lines: &[LogLine<'_>],
    at: usize,
    message: String,
    own_models: &[String],
) -> Failure {
    if let Some(name) = own_models.iter().find(|name| mentions(&message, name)) {
        return own_model_failure(name, &message);
    }
    let region = lines[at.saturating_sub(ABOVE)..(at + BELOW).min(lines.len())].iter();
    let region: Vec<_> = region.filter(|line| !line.is_quiet()).map(LogLine::message).collect();
    if let Some(name) = own_models.iter().find(|name| region.iter().any(|text| mentions(text, name))) {
        return own_model_failure(name, &message);
    }
    // The hub's client does not name the entry that its cache lacks, but the calls above it do.
    let is_elsewhere = region.iter().any(|text| LOADER_MARKS.iter().any(|place| text.contains(place)));
    match own_models {
        [_, ..] if is_elsewhere => own_model_failure(&own_models.join("\" or \""), &message),
        _ => Failure { kind: FailureKind::ModelUnavailable, message },
    }
}

/// Returns the configuration's own model that an exception reports as missing.
pub(super) fn find_missing_model<'a>(told: &str, own_models: &'a [String]) -> Option<&'a str> {
    let name = own_models.iter().find(|name| mentions(told, name))?;
    MISSING.iter().any(|text| told.contains(text)).then_some(name)
}

/// Returns whether a text contains a model's name, and not a longer name that begins or ends with it. Paths of the
/// hub's cache spell it `models--org--draft`.
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

pub(super) fn own_model_failure(name: &str, message: &str) -> Failure {
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
}
