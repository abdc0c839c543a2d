//! The configuration that an engine reports, and its differences from the requested one.
//!
//! Sources: the start-up lines of vLLM 0.6.3 to 0.32.0, such as `non-default args` and `Initializing a V1 LLM engine`,
//! and logs of 0.9.0.1 and 0.32.0. The labels of `vllm:cache_config_info` on `/metrics` are the fields of
//! `CacheConfig`.

use std::collections::BTreeMap;

use super::python_text::{fields, labels};
use crate::config::{Config, Value};
use crate::engine::ReportedConfig;
use crate::trial::FlagDifference;

/// Fields of the line `Initializing a V1 LLM engine (v...) with config: ...`, and the flags that they correspond to.
const ENGINE_FIELDS: [(&str, &str); 20] = [
    ("dtype", "dtype"),
    ("max_seq_len", "max-model-len"),
    ("load_format", "load-format"),
    ("tokenizer_mode", "tokenizer-mode"),
    ("tensor_parallel_size", "tensor-parallel-size"),
    ("pipeline_parallel_size", "pipeline-parallel-size"),
    ("data_parallel_size", "data-parallel-size"),
    ("decode_context_parallel_size", "decode-context-parallel-size"),
    ("disable_custom_all_reduce", "disable-custom-all-reduce"),
    ("quantization", "quantization"),
    ("enforce_eager", "enforce-eager"),
    ("kv_cache_dtype", "kv-cache-dtype"),
    ("device_config", "device"),
    ("seed", "seed"),
    ("trust_remote_code", "trust-remote-code"),
    ("num_scheduler_steps", "num-scheduler-steps"),
    ("multi_step_stream_outputs", "multi-step-stream-outputs"),
    ("enable_prefix_caching", "enable-prefix-caching"),
    // Until 0.10, and since then.
    ("chunked_prefill_enabled", "enable-chunked-prefill"),
    ("enable_chunked_prefill", "enable-chunked-prefill"),
];

/// Labels of `vllm:cache_config_info`, and the flags that they correspond to. The last three are no flags but results.
const CACHE_LABELS: [(&str, &str); 11] = [
    ("block_size", "block-size"),
    ("cache_dtype", "kv-cache-dtype"),
    ("gpu_memory_utilization", "gpu-memory-utilization"),
    ("enable_prefix_caching", "enable-prefix-caching"),
    ("prefix_caching_hash_algo", "prefix-caching-hash-algo"),
    ("num_gpu_blocks_override", "num-gpu-blocks-override"),
    ("swap_space", "swap-space"),
    ("cpu_offload_gb", "cpu-offload-gb"),
    ("num_gpu_blocks", "num-gpu-blocks"),
    ("num_cpu_blocks", "num-cpu-blocks"),
    ("kv_cache_size_tokens", "kv-cache-size-tokens"),
];

/// Names of attention backends in the log, and their spellings for `--attention-backend` and `VLLM_ATTENTION_BACKEND`.
const BACKENDS: [(&str, &str); 9] = [
    ("Flash Attention", "FLASH_ATTN"),
    ("FlashAttention", "FLASH_ATTN"),
    ("FlashInfer", "FLASHINFER"),
    ("XFormers", "XFORMERS"),
    ("Triton Attention", "TRITON_ATTN"),
    ("Torch SDPA", "TORCH_SDPA"),
    ("FlexAttention", "FLEX_ATTENTION"),
    ("Triton MLA", "TRITON_MLA"),
    ("FlashMLA", "FLASHMLA"),
];

/// Reads a start's log, and the page of `/metrics` if there is one.
#[must_use]
pub(super) fn read_reported_config(log: &str, metrics: &str) -> ReportedConfig {
    let mut seen = Reader::default();
    for line in log.lines() {
        seen.read(line);
    }
    let cache = metrics.lines().find_map(|line| line.trim().strip_prefix("vllm:cache_config_info{"));
    let cache: BTreeMap<_, _> = cache.map(labels).unwrap_or_default().into_iter().collect();
    for (label, flag) in CACHE_LABELS {
        seen.add_value(flag, cache.get(label).map(String::as_str));
    }
    seen.0
}

/// A reader of a start's lines that collects them in a report.
#[derive(Debug, Default)]
struct Reader(ReportedConfig);

impl Reader {
    fn read(&mut self, line: &str) {
        let after = |text: &str| line.find(text).map(|at| &line[at + text.len()..]);
        if let Some(given) = after("non-default args: {") {
            self.add_fields(given, ':');
        } else if let Some(given) = after("args: Namespace(") {
            self.add_fields(given, '=');
        } else if let Some(length) = after("Using max model len ") {
            // The first such line is about the served model. A draft model's line comes later.
            self.0.effective.entry("max-model-len".to_owned()).or_insert_with(|| word(length).to_owned());
        } else if let Some(tokens) = after("Chunked prefill is enabled with max_num_batched_tokens=") {
            self.add_value("max-num-batched-tokens", Some(word(tokens)));
            self.add_value("enable-chunked-prefill", Some("True"));
        } else if let Some(architecture) = after("Resolved architecture: ") {
            self.0.effective.entry("architecture".to_owned()).or_insert_with(|| word(architecture).to_owned());
        } else if let Some((engine, told)) = line.split_once(" LLM engine (v") {
            let engine = engine.rsplit(' ').next().unwrap_or_default();
            self.add_value("engine", Some(if engine == "V1" { "V1" } else { "V0" }));
            let Some((release, config)) = told.split_once(") with config: ") else { return };
            self.add_value("release", Some(release));
            let config: BTreeMap<_, _> = fields(config, '=').into_iter().collect();
            for (field, flag) in ENGINE_FIELDS {
                let value = config.get(field);
                // `None` is final only for quantization. The other flags get their values later.
                let value = value.map(String::as_str).filter(|value| flag == "quantization" || *value != "None");
                self.add_value(flag, value.map(word));
            }
        } else if let Some(backend) = after("Using ").and_then(backend) {
            self.0.effective.entry("attention-backend".to_owned()).or_insert(backend);
        }
    }

