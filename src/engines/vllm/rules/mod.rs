//! The rules of vLLM, one file for each family of constraints.

mod arguments;
mod attention;
mod block;
mod cpu;
mod data_parallel;
mod device;
mod executor;
mod expert_parallel;
mod feature;
mod frontend;
mod graph_memory;
mod graphs;
mod host;
mod length;
mod loading;
mod lora;
mod memory;
mod multi_step;
mod multimodal;
mod offload;
mod parallel;
mod pipeline;
mod precision;
mod prefill;
mod quantization;
mod scheduler;
mod speculative;
mod subject;
mod unchecked;
mod v0;
#[cfg(test)]
mod tests;

use super::compile_key::compile_key;
use super::defaults::{constant_default, resolve_config};
use super::twin::schedules_ahead;
use crate::config::{Config, ResolvedConfig, Value};
use crate::facts::{Device, EngineVersion};
use crate::memory::{MemoryLaunch, MemoryPrediction};
use crate::rule::{Candidate, EngineRules, Facts, ReleaseRange, Rule, RuleSubject, Severity, Violation};
use crate::space::Space;

pub(super) use length::lengths;
pub use loading::optional_packages;
pub use memory::launch as memory_launch;

/// The rules of vLLM.
pub static VLLM_RULES: &dyn EngineRules = &VllmRules;

#[derive(Debug)]
struct VllmRules;

impl EngineRules for VllmRules {
    fn families(&self) -> &'static [&'static [Rule]] {
        ALL
    }

    fn subject(&self, rule: &str) -> RuleSubject {
        subject::subject(rule)
    }

    fn resolve(&self, config: &Config, facts: &Facts<'_>) -> ResolvedConfig {
        resolve_config(config, facts)
    }

    fn default_value(&self, flag: &str, config: &Config, facts: &Facts<'_>) -> Option<Value> {
        match flag {
            "async-scheduling" => Some(schedules_ahead(config, facts.version, facts.device == Device::Cpu).into()),
            // `PrefixCachingHashAlgo` in `vllm/config/cache.py`.
            "prefix-caching-hash-algo" if facts.version < EngineVersion::new(0, 10, 2) => Some("builtin".into()),
            "prefix-caching-hash-algo" => Some("sha256".into()),
            _ => constant_default(flag),
        }
    }

    fn devices_needed(&self, config: &Config) -> u64 {
        device::devices_needed(config)
    }

    fn memory_launch(&self, config: &Config, facts: &Facts<'_>, resolved: &ResolvedConfig) -> MemoryLaunch {
        memory_launch(config, facts, resolved)
    }

    fn predict_memory(&self, config: &Config, facts: &Facts<'_>) -> Option<MemoryPrediction> {
        memory::predict(config, facts, &resolve_config(config, facts))
    }

    fn compile_key(&self, config: &Config, facts: &Facts<'_>, resolved: &ResolvedConfig) -> String {
        compile_key(config, facts, resolved)
    }

    fn list_unchecked(&self, space: &Space, facts: &Facts<'_>) -> Vec<String> {
        unchecked::list_unchecked(space, facts)
    }
}

/// Returns a rule for a refusal by the configuration classes, from 0.32 on.
const fn refusal(id: &'static str, holds: &'static str, check: fn(&Candidate<'_>) -> Option<Violation>) -> Rule {
    Rule {
        id,
        condition: holds,
        releases: ReleaseRange::starting_at(EngineVersion::V0_32),
        severity: Severity::Configuration,
        check,
    }
}

/// Returns a rule for a failure of the workers, from 0.32 on.
const fn late_failure(id: &'static str, holds: &'static str, check: fn(&Candidate<'_>) -> Option<Violation>) -> Rule {
    Rule {
        id,
        condition: holds,
        releases: ReleaseRange::starting_at(EngineVersion::V0_32),
        severity: Severity::Startup,
        check,
    }
}

/// All families, in the order of the engine's own checks.
const ALL: &[&[Rule]] = &[
    arguments::RULES,
    frontend::RULES,
    v0::RULES,
    length::RULES,
    quantization::RULES,
    feature::RULES,
    multimodal::RULES,
    data_parallel::RULES,
    expert_parallel::RULES,
    executor::RULES,
    speculative::RULES,
    scheduler::RULES,
    prefill::RULES,
    multi_step::RULES,
    lora::RULES,
    graphs::RULES,
    offload::RULES,
    parallel::RULES,
    device::RULES,
    pipeline::RULES,
    host::RULES,
    precision::RULES,
    attention::RULES,
    block::RULES,
    memory::RULES,
    cpu::RULES,
    loading::RULES,
    graph_memory::RULES,
];
