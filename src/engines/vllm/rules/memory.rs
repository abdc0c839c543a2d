//! The device's memory: the engine's share of it, and the room for one sequence in the KV cache.

use super::{Candidate, Facts, ReleaseRange, Rule, Severity, Violation};
use crate::config::{Config, ResolvedConfig};
use crate::engines::vllm::memory_launch::read_launch;
use crate::facts::{Device, EngineVersion, GpuUnit};
use crate::memory::{self, LaunchTarget, LearnedMemory, MemoryLaunch, MemoryPrediction};
use crate::rule::MemoryFailure;
use crate::stats::gib;

/// Releases without field bounds for the share of memory. From 0.12 on, rule `R4a` checks the share.
const WITHOUT_FIELD_BOUNDS: ReleaseRange = ReleaseRange::until(EngineVersion::V0_12);

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R5",
        condition: "gpu-memory-utilization is at most 1",
        releases: WITHOUT_FIELD_BOUNDS,
        severity: Severity::Configuration,
        check: share_at_most_all,
    },
    Rule {
        id: "R5a",
        condition: "gpu-memory-utilization is more than 0",
        releases: WITHOUT_FIELD_BOUNDS,
        severity: Severity::Startup,
        check: share_above_zero,
    },
    Rule {
        id: "R5b",
        condition: "gpu-memory-utilization leaves memory for the driver",
        releases: ReleaseRange::starting_at(EngineVersion::V0_10),
        severity: Severity::Startup,
        check: leaves_driver_memory,
    },
    Rule {
        id: "R5e",
        condition: "the requested memory is free, not in use by other processes",
        releases: ReleaseRange::ALL,
        severity: Severity::Startup,
        check: share_is_free,
    },
    Rule {
        id: "R6",
        condition: "the KV cache has room for one sequence of max-model-len",
        releases: ReleaseRange::ALL,
        severity: Severity::Startup,
        check: holds_one_sequence,
    },
    Rule {
        id: "R7",
        condition: "weights and activations leave memory for the KV cache",
        releases: ReleaseRange::ALL,
        severity: Severity::Startup,
        check: leaves_a_cache,
    },
];

/// The smallest failure probability that a rule rejects. The optimizer handles less certain failures.
const CERTAIN: f64 = 0.99;

/// A lower bound of a CUDA context's memory, in GiB. The context takes about 0.45 GiB on an L40S, by the difference
/// between V1 and V0 in 0.9.
const DRIVER_GIB: f64 = 0.25;

/// The largest share that a repair sets. Graphs and other allocations on the device need the rest.
const HIGH_SHARE: f64 = 0.95;

/// Returns the properties of a launch that decide its memory. `effective` contains the resolved values of `config`.
#[must_use]
pub fn launch(config: &Config, facts: &Facts<'_>, effective: &ResolvedConfig) -> MemoryLaunch {
    let facts = &facts.for_launch(config);
    // From 0.20 on, -1 reduces the length to the longest that fits.
    let fits_itself = facts.version >= EngineVersion::V0_20 && config.get_i64("max-model-len") == Some(-1);
    let target = LaunchTarget {
        version: facts.version,
        cpu: facts.device == Device::Cpu,
        device_memory: facts.device.gpu().and_then(|gpu| gpu.memory),
    };
    let max_model_len = if fits_itself { 1 } else { effective.max_model_len };
    read_launch(target, ResolvedConfig { max_model_len, ..*effective }, config, facts.env)
}

/// Predicts the memory of a launch. `None` if too little is known about the model or the device.
pub(super) fn predict(config: &Config, facts: &Facts<'_>, effective: &ResolvedConfig) -> Option<MemoryPrediction> {
    // Overrides may change the model's shape.
    if config.get("hf-overrides").is_some() {
        return None;
    }
    let launch = launch(config, facts, effective);
    let nothing = LearnedMemory::default();
    memory::predict(facts.model, &launch, facts.memory.unwrap_or(&nothing))
}

fn share_at_most_all(candidate: &Candidate<'_>) -> Option<Violation> {
    let share = candidate.effective.gpu_memory_utilization;
    (share > 1.0).then(|| {
        Violation::new(format!("GPU memory utilization must be less than 1.0. Got {share}."))
            .set("gpu-memory-utilization", 1.0)
    })
}

fn share_above_zero(candidate: &Candidate<'_>) -> Option<Violation> {
    let share = candidate.effective.gpu_memory_utilization;
    (share <= 0.0).then(|| {
        Violation::new(format!("No available memory for the cache blocks: gpu_memory_utilization is {share}."))
            .unset("gpu-memory-utilization")
    })
}

