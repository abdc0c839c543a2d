//! Memory for CUDA graphs. Before 0.20 it is allocated after the KV cache has taken its share.
//!
//! Source: `determine_available_memory` and `capture_model` in `vllm/v1/worker/gpu_worker.py`, `vllm/worker/worker.py`.

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::facts::EngineVersion;
use crate::stats::{GIB, to_f64};

pub(super) const RULES: &[Rule] = &[Rule {
    id: "R22g",
    condition: "memory is left for CUDA graphs",
    releases: ReleaseRange::until(EngineVersion::V0_20),
    severity: Severity::Degraded,
    check: graphs_have_room,
}];

/// The largest share that leaves a twentieth of the memory.
const LARGEST_SHARE: f64 = 0.95;

fn graphs_have_room(candidate: &Candidate<'_>) -> Option<Violation> {
    let gpu = candidate.facts.device.gpu()?;
    let share = candidate.effective.gpu_memory_utilization;
    let without_graphs = candidate.config.get_bool("enforce-eager") == Some(true);
    (share > LARGEST_SHARE && share <= 1.0 && !without_graphs).then(|| {
        let left = gpu.memory.map(|memory| format!(", {:.1} GiB", (1.0 - share) * to_f64(memory) / to_f64(GIB)));
        let message = format!(
            "CUDA graphs are captured after the KV cache has been sized: gpu_memory_utilization of {share} leaves them \
             {:.1} % of the memory{}, and the capture may run out of it",
            (1.0 - share) * 100.0,
            left.unwrap_or_default()
        );
        Violation::new(message)
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::verdict;
    use crate::facts::Device;

    #[test]
    fn graphs_that_come_after_the_cache_need_room() {
        let at = |version: &str, line: &str| verdict(version, Device::gpu_of(24 << 30), line);
        for version in ["0.6.3", "0.12.0"] {
            let (id, rejects, message) = at(version, "--gpu-memory-utilization 0.98").unwrap();
            assert_eq!((id, rejects), ("R22g", false));
            assert!(message.contains("leaves them 2.0 % of the memory, 0.5 GiB"), "{message}");
            assert_eq!(at(version, "--gpu-memory-utilization 0.95"), None);
            assert_eq!(at(version, "--gpu-memory-utilization 0.98 --enforce-eager"), None);
        }
        assert_eq!(at("0.20.2", "--gpu-memory-utilization 0.98"), None);
        assert_eq!(verdict("0.12.0", Device::Cpu, "--gpu-memory-utilization 0.98"), None);
    }
}
