//! Rules about pipeline stages and about asynchronous scheduling.
//!
//! Sources: `get_pp_indices` in `vllm/distributed/utils.py`; `vllm/config/vllm.py` of 0.12, 0.20 and 0.32.

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::engines::vllm::defaults::engine::drafting_method;
use crate::facts::EngineVersion;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R9",
        condition: "every pipeline stage has at least one layer",
        releases: ReleaseRange::ALL,
        severity: Severity::Startup,
        check: a_layer_for_each_stage,
    },
    Rule {
        id: "R9a",
        condition: "VLLM_PP_LAYER_PARTITION assigns every layer to a stage",
        releases: ReleaseRange::ALL,
        severity: Severity::Startup,
        check: partition_matches,
    },
    Rule {
        id: "R9b",
        condition: "asynchronous scheduling excludes pipeline parallelism",
        releases: ReleaseRange::between(EngineVersion::V0_10, EngineVersion::V0_20),
        severity: Severity::Configuration,
        check: async_without_stages,
    },
    Rule {
        id: "R9c",
        condition: "asynchronous scheduling needs an executor that supports it",
        releases: ReleaseRange::between(EngineVersion::V0_10, EngineVersion::V0_32),
        severity: Severity::Configuration,
        check: async_with_its_executor,
    },
    Rule {
        id: "R9d",
        condition: "asynchronous scheduling excludes speculative methods that it cannot overlap",
        releases: ReleaseRange::between(EngineVersion::V0_10, EngineVersion::V0_20),
        severity: Severity::Configuration,
        check: async_without_drafting,
    },
];

fn a_layer_for_each_stage(candidate: &Candidate<'_>) -> Option<Violation> {
    let (stages, layers) = (candidate.effective.pipeline_parallel_size, candidate.facts.model.layers?);
    (stages > layers).then(|| {
        let message = format!("{stages} pipeline stages cannot share {layers} layers: some would have none");
        Violation::new(message).set("pipeline-parallel-size", i64::try_from(layers.max(1)).unwrap_or(1))
    })
}

fn partition_matches(candidate: &Candidate<'_>) -> Option<Violation> {
    let text = candidate.facts.env.get("VLLM_PP_LAYER_PARTITION")?;
    let stages = candidate.effective.pipeline_parallel_size;
    let Ok(parts) = text.split(',').map(|part| part.trim().parse::<u64>()).collect::<Result<Vec<_>, _>>() else {
        return Some(Violation::new(format!("Invalid partition string: {text}")));
    };
    if u64::try_from(parts.len()) != Ok(stages) {
        let message = format!("len(partitions)={} does not match pp_size={stages}.", parts.len());
        let size = i64::try_from(parts.len()).unwrap_or(1);
        return Some(Violation::new(message).set("pipeline-parallel-size", size));
    }
    let (sum, layers) = (parts.iter().copied().fold(0_u64, u64::saturating_add), candidate.facts.model.layers?);
    (sum != layers).then(|| Violation::new(format!("sum(partitions)={sum} does not match num_hidden_layers={layers}.")))
}

fn is_async(candidate: &Candidate<'_>) -> bool {
    candidate.config.get_bool("async-scheduling") == Some(true)
}

fn async_without_stages(candidate: &Candidate<'_>) -> Option<Violation> {
    let stages = candidate.effective.pipeline_parallel_size;
    (is_async(candidate) && stages > 1).then(|| {
        let message = if candidate.facts.version < EngineVersion::V0_12 {
            format!("Async scheduling is not supported with pipeline-parallel-size > 1: it is {stages}.")
        } else {
            format!("Async scheduling is not yet compatible with pipeline_parallel_size > 1: it is {stages}.")
        };
        Violation::new(message).unset("async-scheduling")
    })
}

fn async_with_its_executor(candidate: &Candidate<'_>) -> Option<Violation> {
    let executor = candidate.config.get_str("distributed-executor-backend").filter(|_| is_async(candidate))?;
    // On a CPU the engine replaces the executor or turns asynchronous scheduling off.
    candidate.facts.device.gpu()?;
    let (refused, message) = match candidate.facts.version {
        version if version < EngineVersion::V0_12 => {
            (executor == "uni", "Async scheduling is not supported with uni-process backend.".to_owned())
        }
        version if version < EngineVersion::V0_20 => (
            executor == "ray",
            format!(
                "Currently, async scheduling only supports `mp`, `uni`, or `external_launcher` distributed executor \
                 backend, but you chose `{executor}`."
            ),
        ),
        _ => (executor == "ray", format!("`{executor}` does not support async scheduling yet.")),
    };
    refused.then(|| Violation::new(message).unset("async-scheduling"))
}