/// Checks the room for the driver. From 0.10 on, the share must be free at the engine's start, but its own CUDA
/// context is already in use then.
fn leaves_driver_memory(candidate: &Candidate<'_>) -> Option<Violation> {
    let share = candidate.effective.gpu_memory_utilization;
    let total = gib(candidate.facts.device.gpu()?.memory?);
    let (free, wanted) = (total - DRIVER_GIB, total * share);
    (share <= 1.0 && wanted > free).then(|| {
        let message = format!(
            "Free memory on device (at most {free:.2}/{total:.2} GiB) on startup is less than desired GPU memory \
             utilization ({share}, {wanted:.2} GiB)."
        );
        Violation::new(message).set("gpu-memory-utilization", HIGH_SHARE.min(free / total))
    })
}

/// The smallest memory of other processes that is a reason to reject, in GiB. A desktop or a monitor alone changes the
/// free memory by about as much.
const HELD_GIB: f64 = 0.25;

/// Checks that the share fits the memory that was free at the beginning of the run. Memory of the tuner's own processes
/// counts as free.
fn share_is_free(candidate: &Candidate<'_>) -> Option<Violation> {
    let share = candidate.effective.gpu_memory_utilization;
    let sizes = |unit: &GpuUnit| Some((unit.index, gib(unit.memory?), gib(unit.free?)));
    let units = candidate.facts.device.gpu()?.units.iter().filter_map(sizes);
    let left = |(index, total, free): (u32, f64, f64)| (index, total, free, (free - DRIVER_GIB).max(0.0) / total);
    let fullest = units.filter(|(_, total, free)| total - free > HELD_GIB).map(left);
    let (index, total, free, most) = fullest.min_by(|a, b| a.3.total_cmp(&b.3))?;
    (share <= 1.0 && share > most).then(|| {
        let message = format!(
            "Free memory on device {index} ({free:.2}/{total:.2} GiB) on startup is less than desired GPU memory \
             utilization ({share}, {:.2} GiB): other processes hold {:.2} GiB.",
            total * share,
            total - free
        );
        let violation = Violation::new(message);
        let repaired = (most.min(HIGH_SHARE) * 100.0).floor() / 100.0;
        if repaired > 0.0 { violation.set("gpu-memory-utilization", repaired) } else { violation }
    })
}

/// Returns the failure of a launch that certainly fails for lack of memory.
fn memory_failure<'a>(candidate: &'a Candidate<'_>) -> Option<&'a MemoryFailure> {
    candidate.memory_failure.get_or_init(|| find_memory_failure(candidate)).as_ref()
}

fn find_memory_failure(candidate: &Candidate<'_>) -> Option<MemoryFailure> {
    let share = candidate.effective.gpu_memory_utilization;
    if share <= 0.0 || share > 1.0 {
        return None;
    }
    let prediction = predict(candidate.config, candidate.facts, &candidate.effective)?;
    let fails = prediction.failure_probability() >= CERTAIN;
    let leaves_no_cache = prediction.blocks() == 0 || (prediction.is_overfull() && !prediction.is_set_too_small());
    fails.then_some(MemoryFailure { prediction, leaves_no_cache })
}

fn holds_one_sequence(candidate: &Candidate<'_>) -> Option<Violation> {
    let MemoryFailure { prediction, leaves_no_cache } = memory_failure(candidate)?;
    if *leaves_no_cache {
        return None;
    }
    let length = prediction.max_model_len;
    let needed = gib(prediction.layout.bytes_needed(length));
    let largest = prediction.largest_length();
    let available = format!("{:.2} GiB{}", prediction.cache_gib, deviation(prediction));
    let message = if candidate.effective.v0 {
        format!(
            "The model's max seq len ({length}) is larger than the maximum number of tokens that can be stored in KV \
             cache ({largest}): it needs {needed:.2} GiB, {available} are available."
        )
    } else {
        format!(
            "To serve at least one request with the model's max seq len ({length}), {needed:.2} GiB KV cache is \
             needed, which is larger than the available KV cache memory ({available}). Based on the available memory, \
             the estimated maximum model length is {largest}."
        )
    };
    let violation = Violation::new(message);
    let set = explicit_cache_sizes(candidate);
    let careful = prediction.safe_length();
    let requests_fit = candidate.facts.longest_request.is_none_or(|longest| longest <= careful);
    if careful > 0 && requests_fit {
        return Some(violation.set("max-model-len", i64::try_from(careful).unwrap_or(i64::MAX)));
    }
    if !set.is_empty() {
        return Some(set.into_iter().fold(violation, |violation, (flag, _)| violation.unset(flag)));
    }
    Some(with_larger_share(violation, candidate))
}

