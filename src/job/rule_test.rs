//! The configuration whose launch tests a rule: one that only this rule rejects.

use super::JobSearch;
use super::defaults::resolve;
use crate::config::{Config, Value};
use crate::memory::MemoryPrediction;
use crate::rule::{self, Finding, RISKY_PROBABILITY, RuleSubject, SpaceRemoval, TestableRule};

impl JobSearch<'_> {
    /// Returns the rules that a launch should test. `removal` is the part of the space that the rules remove.
    #[must_use]
    pub fn testable_rules(&self, removal: &SpaceRemoval) -> Vec<TestableRule> {
        let Some(engine) = self.facts.engine else { return Vec::new() };
        rule::testable_rules(engine, removal, &self.findings(&self.job.search_space().fixed))
    }

    /// Returns the configuration that tests a rule, and the rule's finding about it. `None` if other rules, or
    /// `accepts`, refuse every configuration that this rule rejects.
    ///
    /// A rule of the memory model is tested at its least certain rejection. Any other rule is tested close to `near`, a
    /// configuration that should work: a failure is then likely to be due to the rule.
    #[must_use]
    pub fn rule_test(&self, rule: &str, near: &Config, accepts: impl Fn(&Config) -> bool) -> Option<(Config, Finding)> {
        let space = self.job.search_space();
        let defaults = resolve(space, &self.arguments, &self.facts);
        let (configs, _) = rule::configurations(space);
        let candidates = [near.clone(), space.fixed.clone()].into_iter().chain(configs);
        let mut best: Option<([f64; 3], Config, Finding)> = None;
        for config in candidates {
            let mut rejecting = self.findings(&config);
            rejecting.retain(|finding| finding.severity.rejects());
            let [finding] = rejecting.as_slice() else { continue };
            if finding.rule != rule || !accepts(&config) {
                continue;
            }
            let whole = |config: &Config| defaults.merged(config);
            let cost = self.test_penalties(rule, &config, distance(&whole(&config), &whole(near)));
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, config, finding.clone()));
            }
        }
        best.map(|(_, config, finding)| (config, finding))
    }

    /// Returns penalties of a configuration as a test of a rule, the most important first.
    fn test_penalties(&self, rule: &str, config: &Config, distance: f64) -> [f64; 3] {
        let memory = self.predict_memory(config);
        let fails = memory.as_ref().map_or(0.0, MemoryPrediction::failure_probability);
        if self.facts.engine.is_some_and(|engine| engine.subject(rule) == RuleSubject::Memory) {
            return [fails, memory.map_or(0.0, |memory| memory.shortage_gib()), distance];
        }
        let risk = if fails >= RISKY_PROBABILITY { fails } else { 0.0 };
        [risk, distance, 0.0]
    }
}

/// Returns the number of flags that differ, plus the relative differences of the numbers among them.
fn distance(one: &Config, other: &Config) -> f64 {
    let names = one.iter().chain(other.iter()).map(|(name, _)| name).collect::<std::collections::BTreeSet<_>>();
    let differing = names.into_iter().map(|name| (one.get(name), other.get(name))).filter(|(one, other)| one != other);
    differing.map(|(one, other)| 1.0 + relative_difference(one, other)).sum()
}

/// Returns a number from 0 to 1; 1 if the two are not both numbers.
fn relative_difference(one: Option<&Value>, other: Option<&Value>) -> f64 {
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    match (number(one), number(other)) {
        (Some(one), Some(other)) if one.abs() + other.abs() > 0.0 => (one - other).abs() / (one.abs() + other.abs()),
        (Some(_), Some(_)) => 0.0,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Device, EngineVersion, HostLimits};
    use crate::job::Job;

    fn job(space: &str) -> (tempfile::TempDir, Job) {
        let directory = tempfile::tempdir().unwrap();
        let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/qwen3-8b");
        let text = format!(
            "study = {{ name = \"t\" }}\nbudget = {{ trials = 4 }}\nengine = {{ kind = \"sim\" }}\nmodel = {{ path = {:?} }}\n\
             workload = {{ kind = \"random\", input_len = 32, output_len = 8 }}\n\
             load = {{ concurrency = 8, requests = 16 }}\n\
             objective = {{ maximize = \"output_throughput\" }}\n[space]\n{space}",
            model.display().to_string()
        );
        let file = directory.path().join("study.toml");
        std::fs::write(&file, text).unwrap();
        let job = Job::read(&file).unwrap();
        (directory, job)
    }

    fn search(job: &Job, gib: u64) -> JobSearch<'_> {
        job.search(EngineVersion::V0_32, Device::gpu_of(gib << 30), HostLimits::default())
    }

    #[test]
    fn a_memory_rule_is_tested_at_its_least_certain_configuration() {
        // Weights of 15.3 GiB.
        let (_directory, job) = job("fixed = { max-model-len = 2048 }\n\
             parameters.gpu-memory-utilization = { kind = \"categorical\", choices = [0.2, 0.5, 0.6, 0.95] }\n");
        let search = search(&job, 24);
        let removal = search.removal();
        let testable = search.testable_rules(&removal);
        assert_eq!(testable.iter().map(|rule| rule.rule).collect::<Vec<_>>(), ["R7"]);
        assert!(!testable[0].removes_defaults && testable[0].removed_share > 0.7);
        let (config, finding) = search.rule_test("R7", &job.search_space().fixed, |_| true).unwrap();
        assert_eq!((config.get_f64("gpu-memory-utilization"), finding.rule), (Some(0.6), "R7"));
        let other = search.rule_test("R7", &config, |other| *other != config).unwrap().0;
        assert_eq!(other.get_f64("gpu-memory-utilization"), Some(0.5));
        assert_eq!(search.rule_test("R6", &config, |_| true), None);
    }

    #[test]
    fn other_rules_are_tested_near_the_best_configuration_and_alone() {
        let (_directory, job) = job("fixed = { max-model-len = 2048 }\n\
             parameters.block-size = { kind = \"categorical\", choices = [8, 16, 24, 32] }\n\
             parameters.max-num-seqs = { kind = \"categorical\", choices = [64, 128, 4096] }\n\
             parameters.max-num-batched-tokens = { kind = \"categorical\", choices = [2048, 4096] }\n");
        let search = search(&job, 80);
        let removal = search.removal();
        let late = search.testable_rules(&removal);
        assert_eq!(late.iter().map(|rule| rule.rule).collect::<Vec<_>>(), ["R15a"]);
        let near = Config::new()
            .with("max-model-len", 2048_i64)
            .with("block-size", 32_i64)
            .with("max-num-seqs", 4096_i64)
            .with("max-num-batched-tokens", 4096_i64);
        let (config, _) = search.rule_test("R15a", &near, |_| true).unwrap();
        assert_eq!(config, near.clone().with("block-size", 24_i64));
        let small = near.with("max-num-batched-tokens", 2048_i64);
        let (config, _) = search.rule_test("R15a", &small, |_| true).unwrap();
        assert_ne!(
            (config.get_i64("max-num-seqs"), config.get_i64("max-num-batched-tokens")),
            (Some(4096), Some(2048)),
            "another rule rejects that"
        );
    }
}
