//! The number of workers, checked against the devices that the engine can see.
//!
//! Sources: `ParallelConfig` of each release; `executor/mp_distributed_executor.py` of 0.6.3.

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::config::Config;
use crate::facts::EngineVersion;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R10",
        condition: "every worker of an engine has a GPU",
        releases: ReleaseRange::ALL,
        severity: Severity::Configuration,
        check: a_gpu_for_each_worker,
    },
    Rule {
        id: "R10a",
        condition: "every worker of the explicitly chosen executor has a GPU",
        releases: ReleaseRange::ALL,
        severity: Severity::Startup,
        check: a_gpu_for_each_local_worker,
    },
    Rule {
        id: "R10b",
        condition: "every data-parallel engine has enough GPUs",
        releases: ReleaseRange::starting_at(EngineVersion::V0_8),
        severity: Severity::Startup,
        check: gpus_for_each_engine,
    },
    Rule {
        id: "R10c",
        condition: "the executor uni has one worker",
        releases: ReleaseRange::starting_at(EngineVersion::V0_8),
        severity: Severity::Startup,
        check: one_worker_in_one_process,
    },
];

fn executor<'a>(candidate: &Candidate<'a>) -> Option<&'a str> {
    candidate.config.get_str("distributed-executor-backend")
}

/// Returns the positive number that a flag sets, otherwise 1.
fn flag(config: &Config, name: &str) -> u64 {
    config.get_i64(name).and_then(|given| u64::try_from(given).ok()).unwrap_or(1).max(1)
}

/// Returns the number of workers of one engine. Each uses one GPU.
fn workers_of(config: &Config) -> u64 {
    let sizes = ["tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size"];
    sizes.iter().map(|name| flag(config, name)).fold(1, u64::saturating_mul)
}

/// Returns the number of data-parallel engines of a launch on this host.
fn engines_of(config: &Config) -> u64 {
    // With an explicit rank, the ranks are started one by one, possibly on other nodes.
    if config.get("data-parallel-size").is_none() || config.get("data-parallel-rank").is_some() {
        return 1;
    }
    let local = config.get("data-parallel-size-local").is_some();
    flag(config, if local { "data-parallel-size-local" } else { "data-parallel-size" })
}

fn workers(candidate: &Candidate<'_>) -> u64 {
    workers_of(candidate.config)
}

fn engines(candidate: &Candidate<'_>) -> u64 {
    engines_of(candidate.config)
}

/// Returns the number of devices of this host that a launch computes on.
pub(super) fn devices_needed(config: &Config) -> u64 {
    (engines_of(config).saturating_mul(workers_of(config)) / flag(config, "nnodes")).max(1)
}

/// Returns the number of GPUs on this host. `None` if it is unknown, or if workers may run on other hosts.
fn gpus_here(candidate: &Candidate<'_>) -> Option<u64> {
    let elsewhere = flag(candidate.config, "nnodes") > 1
        || candidate.config.get_str("data-parallel-backend") == Some("ray")
        || candidate.config.get_bool("worker-use-ray") == Some(true);
    candidate.facts.device.gpu()?.count.filter(|_| !elsewhere).map(u64::from)
}

/// Returns a repair that uses the available devices for tensor parallelism alone.
fn fitted(message: String, gpus: u64) -> Violation {
    // Numbers of heads are usually divisible by powers of two.
    let size = if gpus < 2 { 1 } else { 1_i64 << gpus.ilog2().min(16) };
    Violation::new(message)
        .set("tensor-parallel-size", size)
        .unset("pipeline-parallel-size")
        .unset("prefill-context-parallel-size")
}

fn a_gpu_for_each_worker(candidate: &Candidate<'_>) -> Option<Violation> {
    let (workers, gpus) = (workers(candidate), gpus_here(candidate)?);
    (workers > 1 && workers > gpus && executor(candidate).is_none()).then(|| {
        let message = match candidate.facts.version {
            version if version >= EngineVersion::V0_20 => {
                format!("World size ({workers}) is larger than the number of available GPUs ({gpus}) in this node.")
            }
            version if version >= EngineVersion::V0_12 => {
                format!("Tensor parallel size ({workers}) cannot be larger than the number of available GPUs ({gpus}).")
            }
            _ => format!(
                "Unable to load Ray which is required for multi-node inference, please install Ray with `pip install \
                 ray`. With Ray, the start waits for GPUs: {workers} are needed, the node has {gpus}."
            ),
        };
        fitted(message, gpus)
    })
}

fn a_gpu_for_each_local_worker(candidate: &Candidate<'_>) -> Option<Violation> {
    let (workers, gpus) = (workers(candidate), gpus_here(candidate)?);
    (workers > 1 && workers > gpus && executor(candidate) == Some("mp")).then(|| {
        let message = if candidate.facts.version < EngineVersion::V0_10 {
            format!("please set tensor_parallel_size ({workers}) to less than max local gpu count ({gpus})")
        } else {
            format!("DP adjusted local rank {} is out of bounds: the node has {gpus} GPUs", workers - 1)
        };
        fitted(message, gpus)
    })
}

