//! The rules, one file for each family of constraints.

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
mod v0;

use super::{Candidate, Facts, Releases, Rule, Severity, Violation, effective};
use crate::facts::EngineVersion;

pub use device::devices_needed;
pub(super) use length::lengths;
pub use loading::optional_packages;
pub use memory::{launch as memory_launch, predict_memory};

/// What the configuration classes refuse, as they are from 0.32 on.
const fn refusal(id: &'static str, holds: &'static str, check: fn(&Candidate<'_>) -> Option<Violation>) -> Rule {
    Rule { id, holds, releases: Releases::from(EngineVersion::V0_32), severity: Severity::Configuration, check }
}

/// What the workers fail with, as they are from 0.32 on.
const fn late_failure(id: &'static str, holds: &'static str, check: fn(&Candidate<'_>) -> Option<Violation>) -> Rule {
    Rule { id, holds, releases: Releases::from(EngineVersion::V0_32), severity: Severity::Late, check }
}

/// In the order in which the engine would notice.
pub(super) const ALL: &[&[Rule]] = &[
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