/// Returns the explicit flags that set the cache's size, with their values.
fn explicit_cache_sizes(candidate: &Candidate<'_>) -> Vec<(&'static str, i64)> {
    let sizes = ["num-gpu-blocks-override", "kv-cache-memory-bytes"];
    sizes.into_iter().filter_map(|flag| Some((flag, candidate.number(flag)?))).collect()
}

fn leaves_a_cache(candidate: &Candidate<'_>) -> Option<Violation> {
    let MemoryFailure { prediction, leaves_no_cache } = memory_failure(candidate)?;
    if !*leaves_no_cache {
        return None;
    }
    // An explicit size does not depend on the memory that weights and activations leave.
    let set = explicit_cache_sizes(candidate);
    if let Some((flag, value)) = set.first() {
        let message = format!(
            "No available memory for the cache blocks: {} ({value}) leaves no block of {} tokens to use.",
            flag.replace('-', "_"),
            candidate.effective.block_size
        );
        return Some(set.iter().fold(Violation::new(message), |violation, (flag, _)| violation.unset(flag)));
    }
    let MemoryPrediction { weights_gib, activations_gib, overhead_gib, .. } = prediction;
    let available = prediction.budget_gib.map_or_else(|| "an unknown share".to_owned(), |gib| format!("{gib:.2} GiB"));
    let message = format!(
        "No available memory for the cache blocks: of {available} for the engine, weights take {weights_gib:.2} GiB, \
         activations {activations_gib:.2} GiB and libraries {overhead_gib:.2} GiB, which leaves {:.2} GiB{}.",
        prediction.cache_gib,
        deviation(prediction),
    );
    Some(with_larger_share(Violation::new(message), candidate))
}

fn deviation(prediction: &MemoryPrediction) -> String {
    match prediction.cache_deviation_gib {
        0.0 => String::new(),
        deviation => format!(" +- {deviation:.2}"),
    }
}

