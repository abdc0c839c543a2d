//! The longest sequence: what the model was made for and what the workload asks for.

use super::{Candidate, Rule, Severity};

pub(super) const RULES: &[Rule] = &[Rule { id: "R11", check: model_holds }, Rule { id: "W1", check: workload_fits }];

fn model_holds(candidate: &Candidate<'_>) -> Option<(Severity, String)> {
    let (asked, derived) = (candidate.effective.max_model_len, candidate.facts.model.max_model_len);
    let allowed = candidate.facts.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN").is_some_and(|value| value == "1");
    (asked > derived && !allowed).then(|| {
        let message = format!(
            "User-specified max_model_len ({asked}) is greater than the derived max_model_len ({derived}) of the \
             model's config.json"
        );
        (Severity::Configuration, message)
    })
}

fn workload_fits(candidate: &Candidate<'_>) -> Option<(Severity, String)> {
    let (length, longest) = (candidate.effective.max_model_len, candidate.facts.longest_request?);
    (longest > length).then(|| {
        let message = format!("the workload's requests of {longest} tokens do not fit into max_model_len ({length})");
        (Severity::Runtime, message)
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
}
