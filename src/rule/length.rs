//! The longest sequence: what the model was made for and what the workload asks for.

use super::{Candidate, Releases, Rule, Severity, Violation};
use crate::facts::EngineVersion;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R11",
        holds: "max-model-len is at most the length that the model was made for",
        releases: Releases::ALL,
        severity: Severity::Configuration,
        check: model_holds,
    },
    Rule {
        id: "W1",
        holds: "the workload's longest request fits into max-model-len",
        releases: Releases::ALL,
        severity: Severity::Runtime,
        check: workload_fits,
    },
];

fn model_holds(candidate: &Candidate<'_>) -> Option<Violation> {
    let fits_itself = candidate.facts.version >= EngineVersion::new(0, 20, 0);
    if let Some(given) = candidate.config.get_i64("max-model-len").filter(|given| *given < 1)
        && !(fits_itself && given == -1)
    {
        let message = format!("max_model_len must be at least 1, not {given}");
        return Some(Violation::new(message).unset("max-model-len"));
    }
    let (asked, derived) =
        (candidate.effective.max_model_len, candidate.facts.model.max_model_len(candidate.facts.version));
    let allowed = candidate.facts.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN").is_some_and(|value| value == "1");
    (asked > derived && !allowed).then(|| {
        let message = format!(
            "User-specified max_model_len ({asked}) is greater than the derived max_model_len ({derived}) of the \
             model's config.json"
        );
        Violation::new(message).unset("max-model-len")
    })
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
    use crate::rule::tests::rule;

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