/// Methods of speculative decoding that 0.12 refuses with asynchronous scheduling: all except EAGLE and MTP.
const NOT_OVERLAPPED: [&str; 5] = ["draft_model", "medusa", "mlp_speculator", "ngram", "suffix"];

fn async_without_drafting(candidate: &Candidate<'_>) -> Option<Violation> {
    let drafting = candidate.config.get_str("speculative-config").filter(|_| is_async(candidate))?;
    if candidate.facts.version < EngineVersion::V0_12 {
        let message = "Currently, speculative decoding is not supported with async scheduling.";
        return Some(Violation::new(message).unset("async-scheduling"));
    }
    let method = drafting_method(drafting).filter(|method| NOT_OVERLAPPED.contains(&method.as_str()))?;
    let message = format!(
        "Currently, async scheduling is only supported with EAGLE/MTP kind of speculative decoding, not with {method}"
    );
    Some(Violation::new(message).unset("async-scheduling"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::Config;
    use crate::engines::vllm::rules::tests::{rule, verdict};
    use crate::facts::{Device, ModelShape};
    use crate::rule::{Facts, check};

    #[test]
    fn stages_need_layers() {
        for version in ["0.6.3", "0.12.0", "0.32.0"] {
            assert_eq!(rule(version, "--pipeline-parallel-size 4"), None);
            assert_eq!(rule(version, "--pipeline-parallel-size 5"), Some("R9"));
        }
    }

    #[test]
    fn a_partition_has_a_part_for_each_stage_and_every_layer() {
        let model = ModelShape::from_json(&serde_json::json!({"num_hidden_layers": 8}));
        let message = |partition: &str, stages: i64| {
            let env = BTreeMap::from([("VLLM_PP_LAYER_PARTITION".to_owned(), partition.to_owned())]);
            let facts = Facts {
                env: &env,
                ..Facts::new(crate::engines::vllm::VLLM_RULES, &model, EngineVersion::V0_20, Device::UNKNOWN_GPU)
            };
            let findings = check(&Config::new().with("pipeline-parallel-size", stages), &facts);
            findings.into_iter().next().map(|finding| finding.message)
        };
        assert_eq!(message("5,3", 2), None);
        assert_eq!(message("5,3", 1).unwrap(), "len(partitions)=2 does not match pp_size=1.");
        assert_eq!(message("5,4", 2).unwrap(), "sum(partitions)=9 does not match num_hidden_layers=8.");
        assert_eq!(message("5,x", 2).unwrap(), "Invalid partition string: 5,x");
    }

    #[test]
    fn asynchronous_scheduling_had_limits() {
        let staged = "--async-scheduling --pipeline-parallel-size 2";
        let id = |version: &str, line: &str| rule(version, line);
        assert_eq!(
            (id("0.10.2", staged), id("0.12.0", staged), id("0.20.2", staged)),
            (Some("R9b"), Some("R9b"), None)
        );
        assert_eq!(id("0.12.0", "--async-scheduling"), None);
        let with = |name: &str| format!("--async-scheduling --distributed-executor-backend {name}");
        assert_eq!((id("0.10.2", &with("uni")), id("0.12.0", &with("uni"))), (Some("R9c"), None));
        assert_eq!((id("0.10.2", &with("ray")), id("0.12.0", &with("ray"))), (None, Some("R9c")));
        assert_eq!(id("0.20.2", &with("ray")), Some("R9c"));
        assert_eq!(verdict("0.20.2", Device::Cpu, &with("ray")), None);
    }

    #[test]
    fn asynchronous_scheduling_overlaps_only_some_drafting() {
        let with = |method: &str| format!("--async-scheduling --speculative-config {{\"method\":\"{method}\"}}");
        let id = |version: &str, method: &str| rule(version, &with(method));
        assert_eq!((id("0.10.2", "eagle"), id("0.12.0", "eagle")), (Some("R9d"), None));
        assert_eq!((id("0.12.0", "ngram"), id("0.20.2", "ngram")), (Some("R9d"), None));
        assert_eq!(rule("0.12.0", "--speculative-config {\"method\":\"ngram\"}"), None);
    }
}
