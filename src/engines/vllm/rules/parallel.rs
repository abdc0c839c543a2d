//! Tensor parallelism, checked against the model's heads.

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R8",
        condition: "the attention heads can be split over the tensor-parallel devices",
        releases: ReleaseRange::ALL,
        severity: Severity::Configuration,
        check: heads_divide,
    },
    Rule {
        id: "R8b",
        condition: "the key/value heads can be split over the tensor-parallel devices, or copied to them",
        releases: ReleaseRange::ALL,
        severity: Severity::Startup,
        check: kv_heads_divide,
    },
    Rule {
        id: "R8c",
        condition: "the layers' inner size can be split over the tensor-parallel devices",
        releases: ReleaseRange::ALL,
        severity: Severity::Startup,
        check: inner_size_divides,
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

/// Checks that the key/value heads can be split over the devices, or each copied to several of them.
fn kv_heads_divide(candidate: &Candidate<'_>) -> Option<Violation> {
    let (heads, parallel) = (candidate.facts.model.kv_heads?, candidate.effective.tensor_parallel_size);
    (parallel > 0 && heads % parallel != 0 && parallel % heads != 0).then(|| {
        let message = format!("{heads} key/value heads can neither be split over nor copied to {parallel} devices");
        Violation::new(message).set("tensor-parallel-size", largest_divisor(heads, parallel))
    })
}

/// Checks the inner size. Experts are split as well, unless each device holds whole experts.
fn inner_size_divides(candidate: &Candidate<'_>) -> Option<Violation> {
    let (model, parallel) = (candidate.facts.model, candidate.effective.tensor_parallel_size);
    let (what, size) = match model.experts {
        None => ("intermediate_size", model.intermediate_size?),
        Some(_) if candidate.is_on("enable-expert-parallel") => return None,
        Some(experts) => ("moe_intermediate_size", experts.intermediate_size?),
    };
    (parallel > 0 && size % parallel != 0).then(|| {
        let message = format!("{what} ({size}) is not divisible by tensor parallel size ({parallel})");
        let heads = model.attention_heads.unwrap_or(size);
        let divides_both = |parallel: &u64| size.is_multiple_of(*parallel) && heads.is_multiple_of(*parallel);
        let fits = (1..=parallel.min(MAX_DEVICES)).rev().find(divides_both).unwrap_or(1);
        Violation::new(message).set("tensor-parallel-size", i64::try_from(fits).unwrap_or(1))
    })
}

/// The largest size that a repair sets.
const MAX_DEVICES: u64 = 1024;

/// Returns the largest divisor of `heads` up to `most`.
fn largest_divisor(heads: u64, most: u64) -> i64 {
    let small = (1..=heads.isqrt()).filter(|size| heads.is_multiple_of(*size));
    let divisor = small.flat_map(|size| [size, heads / size]).filter(|size| *size <= most).max();
    divisor.and_then(|size| i64::try_from(size).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::rule;

    #[test]
    fn the_inner_size_of_the_layers_must_divide() {
        let found = |keys: serde_json::Value, line: &str| {
            let model = crate::facts::ModelShape::from_json(&keys);
            let version = crate::facts::EngineVersion::V0_32;
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            let config = crate::engines::vllm::FLAGS.for_version(version).parse(&words).unwrap();
            let facts = crate::rule::Facts::new(
                crate::engines::vllm::VLLM_RULES,
                &model,
                version,
                crate::facts::Device::UNKNOWN_GPU,
            );
            crate::rule::rejection(&config, &facts).map(|finding| finding.rule)
        };
        let dense = serde_json::json!({"num_attention_heads": 8, "intermediate_size": 516});
        assert_eq!(found(dense.clone(), "-tp 4"), None);
        assert_eq!(found(dense, "-tp 8"), Some("R8c"));
        let experts = serde_json::json!({
            "num_attention_heads": 8, "intermediate_size": 512, "num_experts": 4, "moe_intermediate_size": 129
        });
        assert_eq!(found(experts.clone(), "-tp 2"), Some("R8c"));
        assert_eq!(found(experts, "-tp 2 --enable-expert-parallel"), None);
    }

    #[test]
    fn heads_must_divide() {
        assert_eq!(rule("0.32.0", "--tensor-parallel-size 3"), Some("R8"));
        assert_eq!(rule("0.32.0", "--tensor-parallel-size 4"), None);
    }
}
