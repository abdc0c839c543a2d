//! Checks that need an unknown fact of the device or host.

use crate::facts::Device;
use crate::rule::Facts;
use crate::space::Space;

/// The variable that sets the size of the cache on a CPU.
const CPU_CACHE: &str = "VLLM_CPU_KVCACHE_SPACE";

/// Lists the unchecked parts of a space and the reasons, one sentence each, without a full stop.
pub(super) fn list_unchecked(space: &Space, facts: &Facts<'_>) -> Vec<String> {
    let mut list = Vec::new();
    if facts.device == Device::Cpu && !facts.env.contains_key(CPU_CACHE) {
        list.push(format!("host memory: {CPU_CACHE} is not set, so the engine chooses the size of its KV cache"));
    }
    if let Device::Cuda(gpu) = facts.device {
        if gpu.memory.is_none() {
            list.push("GPU memory, and the defaults that depend on its size: the size is unknown".into());
        }
        let sizes = || space.parameters.iter().map(|p| p.name.as_str()).chain(space.fixed.iter().map(|(name, _)| name));
        if gpu.count.is_none() && sizes().any(|name| name.ends_with("parallel-size")) {
            list.push("parallel sizes against the number of GPUs: the number is unknown".to_owned());
        }
        if gpu.capability.is_none() {
            list.push("number formats and kernels: the GPU's compute capability is unknown".to_owned());
        }
    }
    list
}