/// Adds a larger share of the memory to the repair, if it is likely to help.
fn with_larger_share(violation: Violation, candidate: &Candidate<'_>) -> Violation {
    let more = candidate.config.clone().with("gpu-memory-utilization", HIGH_SHARE);
    let helps = candidate.effective.gpu_memory_utilization < HIGH_SHARE
        && candidate.facts.predict_memory(&more).is_some_and(|prediction| prediction.failure_probability() < 0.5);
    if helps { violation.set("gpu-memory-utilization", HIGH_SHARE) } else { violation }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::rules::tests::rule;
    use crate::facts::ModelShape;
    use crate::rule::{check, repair};

    /// Returns the verdict for Llama 3.1 8B on 0.11 and a device with this memory in GiB.
    fn verdict(gib: u64, config: &Config) -> Option<(&'static str, String, Option<Config>)> {
        let model = ModelShape::from_json(&serde_json::json!({
            "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
            "max_position_embeddings": 131_072, "torch_dtype": "bfloat16"
        }));
        let facts = Facts::new(
            crate::engines::vllm::VLLM_RULES,
            &model,
            EngineVersion::new(0, 11, 0),
            Device::gpu_of(gib << 30),
        );
        let finding = check(config, &facts).into_iter().next()?;
        assert!(finding.severity.rejects());
        Some((finding.rule, finding.message, repair(config, &facts)))
    }

    #[test]
    fn more_than_the_whole_memory_and_none_are_refused_in_every_release() {
        assert_eq!(rule("0.6.3", "--gpu-memory-utilization 0"), Some("R5a"));
        assert_eq!(rule("0.32.0", "--gpu-memory-utilization 0"), Some("R4a"));
        assert_eq!(rule("0.6.3", "--gpu-memory-utilization 1.1"), Some("R5"));
        assert_eq!(rule("0.6.3", "--gpu-memory-utilization 1.0"), None);
        assert_eq!(rule("0.32.0", "--gpu-memory-utilization 1.0"), Some("R5b"));
    }

    #[test]
    fn a_share_that_others_hold_on_a_device_of_the_launch_is_rejected_and_lowered() {
        let unit = |index, held_mib: u64| GpuUnit {
            index,
            memory: Some(80 << 30),
            free: Some((80 << 30) - (held_mib << 20)),
            ..GpuUnit::default()
        };
        let find = |held: [u64; 2], line: &str| {
            let units = held.iter().zip(0..).map(|(held, index)| unit(index, *held)).collect();
            let device = Device::Cuda(crate::facts::Gpu::listed(units));
            crate::engines::vllm::rules::tests::with_facts("0.32.0", device, line, |config, facts| {
                let found = check(config, facts).into_iter().find(|finding| finding.rule == "R5e")?;
                let repaired = repair(config, facts).and_then(|config| config.get_f64("gpu-memory-utilization"));
                Some((found.message, repaired))
            })
        };
        assert_eq!(find([200, 60_000], "--gpu-memory-utilization 0.95"), None, "the other device is not used");
        assert_eq!(find([4096, 0], "--gpu-memory-utilization 0.94"), None);
        let (message, repaired) = find([8192, 0], "--gpu-memory-utilization 0.95").unwrap();
        assert!(message.starts_with("Free memory on device 0 (72.00/80.00 GiB) on startup is less"), "{message}");
        assert!(message.ends_with("other processes hold 8.00 GiB."), "{message}");
        assert_eq!(repaired, Some(0.89));
        let both = find([200, 60_000], "--tensor-parallel-size 2").unwrap();
        assert!(both.0.starts_with("Free memory on device 1 (21.41/80.00 GiB)") && both.1 == Some(0.26), "{both:?}");
    }

    #[test]
    fn a_length_that_the_cache_cannot_hold_is_shortened() {
        let (rule, message, repaired) = verdict(24, &Config::new()).unwrap();
        assert_eq!(rule, "R6");
        assert!(message.contains("max seq len (131072), 16.00 GiB KV cache is needed"), "{message}");
        let length = repaired.and_then(|config| config.get_i64("max-model-len")).unwrap();
        assert!((32_768..45_000).contains(&length), "{length}");
        assert_eq!(verdict(80, &Config::new()), None);
    }

    #[test]
    fn weights_that_leave_no_cache_are_refused_and_the_repair_may_raise_the_share() {
        let short = |share: f64| Config::new().with("max-model-len", 4096_i64).with("gpu-memory-utilization", share);
        let (rule, message, repaired) = verdict(24, &short(0.5)).unwrap();
        assert_eq!((rule, repaired.and_then(|config| config.get_f64("gpu-memory-utilization"))), ("R7", Some(0.95)));
        assert!(message.contains("of 12.00 GiB for the engine, weights take 14.96 GiB"), "{message}");
        let (rule, _, repaired) = verdict(14, &short(0.9)).unwrap();
        assert_eq!((rule, repaired), ("R7", None));
    }

    #[test]
    fn a_cache_of_a_set_size_is_checked_without_knowing_the_device() {
        let line = "--num-gpu-blocks-override 8 --block-size 128 --max-model-len";
        assert_eq!(rule("0.32.0", &format!("{line} 896")), None);
        assert_eq!(rule("0.32.0", &format!("{line} 897")), Some("R6"));
        assert_eq!(rule("0.12.0", &format!("{line} 1024")), None);
        let old = "--num-gpu-blocks-override 8 --block-size 16 --max-model-len";
        assert_eq!(rule("0.6.3", &format!("{old} 128")), None);
        assert_eq!(rule("0.6.3", &format!("{old} 129")), Some("R6"));
    }

    #[test]
    fn the_length_that_fits_is_the_one_that_the_real_0_32_names() {
        for (line, length) in [
            ("--kv-cache-memory-bytes 5000000", 2304),
            ("--num-gpu-blocks-override 8 --block-size 128 --max-model-len 1024", 896),
        ] {
            let (rule, rejects, message) =
                crate::engines::vllm::rules::tests::verdict("0.32.0", Device::Cpu, line).unwrap();
            assert!(rule == "R6" && rejects, "{line}: {rule}");
            let words = format!("the estimated maximum model length is {length}.");
            assert!(message.contains(&words), "{message}");
        }
    }

    #[test]
    fn a_set_size_without_room_for_a_block_is_left_to_the_engine() {
        for (line, named) in [
            ("--num-gpu-blocks-override 0", "num_gpu_blocks_override (0)"),
            ("--kv-cache-memory-bytes 64k", "kv_cache_memory_bytes (64000)"),
            ("--kv-cache-memory-bytes 64k --num-gpu-blocks-override 1 --max-model-len 64", "64"),
        ] {
            let version = EngineVersion::V0_32;
            let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            let config = crate::engines::vllm::FLAGS.for_version(version).parse(&arguments).unwrap();
            let model = ModelShape::from_json(&serde_json::json!({
                "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
                "max_position_embeddings": 4096, "vocab_size": 4096, "intermediate_size": 512
            }));
            let facts = Facts::new(crate::engines::vllm::VLLM_RULES, &model, version, Device::Cpu);
            let finding = check(&config, &facts).into_iter().next().unwrap();
            assert!(finding.message.contains(named), "{}", finding.message);
            let repaired = repair(&config, &facts).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(repaired.get("num-gpu-blocks-override").or(repaired.get("kv-cache-memory-bytes")), None);
        }
    }

    #[test]
    fn a_length_that_fits_itself_is_not_refused() {
        assert_eq!(rule("0.32.0", "--max-model-len -1 --num-gpu-blocks-override 8"), None);
    }
}
