//! Configurations in logs and pages of several releases.

use proptest::prelude::*;

use super::reported_config::{differences, read_reported_config};
use crate::config::{Config, Value};
use crate::engine::ReportedConfig;

const V0_9: &str = "\
INFO 07-22 20:36:51 [cli_args.py:300] non-default args: {'block_size': 16, 'kv_cache_dtype': 'fp8', 'max_num_seqs': 128, \
'cuda_graph_sizes': [4680], 'enable_chunked_prefill': True, 'compilation_config': {\"level\": 3}, 'api_key': 'hush'}
INFO 07-22 20:37:01 [config.py:2118] Chunked prefill is enabled with max_num_batched_tokens=8192.
INFO 07-22 20:37:08 [llm_engine.py:230] Initializing a V0 LLM engine (v0.9.0.1) with config: model='a/b, c', \
speculative_config=None, override_neuron_config={}, trust_remote_code=False, dtype=torch.bfloat16, max_seq_len=131072, \
load_format=LoadFormat.AUTO, tensor_parallel_size=1, pipeline_parallel_size=1, quantization=None, enforce_eager=False, \
kv_cache_dtype=fp8,  device_config=cuda, decoding_config=DecodingConfig(backend='auto', disable_fallback=False), seed=0, \
num_scheduler_steps=1, enable_prefix_caching=None, chunked_prefill_enabled=True, \
compilation_config={\"level\": 3, \"cudagraph_capture_sizes\": [2, 1]}, use_cached_outputs=True, 
INFO 07-22 20:37:10 [cuda.py:289] Using XFormers backend.";

const V0_32: &str = "\
(APIServer pid=3) INFO 11-22 [api_utils.py:286] non-default args: {'model_tag': 'm', 'max_model_len': 1024, 'max_num_seqs': 1}
(APIServer pid=3) INFO 11-22 [model.py:733] Resolved architecture: Qwen2ForCausalLM
(APIServer pid=3) INFO 11-22 [model.py:2152] Using max model len 1024
(APIServer pid=3) INFO 11-22 [scheduler.py:307] Chunked prefill is enabled with max_num_batched_tokens=512.
(EngineCore pid=9) INFO 11-22 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m', \
dtype=torch.bfloat16, max_seq_len=1024, load_format=auto, tensor_parallel_size=1, data_parallel_size=1, quantization=None, \
aux_output_config=AuxOutputConfig(enable_return_routed_experts=False, max_bytes=None), enforce_eager=True, \
kv_cache_dtype=auto, device_config=cpu, enable_prefix_caching=True, enable_chunked_prefill=True, \
compilation_config={'mode': <CompilationMode.NONE: 0>, 'custom_ops': ['all']}, kernel_config=KernelConfig(moe='auto')
(EngineCore pid=9) INFO 11-22 01:17:00 [utils.py:347] Using LBHNC KV cache layout.";

const PAGE: &str = "# TYPE vllm:cache_config_info gauge\n\
    vllm:cache_config_info{block_size=\"128\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",\
    gpu_memory_utilization=\"0.92\",kv_cache_size_tokens=\"524288\",num_cpu_blocks=\"None\",num_gpu_blocks=\"4096\",\
    num_gpu_blocks_override=\"None\"} 1.0\n";

fn told(resolved: &ReportedConfig, names: &[&str]) -> Vec<String> {
    let shown = resolved.reported_values(&Config::new());
    names.iter().map(|name| shown.get(*name).cloned().unwrap_or_else(|| "-".to_owned())).collect()
}

/// Formats each difference as `flag asked->resolved`.
fn differing(asked: &Config, resolved: &ReportedConfig) -> String {
    let differences = differences(asked, resolved);
    differences.iter().map(|d| format!("{} {}->{}", d.flag, d.asked, d.resolved)).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_start_of_0_9_is_read() {
    let seen = read_reported_config(V0_9, "");
    let names =
        ["engine", "release", "dtype", "max-model-len", "load-format", "kv-cache-dtype", "max-num-batched-tokens"];
    assert_eq!(told(&seen, &names), ["V0", "0.9.0.1", "bfloat16", "131072", "auto", "fp8", "8192"]);
    let names =
        ["enable-chunked-prefill", "enable-prefix-caching", "attention-backend", "quantization", "device", "seed"];
    assert_eq!(told(&seen, &names), ["True", "-", "XFORMERS", "None", "cuda", "0"]);
}

#[test]
fn a_start_of_0_32_is_read_with_its_metrics() {
    let seen = read_reported_config(V0_32, PAGE);
    let names = ["engine", "release", "architecture", "dtype", "enforce-eager", "enable-prefix-caching", "block-size"];
    assert_eq!(told(&seen, &names), ["V1", "0.32.0", "Qwen2ForCausalLM", "bfloat16", "True", "True", "128"]);
    let names =
        ["num-gpu-blocks", "kv-cache-size-tokens", "num-cpu-blocks", "attention-backend", "gpu-memory-utilization"];
    assert_eq!(told(&seen, &names), ["4096", "524288", "-", "-", "0.92"]);
}

#[test]
fn a_start_of_0_6_is_read_although_it_forgot_a_comma() {
    let log = "\
INFO 11-20 10:00:00 api_server.py:529] args: Namespace(model='m', max_num_seqs=64, dtype='auto', lora_modules=None)
INFO 11-20 10:00:09 llm_engine.py:237] Initializing an LLM engine (v0.6.3.post1) with config: model='m', \
dtype=torch.float16, max_seq_len=4096, num_scheduler_steps=8, chunked_prefill_enabled=False \
multi_step_stream_outputs=True, enable_prefix_caching=False, use_async_output_proc=True, mm_processor_kwargs=None)";
    let seen = read_reported_config(log, "");
    let names =
        ["engine", "release", "dtype", "num-scheduler-steps", "enable-chunked-prefill", "enable-prefix-caching"];
    assert_eq!(told(&seen, &names), ["V0", "0.6.3.post1", "float16", "8", "False", "False"]);
    let asked = Config::new().with("max-num-seqs", 32_i64).with("dtype", "half");
    assert_eq!(differing(&asked, &seen), "max-num-seqs 32->64");
}

