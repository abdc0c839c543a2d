//! Tensor parallelism against the model's heads.

use super::{Candidate, Rule, Severity};

pub(super) const RULES: &[Rule] = &[Rule { id: "R8", check: heads_divide }, Rule { id: "R8b", check: kv_heads_divide }];

fn heads_divide(candidate: &Candidate<'_>) -> Option<(Severity, String)> {
    let (heads, parallel) = (candidate.facts.model.attention_heads?, candidate.effective.tensor_parallel_size);
    (parallel > 0 && heads % parallel != 0).then(|| {
        let message = format!(
            "Total number of attention heads ({heads}) must be divisible by tensor parallel size ({parallel})."
        );
        (Severity::Configuration, message)
    })
}

/// Key/value heads are split over the devices, or each is copied to several of them.
fn kv_heads_divide(candidate: &Candidate<'_>) -> Option<(Severity, String)> {
    let (heads, parallel) = (candidate.facts.model.kv_heads?, candidate.effective.tensor_parallel_size);
    (parallel > 0 && heads % parallel != 0 && parallel % heads != 0).then(|| {
        let message = format!("{heads} key/value heads can neither be split over nor copied to {parallel} devices");
        (Severity::Late, message)
    })
}

#[cfg(test)]
mod tests {
    use crate::rule::tests::rule;

    #[test]
    fn heads_must_divide() {
        assert_eq!(rule("0.32.0", "--tensor-parallel-size 3"), Some("R8"));
        assert_eq!(rule("0.32.0", "--tensor-parallel-size 4"), None);
    }
}
