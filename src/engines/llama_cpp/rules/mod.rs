//! The rules of llama.cpp's server, one file for each family of constraints.

mod arguments;
mod batch;
mod cache;
mod context;
mod host;

use super::resolve::{constant_default, resolve_config};
use crate::config::{Config, ResolvedConfig, Value};
use crate::facts::Device;
use crate::memory::{LaunchTarget, MemoryLaunch, MemoryPrediction};
use crate::rule::{Candidate, EngineRules, Facts, ReleaseRange, Rule, RuleSubject, Severity, Violation};
use crate::space::Space;

/// The rules of llama.cpp's server.
pub(super) static LLAMA_CPP_RULES: &dyn EngineRules = &LlamaCppRules;

#[derive(Debug)]
struct LlamaCppRules;

/// All families, in the order of the server's own checks.
const ALL: &[&[Rule]] = &[arguments::RULES, cache::RULES, context::RULES, batch::RULES, host::RULES];

impl EngineRules for LlamaCppRules {
    fn families(&self) -> &'static [&'static [Rule]] {
        ALL
    }

    fn subject(&self, rule: &str) -> RuleSubject {
        if rule == host::MEMORY { RuleSubject::HostMemory } else { RuleSubject::Other }
    }

    fn resolve(&self, config: &Config, facts: &Facts<'_>) -> ResolvedConfig {
        resolve_config(config, facts.model)
    }

    fn default_value(&self, flag: &str, _: &Config, facts: &Facts<'_>) -> Option<Value> {
        match flag {
            // The server counts the cores.
            "threads" | "threads-batch" | "spec-draft-threads" => {
                facts.host.cores.map(|cores| Value::Int(i64::from(cores)))
            }
            _ => constant_default(flag),
        }
    }

    fn devices_needed(&self, _: &Config) -> u64 {
        1
    }

    fn memory_launch(&self, _: &Config, facts: &Facts<'_>, resolved: &ResolvedConfig) -> MemoryLaunch {
        let target = LaunchTarget { version: facts.version, cpu: facts.device == Device::Cpu, device_memory: None };
        MemoryLaunch::from_resolved(target, *resolved)
    }

    /// Returns `None`: the memory model describes engines that give the rest of a device's memory to the cache.
    fn predict_memory(&self, _: &Config, _: &Facts<'_>) -> Option<MemoryPrediction> {
        None
    }

    /// Returns the same key for all configurations, because nothing is compiled.
    fn compile_key(&self, _: &Config, _: &Facts<'_>, _: &ResolvedConfig) -> String {
        String::new()
    }

    fn list_unchecked(&self, _: &Space, facts: &Facts<'_>) -> Vec<String> {
        let mut unchecked = Vec::new();
        if facts.host.cores.is_none() {
            unchecked.push("the threads are not compared with the cores, whose number is unknown".to_owned());
        }
        if facts.host.memory.is_none() {
            unchecked.push("the size of the cache is not compared with the host's memory, which is unknown".to_owned());
        }
        unchecked
    }
}

/// Returns a rule of every build.
const fn rule(
    id: &'static str,
    condition: &'static str,
    severity: Severity,
    check: fn(&Candidate<'_>) -> Option<Violation>,
) -> Rule {
    Rule { id, condition, releases: ReleaseRange::ALL, severity, check }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::engines::llama_cpp::{KNOWN_BUILD, KNOWN_FLAGS};
    use crate::facts::{ContextLengths, HostLimits, ModelShape};
    use crate::rule::check;

    /// Returns SmolLM2-135M: 30 layers, 3 key/value heads of 64 elements, 8192 tokens.
    pub(in crate::engines::llama_cpp) fn small_model() -> ModelShape {
        let shape = ModelShape::from_json(&serde_json::json!({
            "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
            "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49_152
        }));
        ModelShape { lengths: ContextLengths::of(8192), checkpoint_bytes: Some(98_362_432), ..shape }
    }

    /// Returns the identifier and the severity of the worst finding on a host with two cores and 8 GiB.
    pub(super) fn worst(line: &str, longest_request: Option<u64>) -> Option<(&'static str, Severity)> {
        let model = small_model();
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let config = KNOWN_FLAGS.for_version(KNOWN_BUILD).parse(&words).unwrap();
        let host = HostLimits { memory: Some(8 << 30), cores: Some(2), ..HostLimits::default() };
        let facts = Facts { longest_request, host, ..Facts::new(LLAMA_CPP_RULES, &model, KNOWN_BUILD, Device::Cpu) };
        check(&config, &facts).first().map(|finding| (finding.rule, finding.severity))
    }

    #[test]
    fn rules_have_names_of_their_own() {
        let names: Vec<_> = LLAMA_CPP_RULES.all().map(|rule| rule.id).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        assert_eq!(worst("", None), None);
    }
}
