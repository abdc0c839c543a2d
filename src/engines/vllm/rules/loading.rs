//! Inputs that the engine needs for loading: weights in the requested format, a tokenizer, Python packages.
//!
//! Sources: `vllm/model_executor/model_loader`, `vllm/tokenizers/registry.py`, `vllm/utils/hashing.py` of 0.32.0. Each
//! failure was reproduced with that release.

use super::{Candidate, Rule, Violation, late_failure};

pub(super) const RULES: &[Rule] = &[
    late_failure("R20m", "the load format exists in this release", known_format),
    late_failure("R20n", "the model has weights in the requested load format", files_of_the_format),
    late_failure("R20o", "the tokenizer mode exists in this release", known_tokenizer),
    late_failure("R23", "the engine's Python has the packages that a flag needs", packages),
];

/// `_LOAD_FORMAT_TO_MODEL_LOADER`.
const FORMATS: [&str; 15] = [
    "auto",
    "dummy",
    "fastsafetensors",
    "hf",
    "instanttensor",
    "ipc_cache",
    "mistral",
    "modelexpress",
    "npcache",
    "pt",
    "runai_streamer",
    "runai_streamer_sharded",
    "safetensors",
    "sharded_state",
    "tensorizer",
];

fn known_format(candidate: &Candidate<'_>) -> Option<Violation> {
    let format = candidate.text("load-format").map(str::to_lowercase)?;
    (!FORMATS.contains(&format.as_str())).then(|| {
        let message = format!("Load format `{format}` is not supported; there are {}", FORMATS.join(", "));
        Violation::new(message).unset("load-format")
    })
}

fn files_of_the_format(candidate: &Candidate<'_>) -> Option<Violation> {
    let files = candidate.facts.model.weight_files.as_ref()?;
    let format = candidate.text("load-format").map(str::to_lowercase)?;
    let begins_and_ends =
        |begin: &str, end: &str| files.iter().any(|name| name.starts_with(begin) && name.ends_with(end));
    let (there, wanted) = match format.as_str() {
        "safetensors" | "fastsafetensors" | "instanttensor" => (begins_and_ends("", ".safetensors"), "*.safetensors"),
        "mistral" => (begins_and_ends("consolidated", ".safetensors"), "consolidated*.safetensors"),
        "pt" => (begins_and_ends("", ".pt"), "*.pt"),
        "npcache" => (begins_and_ends("", ".bin") || begins_and_ends("", ".pt"), "*.bin"),
        "sharded_state" => (begins_and_ends("model-rank-", ".safetensors"), "model-rank-*-part-*.safetensors"),
        _ => return None,
    };
    (!there).then(|| {
        let message = format!(
            "Cannot find any model weights for load format `{format}`: it needs {wanted}, and the model has {}",
            files.join(", ")
        );
        Violation::new(message).unset("load-format")
    })
}

/// The keys of `_VLLM_TOKENIZERS`, and the modes that select one of them.
const TOKENIZERS: [&str; 10] = [
    "auto",
    "cohere",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v41",
    "hf",
    "inkling",
    "kimi_audio",
    "kimi_k3",
    "mistral",
];

fn known_tokenizer(candidate: &Candidate<'_>) -> Option<Violation> {
    let mode = candidate.text("tokenizer-mode").filter(|mode| !TOKENIZERS.contains(mode))?;
    let message = format!("No tokenizer registered for tokenizer_mode='{mode}'; there are {}", TOKENIZERS.join(", "));
    Some(Violation::new(message).unset("tokenizer-mode"))
}

/// Values that need a package: the flag, the beginning of the value, and the package.
const NEEDS: [(&str, &str, &str); 8] = [
    ("load-format", "fastsafetensors", "fastsafetensors"),
    ("load-format", "instanttensor", "instanttensor"),
    ("load-format", "modelexpress", "modelexpress"),
    ("load-format", "runai_streamer", "runai_model_streamer"),
    ("load-format", "tensorizer", "tensorizer"),
    ("prefix-caching-hash-algo", "sha256_cbor", "cbor2"),
    ("prefix-caching-hash-algo", "xxhash", "xxhash"),
    ("quantization", "humming", "humming"),
];

/// Returns packages that some flag needs but an installation may lack. The preflight checks the engine's Python for
/// them.
pub fn optional_packages() -> impl Iterator<Item = &'static str> {
    NEEDS.iter().map(|(_, _, package)| *package)
}

fn packages(candidate: &Candidate<'_>) -> Option<Violation> {
    let absent = candidate.facts.missing_packages?;
    let needed = |(flag, value, package): &&(&str, &str, &str)| {
        absent.contains(*package) && candidate.text(flag).is_some_and(|given| given.starts_with(value))
    };
    let (flag, value, package) = NEEDS.iter().find(needed)?;
    let message = format!("No module named '{package}': --{flag} {value} needs it; install it beside the engine.");
    Some(Violation::new(message).unset(flag))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::config::Config;
    use crate::facts::{Device, EngineVersion, ModelShape};
    use crate::rule::{Facts, rejection, repair};

    fn rejected(config: &Config, absent: Option<&[&str]>) -> Option<&'static str> {
        let mut model = ModelShape::from_json(&serde_json::json!({}));
        model.weight_files = Some(vec!["model.safetensors".to_owned()]);
        let absent: Option<BTreeSet<String>> =
            absent.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        let facts = Facts::new(crate::engines::vllm::VLLM_RULES, &model, EngineVersion::V0_32, Device::UNKNOWN_GPU);
        let facts = Facts { missing_packages: absent.as_ref(), ..facts };
        let found = rejection(config, &facts).map(|finding| finding.rule);
        assert_eq!(repair(config, &facts).is_some_and(|repaired| &repaired == config), found.is_none());
        found
    }

    #[test]
    fn formats_exist_and_have_their_files() {
        let of = |format: &str| rejected(&Config::new().with("load-format", format), None);
        for format in ["auto", "safetensors", "dummy", "SafeTensors", "runai_streamer"] {
            assert_eq!(of(format), None, "{format}");
        }
        assert_eq!((of("gguf"), of("bitsandbytes")), (Some("R20m"), Some("R20m")));
        for format in ["pt", "npcache", "mistral", "sharded_state"] {
            assert_eq!(of(format), Some("R20n"), "{format}");
        }
    }

    #[test]
    fn tokenizer_modes_exist() {
        let of = |mode: &str| rejected(&Config::new().with("tokenizer-mode", mode), None);
        assert_eq!((of("hf"), of("slow"), of("bogus")), (None, Some("R20o"), Some("R20o")));
    }

    #[test]
    fn a_package_is_reported_as_missing_only_if_it_is_known_to_be_absent() {
        let xxhash = Config::new().with("prefix-caching-hash-algo", "xxhash_cbor");
        assert_eq!(rejected(&xxhash, None), None);
        assert_eq!(rejected(&xxhash, Some(&["tensorizer"])), None);
        assert_eq!(rejected(&xxhash, Some(&["xxhash"])), Some("R23"));
    }
}
