//! The rules of vLLM that a start may test.

use super::VLLM_RULES;
use crate::config::Config;
use crate::rule::{Finding, RemovedByRule, Severity, SpaceRemoval, predicts_failure, testable_rules};
use crate::trial::FailureKind;

fn removed(rule: &'static str, severity: Severity, configurations: usize) -> RemovedByRule {
    let (config, example) = (Config::new(), String::new());
    RemovedByRule { rule, condition: "", severity, configurations, config, example, is_sole_rejection: true }
}

#[test]
fn late_rules_that_remove_the_defaults_or_more_than_a_tenth_are_tested() {
    let rules = vec![
        removed("R2", Severity::Configuration, 60),
        removed("R12c", Severity::Startup, 50),
        removed("R6", Severity::Startup, 40),
        removed("R15a", Severity::Startup, 11),
        removed("R8b", Severity::Startup, 10),
        removed("R7", Severity::Startup, 2),
    ];
    let removal = SpaceRemoval { configurations: 100, complete: true, remaining: 5, risky: 0, rules };
    let finding = |rule, severity| Finding { rule, severity, message: String::new(), changes: vec![] };
    let defaults = [finding("R2", Severity::Configuration), finding("R7", Severity::Startup)];
    let testable = testable_rules(VLLM_RULES, &removal, &defaults);
    let names: Vec<_> = testable.iter().map(|rule| rule.rule).collect();
    assert_eq!(names, ["R7", "R6", "R15a"]);
    assert_eq!(testable[0].to_string(), "removes the engine's defaults and 2.0 % of the space");
    assert_eq!(testable[1].to_string(), "removes 40.0 % of the space");
}

#[test]
fn a_rule_predicts_failures_of_its_subject() {
    let predicts = |rule: &str, kind| predicts_failure(VLLM_RULES.subject(rule), kind);
    assert!(predicts("R6", FailureKind::NoKvMemory) && !predicts("R6", FailureKind::StartupExit));
    assert!(predicts("R5b", FailureKind::DeviceBusy) && !predicts("R6", FailureKind::DeviceBusy));
    assert!(predicts("R15f", FailureKind::Unsupported) && !predicts("R15f", FailureKind::OutOfMemory));
    for rule in VLLM_RULES.all().filter(|rule| rule.severity == Severity::Startup) {
        assert!(!predicts(rule.id, FailureKind::Killed) && !predicts(rule.id, FailureKind::Disk), "{}", rule.id);
    }
}
