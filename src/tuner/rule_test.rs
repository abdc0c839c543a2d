//! Rules that only a start can refute: the choice of the next one to test, and the verdicts that a database holds.
//!
//! The installed engine's preflight cannot contradict such a rule, and the rule's region is never proposed. A wrong
//! rule would therefore hide good configurations for ever.

use super::memory::start_key;
use crate::config::Config;
use crate::execution::ExecutionEnvironment;
use crate::job::{Job, JobSearch};
use crate::rule::{self, EngineRules, Facts, predicts_failure};
use crate::store::{FailedStart, RuleTest, RuleTestKey, RuleVerdict, StartKey, Store, StoreError};
use crate::trial::{FailureKind, Outcome, Trial};

/// The most launches of a study that test rules.
pub(super) const MAX_RULE_TESTS: usize = 3;

/// The most tests of a rule, if they are inconclusive.
const MAX_ATTEMPTS: usize = 2;

/// A launch that would test a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedRuleTest {
    pub rule: &'static str,
    pub removes_defaults: bool,
    /// The part that the rule removes, for example `removes 30.0 % of the space`.
    pub reason: String,
    pub config: Config,
    /// The rule's reason to reject it.
    pub message: String,
}

/// The stored tests and failed starts for one engine, release and device class.
#[derive(Clone, Debug, Default)]
pub struct RuleVerdicts {
    engine: Option<&'static dyn EngineRules>,
    tests: Vec<RuleTest>,
    failed: Vec<FailedStart>,
}

/// Returns the scope of a verdict about a rule.
pub(super) fn rule_test_key(job: &Job, installed: &ExecutionEnvironment) -> RuleTestKey {
    let StartKey { engine, version, device, .. } = start_key(job, installed);
    RuleTestKey { engine, version, device }
}

impl RuleVerdicts {
    /// Reads the verdicts of a database.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn read(job: &Job, installed: &ExecutionEnvironment, store: &Store) -> Result<Self, StoreError> {
        let tests = store.rule_tests(&rule_test_key(job, installed)).await?;
        let failed = store.failed_starts(&start_key(job, installed)).await?;
        Ok(Self { engine: job.engine.engine.rules(), tests, failed })
    }

    /// Returns the engine's rule of this identifier; `None` if only another version of this program has it.
    pub(super) fn rule_id(&self, rule: &str) -> Option<&'static str> {
        self.engine?.all().map(|known| known.id).find(|known| *known == rule)
    }

    /// Derives the verdict from a launch that tested a rule.
    pub(super) fn conclude(&self, rule: &str, trial: &Trial) -> RuleVerdict {
        let served = trial.startup_s.is_some();
        let is_predicted = |kind| self.engine.is_some_and(|engine| predicts_failure(engine.subject(rule), kind));
        match &trial.outcome {
            Outcome::Measured(_) => RuleVerdict::Refuted,
            // The engine answered every request; only the load generator was too slow.
            Outcome::Failed(failure) if served && failure.kind == FailureKind::ClientBound => RuleVerdict::Refuted,
            Outcome::Failed(failure) if !served && is_predicted(failure.kind) => RuleVerdict::Confirmed,
            Outcome::Failed(_) | Outcome::Rejected(_) => RuleVerdict::Inconclusive,
        }
    }

    /// Returns the refuted rules, each with the first test that refuted it.
    #[must_use]
    pub fn refuted(&self) -> Vec<(&'static str, &RuleTest)> {
        let mut refuted: Vec<(&'static str, &RuleTest)> = Vec::new();
        for test in self.tests.iter().filter(|test| test.verdict == Some(RuleVerdict::Refuted)) {
            if let Some(rule) = self.rule_id(&test.rule)
                && !refuted.iter().any(|(other, _)| *other == rule)
            {
                refuted.push((rule, test));
            }
        }
        refuted
    }

    /// Returns the rules to set aside.
    #[must_use]
    pub fn rules_to_set_aside(&self) -> Vec<&'static str> {
        self.refuted().into_iter().map(|(rule, _)| rule).collect()
    }

    /// Returns the rule test of a trial, if it is one.
    pub(super) fn of_trial(&self, study: &str, number: u32) -> Option<&RuleTest> {
        self.tests.iter().find(|test| test.study == study && test.number == number)
    }

    /// Returns the tests of a study that have no verdict yet.
    pub(super) fn open(&self, study: &str) -> impl Iterator<Item = &RuleTest> {
        self.tests.iter().filter(move |test| test.study == study && test.verdict.is_none())
    }

    /// Returns whether a rule needs no further test: a test confirmed or refuted it, `MAX_ATTEMPTS` tests were
    /// inconclusive, or an earlier start failed as predicted.
    pub(super) fn is_decided(&self, rule: &str, facts: &Facts<'_>) -> bool {
        let verdicts = || self.tests.iter().filter(|test| test.rule == rule).filter_map(|test| test.verdict);
        let is_clear = verdicts().any(|verdict| verdict != RuleVerdict::Inconclusive);
        is_clear || verdicts().count() >= MAX_ATTEMPTS || self.failed.iter().any(|start| confirms(rule, start, facts))
    }

    /// Returns the last trial of a study that tested a rule and has ended.
    pub(super) fn last_attempt(&self, study: &str, rule: &str) -> Option<u32> {
        let attempts = self.tests.iter().filter(|test| test.rule == rule && test.study == study);
        attempts.filter(|test| test.verdict.is_some()).map(|test| test.number).max()
    }

    /// Returns the launches that a study would test rules with, if it began now.
    #[must_use]
    pub fn planned(&self, search: &JobSearch<'_>, removal: &rule::SpaceRemoval) -> Vec<PlannedRuleTest> {
        let near = &search.space.fixed;
        let testable = search.testable_rules(removal).into_iter();
        let undecided = testable.filter(|testable| !self.is_decided(testable.rule, &search.facts));
        let planned = undecided.filter_map(|testable| {
            let (config, finding) = search.rule_test(testable.rule, near, |_| true)?;
            let (rule, removes_defaults) = (testable.rule, testable.removes_defaults);
            let (reason, message) = (testable.to_string(), finding.message);
            Some(PlannedRuleTest { rule, removes_defaults, reason, config, message })
        });
        planned.take(MAX_RULE_TESTS).collect()
    }
}

