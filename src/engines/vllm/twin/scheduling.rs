//! The scheduler's detailed settings, derived from flags and the release.

use crate::config::{Config, ResolvedConfig};
use crate::facts::EngineVersion;
use crate::twin::{QueueOrder, Scheduling, Speculation};

/// Returns the scheduler settings that `vllm serve` of this release derives from its flags. `cpu` is whether the device
/// is a CPU, on which steps are never scheduled ahead. `acceptance` is the share of draft tokens, 0 to 1, that the
/// model accepts. It is a property of model and prompts, not a flag. If it is `None`, nothing is drafted.
///
/// Defaults are those of `vllm/config/scheduler.py`. Two of them are new in 0.20. A prompt is only admitted if all of
/// its blocks fit (`reserve_full_isl`), and steps are scheduled ahead (`async_scheduling`, by `vllm/config/vllm.py`).
pub(super) fn scheduling(
    config: &Config,
    resolved: &ResolvedConfig,
    version: EngineVersion,
    cpu: bool,
    acceptance: Option<f64>,
) -> Scheduling {
    let number = |name: &str| config.get_i64(name).and_then(|value| u32::try_from(value).ok());
    let modern = version >= EngineVersion::V0_20;
    let pipeline_stages = number("pipeline-parallel-size").unwrap_or(1).max(1);
    let method = Method::read(config);
    let scheduling = Scheduling {
        order: if config.get_str("scheduling-policy") == Some("priority") {
            QueueOrder::Priority
        } else {
            QueueOrder::Arrival
        },
        long_prefill_token_threshold: number("long-prefill-token-threshold").unwrap_or(0),
        long_prefill_adaptive: config.get_bool("long-prefill-token-threshold-adaptive").unwrap_or(false),
        max_num_active_seqs: number("max-num-active-seqs"),
        max_num_scheduled_tokens: number("max-num-scheduled-tokens"),
        reserve_full_isl: config.get_bool("scheduler-reserve-full-isl").unwrap_or(modern),
        watermark: config.get_f64("watermark").unwrap_or(0.0),
        async_scheduling: schedules_ahead(config, version, cpu),
        pipeline_stages,
        stream_interval: number("stream-interval").unwrap_or(1).max(1),
        speculation: method.zip(acceptance).map(|(method, acceptance)| Speculation {
            tokens: method.tokens,
            acceptance,
            seed: 0,
            lookahead: if method.writes_cache { method.tokens } else { 0 },
            draft_slots: u32::from(method.model),
        }),
    };
    // The twin does not simulate pipelines and speculation of the V0 engine.
    if resolved.v0 { Scheduling { pipeline_stages: 1, speculation: None, ..scheduling } } else { scheduling }
}

/// Returns whether steps are scheduled ahead (`async_scheduling` in `vllm/config/vllm.py`; never on a CPU, by
/// `vllm/platforms/cpu.py`).
pub(in crate::engines::vllm) fn schedules_ahead(config: &Config, version: EngineVersion, cpu: bool) -> bool {
    // By default, steps are not scheduled ahead in two cases. A drafter on the host needs the tokens of the step
    // before, and several pipeline stages need a newer worker.
    let has_stages = config.get_i64("pipeline-parallel-size").is_some_and(|stages| stages > 1);
    let by_default =
        || version >= EngineVersion::V0_20 && !has_stages && Method::read(config).is_none_or(|method| method.on_device);
    !cpu && config.get_bool("async-scheduling").unwrap_or_else(by_default)
}

/// The drafting method and its number of draft tokens per step.
#[derive(Debug)]
struct Method {
    tokens: u32,
    /// Whether the drafter has its own keys and values in the cache (`num_lookahead_tokens`).
    writes_cache: bool,
    /// Whether the drafts are computed on the device, and not by the host.
    on_device: bool,
    /// Whether it is a separate model, which computes one more input (`max_num_new_slots_for_drafting`).
    model: bool,
}

