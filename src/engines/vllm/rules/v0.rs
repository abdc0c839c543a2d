//! Combinations that the V0 engine does not support, and requests for V1 in releases with both engines.
//!
//! Sources: `vllm/config.py`, `vllm/engine/arg_utils.py`, `vllm/worker/utils.py` of 0.6.3, 0.8.5 and 0.10.2.

use super::multi_step::flash_attention_obstacle;
use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::config::Config;
use crate::engines::vllm::defaults::engine;
use crate::facts::{Device, EngineVersion};

const fn rule(
    id: &'static str,
    holds: &'static str,
    releases: ReleaseRange,
    severity: Severity,
    check: fn(&Candidate<'_>) -> Option<Violation>,
) -> Rule {
    Rule { id, condition: holds, releases, severity, check }
}

/// Releases with V0 only.
const ONLY_V0: ReleaseRange = ReleaseRange::until(EngineVersion::V0_8);
/// Releases that may run V0.
const MAYBE_V0: ReleaseRange = ReleaseRange::until(EngineVersion::V0_12);

pub(super) const RULES: &[Rule] = &[
    rule(
        "E1",
        "with VLLM_USE_V1=1, the V1 engine supports the configuration",
        ReleaseRange::between(EngineVersion::V0_8, EngineVersion::V0_12),
        Severity::Configuration,
        v1_supports_request,
    ),
    rule("R4g", "the number of lookahead slots is not negative", MAYBE_V0, Severity::Configuration, slots_not_negative),
    rule(
        "R13e",
        "chunked prefill excludes speculative decoding",
        ONLY_V0,
        Severity::Configuration,
        chunks_without_drafting,
    ),
    rule("R13f", "chunked prefill excludes LoRA", ONLY_V0, Severity::Configuration, chunks_without_adapters),
    rule(
        "R13g",
        "prefix caching excludes a sliding window",
        MAYBE_V0,
        Severity::Configuration,
        prefixes_without_window,
    ),
    rule(
        "R13h",
        "encoder-decoder models exclude features of decoder-only models",
        ONLY_V0,
        Severity::Startup,
        encoder_decoder_alone,
    ),
    rule("R13i", "prefix caching excludes multimodal models", MAYBE_V0, Severity::Overridden, prefixes_of_text),
    rule("R13j", "preemption by swapping needs swap space", MAYBE_V0, Severity::Runtime, swap_has_space),
    rule(
        "R13k",
        "use-v2-block-manager is not set",
        ReleaseRange::until(EngineVersion::V0_10),
        Severity::Overridden,
        one_block_manager,
    ),
    rule("R13l", "CUDA graphs cover the longest sequence", MAYBE_V0, Severity::Degraded, graphs_cover_length),
    rule(
        "R13m",
        "the V0 engine of these releases excludes speculative decoding",
        ReleaseRange::between(EngineVersion::V0_10, EngineVersion::V0_12),
        Severity::Configuration,
        v0_without_drafting,
    ),
    rule(
        "R13n",
        "FlashAttention supports the block size and the data types",
        ONLY_V0,
        Severity::Degraded,
        flash_attention,
    ),
    rule("R14a", "a CPU excludes chunked prefill and prefix caching", ONLY_V0, Severity::Overridden, no_chunks_on_cpu),
    rule("R14b", "a CPU excludes LoRA", ONLY_V0, Severity::Startup, no_adapters_on_cpu),
    rule("R14d", "a CPU excludes float16", ONLY_V0, Severity::Overridden, no_float16_on_cpu),
];

/// Returns whether speculative decoding is on, by the flags of any release.
pub(super) fn uses_drafting(config: &Config) -> bool {
    config.get("speculative-model").is_some() || config.get("speculative-config").is_some()
}

fn is_on(candidate: &Candidate<'_>, name: &str) -> bool {
    candidate.config.get_bool(name) == Some(true)
}

fn v1_supports_request(candidate: &Candidate<'_>) -> Option<Violation> {
    engine::asks_for_v1(candidate.facts).filter(|asked| *asked)?;
    let found = engine::first_unsupported(candidate.config, candidate.facts).filter(|found| !found.experimental)?;
    let violation = Violation::new(format!("VLLM_USE_V1=1 is not supported with {}.", found.feature));
    let flag = found.feature.strip_prefix("--").and_then(|words| words.split([' ', '=']).next());
    let flag = flag.map(|name| name.replace('_', "-")).filter(|name| candidate.config.get(name).is_some());
    Some(match flag {
        Some(flag) => violation.unset(&flag),
        None => violation,
    })
}

fn slots_not_negative(candidate: &Candidate<'_>) -> Option<Violation> {
    let slots = candidate.config.get_i64("num-lookahead-slots").filter(|slots| *slots < 0)?;
    let message = format!("num_lookahead_slots ({slots}) must be greater than or equal to 0.");
    Some(Violation::new(message).unset("num-lookahead-slots"))
}

fn chunks_without_drafting(candidate: &Candidate<'_>) -> Option<Violation> {
    (candidate.effective.chunked_prefill && uses_drafting(candidate.config)).then(|| {
        let message =
            "Speculative decoding and chunked prefill are currently mutually exclusive (enable_chunked_prefill=True).";
        Violation::new(message).set("enable-chunked-prefill", false)
    })
}

fn chunks_without_adapters(candidate: &Candidate<'_>) -> Option<Violation> {
    (candidate.effective.chunked_prefill && is_on(candidate, "enable-lora"))
        .then(|| Violation::new("LoRA is not supported with chunked prefill yet.").set("enable-chunked-prefill", false))
}

/// Families that mix layers with and without a sliding window. vLLM knows them by name, regardless of the layers that
/// their `config.json` lists.
const MIXED_WINDOW_FAMILIES: [&str; 5] = ["cohere2", "gemma2", "gemma3", "gemma3_text", "gpt_oss"];

fn prefixes_without_window(candidate: &Candidate<'_>) -> Option<Violation> {
    let (config, model) = (candidate.config, candidate.facts.model);
    let mixed = model.model_type.as_deref().is_some_and(|family| MIXED_WINDOW_FAMILIES.contains(&family));
    let in_every_layer = model.sliding_layers.is_some() && model.sliding_layers == model.layers && !mixed;
    let broken = candidate.effective.v0
        && candidate.effective.prefix_caching
        && in_every_layer
        && engine::uses_window(config, candidate.facts);
    broken.then(|| {
        let message = format!(
            "Prefix caching is not supported with sliding window. Run with --disable-sliding-window to use prefix \
             caching. The model's window is {} tokens.",
            model.sliding_window.unwrap_or_default()
        );
        Violation::new(message).unset("enable-prefix-caching")
    })
}

fn encoder_decoder_alone(candidate: &Candidate<'_>) -> Option<Violation> {
    if !candidate.facts.model.encoder_decoder {
        return None;
    }
    let e = &candidate.effective;
    let several_steps = candidate.config.get_i64("num-scheduler-steps").is_some_and(|steps| steps > 1);
    let refused = [
        (e.prefix_caching, "Prefix caching for", "enable-prefix-caching"),
        (e.chunked_prefill, "Chunked prefill for", "enable-chunked-prefill"),
        (is_on(candidate, "enable-lora"), "LoRA with", "enable-lora"),
        (e.pipeline_parallel_size > 1, "Pipeline parallelism with", "pipeline-parallel-size"),
        (uses_drafting(candidate.config), "Speculative decoding with", "speculative-model"),
        (several_steps, "Multi-step scheduling with", "num-scheduler-steps"),
    ];
    let (_, what, flag) = refused.into_iter().find(|(asked, ..)| *asked)?;
    let message = format!("{what} encoder/decoder models is not currently supported.");
    let violation = Violation::new(message);
    // V0 enables chunked prefill by default for a long model, so the removal of the flag is not enough.
    Some(if flag == "enable-chunked-prefill" { violation.set(flag, false) } else { violation.unset(flag) })
}

fn prefixes_of_text(candidate: &Candidate<'_>) -> Option<Violation> {
    let asked = is_on(candidate, "enable-prefix-caching") && candidate.effective.v0;
    (asked && candidate.facts.model.multimodal).then(|| {
        Violation::new("--enable-prefix-caching is not supported for multimodal models in V0 and has been disabled.")
            .unset("enable-prefix-caching")
    })
}

fn swap_has_space(candidate: &Candidate<'_>) -> Option<Violation> {
    let swaps = candidate.effective.v0 && candidate.config.get_str("preemption-mode") == Some("swap");
    let space = candidate.config.get_f64("swap-space").filter(|space| swaps && *space <= 0.0)?;
    let message = format!(
        "Aborted due to the lack of CPU swap space: preemption_mode is swap and swap_space is {space} GiB, so the first \
         preemption ends the engine"
    );
    Some(Violation::new(message).unset("swap-space"))
}

fn one_block_manager(candidate: &Candidate<'_>) -> Option<Violation> {
    candidate.config.get("use-v2-block-manager")?;
    let message = "Block manager v1 has been removed, and setting --use-v2-block-manager to True or False has no \
                   effect on vLLM behavior.";
    Some(Violation::new(message).unset("use-v2-block-manager"))
}

fn graphs_cover_length(candidate: &Candidate<'_>) -> Option<Violation> {
    let e = &candidate.effective;
    let covered = candidate.config.get_i64("max-seq-len-to-capture")?;
    let short = u64::try_from(covered).unwrap_or(0) < e.max_model_len;
    let has_graphs = e.v0 && !is_on(candidate, "enforce-eager") && candidate.facts.device != Device::Cpu;
    (has_graphs && short).then(|| {
        let message = format!(
            "sequences longer than max_seq_len_to_capture ({covered}) run without CUDA graphs, and max_model_len is {}",
            e.max_model_len
        );
        Violation::new(message)
    })
}

fn v0_without_drafting(candidate: &Candidate<'_>) -> Option<Violation> {
    (candidate.effective.v0 && uses_drafting(candidate.config) && candidate.facts.device != Device::Cpu)
        .then(|| Violation::new("Speculative decoding is not supported on vLLM V0.").unset("speculative-config"))
}

/// Reports a slower kernel only if one of these flags is given. Otherwise the model or the device is the reason, and no
/// flag changes that.
fn flash_attention(candidate: &Candidate<'_>) -> Option<Violation> {
    let asks = ["block-size", "kv-cache-dtype", "dtype"].into_iter().any(|name| candidate.config.get(name).is_some());
    let chosen = candidate.facts.env.contains_key("VLLM_ATTENTION_BACKEND");
    let reason = flash_attention_obstacle(candidate).filter(|_| asks && !chosen)?;
    Some(Violation::new(format!("{reason}: the slower XFormers backend is used")))
}

fn no_chunks_on_cpu(candidate: &Candidate<'_>) -> Option<Violation> {
    let on_cpu = candidate.facts.device == Device::Cpu;
    let what = [("enable-chunked-prefill", "Chunked prefill"), ("enable-prefix-caching", "Prefix caching")];
    let (flag, what) = what.into_iter().find(|(flag, _)| on_cpu && is_on(candidate, flag))?;
    Some(Violation::new(format!("{what} is not supported on CPU, disable it.")).unset(flag))
}

fn no_adapters_on_cpu(candidate: &Candidate<'_>) -> Option<Violation> {
    (candidate.facts.device == Device::Cpu && is_on(candidate, "enable-lora"))
        .then(|| Violation::new("cpu backend doesn't support LoRA").unset("enable-lora"))
}

fn no_float16_on_cpu(candidate: &Candidate<'_>) -> Option<Violation> {
    let asked = candidate.config.get_str("dtype").filter(|dtype| ["half", "float16"].contains(dtype))?;
    (candidate.facts.device == Device::Cpu).then(|| {
        let message = format!("float16 is not supported on CPU, casting to bfloat16: dtype is {asked}");
        Violation::new(message).set("dtype", "bfloat16")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::engines::vllm::FLAGS;
    use crate::engines::vllm::rules::tests::{rule, verdict};
    use crate::facts::{Device, ModelShape};
    use crate::rule::{Facts, Finding, check};

    fn findings(version: &str, model: &str, env: &[(&str, &str)], line: &str) -> Vec<Finding> {
        let model = ModelShape::from_json(&serde_json::from_str(model).unwrap());
        let env: BTreeMap<_, _> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let version = version.parse().unwrap();
        let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let config = FLAGS.for_version(version).parse(&arguments).unwrap();
        check(
            &config,
            &Facts {
                env: &env,
                ..Facts::new(crate::engines::vllm::VLLM_RULES, &model, version, Device::gpu_of(24 << 30))
            },
        )
    }

    fn ids(version: &str, model: &str, line: &str) -> Vec<&'static str> {
        findings(version, model, &[], line).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn chunked_prefill_excludes_drafting_and_adapters_in_0_6_only() {
        let chunked = "--enable-chunked-prefill";
        assert_eq!(rule("0.6.3", &format!("{chunked} --speculative-model draft")), Some("R13e"));
        assert_eq!(rule("0.6.3", "--speculative-model draft"), None);
        assert_eq!(rule("0.6.3", &format!("{chunked} --enable-lora")), Some("R13f"));
        assert_eq!(rule("0.8.5", &format!("{chunked} --enable-lora")), None);
    }

    #[test]
    fn prefixes_are_not_cached_in_a_window_of_every_layer() {
        let mistral = r#"{"model_type": "mistral", "sliding_window": 4096, "num_hidden_layers": 32}"#;
        let asked = "--enable-prefix-caching";
        assert_eq!(ids("0.6.3", mistral, asked), ["R13g"]);
        assert!(ids("0.6.3", mistral, "").is_empty());
        assert!(ids("0.6.3", mistral, &format!("{asked} --disable-sliding-window")).is_empty());
        assert!(ids("0.8.5", mistral, asked).is_empty(), "V1");
        assert_eq!(ids("0.8.5", mistral, &format!("{asked} --scheduler-delay-factor 1")), ["R13g"]);
        let gemma = r#"{"model_type": "gemma2", "sliding_window": 4096, "num_hidden_layers": 32}"#;
        assert!(ids("0.6.3", gemma, asked).is_empty());
    }

    #[test]
    fn encoder_decoder_models_take_few_features() {
        let bart = r#"{"is_encoder_decoder": true, "max_position_embeddings": 1024}"#;
        assert!(ids("0.6.3", bart, "").is_empty());
        for line in
            ["--enable-prefix-caching", "--enable-chunked-prefill", "--pipeline-parallel-size 2", "--enable-lora"]
        {
            assert_eq!(ids("0.6.3", bart, line), ["R13h"], "{line}");
        }
        assert!(!ids("0.8.5", bart, "--enable-lora").contains(&"R13h"));
    }

    #[test]
    fn a_flag_without_effect_is_reported_and_not_refused() {
        for (version, line, id) in [
            ("0.6.3", "--use-v2-block-manager", "R13k"),
            ("0.8.5", "--use-v2-block-manager", "R13k"),
            ("0.6.3", "--max-seq-len-to-capture 2048", "R13l"),
            ("0.6.3", "--block-size 8", "R13n"),
            ("0.6.3", "--kv-cache-dtype fp8", "R13n"),
        ] {
            let finding = verdict(version, Device::gpu_of(24 << 30), line);
            assert!(
                finding.as_ref().is_some_and(|(found, rejects, _)| *found == id && !rejects),
                "{line}: {finding:?}"
            );
        }
        assert_eq!(verdict("0.6.3", Device::gpu_of(24 << 30), "--max-seq-len-to-capture 4096"), None);
        assert_eq!(verdict("0.8.5", Device::gpu_of(24 << 30), "--max-seq-len-to-capture 2048"), None, "V1");
        let pictures = r#"{"vision_config": {}}"#;
        assert_eq!(ids("0.6.3", pictures, "--enable-prefix-caching"), ["R13i"]);
        assert!(ids("0.8.5", pictures, "--enable-prefix-caching").is_empty());
    }

    #[test]
    fn swapping_needs_space_and_slots_are_not_negative() {
        assert_eq!(rule("0.6.3", "--preemption-mode swap --swap-space 0"), Some("R13j"));
        assert_eq!(rule("0.6.3", "--preemption-mode swap --swap-space 4"), None);
        assert_eq!(rule("0.6.3", "--preemption-mode recompute --swap-space 0"), None);
        assert_eq!(rule("0.10.2", "--num-lookahead-slots -1"), Some("R4g"));
        assert_eq!(rule("0.6.3", "--num-lookahead-slots 0"), None);
    }

    #[test]
    fn a_cpu_of_the_v0_era_takes_no_adapters_and_no_chunks() {
        let on_cpu = |version, line| verdict(version, Device::Cpu, line).map(|(id, rejects, _)| (id, rejects));
        assert_eq!(on_cpu("0.6.3", "--enable-lora"), Some(("R14b", true)));
        assert_eq!(on_cpu("0.6.3", "--enable-chunked-prefill"), Some(("R14a", false)));
        assert_eq!(on_cpu("0.8.5", "--enable-lora"), None);
        assert_eq!(on_cpu("0.6.3", "--dtype half"), Some(("R14d", false)));
        assert_eq!(on_cpu("0.6.3", "--dtype bfloat16"), None);
    }

    #[test]
    fn asking_for_v1_refuses_what_only_v0_has() {
        let asked = [("VLLM_USE_V1", "1")];
        let found = findings("0.8.5", "{}", &asked, "--scheduler-delay-factor 0.5");
        assert_eq!(found[0].message, "VLLM_USE_V1=1 is not supported with --scheduler-delay-factor.");
        assert_eq!(found[0].changes[0].flag, "scheduler-delay-factor");
        assert!(findings("0.8.5", "{}", &[], "--scheduler-delay-factor 0.5").is_empty());
        assert!(findings("0.12.0", "{}", &asked, "").is_empty());
        let drafting = r#"--speculative-config {"method":"ngram"}"#;
        let v0 = [("VLLM_USE_V1", "0")];
        assert_eq!(findings("0.10.2", "{}", &v0, drafting)[0].rule, "R13m");
        assert!(findings("0.10.2", "{}", &asked, drafting).is_empty());
    }
}