fn gpus_for_each_engine(candidate: &Candidate<'_>) -> Option<Violation> {
    let (workers, engines, gpus) = (workers(candidate), engines(candidate), gpus_here(candidate)?);
    let needed = engines.saturating_mul(workers);
    let chosen = executor(candidate).is_none_or(|name| name == "mp");
    (engines > 1 && needed > gpus && workers <= gpus && chosen).then(|| {
        let message = format!(
            "DP adjusted local rank {} is out of bounds: {engines} engines of {workers} workers need {needed} GPUs, \
             the node has {gpus}",
            needed - 1
        );
        let fits = i64::try_from(gpus / workers).unwrap_or(1).max(1);
        Violation::new(message).set("data-parallel-size", fits).unset("data-parallel-size-local")
    })
}

/// Checks launches on GPUs only. On a CPU the engine uses another executor.
fn one_worker_in_one_process(candidate: &Candidate<'_>) -> Option<Violation> {
    candidate.facts.device.gpu()?;
    let workers = workers(candidate);
    (workers > 1 && executor(candidate) == Some("uni")).then(|| {
        let message = format!("the uni executor starts one worker, which waits forever for the other {}", workers - 1);
        Violation::new(message).unset("distributed-executor-backend")
    })
}

#[cfg(test)]
mod tests {
    use super::devices_needed;
    use crate::engines::vllm::rules::tests::{verdict, with_facts};
    use crate::facts::{Device, Gpu};

    fn on(gpus: u32, version: &str, line: &str) -> Option<(&'static str, String)> {
        let device = Device::Cuda(Gpu { count: Some(gpus), ..Gpu::default() });
        verdict(version, device, line).filter(|(_, rejects, _)| *rejects).map(|(id, _, message)| (id, message))
    }

    #[test]
    fn workers_need_a_gpu_each() {
        for version in ["0.6.3", "0.8.5", "0.10.2", "0.12.0", "0.20.2", "0.32.0"] {
            let id = |gpus, line| on(gpus, version, line).map(|(id, _)| id);
            assert_eq!(id(4, "--tensor-parallel-size 4"), None, "{version}");
            assert_eq!(id(3, "--tensor-parallel-size 4"), Some("R10"), "{version}");
            assert_eq!(id(1, "--tensor-parallel-size 1"), None, "{version}");
            assert_eq!(id(3, "--tensor-parallel-size 2 --pipeline-parallel-size 2"), Some("R10"), "{version}");
            assert_eq!(id(3, "--tensor-parallel-size 4 --distributed-executor-backend ray"), None, "{version}");
            assert_eq!(id(3, "--tensor-parallel-size 4 --distributed-executor-backend mp"), Some("R10a"), "{version}");
        }
        let line = "--tensor-parallel-size 2";
        let (_, message) = on(1, "0.32.0", line).unwrap();
        assert_eq!(message, "World size (2) is larger than the number of available GPUs (1) in this node.");
        let (_, message) = on(1, "0.12.0", line).unwrap();
        assert_eq!(message, "Tensor parallel size (2) cannot be larger than the number of available GPUs (1).");
        assert_eq!(verdict("0.32.0", Device::UNKNOWN_GPU, line), None);
        assert_eq!(on(1, "0.32.0", "--tensor-parallel-size 2 --nnodes 2"), None);
    }

    #[test]
    fn every_data_parallel_engine_needs_its_own() {
        let line = "--data-parallel-size 4 --tensor-parallel-size 2";
        assert_eq!(on(8, "0.32.0", line), None);
        assert_eq!(on(7, "0.32.0", line).map(|(id, _)| id), Some("R10b"));
        assert_eq!(on(2, "0.32.0", &format!("{line} --data-parallel-size-local 1")), None);
        assert_eq!(on(2, "0.20.2", &format!("{line} --data-parallel-rank 0")), None);
    }

    #[test]
    fn a_launch_needs_a_device_for_each_worker_of_each_engine_here() {
        for (line, needed) in [
            ("", 1),
            ("--tensor-parallel-size 2 --pipeline-parallel-size 3", 6),
            ("--tensor-parallel-size 2 --data-parallel-size 4", 8),
            ("--tensor-parallel-size 2 --data-parallel-size 4 --data-parallel-size-local 1", 2),
            ("--tensor-parallel-size 2 --data-parallel-size 4 --data-parallel-rank 1", 2),
            ("--tensor-parallel-size 8 --nnodes 2", 4),
        ] {
            assert_eq!(
                with_facts("0.32.0", Device::UNKNOWN_GPU, line, |config, _| devices_needed(config)),
                needed,
                "{line}"
            );
        }
    }

    #[test]
    fn one_process_has_one_worker() {
        let line = "--tensor-parallel-size 2 --distributed-executor-backend uni";
        assert_eq!(on(2, "0.10.2", line).map(|(id, _)| id), Some("R10c"));
        assert_eq!(on(2, "0.10.2", "--distributed-executor-backend uni"), None);
        assert!(verdict("0.32.0", Device::Cpu, line).is_none_or(|(id, ..)| id != "R10c"));
    }
}