impl Method {
    /// Reads `--speculative-config` and the short flags `--spec-method`, `--spec-model` and `--spec-tokens`.
    fn read(config: &Config) -> Option<Self> {
        let json: serde_json::Value = match config.get_str("speculative-config").filter(|text| *text != "None") {
            Some(text) => serde_json::from_str(text).ok()?,
            None => serde_json::Value::Null,
        };
        let text = |flag: &str, field: &str| {
            config.get_str(flag).filter(|value| *value != "None").or_else(|| json[field].as_str())
        };
        let tokens = config.get_i64("spec-tokens").or_else(|| json["num_speculative_tokens"].as_i64())?;
        let method = match (text("spec-method", "method"), text("spec-model", "model")) {
            (Some(method), _) => method,
            // A model without a method is a draft model.
            (None, Some(_)) => "draft_model",
            (None, None) => return None,
        };
        let host = matches!(method, "ngram" | "suffix" | "medusa" | "mlp_speculator");
        let tokens = u32::try_from(tokens).ok()?;
        Some(Self { tokens, writes_cache: !host, on_device: !host, model: method == "draft_model" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::Settings;

    fn resolve(config: &Config, minor: u32, cpu: bool) -> Scheduling {
        scheduling(config, &Settings::default().resolved, EngineVersion::new(0, minor, 0), cpu, Some(0.6))
    }

    #[test]
    fn without_flags_it_is_the_release_s_default() {
        let new = resolve(&Config::new(), 32, false);
        assert_eq!(new, Scheduling { async_scheduling: true, ..Scheduling::default() });
        assert_eq!(resolve(&Config::new(), 32, true), Scheduling::default());
        let old = resolve(&Config::new(), 12, false);
        assert_eq!(old, Scheduling { reserve_full_isl: false, ..Scheduling::default() });
    }

    #[test]
    fn flags_decide() {
        let config = Config::new()
            .with("scheduling-policy", "priority")
            .with("long-prefill-token-threshold", 512)
            .with("max-num-active-seqs", 7)
            .with("watermark", 0.25)
            .with("async-scheduling", false)
            .with("pipeline-parallel-size", 2)
            .with("stream-interval", 10);
        let expected = Scheduling {
            order: QueueOrder::Priority,
            long_prefill_token_threshold: 512,
            max_num_active_seqs: Some(7),
            watermark: 0.25,
            pipeline_stages: 2,
            stream_interval: 10,
            ..Scheduling::default()
        };
        assert_eq!(resolve(&config, 32, false), expected);
    }

    #[test]
    fn drafters_differ_in_what_they_need_and_whether_steps_run_ahead() {
        let with = |text: &str| resolve(&Config::new().with("speculative-config", text), 32, false);
        let ngram = with(r#"{"method": "ngram", "num_speculative_tokens": 3}"#);
        let short = Config::new().with("spec-method", "ngram").with("spec-tokens", 3);
        let lookup = short.clone().with("speculative-config", r#"{"prompt_lookup_max": 3}"#);
        for config in [&short, &lookup] {
            assert_eq!(resolve(config, 32, false), ngram);
        }
        let off = Config::new().with("spec-method", "None").with("speculative-config", "None");
        assert_eq!(resolve(&off, 32, false).speculation, None);
        let of = |scheduling: &Scheduling| {
            let speculation = scheduling.speculation.unwrap();
            (speculation.tokens, speculation.lookahead, speculation.draft_slots, scheduling.async_scheduling)
        };
        assert_eq!(of(&ngram), (3, 0, 0, false));
        assert_eq!(of(&with(r#"{"method": "eagle3", "num_speculative_tokens": 2}"#)), (2, 2, 0, true));
        assert_eq!(of(&with(r#"{"model": "small", "num_speculative_tokens": 4}"#)), (4, 4, 1, true));
    }
}
