//! Failures that vLLM finds only in its workers, provoked in real starts. The configuration is accepted, the start
//! fails, and a rule must have predicted it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value as Json, json};
use setpoint::engines::vllm::FLAGS;
use setpoint::engines::vllm::optional_packages;
use setpoint::facts::{Device, EngineVersion, HostLimits, ModelShape};
use setpoint::rule::{Facts, Severity, rejection};

use crate::real_vllm::installation;
use crate::support::{root, say_skipped};

/// One start: changed keys of `config.json`, flags, changed variables, the rule that rejects it, and text of the
/// engine's message.
struct Case {
    keys: Json,
    flags: &'static str,
    env: &'static [(&'static str, Option<&'static str>)],
    rule: Option<&'static str>,
    says: &'static str,
    /// The text on a processor without AMX, if it differs.
    without_amx: Option<&'static str>,
}

const SPACE: &str = "VLLM_CPU_KVCACHE_SPACE";
const NO_SPACE: &[(&str, Option<&str>)] = &[(SPACE, None)];
const BIND: &str = "VLLM_CPU_OMP_THREADS_BIND";
const UNBOUND: &[(&str, Option<&str>)] = &[(BIND, Some("nobind"))];

fn late(flags: &'static str, rule: &'static str, says: &'static str) -> Case {
    Case { keys: json!({}), flags, env: &[], rule: Some(rule), says, without_amx: None }
}

