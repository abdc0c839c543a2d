//! Tests of vLLM's rules as a whole and of the rule module's own functions.

mod narrow;
mod possible;
mod properties;
mod removal;
mod testable;
mod unchecked;

use super::VLLM_RULES;
use crate::config::Config;
use crate::facts::{Device, EngineVersion, ModelShape};
use crate::rule::{Facts, check};

/// Returns the result of `look` for arguments of a release, on a model with 4 layers, 4 heads, 2 KV heads, length
/// 4096.
pub(crate) fn with_facts<T>(
    version: &str,
    device: Device,
    line: &str,
    look: impl FnOnce(&Config, &Facts<'_>) -> T,
) -> T {
    let model = ModelShape::from_json(&serde_json::json!({
        "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 4096, "vocab_size": 4096, "intermediate_size": 512
    }));
    let version: EngineVersion = version.parse().unwrap();
    let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    let config = crate::engines::vllm::FLAGS.for_version(version).parse(&arguments).unwrap();
    look(&config, &Facts::new(VLLM_RULES, &model, version, device))
}

/// Returns the most severe finding.
pub(crate) fn verdict(version: &str, device: Device, line: &str) -> Option<(&'static str, bool, String)> {
    let finding = with_facts(version, device, line, check).into_iter().next()?;
    Some((finding.rule, finding.severity.rejects(), finding.message))
}

pub(crate) fn rule(version: &str, line: &str) -> Option<&'static str> {
    verdict(version, Device::gpu_of(80 << 30), line).filter(|(_, rejects, _)| *rejects).map(|(id, ..)| id)
}

/// Returns the rejecting rule for arguments of 0.32.0 on a CPU.
pub(crate) fn on_cpu(line: &str) -> Option<&'static str> {
    verdict("0.32.0", Device::Cpu, line).filter(|(_, rejects, _)| *rejects).map(|(id, ..)| id)
}

#[test]
fn one_release_has_an_identifier_only_once() {
    for (index, rule) in VLLM_RULES.all().enumerate() {
        for other in VLLM_RULES.all().skip(index + 1).filter(|other| other.id == rule.id) {
            let apart = other.releases.end <= rule.releases.first || rule.releases.end <= other.releases.first;
            assert!(apart, "{} {:?} {:?}", rule.id, rule.releases, other.releases);
            assert_eq!(rule.condition, other.condition, "{} means two things", rule.id);
        }
    }
}

#[test]
fn defaults_of_every_release_are_accepted() {
    for version in ["0.6.3", "0.8.5", "0.10.2", "0.12.0", "0.20.2", "0.32.0", "0.33.0"] {
        for memory in [24 << 30, 80 << 30, 180 << 30] {
            assert_eq!(verdict(version, Device::gpu_of(memory), ""), None, "{version} {memory}");
        }
        assert_eq!(verdict(version, Device::UNKNOWN_GPU, ""), None, "{version}");
        assert_eq!(verdict(version, Device::Cpu, ""), None, "{version} on a CPU");
    }
}
