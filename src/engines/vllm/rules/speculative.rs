//! Speculative decoding: the method, the draft model and the number of tokens (`SpeculativeConfig` in vLLM 0.32).

use serde_json::{Map, Value as Json};

use super::{Candidate, Rule, Violation, refusal};
use crate::engines::vllm::FLAGS;
use crate::stats::f64_to_i64;

pub(super) const RULES: &[Rule] = &[
    refusal("R17", "speculative decoding has a method, a number of draft tokens and valid options", drafts),
    refusal("R17c", "metrics of drafts need speculative decoding", metrics),
];

/// The short flags, and the fields of `--speculative-config` that they set.
const SHORT: [(&str, &str); 3] =
    [("spec-method", "method"), ("spec-model", "model"), ("spec-tokens", "num_speculative_tokens")];

const CONFIG_FLAG: &str = "speculative-config";

fn drafting_violation(message: impl Into<String>) -> Violation {
    let without = Violation::new(message).unset(CONFIG_FLAG);
    SHORT.iter().fold(without, |violation, (flag, _)| violation.unset(flag))
}

/// Returns the fields of `--speculative-config` together with those of the short flags.
fn fields(candidate: &Candidate<'_>) -> Option<Result<Map<String, Json>, Violation>> {
    let whole = match candidate.json(CONFIG_FLAG) {
        None | Some(Json::Null) => Map::new(),
        Some(Json::Object(fields)) => fields,
        Some(other) => {
            return Some(Err(drafting_violation(format!("speculative_config must be an object, not {other}"))));
        }
    };
    let mut given = candidate.has(CONFIG_FLAG) && candidate.json(CONFIG_FLAG) != Some(Json::Null);
    let mut fields = whole.clone();
    for (flag, field) in SHORT {
        if !candidate.has(flag) {
            continue;
        }
        given = true;
        if whole.contains_key(field) {
            let message = format!("--{flag} and --speculative-config['{field}'] are mutually exclusive");
            return Some(Err(Violation::new(message).unset(flag)));
        }
        let value = candidate.number(flag).map(Json::from).or_else(|| candidate.text(flag).map(Json::from))?;
        fields.insert(field.to_owned(), value);
    }
    if !given {
        return None;
    }
    Some(Ok(fields.into_iter().map(|(name, value)| (name.replace('-', "_"), value)).collect()))
}

/// Methods that draft from the prompt or by their own class, without a model besides the target.
const MODELLESS: [&str; 5] = ["ngram", "[ngram]", "ngram_gpu", "suffix", "extract_hidden_states"];

/// Methods that support asynchronous scheduling: the next step is scheduled before this step's drafts are known.
/// Methods that end in `mtp` support it as well.
const ASYNCHRONOUS: [&str; 7] =
    ["eagle", "eagle3", "extract_hidden_states", "ngram_gpu", "draft_model", "dspark", "dflash"];

