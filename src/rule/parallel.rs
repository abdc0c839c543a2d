//! Tensor parallelism against the model's heads.

use super::{Candidate, Releases, Rule, Severity, Violation};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R8",
        holds: "the attention heads can be split over the tensor-parallel devices",
        releases: Releases::ALL,
        severity: Severity::Configuration,
        check: heads_divide,
    },
    Rule {
        id: "R8b",
        holds: "the key/value heads can be split over the tensor-parallel devices, or copied to them",
        releases: Releases::ALL,
        severity: Severity::Late,
        check: kv_heads_divide,
    },
];

fn heads_divide(candidate: &Candidate<'_>) -> Option<Violation> {
    let (heads, parallel) = (candidate.facts.model.attention_heads?, candidate.effective.tensor_parallel_size);
    (parallel > 0 && heads % parallel != 0).then(|| {
        let message = format!(
            "Total number of attention heads ({heads}) must be divisible by tensor parallel size ({parallel})."
        );
        Violation::new(message).set("tensor-parallel-size", largest_divisor(heads, parallel))
    })
}

/// Key/value heads are split over the devices, or each is copied to several of them.
fn kv_heads_divide(candidate: &Candidate<'_>) -> Option<Violation> {
    let (heads, parallel) = (candidate.facts.model.kv_heads?, candidate.effective.tensor_parallel_size);
    (parallel > 0 && heads % parallel != 0 && parallel % heads != 0).then(|| {
        let message = format!("{heads} key/value heads can neither be split over nor copied to {parallel} devices");
        Violation::new(message).set("tensor-parallel-size", largest_divisor(heads, parallel))
    })
}

/// The largest divisor of `heads` that is not above `most`.
fn largest_divisor(heads: u64, most: u64) -> i64 {
    let small = (1..=heads.isqrt()).filter(|size| heads.is_multiple_of(*size));
    let divisor = small.flat_map(|size| [size, heads / size]).filter(|size| *size <= most).max();
    divisor.and_then(|size| i64::try_from(size).ok()).unwrap_or(1)
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
