//! Values that the argument parser refuses (`common/arg.cpp`).

use super::{Candidate, Rule, Severity, Violation, rule};
use crate::config::Value;

/// The kinds of speculation that need no draft model.
const MODEL_FREE: [&str; 6] = ["none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"];
/// The kinds with a draft model. `draft-mtp` may use layers of the served model instead.
const WITH_MODEL: [&str; 4] = ["draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"];
const OWN_LAYERS: &str = "draft-mtp";

pub(super) const RULES: &[Rule] = &[
    rule("L1", "the number of slots is not 0", Severity::Arguments, slots_are_not_zero),
    rule("L2", "spec-type is a list of known kinds", Severity::Arguments, speculation_is_known),
    rule("L13", "a draft needs a draft model", Severity::Overridden, draft_has_a_model),
];

/// Refuses 0. A negative number is the automatic one.
fn slots_are_not_zero(candidate: &Candidate<'_>) -> Option<Violation> {
    let slots = candidate.config.get_i64("parallel")?;
    (slots == 0).then(|| Violation::new("error: invalid value for n_parallel: parallel is 0").set("parallel", 1_i64))
}

fn speculation_is_known(candidate: &Candidate<'_>) -> Option<Violation> {
    let Some(Value::Text(kinds)) = candidate.config.get("spec-type") else { return None };
    let known = || MODEL_FREE.into_iter().chain(WITH_MODEL).chain([OWN_LAYERS]);
    let unknown = kinds.split(',').find(|kind| !known().any(|name| name == *kind))?;
    let known = known().collect::<Vec<_>>().join(", ");
    Some(Violation::new(format!("unknown speculative type: {unknown} is none of {known}")).set("spec-type", "none"))
}

/// Reports a draft without its model: the server starts, and does not speculate (`common_speculative_init` in
/// `common/speculative.cpp`).
fn draft_has_a_model(candidate: &Candidate<'_>) -> Option<Violation> {
    let kinds = candidate.config.get_str("spec-type")?;
    let kind = kinds.split(',').find(|kind| WITH_MODEL.contains(kind))?;
    let is_named = ["spec-draft-model", "spec-draft-hf"].iter().any(|flag| candidate.config.get(flag).is_some());
    (!is_named).then(|| {
        Violation::new(format!("spec-type {kind} has no effect without a draft model")).set("spec-type", "none")
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::llama_cpp::rules::tests::worst;
    use crate::rule::Severity;

    #[test]
    fn values_that_the_parser_refuses() {
        assert_eq!(worst("--parallel 0", None), Some(("L1", Severity::Arguments)));
        assert_eq!(worst("--parallel -2", None), None);
        assert_eq!(worst("--spec-type ngram-simple,ngram-mod", None), None);
        assert_eq!(worst("--spec-type medusa", None), Some(("L2", Severity::Arguments)));
        assert_eq!(worst("--spec-type draft-simple", None), Some(("L13", Severity::Overridden)));
        assert_eq!(worst("--spec-type draft-simple --spec-draft-model d.gguf", None), None);
        assert_eq!(worst("--spec-type draft-mtp", None), None);
    }
}
