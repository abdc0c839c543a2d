//! Executors, devices and processor sets of the workers (`ParallelConfig`, `Executor.get_class` in vLLM 0.32).

use super::{Candidate, Rule, Violation, refusal};

pub(super) const RULES: &[Rule] = &[
    refusal("R16k", "the executor exists, is installed and supports the parallel sizes", executor),
    refusal("R16l", "NUMA bindings of the workers are well-formed and enabled", processors),
    refusal("R16m", "device ids are distinct and of one kind", devices),
    refusal("R16n", "profiling with nsight needs workers of Ray", nsight),
    refusal("R16o", "the flag enable-hc-sp needs CUDA", hyper_connections),
    refusal("R16p", "batch-sharded sampling has enough devices and sequences", sharded_sampling),
];

const EXECUTORS: [&str; 4] = ["mp", "uni", "ray", "external_launcher"];

fn executor(candidate: &Candidate<'_>) -> Option<Violation> {
    let size = |name| candidate.number_or(name, 1);
    let given = candidate.text("distributed-executor-backend");
    let stages = size("pipeline-parallel-size");
    let refused = |message: String| Some(Violation::new(message).unset("distributed-executor-backend"));
    if let Some(name) = given {
        if stages > 1 && !["mp", "ray", "external_launcher"].contains(&name) {
            return refused(
                "Pipeline Parallelism without Ray distributed executor or multiprocessing executor or external \
                 launcher is not supported. We recommend to remove Pipeline Parallelism without Ray distributed \
                 executor or multiprocessing executor or external launcher from your config."
                    .to_owned(),
            );
        }
        // A name with a dot is a class of the user.
        if !EXECUTORS.contains(&name) && !name.contains('.') {
            return refused(format!(
                "Unrecognized distributed executor backend {name}. Supported values are 'ray', 'mp' 'uni', \
                 'external_launcher', custom Executor subclass or its import path."
            ));
        }
    }
    let ranks = stages
        .saturating_mul(size("tensor-parallel-size"))
        .saturating_mul(size("prefill-context-parallel-size"))
        .saturating_mul(size("data-parallel-size"));
    let by_data = given.is_none() && ranks > 1 && candidate.text("data-parallel-backend") == Some("ray");
    if given != Some("ray") && !by_data {
        return None;
    }
    // The requirements of the CPU package do not include Ray.
    candidate.on_cpu().then(|| {
        let message = "Failed to import Ray: No module named 'ray'. Please install Ray with `pip install ray`.";
        let violation = Violation::new(message).unset("distributed-executor-backend").unset("data-parallel-backend");
        violation.unset("ray-workers-use-nsight")
    })
}

fn processors(candidate: &Candidate<'_>) -> Option<Violation> {
    let nodes = candidate.config.get("numa-bind-nodes").map(ToString::to_string).filter(|text| text != "None");
    let sets = candidate.config.get("numa-bind-cpus").map(ToString::to_string).filter(|text| text != "None");
    if nodes.is_none() && sets.is_none() {
        return None;
    }
    let refused = |message: String| Some(Violation::new(message).unset("numa-bind-nodes").unset("numa-bind-cpus"));
    if nodes.is_some_and(|nodes| nodes.split_whitespace().any(|node| node.starts_with('-'))) {
        return refused("numa_bind_nodes must contain non-negative integers.".to_owned());
    }
    if let Some(set) = sets.as_deref().and_then(|sets| sets.split_whitespace().find(|set| !well_formed(set))) {
        return refused(format!(
            "numa_bind_cpus entries must use numactl CPU list syntax, for example '0-3' or '0,2,4-7', and be \
             ascending; got '{set}'"
        ));
    }
    if !candidate.is_on("numa-bind") {
        return refused("numa_bind_nodes and numa_bind_cpus require numa_bind=True.".to_owned());
    }
    None
}

/// Returns whether a set of processors is well-formed, such as `0,2,4-7`.
fn well_formed(set: &str) -> bool {
    set.split(',').all(|part| match part.split_once('-') {
        None => part.parse::<u32>().is_ok(),
        Some((first, last)) => {
            matches!((first.parse::<u32>(), last.parse::<u32>()), (Ok(first), Ok(last)) if first <= last)
        }
    })
}

