//! Flags that the release does not have, and values that its parser or its field bounds refuse.

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::engines::vllm::FLAGS;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "A1",
        condition: "the release has the flag and accepts its value",
        releases: ReleaseRange::ALL,
        severity: Severity::Arguments,
        check: flag_is_known,
    },
    Rule {
        id: "R4a",
        condition: "numbers are within the limits of their fields",
        releases: ReleaseRange::ALL,
        severity: Severity::Configuration,
        check: within_bounds,
    },
    Rule {
        id: "R4d",
        condition: "sizes are at least 1, even if the release does not check them",
        releases: ReleaseRange::ALL,
        severity: Severity::Startup,
        check: at_least_one,
    },
];

fn flag_is_known(candidate: &Candidate<'_>) -> Option<Violation> {
    let table = FLAGS.for_version(candidate.facts.version);
    candidate.config.iter().find_map(|(name, value)| {
        let error = match table.find(name) {
            Some(flag) => flag.check(value).err()?,
            None => table.unknown(name),
        };
        Some(Violation::new(error.to_string()).unset(name))
    })
}

/// Sizes that the engine divides by, or counts that it creates. Not every release checks them.
const AT_LEAST_ONE: [&str; 5] =
    ["block-size", "max-num-batched-tokens", "max-num-seqs", "pipeline-parallel-size", "tensor-parallel-size"];

fn at_least_one(candidate: &Candidate<'_>) -> Option<Violation> {
    AT_LEAST_ONE.into_iter().find_map(|name| {
        let given = candidate.config.get_i64(name).filter(|given| *given < 1)?;
        let (field, version) = (name.replace('-', "_"), candidate.facts.version);
        let message = format!("{field} is {given}, must be at least 1: vLLM {version} accepts it and fails later");
        Some(Violation::new(message).unset(name))
    })
}

fn within_bounds(candidate: &Candidate<'_>) -> Option<Violation> {
    let table = FLAGS.for_version(candidate.facts.version);
    candidate.config.iter().find_map(|(name, value)| {
        let reason = table.find(name)?.bounds()?.find_broken_bound(value.as_f64()?)?;
        let field = name.replace('-', "_");
        let message = format!("{field}: {reason}, input_value={value}");
        Some(Violation::new(message).unset(name))
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::verdict;
    use crate::facts::Device;

    #[test]
    fn values_beyond_a_field_bound_are_refused_with_the_limit() {
        let finding = verdict("0.32.0", Device::Cpu, "--max-num-seqs 0");
        let text = "max_num_seqs: Input should be greater than or equal to 1, input_value=0";
        assert_eq!(finding, Some(("R4a", true, text.to_owned())));
        assert!(verdict("0.32.0", Device::Cpu, "--gpu-memory-utilization 1.5").is_some_and(|(id, ..)| id == "R4a"));
    }

    #[test]
    fn sizes_below_1_are_refused_even_if_an_old_release_does_not_check_them() {
        let gpu = Device::gpu_of(80 << 30);
        for flag in ["--max-num-seqs 0", "--max-num-batched-tokens -1", "--tensor-parallel-size 0"] {
            let finding = verdict("0.8.5", gpu, flag);
            assert!(finding.is_some_and(|(_, rejects, _)| rejects), "{flag}");
        }
        assert!(verdict("0.20.2", gpu, "--block-size 0").is_some_and(|(id, ..)| id == "R4d"));
        let config = crate::config::Config::new()
            .with("block-size", 0_i64)
            .with("enable-chunked-prefill", true)
            .with("enable-prefix-caching", true);
        let model = crate::facts::ModelShape::from_json(&serde_json::json!({}));
        let facts = crate::rule::Facts::new(
            crate::engines::vllm::VLLM_RULES,
            &model,
            crate::facts::EngineVersion::new(0, 6, 3),
            gpu,
        );
        assert_eq!(crate::rule::check(&config, &facts)[0].rule, "A1");
    }
}
