//! The longest sequence: the limits of the model, and the needs of the workload.

use super::{Candidate, Facts, ReleaseRange, Rule, Severity, Violation};
use crate::config::Config;
use crate::facts::EngineVersion;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R11",
        condition: "max-model-len is at most the model's own length",
        releases: ReleaseRange::ALL,
        severity: Severity::Configuration,
        check: model_holds,
    },
    Rule {
        id: "W1",
        condition: "the workload's longest request fits into max-model-len",
        releases: ReleaseRange::ALL,
        severity: Severity::Runtime,
        check: workload_fits,
    },
];

fn model_holds(candidate: &Candidate<'_>) -> Option<Violation> {
    let fits_itself = candidate.facts.version >= EngineVersion::V0_20;
    if let Some(given) = candidate.config.get_i64("max-model-len").filter(|given| *given < 1)
        && !(fits_itself && given == -1)
    {
        let message = format!("max_model_len must be at least 1, not {given}");
        return Some(Violation::new(message).unset("max-model-len"));
    }
    let asked = candidate.number("max-model-len").and_then(|asked| u64::try_from(asked).ok())?;
    let derived = lengths(candidate.config, candidate.facts).1;
    let allowed = candidate.facts.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN").is_some_and(|value| value == "1");
    (asked > derived && !allowed).then(|| {
        let message = format!(
            "User-specified max_model_len ({asked}) is greater than the derived max_model_len ({derived}) of the \
             model's config.json"
        );
        Violation::new(message).unset("max-model-len")
    })
}

/// Returns the engine's default length, and the longest that it allows, both in tokens.
pub(in crate::engines::vllm) fn lengths(config: &Config, facts: &Facts<'_>) -> (u64, u64) {
    let (model, version) = (facts.model, facts.version);
    let narrow = model.sliding_window.filter(|_| config.get_bool("disable-sliding-window") == Some(true));
    let overridden = overridden(config);
    if narrow.is_none() && overridden.is_none() {
        return (model.lengths.default_length(version), model.lengths.longest(version));
    }
    let mut lengths = model.lengths.clone();
    lengths.stated = overridden.or(lengths.stated);
    // Without the sliding window, the engine limits the whole length to the window's size.
    lengths.stated = match (lengths.stated, narrow) {
        (Some(stated), Some(window)) => Some(stated.min(window)),
        (stated, narrow) => stated.or(narrow),
    };
    (lengths.default_length(version), lengths.longest(version))
}

/// Returns the length that `--hf-overrides` sets in the model's configuration.
fn overridden(config: &Config) -> Option<u64> {
    let text = config.get_str("hf-overrides")?;
    let fields: serde_json::Value = serde_json::from_str(text).ok()?;
    fields.get("text_config").unwrap_or(&fields).get("max_position_embeddings")?.as_u64()
}

fn workload_fits(candidate: &Candidate<'_>) -> Option<Violation> {
    let (length, longest) = (candidate.effective.max_model_len, candidate.facts.longest_request?);
    (longest > length).then(|| {
        let message = format!("the workload's requests of {longest} tokens do not fit into max_model_len ({length})");
        Violation::new(message).set("max-model-len", i64::try_from(longest).unwrap_or(i64::MAX))
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::rule;

    #[test]
    fn a_length_beyond_the_models_own_is_refused() {
        assert_eq!(rule("0.32.0", "--max-model-len 8192"), Some("R11"));
        assert_eq!(rule("0.32.0", "--max-model-len 4096"), None);
    }

    #[test]
    fn no_length_is_refused_and_minus_one_asks_for_what_fits() {
        assert_eq!(rule("0.12.0", "--max-model-len 0"), Some("R11"));
        assert_eq!(rule("0.12.0", "--max-model-len -1"), Some("R11"));
        assert_eq!(rule("0.20.2", "--max-model-len -1"), None);
    }
}