fn devices(candidate: &Candidate<'_>) -> Option<Violation> {
    let text = candidate.config.get("device-ids")?.to_string();
    let ids: Vec<_> = text.split(',').map(str::trim).collect();
    let number = |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    let refused = |message: String| Some(Violation::new(message).unset("device-ids"));
    let same = |a: &str, b: &str| a == b || number(a) && number(b) && a.parse::<u64>().ok() == b.parse().ok();
    if ids.iter().enumerate().any(|(index, id)| ids[..index].iter().any(|other| same(id, other))) {
        return refused(format!("--device-ids must not contain duplicates: [{text}]"));
    }
    let numbers = ids.iter().filter(|id| number(id)).count();
    // An id with a sign does not count as a number here, but the engine does not refuse it.
    let negative = |id: &str| id.strip_prefix(['-', '+']).is_some_and(number);
    if numbers == 0 && candidate.on_cpu() && !ids.iter().any(|id| negative(id)) {
        return refused(format!("Non-integer device ID '{}' is not supported by cpu.", ids[0]));
    }
    if numbers != 0 && numbers != ids.len() {
        return refused("--device-ids must not mix integer IDs and UUIDs".to_owned());
    }
    None
}

fn nsight(candidate: &Candidate<'_>) -> Option<Violation> {
    let ray = candidate.text("distributed-executor-backend") == Some("ray");
    (candidate.is_on("ray-workers-use-nsight") && !ray).then(|| {
        Violation::new("Unable to use nsight profiling unless workers run with Ray.").unset("ray-workers-use-nsight")
    })
}

fn hyper_connections(candidate: &Candidate<'_>) -> Option<Violation> {
    let several = candidate.number_or("tensor-parallel-size", 1) > 1;
    (candidate.is_on("enable-hc-sp") && several && candidate.on_cpu())
        .then(|| Violation::new("--enable-hc-sp currently requires CUDA").unset("enable-hc-sp"))
}

fn sharded_sampling(candidate: &Candidate<'_>) -> Option<Violation> {
    if !candidate.is_on("enable-batch-sharded-sampling") {
        return None;
    }
    let refused = |reason: String| {
        let message = format!(
            "Batch-sharded sampling was explicitly enabled via the --enable-batch-sharded-sampling flag, but is not \
             supported in this configuration for the following reason(s): {reason}."
        );
        Some(Violation::new(message).unset("enable-batch-sharded-sampling"))
    };
    if candidate.on_cpu() {
        let message = "Model Runner V1 does not support: batch-sharded sampling";
        return Some(Violation::new(message).unset("enable-batch-sharded-sampling"));
    }
    let tensor = candidate.effective.tensor_parallel_size;
    if tensor <= 1 {
        return refused("tensor_parallel_size is 1, so there is nothing to shard".to_owned());
    }
    let sequences = candidate.effective.max_num_seqs;
    if sequences < tensor {
        return refused(format!("max_num_seqs ({sequences}) is below tensor_parallel_size ({tensor})"));
    }
    if candidate.number_or("max-logprobs", 20) < 0 {
        return refused("max_logprobs is -1, allowing vocab-size logprob requests".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::{on_cpu, rule};

    #[test]
    fn executors_have_names_and_some_cannot_do_pipelines() {
        assert_eq!(on_cpu("--distributed-executor-backend nope"), Some("R16k"));
        assert_eq!(on_cpu("--distributed-executor-backend my.Executor"), None);
        assert_eq!(on_cpu("--distributed-executor-backend uni -pp 2"), Some("R16k"));
        assert_eq!(on_cpu("--distributed-executor-backend mp -pp 2"), None);
        assert_eq!(on_cpu("--distributed-executor-backend ray"), Some("R16k"));
        assert_eq!(rule("0.32.0", "--distributed-executor-backend ray"), None);
        assert_eq!(on_cpu("-tp 2 --data-parallel-backend ray"), Some("R16k"));
    }

    #[test]
    fn processor_sets_are_asked_for_and_ascending() {
        assert_eq!(on_cpu("--numa-bind-cpus 0-3"), Some("R16l"));
        assert_eq!(on_cpu("--numa-bind --numa-bind-cpus 0-3,5 4"), None);
        assert_eq!(on_cpu("--numa-bind --numa-bind-cpus 3-1"), Some("R16l"));
    }

    #[test]
    fn device_ids_are_distinct_and_of_one_kind() {
        assert_eq!(on_cpu("--device-ids 0,1"), None);
        assert_eq!(on_cpu("--device-ids +4"), None, "the engine reads it as no number and goes on");
        for ids in ["0,0", "0,GPU-a", "GPU-a"] {
            assert_eq!(on_cpu(&format!("--device-ids {ids}")), Some("R16m"), "{ids}");
        }
    }

    #[test]
    fn sharded_sampling_has_something_to_shard() {
        assert_eq!(on_cpu("--enable-batch-sharded-sampling"), Some("R16p"));
        assert_eq!(rule("0.32.0", "--enable-batch-sharded-sampling"), Some("R16p"));
        assert_eq!(rule("0.32.0", "--enable-batch-sharded-sampling -tp 2"), None);
    }
}