fn cases() -> Vec<Case> {
    let experts = json!({
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 129, "shared_expert_intermediate_size": 128, "decoder_sparse_step": 1,
    });
    let latent = json!({
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "kv_lora_rank": 512,
        "q_lora_rank": null, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 4,
        "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "topk_method": "greedy", "scoring_func": "softmax", "n_group": 1, "topk_group": 1,
        "routed_scaling_factor": 1.0, "norm_topk_prob": false, "num_key_value_heads": 4,
    });
    let two = "--tensor-parallel-size 2";
    vec![
        Case { rule: None, ..late("", "", "") },
        late("--block-size 48", "R15b", "No common block size for 48 (CPU_ATTN: [MultipleOf(32)])"),
        late("--block-size 8", "R15b", "No common block size for 8"),
        late("--num-gpu-blocks-override 8", "R6", "the estimated maximum model length is 896"),
        late("--num-gpu-blocks-override 1", "R6", "No available memory for the cache blocks"),
        Case { env: NO_SPACE, ..late("--kv-cache-memory-bytes 1M", "R6", "estimated maximum model length is 384") },
        Case {
            env: NO_SPACE,
            ..late("--kv-cache-memory-bytes 100K --max-model-len auto", "R7", "Cannot auto-fit max_model_len")
        },
        Case {
            env: NO_SPACE,
            ..late("--gpu-memory-utilization 0.99", "R5c", "less than desired CPU memory utilization")
        },
        Case { env: &[(SPACE, Some("100000"))], ..late("", "R5d", "is less than requested memory for kv") },
        late(two, "R10d", "Not enough allowed NUMA nodes"),
        late("--pipeline-parallel-size 2", "R10d", "Not enough allowed NUMA nodes"),
        Case {
            keys: json!({"hidden_size": 96}),
            ..late("", "R15g", "Unsupported CPU attention configuration: head_dim=24")
        },
        Case {
            keys: latent,
            without_amx: Some("expected scalar type BFloat16 but found Float8_e4m3fn"),
            ..late("--kv-cache-dtype fp8", "R15h", "fp8 KV cache for CPU MLA is not yet implemented")
        },
        Case {
            keys: json!({"hidden_size": 320}),
            ..late("--kv-cache-dtype fp8", "R15i", "FP8 KV cache requires head_size divisible by 32 on CPU")
        },
        late(r#"--speculative-config {"method":"ngram_gpu","num_speculative_tokens":3}"#, "R17d", "NVIDIA driver"),
        late("--kv-offloading-size 1", "R18c", "CPU Offloading is currently only supported on CUDA-alike and XPU GPUs"),
        late("--offload-group-size 2", "R18d", "Module parameters should not already be on CPU"),
        late("--quantization fp8", "R20l", "static_scaled_fp8_quant"),
        late("--quantization fp8_per_tensor", "R20l", "static_scaled_fp8_quant"),
        Case {
            without_amx: Some("requires AMX tile support"),
            ..late("--quantization fp8_per_block", "R20l", "expected scalar type Float but found BFloat16")
        },
        late("--quantization mxfp4", "R20l", "Failed to find a kernel"),
        late("--quantization mxfp8", "R20l", "Failed to find a kernel"),
        late("--load-format gguf", "R20m", "Load format `gguf` is not supported"),
        late("--load-format bitsandbytes", "R20m", "Load format `bitsandbytes` is not supported"),
        late("--load-format pt", "R20n", "Cannot find any model weights"),
        late("--load-format npcache", "R20n", "Cannot find any model weights"),
        late("--load-format mistral", "R20n", "Cannot find any model weights"),
        late("--load-format sharded_state", "R20n", "Could not find checkpoint files"),
        late("--tokenizer-mode slow", "R20o", "No tokenizer registered for tokenizer_mode='slow'"),
        late("--prefix-caching-hash-algo xxhash", "R23", "xxhash is required"),
        late("--load-format tensorizer", "R23", "No module named 'tensorizer'"),
        late("--load-format runai_streamer", "R23", "No module named 'runai_model_streamer'"),
        late("--load-format fastsafetensors", "R23", "No module named 'fastsafetensors'"),
        late("--load-format instanttensor", "R23", "Please install instanttensor"),
        late("--load-format modelexpress", "R23", "requires the ModelExpress Python package"),
        late("--quantization humming", "R23", "No module named 'humming'"),
        Case {
            keys: json!({"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 384}),
            env: UNBOUND,
            ..late(two, "R8b", "assert self.total_num_kv_heads % tp_size == 0")
        },
        Case {
            keys: json!({"intermediate_size": 513}),
            env: UNBOUND,
            ..late(two, "R8c", "assert all(output_size % self.tp_size == 0")
        },
        Case { keys: experts, env: UNBOUND, ..late(two, "R8c", "assert self.intermediate_size % tp_size == 0") },
        Case { env: &[(BIND, Some("0"))], ..late(two, "R10e", "doesn't match local world size 2") },
        Case {
            keys: json!({"num_key_value_heads": 1}),
            env: UNBOUND,
            ..late("--tensor-parallel-size 2 --decode-context-parallel-size 2", "R16q", "Decode Context Parallelism")
        },
        Case {
            env: &[(BIND, Some("nobind")), ("VLLM_PP_LAYER_PARTITION", Some("1,2"))],
            ..late("--pipeline-parallel-size 2", "R9a", "does not match num_hidden_layers=4")
        },
        Case {
            keys: json!({"num_hidden_layers": 1, "layer_types": ["full_attention"]}),
            env: UNBOUND,
            ..late("--pipeline-parallel-size 2", "R9", "ZeroDivisionError")
        },
    ]
}

/// Writes a model directory with these keys changed. With any changed key the weights are left out, because they would
/// not fit any more.
fn write_model(original: &Path, directory: &Path, keys: &Json) {
    std::fs::create_dir_all(directory).unwrap();
    let changed = keys.as_object().unwrap();
    for file in std::fs::read_dir(original).unwrap().flatten() {
        let name = file.file_name();
        if name != "config.json" && (changed.is_empty() || name != "model.safetensors") {
            std::os::unix::fs::symlink(file.path(), directory.join(name)).unwrap();
        }
    }
    let text = std::fs::read_to_string(original.join("config.json")).unwrap();
    let mut config: Json = serde_json::from_str(&text).unwrap();
    config.as_object_mut().unwrap().extend(changed.clone());
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
}

/// Returns the rule that rejects the case. Its severity must be late.
fn found(case: &Case, directory: &Path, absent: &BTreeSet<String>) -> Option<&'static str> {
    let version = EngineVersion::new(0, 32, 0);
    let words: Vec<_> = case.flags.split_whitespace().map(str::to_owned).collect();
    let config = FLAGS.for_version(version).parse(&words).unwrap();
    let mut env = BTreeMap::from([(SPACE.to_owned(), "1".to_owned())]);
    for (name, value) in case.env {
        env.remove(*name);
        env.extend(value.map(|value| ((*name).to_owned(), value.to_owned())));
    }
    let model = ModelShape::read(directory).unwrap();
    let host = HostLimits::detect();
    let facts = Facts {
        env: &env,
        host,
        missing_packages: Some(absent),
        ..Facts::new(setpoint::engines::vllm::VLLM_RULES, &model, version, Device::Cpu)
    };
    let finding = rejection(&config, &facts)?;
    assert_eq!(finding.severity, Severity::Startup, "{}: {finding:?}", case.flags);
    Some(finding.rule)
}

/// A process that has imported the engine once and starts it anew for each command line.
struct Engine {
    process: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// Packages that the engine could use and that are not installed.
    absent: BTreeSet<String>,
}

impl Engine {
    #[expect(clippy::disallowed_methods, reason = "the engine is started by a script of the test's own")]
    fn import(installation: &Path) -> Self {
        let mut process = Command::new(installation.join("bin/python"))
            .arg(root().join("tests/fixtures/late_starts.py"))
            .args(optional_packages())
            .envs([("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1"), (SPACE, "1")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let questions = process.stdin.take().unwrap();
        let mut answers = BufReader::new(process.stdout.take().unwrap()).lines();
        let hello: Json = serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
        let absent = serde_json::from_value(hello["absent"].clone()).unwrap();
        Self { process, questions, answers, absent }
    }

    fn start(&mut self, question: &Json) -> Json {
        writeln!(self.questions, "{question}").unwrap();
        serde_json::from_str(&self.answers.next().unwrap().unwrap()).unwrap()
    }

    fn end(mut self) {
        drop(self.questions);
        assert!(self.process.wait().unwrap().success());
    }
}

#[test]
#[ignore = "needs the real vLLM, which SETPOINT_VLLM_CPU names"]
fn the_real_engine_fails_late_where_the_rules_say_so() {
    let installation = installation();
    let cases: Vec<_> = cases().into_iter().enumerate().collect();
    // A start is one thread most of the time, so two run in parallel.
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (cases, installation) = (&cases, &installation);
            scope.spawn(move || fail_late(cases.iter().filter(|(index, _)| index % 2 == half), installation));
        }
    });
}

fn fail_late<'a>(cases: impl Iterator<Item = &'a (usize, Case)>, installation: &Path) {
    let models = tempfile::tempdir().unwrap();
    let mut engine = Engine::import(installation);
    let host = HostLimits::detect();
    let one_node = host.numa_nodes == Some(1);
    for (index, case) in cases {
        if case.rule == Some("R10d") && !one_node {
            say_skipped("workers without a memory node of their own: this machine has several");
            continue;
        }
        let directory = models.path().join(index.to_string());
        write_model(&installation.join("model"), &directory, &case.keys);
        let found = found(case, &directory, &engine.absent);
        if case.rule == Some("R23") && found.is_none() {
            say_skipped(&format!("{}: its package is installed", case.flags));
            continue;
        }
        assert_eq!(found, case.rule, "{} {}", case.flags, case.keys);

        let mut args = vec![directory.display().to_string(), "--enforce-eager".to_owned()];
        if !case.flags.contains("--load-format") && case.keys != json!({}) {
            args.extend(["--load-format".to_owned(), "dummy".to_owned()]);
        }
        args.extend(case.flags.split_whitespace().map(str::to_owned));
        let workers = if case.env.iter().any(|(name, _)| *name == BIND) { 2 } else { 1 };
        let env: BTreeMap<_, _> = case.env.iter().copied().collect();
        let answer = engine.start(&json!({"args": args, "env": env, "workers": workers}));
        let log = answer["error"].as_str().unwrap();
        let tail: String =
            log.lines().rev().take(12).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n");
        println!("{} s: {} {}", answer["seconds"], case.rule.unwrap_or("served"), case.flags);
        assert_eq!(answer["configured"], true, "{}: {tail}", case.flags);
        assert_eq!(answer["served"], case.rule.is_none(), "{}: {tail}", case.flags);
        let says = case.without_amx.filter(|_| host.amx == Some(false)).unwrap_or(case.says);
        assert!(log.contains(says), "{}: {tail}", case.flags);
    }
    engine.end();
}