    fn add_fields(&mut self, text: &str, separator: char) {
        let given = fields(text, separator).into_iter().filter(|(name, value)| {
            !crate::trial::is_secret(name) && value != "None" && !value.starts_with(['[', '{', '(', '<'])
        });
        self.0.given.extend(given.map(|(name, value)| (name.replace('_', "-"), plain(&value))));
    }

    fn add_value(&mut self, flag: &str, value: Option<&str>) {
        let value = value.filter(|value| !value.is_empty() && (flag == "quantization" || *value != "None"));
        if let Some(value) = value {
            self.0.effective.insert(flag.to_owned(), plain(value));
        }
    }
}

/// Returns the first word, without punctuation at its end: 0.6 omits the comma between two fields.
fn word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default().trim_end_matches(['.', ','])
}

/// Converts `torch.bfloat16` to `bfloat16` and `LoadFormat.AUTO` to `auto`. Numbers and names stay unchanged.
fn plain(value: &str) -> String {
    let is_class = |name: &str| name.starts_with(|c: char| c.is_ascii_uppercase());
    let is_member = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    match value.split_once('.') {
        Some(("torch", name)) => name.to_owned(),
        Some((class, member)) if is_class(class) && is_member(member) => member.to_ascii_lowercase(),
        _ => value.to_owned(),
    }
}

/// Parses `Flash Attention backend on V1 engine.`, `AttentionBackendEnum.FLASH_ATTN backend.`,
/// `FLASH_ATTN attention backend out of`.
fn backend(text: &str) -> Option<String> {
    let name = text.split_once(" backend")?.0.trim_end_matches(" attention");
    let name = name.strip_prefix("AttentionBackendEnum.").unwrap_or(name);
    if let Some((_, known)) = BACKENDS.iter().find(|(words, _)| *words == name) {
        return Some((*known).to_owned());
    }
    let is_spelt = name.len() > 3 && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    (is_spelt && (name.contains("ATTN") || name.contains("MLA") || name.contains("FLASH"))).then(|| name.to_owned())
}

/// Returns the explicit flags whose reported value differs from the requested one. Flags that the engine does not
/// report count as equal.
#[must_use]
pub(super) fn differences(asked: &Config, resolved: &ReportedConfig) -> Vec<FlagDifference> {
    let told = |flag: &str| resolved.effective.get(flag).or_else(|| resolved.given.get(flag));
    let differs = |(flag, asked): (&str, &Value)| {
        let resolved = told(flag)?;
        (!is_equal_value(flag, asked, resolved)).then(|| FlagDifference {
            flag: flag.to_owned(),
            asked: asked.to_string(),
            resolved: resolved.clone(),
        })
    };
    asked.iter().filter_map(differs).collect()
}

fn is_equal_value(flag: &str, asked: &Value, resolved: &str) -> bool {
    match asked {
        Value::Bool(asked) => parse_bool(resolved).is_none_or(|resolved| resolved == *asked),
        // A length of zero or less requests the longest that fits.
        Value::Int(length) if flag == "max-model-len" && *length <= 0 => true,
        Value::Int(_) | Value::Float(_) => {
            let Some((asked, resolved)) = asked.as_f64().zip(number(resolved)) else { return true };
            (asked - resolved).abs() <= 1e-9 * asked.abs().max(resolved.abs())
        }
        // Lists and JSON have more than one spelling, so they count as equal.
        Value::Text(asked) if asked == "auto" || asked.contains(['{', '[', ' ']) => true,
        Value::Text(asked) => match (number(asked), number(resolved)) {
            (Some(asked), Some(resolved)) => (asked - resolved).abs() <= 1e-9 * asked.abs().max(resolved.abs()),
            _ => canonical_value(flag, asked) == canonical_value(flag, resolved),
        },
    }
}

fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "True" | "true" | "1" => Some(true),
        "False" | "false" | "0" => Some(false),
        _ => None,
    }
}

/// Parses a number, including vLLM's short forms: `1k` is 1000, `1K` is 1024.
fn number(text: &str) -> Option<f64> {
    let thousands = [('k', 1e3), ('m', 1e6), ('g', 1e9), ('K', 1024.0), ('M', 1_048_576.0), ('G', 1_073_741_824.0)];
    let unit = thousands.iter().find(|(unit, _)| text.ends_with(*unit));
    let (digits, unit) = unit.map_or((text, 1.0), |(unit, size)| (text.trim_end_matches(*unit), *size));
    if !digits.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) {
        return None;
    }
    digits.replace(',', "").parse::<f64>().ok().map(|number| number * unit)
}

/// Returns the common spelling of a value that has several.
fn canonical_value(flag: &str, text: &str) -> String {
    let text = text.to_ascii_lowercase();
    let same = match (flag, text.as_str()) {
        ("dtype", "half") => "float16",
        ("dtype", "float") => "float32",
        // On CUDA, `fp8` stands for this format.
        ("kv-cache-dtype", "fp8_e4m3") => "fp8",
        (_, other) => other,
    };
    same.replace('-', "_")
}
