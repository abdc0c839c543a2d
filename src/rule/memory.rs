//! Shares of the device's memory.

use super::{Candidate, Releases, Rule, Severity, Violation};
use crate::facts::EngineVersion;

/// From 0.12 the share of memory has field bounds (`R4a`).
const BY_HAND: Releases = Releases::before(EngineVersion::new(0, 12, 0));

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R5",
        holds: "the engine takes at most the whole memory",
        releases: BY_HAND,
        severity: Severity::Configuration,
        check: at_most_all,
    },
    Rule {
        id: "R5a",
        holds: "the engine takes some memory",
        releases: BY_HAND,
        severity: Severity::Late,
        check: more_than_none,
    },
];

fn at_most_all(candidate: &Candidate<'_>) -> Option<Violation> {
    let share = candidate.effective.gpu_memory_utilization;
    (share > 1.0).then(|| {
        Violation::new(format!("GPU memory utilization must be less than 1.0. Got {share}."))
            .set("gpu-memory-utilization", 1.0)
    })
}

fn more_than_none(candidate: &Candidate<'_>) -> Option<Violation> {
    let share = candidate.effective.gpu_memory_utilization;
    (share <= 0.0).then(|| {
        Violation::new(format!("No available memory for the cache blocks: gpu_memory_utilization is {share}."))
            .unset("gpu-memory-utilization")
    })
}

#[cfg(test)]
mod tests {
    use crate::rule::tests::rule;

    #[test]
    fn more_than_the_whole_memory_and_none_are_refused_in_every_release() {
        assert_eq!(rule("0.6.3", "--gpu-memory-utilization 0"), Some("R5a"));
        assert_eq!(rule("0.32.0", "--gpu-memory-utilization 0"), Some("R4a"));
        assert_eq!(rule("0.6.3", "--gpu-memory-utilization 1.1"), Some("R5"));
        assert_eq!(rule("0.6.3", "--gpu-memory-utilization 1.0"), None);
    }
}
