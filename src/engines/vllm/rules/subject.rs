//! The subjects of rules about memory, devices or files, for their test by a start.

use crate::rule::RuleSubject;

/// The subject of each rule that does not fall under `RuleSubject::Other`.
const SUBJECTS: [(&str, RuleSubject); 12] = [
    ("R12c", RuleSubject::HostMemory),
    ("R5c", RuleSubject::HostMemory),
    ("R5d", RuleSubject::HostMemory),
    ("R5e", RuleSubject::MemoryOfOthers),
    ("R6", RuleSubject::Memory),
    ("R7", RuleSubject::Memory),
    ("R5b", RuleSubject::FreeMemory),
    ("R10a", RuleSubject::Devices),
    ("R10b", RuleSubject::Devices),
    ("R10c", RuleSubject::Devices),
    ("R20n", RuleSubject::Files),
    ("R20o", RuleSubject::Files),
];

/// Returns the subject of a rule.
pub(super) fn subject(rule: &str) -> RuleSubject {
    SUBJECTS.iter().find(|(id, _)| *id == rule).map_or(RuleSubject::Other, |(_, subject)| *subject)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::VLLM_RULES;
    use crate::rule::Severity;

    #[test]
    fn every_named_rule_exists_and_fails_late() {
        for (id, _) in SUBJECTS {
            assert!(VLLM_RULES.all().any(|rule| rule.id == id && rule.severity == Severity::Startup), "{id}");
        }
    }
}
