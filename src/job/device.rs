//! `[engine]`: the device, if the study describes it.

use crate::document::{DocumentError, Section};
use crate::facts::{Device, Gpu};
use crate::stats::gib_to_bytes;

/// Keys that describe GPUs that need not be present.
const GPU_KEYS: [&str; 3] = ["gpus", "gpu_memory_gib", "compute_capability"];

/// Reads `device`, `gpus`, `gpu_memory_gib` and `compute_capability`; `None` if all are absent.
pub(super) fn read(section: &Section<'_>) -> Result<Option<Device>, DocumentError> {
    let kind: Option<String> = section.optional("device")?;
    let (count, gib): (Option<u32>, Option<f64>) = (section.optional("gpus")?, section.optional("gpu_memory_gib")?);
    let capability: Option<String> = section.optional("compute_capability")?;
    let given = [count.is_some(), gib.is_some(), capability.is_some()];
    let described = GPU_KEYS.into_iter().zip(given).find(|(_, given)| *given).map(|(key, _)| key);
    match (kind.as_deref(), described) {
        (None, None) => return Ok(None),
        (Some("cpu"), None) => return Ok(Some(Device::Cpu)),
        (Some("cpu"), Some(key)) => {
            return Err(section.error(key, "describes a GPU, but engine.device is \"cpu\"", None));
        }
        (None | Some("cuda"), _) => {}
        (Some(other), _) => return Err(section.error("device", format!("{other:?} is not one of cpu, cuda"), None)),
    }
    if count == Some(0) {
        return Err(section.error("gpus", "must be at least 1", None));
    }
    if let Some(gib) = gib.filter(|gib| !(gib.is_finite() && *gib > 0.0 && *gib < 1e6)) {
        return Err(section.error("gpu_memory_gib", format!("{gib} GiB is not between 0 and 1000000 GiB"), None));
    }
    let capability = capability.map(|text| {
        Gpu::parse_capability(&text).ok_or_else(|| {
            let hint = "give two numbers, such as \"9.0\" for an H100 or \"8.9\" for an L40S".to_owned();
            section.error("compute_capability", format!("{text:?} is not a compute capability"), Some(hint))
        })
    });
    let memory = gib.map(gib_to_bytes);
    Ok(Some(Device::Cuda(Gpu::described(memory, count, capability.transpose()?))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;

    fn device(lines: &str) -> Result<Option<Device>, String> {
        Document::from_text("study.toml", lines).parse(read).map_err(|error| error.to_string())
    }

    #[test]
    fn hardware_that_is_not_present_can_be_described() {
        let lines = "gpus = 8\ngpu_memory_gib = 79.5\ncompute_capability = '9.0'\n";
        let gpu = Gpu { memory: Some(159 << 29), count: Some(8), capability: Some((9, 0)), a100: false, units: &[] };
        assert_eq!(device(lines), Ok(Some(Device::Cuda(gpu))));
        assert_eq!(device("device = 'cuda'"), Ok(Some(Device::UNKNOWN_GPU)));
        assert_eq!(device("device = 'cpu'"), Ok(Some(Device::Cpu)));
        assert_eq!(device(""), Ok(None));
        let a100 = device("compute_capability = '8.0'").unwrap().and_then(Device::gpu).unwrap();
        assert!(a100.a100);
    }

    #[test]
    fn an_invalid_description_of_a_gpu_is_refused() {
        for (lines, problem) in [
            ("device = 'tpu'", "study.toml:1: device: \"tpu\" is not one of cpu, cuda"),
            ("device = 'cpu'\ngpus = 2", "study.toml:2: gpus: describes a GPU, but engine.device is \"cpu\""),
            ("gpus = 0", "study.toml:1: gpus: must be at least 1"),
            ("gpu_memory_gib = -1", "study.toml:1: gpu_memory_gib: -1 GiB is not between 0 and 1000000 GiB"),
            ("gpu_memory_gib = inf", "study.toml:1: gpu_memory_gib: inf GiB is not between 0 and 1000000 GiB"),
            ("compute_capability = '9'", "study.toml:1: compute_capability: \"9\" is not a compute capability"),
        ] {
            assert_eq!(device(lines), Err(problem.to_owned()));
        }
    }
}