/// Returns whether the rule rejects the configuration of a start that failed as the rule predicts.
fn confirms(rule: &str, start: &FailedStart, facts: &Facts<'_>) -> bool {
    let facts = Facts { env: &start.env, ..*facts };
    let is_predicted = facts.engine.is_some_and(|engine| predicts_failure(engine.subject(rule), start.kind));
    is_predicted && rule::check(&start.config, &facts).iter().any(|finding| finding.rule == rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::VLLM_RULES;
    use crate::trial::{Failure, Measurement};

    #[test]
    fn a_server_refutes_a_failure_of_the_predicted_kind_confirms_and_any_other_decides_nothing() {
        let verdicts = RuleVerdicts { engine: Some(VLLM_RULES), ..RuleVerdicts::default() };
        let of = |startup_s, outcome| {
            verdicts.conclude("R6", &Trial { startup_s, ..Trial::example(1, "rule_test", outcome) })
        };
        let failed = |kind| Outcome::Failed(Failure { kind, message: String::new() });
        assert_eq!(of(Some(1.0), Outcome::Measured(Measurement::default())), RuleVerdict::Refuted);
        assert_eq!(of(Some(1.0), failed(FailureKind::ClientBound)), RuleVerdict::Refuted);
        assert_eq!(of(None, failed(FailureKind::NoKvMemory)), RuleVerdict::Confirmed);
        assert_eq!(of(None, failed(FailureKind::OutOfMemoryGraphs)), RuleVerdict::Confirmed);
        for kind in [FailureKind::DeviceLost, FailureKind::Killed, FailureKind::StartupExit, FailureKind::ClientBound] {
            assert_eq!(of(None, failed(kind)), RuleVerdict::Inconclusive, "{kind}");
        }
        assert_eq!(of(Some(1.0), failed(FailureKind::Crash)), RuleVerdict::Inconclusive);
    }

    #[test]
    fn a_rule_is_tested_again_once_if_a_test_had_no_verdict() {
        let model = crate::facts::ModelShape::from_json(&serde_json::json!({}));
        let facts =
            Facts::new(VLLM_RULES, &model, crate::facts::EngineVersion::V0_32, crate::facts::Device::gpu_of(80 << 30));
        let test = |number, verdict| RuleTest {
            study: "s".to_owned(),
            number,
            rule: "R6".to_owned(),
            message: String::new(),
            verdict,
            failure: None,
        };
        let decided = |tests: Vec<RuleTest>| {
            RuleVerdicts { engine: Some(VLLM_RULES), tests, failed: vec![] }.is_decided("R6", &facts)
        };
        let unclear = |number| test(number, Some(RuleVerdict::Inconclusive));
        assert!(!decided(vec![]) && !decided(vec![unclear(1)]) && !decided(vec![unclear(1), test(2, None)]));
        assert!(decided(vec![unclear(1), unclear(2)]));
        assert!(decided(vec![test(1, Some(RuleVerdict::Confirmed))]));
        assert!(decided(vec![test(1, Some(RuleVerdict::Refuted))]));
    }
}
