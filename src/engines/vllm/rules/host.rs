//! The host's memory: swap space, and weights that are offloaded from the GPUs.
//!
//! Sources: `CacheConfig.verify_with_parallel_config` in `vllm/config` up to 0.12; `cpu_offload_gb` in `CacheConfig`.

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::facts::{Device, EngineVersion};
use crate::stats::{gib, to_f64};

/// Releases with swap space. It was removed in 0.20.
const WITH_SWAP: ReleaseRange = ReleaseRange::until(EngineVersion::V0_20);

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R12",
        condition: "the swap space takes at most 70 % of the host's memory",
        releases: WITH_SWAP,
        severity: Severity::Configuration,
        check: swap_fits,
    },
    Rule {
        id: "R12a",
        condition: "the swap space takes at most 40 % of the host's memory",
        releases: WITH_SWAP,
        severity: Severity::Degraded,
        check: swap_is_modest,
    },
    Rule {
        id: "R12b",
        condition: "cpu-offload-gb is not negative",
        // From 0.12 on, a field bound covers this.
        releases: ReleaseRange::until(EngineVersion::V0_12),
        severity: Severity::Configuration,
        check: offload_is_not_negative,
    },
    Rule {
        id: "R12c",
        condition: "the host's memory has room for the offloaded weights",
        releases: ReleaseRange::ALL,
        severity: Severity::Startup,
        check: offload_fits,
    },
];

/// The default of `swap_space`, in GiB.
const DEFAULT_SWAP: f64 = 4.0;

/// Returns the total swap space and the host's memory, both in GiB.
fn swap(candidate: &Candidate<'_>) -> Option<(f64, f64)> {
    let each = candidate.config.get_f64("swap-space").unwrap_or(DEFAULT_SWAP);
    let all = each * to_f64(candidate.effective.tensor_parallel_size);
    Some((all, gib(candidate.facts.host.memory?)))
}

fn swap_message(all: f64, host: f64) -> String {
    format!("{all:.2} GiB out of the {host:.2} GiB total CPU memory is allocated for the swap space.")
}

/// Returns the largest whole number of GiB per device that stays within this share of the host's memory.
fn smaller(candidate: &Candidate<'_>, host: f64, share: f64) -> f64 {
    (share * host / to_f64(candidate.effective.tensor_parallel_size.max(1))).floor().max(0.0)
}

fn swap_fits(candidate: &Candidate<'_>) -> Option<Violation> {
    let (all, host) = swap(candidate).filter(|(all, host)| *all > 0.7 * host)?;
    let message = format!("Too large swap space. {}", swap_message(all, host));
    Some(Violation::new(message).set("swap-space", smaller(candidate, host, 0.4)))
}

fn swap_is_modest(candidate: &Candidate<'_>) -> Option<Violation> {
    let (all, host) = swap(candidate).filter(|(all, host)| *all > 0.4 * host && *all <= 0.7 * host)?;
    let message = format!("Possibly too large swap space. {}", swap_message(all, host));
    Some(Violation::new(message).set("swap-space", smaller(candidate, host, 0.4)))
}

fn offload_is_not_negative(candidate: &Candidate<'_>) -> Option<Violation> {
    let given = candidate.config.get_f64("cpu-offload-gb").filter(|given| *given < 0.0)?;
    Some(Violation::new(format!("CPU offload space must be non-negative, but got {given}")).unset("cpu-offload-gb"))
}

/// Checks that the host's memory holds the offloaded weights. Their size is at most that of all weights.
fn offload_fits(candidate: &Candidate<'_>) -> Option<Violation> {
    let each = candidate.config.get_f64("cpu-offload-gb").filter(|given| *given > 0.0)?;
    let (weights, host) = (gib(candidate.facts.model.checkpoint_bytes?), gib(candidate.facts.host.memory?));
    let e = &candidate.effective;
    let workers = to_f64(e.tensor_parallel_size.saturating_mul(e.pipeline_parallel_size));
    let offloaded = (each * workers).min(weights);
    (offloaded > host && candidate.facts.device != Device::Cpu).then(|| {
        let message = format!(
            "cpu_offload_gb of {each} moves {offloaded:.2} GiB of weights to the host, which has {host:.2} GiB"
        );
        Violation::new(message).unset("cpu-offload-gb")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::facts::{HostLimits, ModelShape};
    use crate::rule::{Facts, check, repair};

    fn ids(version: &str, host: Option<u64>, config: &Config) -> Vec<(&'static str, String)> {
        let mut model = ModelShape::from_json(&serde_json::json!({"num_attention_heads": 8}));
        model.checkpoint_bytes = Some(20 << 30);
        let facts = Facts {
            host: HostLimits { memory: host, ..HostLimits::default() },
            ..Facts::new(crate::engines::vllm::VLLM_RULES, &model, version.parse().unwrap(), Device::gpu_of(24 << 30))
        };
        check(config, &facts).into_iter().map(|finding| (finding.rule, finding.message)).collect()
    }

    #[test]
    fn swap_space_of_all_devices_fits_into_the_host() {
        let two = |space: f64| Config::new().with("swap-space", space).with("tensor-parallel-size", 2_i64);
        let host = Some(100 << 30);
        for version in ["0.6.3", "0.12.0"] {
            let id = |space| ids(version, host, &two(space)).first().map(|(id, _)| *id);
            assert_eq!((id(20.0), id(20.5), id(35.0), id(35.5)), (None, Some("R12a"), Some("R12a"), Some("R12")));
            assert!(ids(version, None, &two(1e6)).is_empty(), "unknown memory");
        }
        let text = "Too large swap space. 80.00 GiB out of the 100.00 GiB total CPU memory is allocated for the swap \
                    space.";
        assert_eq!(ids("0.8.5", host, &two(40.0)), [("R12", text.to_owned())]);
        let defaults = Config::new().with("tensor-parallel-size", 8_i64);
        assert_eq!(ids("0.6.3", Some(40 << 30), &defaults)[0].0, "R12", "4 GiB for each device");
        assert!(ids("0.20.2", Some(40 << 30), &defaults).is_empty());
    }

    #[test]
    fn a_repair_asks_for_less_swap_space() {
        let model = ModelShape::from_json(&serde_json::json!({}));
        let facts = Facts {
            host: HostLimits { memory: Some(10 << 30), ..HostLimits::default() },
            ..Facts::new(
                crate::engines::vllm::VLLM_RULES,
                &model,
                EngineVersion::new(0, 6, 3),
                Device::gpu_of(24 << 30),
            )
        };
        let repaired = repair(&Config::new().with("swap-space", 64.0), &facts).unwrap();
        assert_eq!(repaired.get_f64("swap-space"), Some(4.0));
    }

    #[test]
    fn offloaded_weights_fit_into_the_host() {
        let config = |given: f64| Config::new().with("cpu-offload-gb", given);
        for version in ["0.6.3", "0.32.0"] {
            let id = |host: u64, given| ids(version, Some(host << 30), &config(given)).first().map(|(id, _)| *id);
            assert_eq!((id(16, 17.0), id(16, 16.0), id(32, 100.0)), (Some("R12c"), None, None));
            assert!(ids(version, None, &config(1e9)).is_empty());
        }
        assert_eq!(ids("0.10.2", None, &config(-1.0))[0].0, "R12b");
    }
}