fn drafts(candidate: &Candidate<'_>) -> Option<Violation> {
    let fields = match fields(candidate)? {
        Ok(fields) => fields,
        Err(violation) => return Some(violation),
    };
    let flag = FLAGS.for_version(candidate.facts.version).find(CONFIG_FLAG)?;
    if let Some(reason) = flag.find_field_error(&Json::Object(fields.clone())) {
        return Some(drafting_violation(reason));
    }
    let text = |name: &str| fields.get(name).and_then(Json::as_str);
    let number = |name: &str| fields.get(name).filter(|value| !value.is_null()).and_then(integer);
    let set = |name: &str| fields.get(name).is_some_and(|value| !value.is_null() && *value != Json::Bool(false));
    let tokens = number("num_speculative_tokens");
    let model = text("model");
    let named = text("method").map(|method| if method.ends_with("_mtp") { "mtp" } else { method });
    let method = named.or_else(|| model.filter(|model| MODELLESS.contains(model)));
    if let Some(violation) = source(candidate, method, model, tokens) {
        return Some(violation);
    }
    if matches!(method, Some("ngram" | "[ngram]" | "ngram_gpu")) {
        let (fewest, most) = (number("prompt_lookup_min"), number("prompt_lookup_max"));
        if let (Some(fewest), Some(most)) = (fewest, most)
            && fewest > most
        {
            return Some(drafting_violation(format!("prompt_lookup_min={fewest} must be <= prompt_lookup_max={most}")));
        }
    }
    let tensor = candidate.number_or("tensor-parallel-size", 1);
    if let Some(own) = number("draft_tensor_parallel_size").filter(|own| *own != 1 && *own != tensor)
        && model.is_some_and(|model| !MODELLESS.contains(&model))
    {
        return Some(drafting_violation(format!(
            "speculative_draft_tensor_parallel_size={own} cannot be other value than 1 or target model \
             tensor_parallel_size ({tensor})"
        )));
    }
    if set("tensor_parallel_size") {
        return Some(drafting_violation(
            "'tensor_parallel_size' is not a valid argument in the speculative_config. Please pass \
             'draft_tensor_parallel_size' instead.",
        ));
    }
    let Some(tokens) = tokens else {
        // Only draft models of these kinds may state their own number of draft tokens. A name without such a part
        // counts as a plain model.
        let speaks = |name: &str| ["medusa", "mtp", "speculator", "accelerator"].iter().any(|part| name.contains(part));
        let stated = model.is_some_and(|model| !MODELLESS.contains(&model))
            && method.or(model).is_some_and(|name| speaks(&name.to_lowercase()))
            || method == Some("suffix");
        return (!stated).then(|| {
            drafting_violation(
                "num_speculative_tokens must be provided with speculative model unless the draft model config \
                 contains an n_predict parameter.",
            )
        });
    };
    if set("index_share_for_mtp_iteration") && method != Some("mtp") {
        return Some(drafting_violation("index_share_for_mtp_iteration is only supported with method='mtp'"));
    }
    if set("use_heterogeneous_vocab") && method != Some("draft_model") {
        return Some(drafting_violation("use_heterogeneous_vocab only works with method='draft_model'"));
    }
    let synthetic = text("rejection_sample_method") == Some("synthetic");
    let (rates, length) = (set("synthetic_acceptance_rates"), set("synthetic_acceptance_length"));
    if synthetic && rates == length {
        return Some(drafting_violation(
            "rejection_sample_method='synthetic' requires exactly one of synthetic_acceptance_rates or \
             synthetic_acceptance_length.",
        ));
    }
    if !synthetic && (rates || length) {
        return Some(drafting_violation(
            "synthetic_acceptance_rates / synthetic_acceptance_length are only valid with \
             rejection_sample_method='synthetic'.",
        ));
    }
    if candidate.on_cpu() && method == Some("dspark") {
        return Some(drafting_violation("Model Runner V1 does not support: dspark speculative decoding"));
    }
    if candidate.on_cpu() && set("enable_adaptive_verification") {
        return Some(drafting_violation("Model Runner V1 does not support: adaptive draft verification"));
    }
    if candidate.is_on("async-scheduling") {
        if method.is_some_and(|method| !ASYNCHRONOUS.contains(&method) && method != "mtp") {
            let message = "Currently, async scheduling is only supported with EAGLE/MTP/Draft Model/NGram \
                           GPU/DSpark/DFlash kind of speculative decoding";
            return Some(Violation::new(message).unset("async-scheduling"));
        }
        if set("disable_padded_drafter_batch") {
            let message = "Async scheduling is not compatible with disable_padded_drafter_batch=True.";
            return Some(Violation::new(message).unset("async-scheduling"));
        }
    }
    budget(candidate, method, tokens, set("parallel_drafting"))
}

/// Checks that the source of the drafts exists.
fn source(
    candidate: &Candidate<'_>,
    method: Option<&str>,
    model: Option<&str>,
    tokens: Option<i64>,
) -> Option<Violation> {
    match (method, model) {
        (Some("mtp"), None) if tokens.is_some() && !predicts_several_tokens(candidate) => {
            return Some(drafting_violation("Unsupported speculative method: 'mtp'"));
        }
        (Some("custom_class"), None) if tokens.is_some() => {
            return Some(drafting_violation(
                "method='custom_class' requires 'model' to contain the custom proposer module path (e.g., \
                 'my_module.MyProposer').",
            ));
        }
        (Some("suffix"), _) if candidate.on_cpu() => {
            return Some(drafting_violation(
                "Arctic Inference is required for suffix decoding. Install via `pip install arctic-inference==0.1.1`.",
            ));
        }
        (Some("mtp" | "dspark"), None) => {}
        (Some(method), None) if MODELLESS.contains(&method) => {}
        (_, None) if tokens.is_some() => {
            return Some(drafting_violation("num_speculative_tokens was provided but without speculative model."));
        }
        _ => {}
    }
    None
}

