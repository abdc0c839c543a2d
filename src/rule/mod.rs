//! What cannot work here: pure checks of a configuration against the model, the engine's release and the device.
//!
//! A rule answers before anything is launched, with the numbers that decide and in the engine's own words where the
//! engine has any. Each family of rules is one file.

mod arguments;
mod block;
mod effective;
mod length;
mod memory;
mod parallel;
mod scheduler;

use std::collections::BTreeMap;

use crate::config::Config;
use crate::facts::{Device, EngineVersion, ModelShape};

pub use effective::Effective;

/// What no configuration changes.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    pub model: &'a ModelShape,
    pub version: EngineVersion,
    pub device: Device,
    /// Environment variables of the launch.
    pub env: &'a BTreeMap<String, String>,
    /// The longest prompt plus output that the workload asks for, in tokens.
    pub longest_request: Option<u64>,
}

/// A configuration with everything that a rule looks at.
#[derive(Debug)]
pub struct Candidate<'a> {
    pub config: &'a Config,
    pub facts: &'a Facts<'a>,
    pub effective: Effective,
}

/// When and how the engine would object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Starts and serves, but slower or other than asked.
    Degraded,
    /// Would fail while it serves.
    Runtime,
    /// Would fail after loading, in the workers.
    Late,
    /// The configuration would be refused.
    Configuration,
    /// The argument parser would refuse it.
    Arguments,
}

impl Severity {
    /// Whether a launch would be wasted.
    #[must_use]
    pub fn rejects(self) -> bool {
        self > Self::Degraded
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub rule: &'static str,
    pub severity: Severity,
    pub message: String,
}

/// One check. `id` follows the numbering of the constraints' families, so that a stored rejection can be looked up.
#[derive(Debug)]
struct Rule {
    id: &'static str,
    check: fn(&Candidate<'_>) -> Option<(Severity, String)>,
}

/// In the order in which the engine would notice.
const FAMILIES: [&[Rule]; 6] =
    [arguments::RULES, scheduler::RULES, length::RULES, parallel::RULES, block::RULES, memory::RULES];

/// Everything that the rules have to say of a configuration, the most severe first.
#[must_use]
pub fn check(config: &Config, facts: &Facts<'_>) -> Vec<Finding> {
    let candidate = Candidate { config, facts, effective: Effective::resolve(config, facts) };
    let mut findings: Vec<_> = FAMILIES
        .iter()
        .flat_map(|rules| rules.iter())
        .filter_map(|rule| {
            let (severity, message) = (rule.check)(&candidate)?;
            Some(Finding { rule: rule.id, severity, message })
        })
        .collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

/// The reason why a launch would be wasted, if there is one.
#[must_use]
pub fn rejection(config: &Config, facts: &Facts<'_>) -> Option<Finding> {
    check(config, facts).into_iter().find(|finding| finding.severity.rejects())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The most severe finding for arguments of a release, on a model with 4 layers, 4 heads, 2 KV heads, length 4096.
    pub(crate) fn verdict(version: &str, device: Device, line: &str) -> Option<(&'static str, bool, String)> {
        let model = ModelShape::from_json(&serde_json::json!({
            "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 4096, "vocab_size": 4096, "intermediate_size": 512
        }));
        let version: EngineVersion = version.parse().unwrap();
        let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let config = crate::flag::FlagTable::for_version(version).parse(&arguments).unwrap();
        let facts = Facts { model: &model, version, device, env: &BTreeMap::new(), longest_request: None };
        let finding = check(&config, &facts).into_iter().next()?;
        Some((finding.rule, finding.severity.rejects(), finding.message))
    }

    pub(crate) fn rule(version: &str, line: &str) -> Option<&'static str> {
        verdict(version, Device::Cuda { memory: 80 << 30 }, line).filter(|(_, rejects, _)| *rejects).map(|(id, ..)| id)
    }

    #[test]
    fn identifiers_are_unique() {
        let mut ids: Vec<_> = FAMILIES.iter().flat_map(|rules| rules.iter().map(|rule| rule.id)).collect();
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn defaults_of_every_release_are_accepted() {
        for version in ["0.6.3", "0.8.5", "0.10.2", "0.12.0", "0.20.2", "0.32.0", "0.33.0"] {
            for memory in [0, 24 << 30, 80 << 30, 180 << 30] {
                assert_eq!(verdict(version, Device::Cuda { memory }, ""), None, "{version} {memory}");
            }
            assert_eq!(verdict(version, Device::Cpu, ""), None, "{version} on a CPU");
        }
    }
}