#[test]
fn a_value_that_is_resolved_differently_is_a_difference() {
    let asked = Config::new()
        .with("max-num-batched-tokens", 2048_i64)
        .with("max-num-seqs", 1_i64)
        .with("enable-prefix-caching", false)
        .with("dtype", "float16")
        .with("block-size", 16_i64)
        .with("gpu-memory-utilization", 0.92);
    let expected = "block-size 16->128, dtype float16->bfloat16, enable-prefix-caching false->True, \
                    max-num-batched-tokens 2048->512";
    assert_eq!(differing(&asked, &read_reported_config(V0_32, PAGE)), expected);
}

#[test]
fn other_spellings_open_values_and_unlogged_values_are_no_differences() {
    let asked = Config::new()
        .with("dtype", "auto")
        .with("max-model-len", "1K")
        .with("kv-cache-dtype", "auto")
        .with("enforce-eager", true)
        .with("tensor-parallel-size", 1.0)
        .with("compilation-config", "{\"level\": 3}")
        .with("stream-interval", 4_i64);
    assert_eq!(differing(&asked, &read_reported_config(V0_32, PAGE)), "");
    let asked = Config::new().with("max-model-len", -1_i64).with("load-format", "auto");
    assert_eq!(differing(&asked, &read_reported_config(V0_32, "")), "");
    let asked =
        Config::new().with("kv-cache-dtype", "fp8_e4m3").with("dtype", "bfloat16").with("max-num-seqs", 128_i64);
    assert_eq!(differing(&asked, &read_reported_config(V0_9, "")), "");
    assert_eq!(differing(&asked, &read_reported_config("", "")), "");
}

#[test]
fn backends_are_named_as_the_flag_spells_them() {
    let lines = [
        ("INFO [cuda.py:217] Using Flash Attention backend on V1 engine.", "FLASH_ATTN"),
        ("INFO [cuda.py:1] Using AttentionBackendEnum.FLASH_ATTN backend.", "FLASH_ATTN"),
        (
            "INFO [cuda.py:1] Using FLASHINFER attention backend out of potential backends: ['FLASHINFER'].",
            "FLASHINFER",
        ),
        ("INFO [cuda.py:1] Using FLASHINFER MoE backend", "-"),
        ("INFO [backends.py:35] Using InductorAdaptor", "-"),
    ];
    for (line, expected) in lines {
        assert_eq!(told(&read_reported_config(line, ""), &["attention-backend"]), [expected], "{line}");
    }
}

#[test]
fn only_given_arguments_are_shown_and_never_a_secret() {
    let seen = read_reported_config(V0_9, "");
    let asked = Config::new().with("max-num-seqs", 128_i64).with("api-key", "hush");
    let shown = seen.reported_values(&asked);
    assert_eq!(shown.get("max-num-seqs").map(String::as_str), Some("128"));
    assert!(!shown.contains_key("block-size") && !shown.values().any(|value| value.contains("hush")), "{shown:?}");
}

proptest! {
    #[test]
    fn a_number_that_is_granted_is_no_difference_and_another_is(asked in 1..1_000_000_i64, other in 1..1_000_000_i64) {
        let log = |tokens: i64| format!("Chunked prefill is enabled with max_num_batched_tokens={tokens}.");
        let config = Config::new().with("max-num-batched-tokens", asked);
        prop_assert_eq!(differing(&config, &read_reported_config(&log(asked), "")), "");
        prop_assert_eq!(differing(&config, &read_reported_config(&log(other), "")).is_empty(), asked == other);
    }

    #[test]
    fn no_log_makes_it_panic(rest in "\\PC{0,60}") {
        for text in ["non-default args: {", "args: Namespace(", "Initializing a V1 LLM engine (v", "Using "] {
            let seen = read_reported_config(&format!("{text}{rest}"), &format!("vllm:cache_config_info{{{rest}"));
            let asked: Config = [("a".to_owned(), Value::Bool(true))].into_iter().collect();
            let _ = differences(&asked, &seen);
        }
    }
}