/// Checks that the token budget has room for the drafts. With `LoRA` it must hold those of all sequences, otherwise the
/// drafter's extra slots and one token.
fn budget(candidate: &Candidate<'_>, method: Option<&str>, tokens: i64, parallel: bool) -> Option<Violation> {
    let budget = candidate.effective.max_num_batched_tokens;
    let every = u64::try_from(tokens).unwrap_or(0).saturating_add(1);
    let wanted = candidate.effective.max_num_seqs.saturating_mul(every);
    if candidate.is_on("enable-lora") && budget < wanted {
        let message = format!(
            "Consider increasing max_num_batched_tokens or decreasing num_speculative_tokens: {budget} tokens are \
             fewer than the {wanted} of {} sequences with {tokens} drafts each",
            candidate.effective.max_num_seqs
        );
        return Some(drafting_violation(message));
    }
    let slots = match (method, parallel) {
        (Some("dflash" | "draft_model"), true) | (Some("dflash"), _) => tokens,
        (Some("dspark"), _) | (_, true) => tokens - 1,
        (Some("draft_model"), false) => 1,
        _ => 0,
    };
    (i64::try_from(budget).unwrap_or(i64::MAX) <= slots).then(|| {
        drafting_violation(format!(
            "VllmConfig does not have enough slots to schedule a token and support the speculative decoding settings. \
             Got max_num_batched_tokens={budget} and scheduled_token_delta={slots}."
        ))
    })
}

/// Returns whether the model itself can draft, according to its type. An unknown type counts as able.
fn predicts_several_tokens(candidate: &Candidate<'_>) -> bool {
    const FAMILIES: [&str; 17] = [
        "deepseek_v3",
        "deepseek_v32",
        "mimo",
        "glm4_moe",
        "ernie4_5_moe",
        "nemotron_h",
        "exaone_moe",
        "qwen3_next",
        "qwen3_5",
        "longcat_flash",
        "bailing_hybrid",
        "minimax",
        "kimi",
        "pangu",
        "step3p5",
        "hy_v",
        "gemma4",
    ];
    let own = candidate.facts.model.model_type.as_deref();
    own.is_none_or(|own| FAMILIES.iter().any(|family| own.starts_with(family)))
}

fn integer(value: &Json) -> Option<i64> {
    let whole = |number: f64| f64_to_i64(number);
    match value {
        Json::String(text) => text.trim().parse().ok().map(whole),
        _ => value.as_i64().or_else(|| value.as_f64().map(whole)),
    }
}

fn metrics(candidate: &Candidate<'_>) -> Option<Violation> {
    let asked = candidate.text("per-request-spec-decode-metrics").is_some_and(|level| level != "none");
    (asked && fields(candidate).is_none()).then(|| {
        let message = "--per-request-spec-decode-metrics requires speculative decoding to be enabled (via \
                       --speculative-config).";
        Violation::new(message).unset("per-request-spec-decode-metrics")
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::on_cpu;

    fn with(json: &str) -> Option<&'static str> {
        on_cpu(&format!("--speculative-config {json}"))
    }

    #[test]
    fn drafts_have_a_method_and_a_number() {
        assert_eq!(with(r#"{"method":"ngram","num_speculative_tokens":3}"#), None);
        assert_eq!(with(r#"{"method":"ngram"}"#), Some("R17"));
        assert_eq!(with(r#"{"num_speculative_tokens":3}"#), Some("R17"));
        assert_eq!(with(r#"{"method":"magic","num_speculative_tokens":3}"#), Some("R17"));
        assert_eq!(with(r#"{"method":"eagle","num_speculative_tokens":3}"#), Some("R17"));
        assert_eq!(with(r#"{"method":"ngram","num_speculative_tokens":3,"bogus":1}"#), Some("R17"));
        assert_eq!(on_cpu("--spec-method ngram --spec-tokens 3"), None);
        assert_eq!(on_cpu("--spec-tokens 3"), Some("R17"));
        assert_eq!(on_cpu("--spec-model small"), Some("R17"));
        assert_eq!(on_cpu("--spec-model small --spec-tokens 3"), None);
        assert_eq!(on_cpu("--spec-model some-medusa"), None, "it may state the number itself");
    }

    #[test]
    fn one_field_is_given_once() {
        let line = r#"--spec-tokens 3 --speculative-config {"method":"ngram","num_speculative_tokens":3}"#;
        assert_eq!(on_cpu(line), Some("R17"));
    }

    #[test]
    fn bounds_of_the_lookup_are_in_order() {
        let lookup = |min: u32, max: u32| {
            with(&format!(
                r#"{{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_min":{min},"prompt_lookup_max":{max}}}"#
            ))
        };
        assert_eq!((lookup(2, 5), lookup(5, 2)), (None, Some("R17")));
    }

    #[test]
    fn some_methods_cannot_be_scheduled_ahead() {
        let line = r#"--async-scheduling --speculative-config {"method":"ngram","num_speculative_tokens":3}"#;
        assert_eq!(on_cpu(line), Some("R17"));
        assert_eq!(on_cpu(&line.replace("ngram", "ngram_gpu")), Some("R17d"), "which is a matter of the device");
        assert_eq!(on_cpu("--per-request-spec-decode-metrics summary"), Some("R17c"));
    }
}
