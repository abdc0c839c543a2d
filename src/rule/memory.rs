//! Shares of the device's memory.

use super::{Candidate, Rule, Severity};

pub(super) const RULES: &[Rule] = &[Rule { id: "R5", check: utilization }];

/// The bounds that releases before 0.12 check by hand or by what is left; later ones have field bounds (`R4a`).
fn utilization(candidate: &Candidate<'_>) -> Option<(Severity, String)> {
    let share = candidate.effective.gpu_memory_utilization;
    if share > 1.0 {
        return Some((Severity::Configuration, format!("GPU memory utilization must be less than 1.0. Got {share}.")));
    }
    (share <= 0.0).then(|| {
        (Severity::Late, format!("No available memory for the cache blocks: gpu_memory_utilization is {share}."))
    })
}

#[cfg(test)]
mod tests {
    use crate::rule::tests::rule;

    #[test]
    fn more_than_the_whole_memory_and_none_are_refused_in_every_release() {
        assert_eq!(rule("0.6.3", "--gpu-memory-utilization 0"), Some("R5"));
        assert_eq!(rule("0.32.0", "--gpu-memory-utilization 0"), Some("R4a"));
        assert_eq!(rule("0.6.3", "--gpu-memory-utilization 1.1"), Some("R5"));
        assert_eq!(rule("0.6.3", "--gpu-memory-utilization 1.0"), None);
    }
}
