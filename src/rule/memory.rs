//! Shares of the device's memory.

use super::{Candidate, Rule, Severity};

pub(super) const RULES: &[Rule] = &[Rule { id: "R5", check: utilization }];

/// The bound that releases before 0.12 check by hand; later ones have it as a field bound (`R4a`).
fn utilization(candidate: &Candidate<'_>) -> Option<(Severity, String)> {
    let share = candidate.effective.gpu_memory_utilization;
    (share > 1.0)
        .then(|| (Severity::Configuration, format!("GPU memory utilization must be less than 1.0. Got {share}.")))
}

#[cfg(test)]
mod tests {
    use crate::rule::tests::rule;

    #[test]
    fn more_than_the_whole_memory_is_refused_in_every_release() {
        assert_eq!(rule("0.6.3", "--gpu-memory-utilization 1.1"), Some("R5"));
        assert_eq!(rule("0.6.3", "--gpu-memory-utilization 1.0"), None);
    }
}
