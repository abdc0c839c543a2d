//! Logs and exits, and the failures that are derived from them.

use super::*;
use FailureKind as K;
use proptest::prelude::*;

fn starting(log: &str) -> EngineEvidence<'_> {
    EngineEvidence {
        log,
        exit: Some(ProcessExit::Code(1)),
        under_load: false,
        oom_kills: 0,
        ended_by_tuner: false,
        own_models: &[],
    }
}

fn loaded(log: &str) -> EngineEvidence<'_> {
    EngineEvidence { under_load: true, ..starting(log) }
}

/// Returns the evidence of an engine that has ended under load with exit code 0.
fn gone(log: &str) -> EngineEvidence<'_> {
    EngineEvidence { exit: Some(ProcessExit::Code(0)), ..loaded(log) }
}

fn kind(evidence: EngineEvidence<'_>) -> K {
    diagnose(&evidence).kind
}

fn failure(log: &str) -> (K, String) {
    let failure = diagnose(&starting(log));
    (failure.kind, failure.message)
}

/// Returns the forms of the same line in releases of vLLM.
fn forms(message: &str) -> [String; 5] {
    [
        message.to_owned(),
        format!("ERROR 11-20 21:21:18 engine.py:366] {message}"),
        format!("(EngineCore_DP0 pid=7) ERROR 11-20 21:21:18 [core.py:1510] {message}\r"),
        format!("\u{1b}[1;36m(Worker_TP0 pid=9)\u{1b}[0;0m ERROR 11-20 21:21:18 [core.py:1510] {message}"),
        format!("[rank0]: {message}"),
    ]
}

#[test]
fn the_first_cause_counts_and_not_the_wrapper() {
    let log = "\
(Worker pid=9) ERROR 11-20 21:21:18 [multiproc_executor.py:1063] ValueError: No common block size for 8 (CPU_ATTN: [MultipleOf(32)]).
(EngineCore pid=7) ERROR 11-20 21:21:18 [core.py:1510] RuntimeError: Worker failed with error 'No common block size'
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}";
    let message = "ValueError: No common block size for 8 (CPU_ATTN: [MultipleOf(32)]).";
    assert_eq!(failure(log), (K::Unsupported, message.to_owned()));
}

#[test]
fn every_cause_is_known_in_the_form_of_every_release() {
    for (told, expected) in [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 748.00 MiB.", K::OutOfMemory),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", K::OutOfMemory),
        ("torch.cuda.OutOfMemoryError: HIP out of memory.", K::OutOfMemory),
        ("RuntimeError: CUDA error: out of memory", K::OutOfMemory),
        (
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests.",
            K::OutOfMemorySampler,
        ),
        ("ValueError: No available memory for the cache blocks. Try increasing", K::NoKvMemory),
        ("ValueError: To serve at least one request with the model's max seq len (4096), (0.01 GiB", K::NoKvMemory),
        (
            "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV cache (96).",
            K::NoKvMemory,
        ),
        ("AssertionError: Error in memory profiling. Initial free memory 1, current free memory 2.", K::DeviceBusy),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", K::DeviceBusy),
        ("OSError: [Errno 98] Address already in use", K::PortInUse),
        ("OSError: [Errno 28] No space left on device: '/tmp/x'", K::Disk),
        ("OSError: [Errno 24] Too many open files", K::Disk),
        ("MemoryError: ", K::HostMemory),
        ("numpy.exceptions._ArrayMemoryError: Unable to allocate 3.0 GiB for an array", K::HostMemory),
        ("OSError: [Errno 12] Cannot allocate memory", K::HostMemory),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", K::ModelUnavailable),
        ("huggingface_hub.errors.HFValidationError: Repo id must be in the form", K::ModelUnavailable),
        (
            "OSError: qwen/no-such is not a local folder and is not a valid model identifier listed on",
            K::ModelUnavailable,
        ),
        ("ValueError: Invalid repository ID or local directory specified: '/none'.", K::ModelUnavailable),
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.", K::Unsupported),
        ("ValueError: Model architectures ['X'] are not supported for now.", K::Unsupported),
        ("ModuleNotFoundError: No module named 'humming'", K::Unsupported),
        ("NotImplementedError: fp8 KV cache for CPU MLA is not yet implemented", K::Unsupported),
        ("ValueError: World size (2) is larger than the number of available GPUs (1)", K::InvalidArgument),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1", K::Network),
        ("RuntimeError: NCCL error: unhandled system error", K::Network),
        ("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x', port=443)", K::Network),
        ("TimeoutError: Timed out waiting for engine core processes to start.", K::StartupTimeout),
        ("TimeoutError: RPC call to sample_tokens timed out.", K::Hang),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", K::StartupExit),
        ("KeyError: 'layers'", K::StartupExit),
        ("KeyboardInterrupt: terminated", K::Killed),
    ] {
        for log in forms(told) {
            assert_eq!(kind(starting(&log)), expected, "{log}");
            assert_eq!(kind(EngineEvidence { oom_kills: 1, ..starting(&log) }), expected, "{log}");
        }
    }
}

#[test]
fn under_load_only_what_happens_to_a_running_engine_is_its_cause() {
    let traceback = |told: &str| {
        format!(
            "INFO:     Application startup complete.\nTraceback (most recent call last):\n  File \"a.py\", line 1, in f\n{told}"
        )
    };
    for (told, expected) in [
        ("torch.OutOfMemoryError: CUDA out of memory.", K::OutOfMemoryLoad),
        ("TimeoutError: RPC call to execute_model timed out.", K::Hang),
        ("OSError: [Errno 28] No space left on device", K::Disk),
        ("torch.distributed.DistBackendError: NCCL error in: x", K::Network),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", K::Crash),
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability 8.0", K::Crash),
        ("ValueError: To serve at least one request with the model's max seq len", K::Crash),
    ] {
        assert_eq!(kind(loaded(&traceback(told))), expected, "{told}");
    }
    // Errors that the start survived have nothing to do with a later failure.
    let log = "OSError: [Errno 24] Too many open files\nINFO:     Application startup complete.\nERROR:    strange";
    assert_eq!(kind(loaded(log)), K::Crash);
}

#[test]
fn out_of_memory_is_placed_by_the_traceback_and_else_by_the_lines_before() {
    let oom = "torch.OutOfMemoryError: CUDA out of memory.";
    let frames = |functions: &[&str]| {
        let calls: Vec<_> = functions
            .iter()
            .map(|f| format!("  File \"/vllm/x.py\", line 1, in {f}\n    code()\n    ^^^^^^"))
            .collect();
        format!("INFO 1 [a.py:1] Capturing CUDA graph\nTraceback (most recent call last):\n{}\n{oom}", calls.join("\n"))
    };
    for (functions, expected) in [
        (&["load_model", "get_model"][..], K::OutOfMemory),
        (&["determine_available_memory", "profile_run", "forward"], K::OutOfMemoryProfile),
        (&["determine_available_memory", "profile_cudagraph_memory", "run"], K::OutOfMemoryGraphs),
        (&["initialize_from_config", "initialize_kv_cache", "zeros"], K::OutOfMemoryKvCache),
        (&["compile_or_warm_up_model", "capture_model", "replay"], K::OutOfMemoryGraphs),
        (&["compile_or_warm_up_model", "_dummy_sampler_run", "sort"], K::OutOfMemorySampler),
        (&["unknown"], K::OutOfMemoryGraphs),
    ] {
        assert_eq!(kind(starting(&frames(functions))), expected, "{functions:?}");
    }
    for (line, expected) in [
        ("Loading safetensors checkpoint shards:  25% Completed", K::OutOfMemory),
        ("INFO 11-20 [m.py:1] Model loading took 14.98 GiB and 4.7 seconds", K::OutOfMemoryProfile),
        ("INFO 11-20 m.py:1] Loading model weights took 14.98 GB", K::OutOfMemoryProfile),
        ("(EngineCore pid=7) INFO 11-20 [m.py:1] Available KV cache memory: 3.1 GiB", K::OutOfMemoryKvCache),
        ("INFO 11-20 [m.py:1] GPU KV cache size: 191,328 tokens", K::OutOfMemoryKvCache),
        ("INFO 11-20 m.py:1] # GPU blocks: 27886, # CPU blocks: 2048", K::OutOfMemoryKvCache),
        ("Capturing CUDA graph shapes:  10%|# | 1/10", K::OutOfMemoryGraphs),
        ("INFO 11-20 [m.py:1] Graph capturing finished in 20 secs, took 0.52 GiB", K::OutOfMemorySampler),
    ] {
        assert_eq!(kind(starting(&format!("{line}\n{oom}"))), expected, "{line}");
    }
}

#[test]
fn a_busy_device_is_distinguished_from_a_request_for_too_much_memory() {
    let told = |free: &str| {
        format!(
            "ValueError: Free memory on device cuda:0 ({free}/44.5 GiB) on startup is less than desired GPU memory \
             utilization (0.99, 44.1 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
        )
    };
    assert_eq!(kind(starting(&told("9.2"))), K::DeviceBusy);
    assert_eq!(kind(starting(&told("43.9"))), K::InvalidArgument);
    assert_eq!(kind(starting("ValueError: it is less than desired GPU memory utilization")), K::DeviceBusy);
}

#[test]
fn a_pydantic_error_gives_its_second_line() {
    let log = "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig
  Value error, max_num_batched_tokens (100) must be greater than or equal to max_num_seqs (200). [type=value_error, input]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error";
    let message = "max_num_batched_tokens (100) must be greater than or equal to max_num_seqs (200).";
    assert_eq!(failure(log), (K::InvalidArgument, message.to_owned()));
    let unsupported = log.replace("max_num_batched_tokens (100) must", "Sleep mode is not supported here and must");
    assert_eq!(failure(&unsupported).0, K::Unsupported);
}

#[test]
fn a_field_bound_gives_the_field_and_what_is_wrong_with_it() {
    let log = "(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig
(APIServer pid=7) max_num_seqs
(APIServer pid=7)   Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0]";
    let message = "max_num_seqs: Input should be greater than or equal to 1";
    assert_eq!(failure(&log.replace("(APIServer pid=7) ", "")), (K::InvalidArgument, message.to_owned()));
    assert_eq!(failure(log), (K::InvalidArgument, message.to_owned()));
}

#[test]
fn headroom_is_not_out_of_memory_and_a_warning_about_files_is_no_error() {
    let log = "INFO 11-20 [a.py:1] keeping 5% headroom (OOM margin), see https://docs/CUDA out of memory
WARNING 11-20 [b.py:2] Found ulimit of 20000: errors like `OSError: [Errno 24] Too many open files`
(APIServer pid=3) WARNING 11-20 [b.py:2] torch.OutOfMemoryError: CUDA out of memory
KeyError: 'layers'
RuntimeError: Engine core initialization failed. See root cause above.";
    assert_eq!(failure(log), (K::StartupExit, "exit code 1; KeyError: 'layers'".to_owned()));
}

#[test]
fn text_of_users_is_no_failure() {
    let log = "INFO:     Application startup complete.
INFO 11-20 [logger.py:1] Received request cmpl-1: prompt: 'why CUDA out of memory? OSError: [Errno 28] No space left on device'
torch.OutOfMemoryError: CUDA out of memory. What does this mean?
ERROR 11-20 [serving.py:9] Error in request: prompt='torch.OutOfMemoryError: CUDA out of memory'
ERROR 11-20 [dump_input.py:72] Dumping input data: prompt_token_ids [1], 'CUDA out of memory'
ERROR 11-20 [core.py:9] RuntimeError: something else";
    assert_eq!(diagnose(&loaded(log)).kind, K::Crash);
    assert_eq!(diagnose(&loaded(log)).message, "exit code 1; RuntimeError: something else");
}

#[test]
fn a_foreign_signal_is_distinguished_from_the_tuners_and_from_the_kernels() {
    let killed = |exit| EngineEvidence { exit: Some(exit), ..starting("INFO 11-20 [a.py:1] loading") };
    for exit in [
        ProcessExit::Signal(9),
        ProcessExit::Signal(15),
        ProcessExit::Signal(2),
        ProcessExit::Code(137),
        ProcessExit::Code(143),
    ] {
        for under_load in [false, true] {
            assert_eq!(kind(EngineEvidence { under_load, ..killed(exit) }), K::Killed, "{exit}");
            let otherwise = if under_load { K::Crash } else { K::StartupExit };
            assert_eq!(kind(EngineEvidence { under_load, ended_by_tuner: true, ..killed(exit) }), otherwise, "{exit}");
        }
    }
    assert_eq!(diagnose(&killed(ProcessExit::Signal(9))).message, "signal 9, which the tuner did not send");
    let oom = EngineEvidence { oom_kills: 1, ..killed(ProcessExit::Signal(9)) };
    assert_eq!(diagnose(&oom).kind, K::HostMemory);
    assert_eq!(kind(EngineEvidence { exit: Some(ProcessExit::Signal(15)), ..oom }), K::Killed, "the kernel sends KILL");
    for fault in [ProcessExit::Signal(11), ProcessExit::Signal(6), ProcessExit::Code(3), ProcessExit::Code(255)] {
        assert_eq!(kind(killed(fault)), K::StartupExit, "{fault}");
    }
    // Releases around 0.8 end themselves in this way after a failure.
    let own = "ValueError: No available memory for the cache blocks.\n\
               CRITICAL 11-20 [core_client.py:361] Got fatal signal from worker processes, shutting down.";
    assert_eq!(kind(EngineEvidence { exit: Some(ProcessExit::Signal(9)), ..starting(own) }), K::NoKvMemory);
}

#[test]
fn the_death_of_a_child_is_read_from_the_words_of_its_parent() {
    let worker = |code: &str| {
        format!(
            "INFO:     Application startup complete.\n(EngineCore pid=7) ERROR 11-20 [m.py:1] Worker proc VllmWorker-0 \
             died unexpectedly (exit code: {code}), shutting down executor.\n(EngineCore pid=7) ERROR 11-20 [c.py:1] \
             RuntimeError: Executor failed.\n(APIServer pid=5) INFO:     Application shutdown complete."
        )
    };
    assert_eq!(kind(gone(&worker("-9"))), K::Killed);
    assert_eq!(kind(EngineEvidence { oom_kills: 2, ..gone(&worker("-9")) }), K::HostMemory);
    assert_eq!(kind(gone(&worker("-11"))), K::Crash);
    assert_eq!(kind(gone(&worker("1"))), K::Crash);
    let core = |codes: &str| {
        format!("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {codes}")
    };
    assert_eq!(kind(starting(&core("{'EngineCore_DP0': -9}"))), K::Killed);
    assert_eq!(kind(starting(&core("{'EngineCore_DP0': 1}"))), K::StartupExit);
    assert_eq!(kind(starting(&core("{}"))), K::Killed);
    assert_eq!(kind(starting(&core("{'Core-1': 1, 'Core-2': -15}"))), K::Killed);
    assert_eq!(kind(starting(&core("{'Core-1': 1, 'Core-9': 1}"))), K::StartupExit);
    // A killed process leaves no exception.
    let silent = "INFO:     Application startup complete.\n\
                  ERROR 11-20 [c.py:1] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.\n\
                  ERROR 11-20 [s.py:1] asyncio.exceptions.InvalidStateError: invalid state";
    assert_eq!(kind(gone(silent)), K::Killed);
    let fatal = silent.replace("ERROR 11-20 [c.py", "ERROR 11-20 [e.py:1] IndexError: out of range\nERROR 11-20 [c.py");
    assert_eq!(kind(gone(&fatal)), K::Crash);
    let in_order = "INFO:     Application startup complete.\nINFO:     Application shutdown complete.";
    assert_eq!(kind(gone(in_order)), K::Killed);
}

/// Logs of vLLM 0.32 on a CPU. One of its processes was killed, or the engine was asked to end. Each log begins there
/// and is cut.
#[test]
fn the_real_engine_that_somebody_kills_is_known_as_killed() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/failures");
    for (file, under_load, code) in [
        ("engine_core_killed_during_start", false, 1),
        ("worker_killed_during_start", false, 1),
        ("engine_core_killed_under_load", true, 0),
        ("worker_killed_under_load", true, 0),
        ("server_asked_to_end_under_load", true, 0),
    ] {
        let log = std::fs::read_to_string(directory.join(file).with_extension("log")).unwrap();
        let evidence = EngineEvidence { exit: Some(ProcessExit::Code(code)), under_load, ..starting(&log) };
        assert_eq!(kind(evidence), K::Killed, "{file}: {:?}", diagnose(&evidence));
        let memory = kind(EngineEvidence { oom_kills: 1, ..evidence });
        let asked = file == "server_asked_to_end_under_load";
        assert_eq!(memory, if asked { K::Killed } else { K::HostMemory }, "{file}");
    }
}

#[test]
fn others_that_lose_their_peer_do_not_hide_why_it_died() {
    let log = "ERROR 11-20 [a.py:1] RuntimeError: shape mismatch\n\
               ERROR 11-20 [b.py:1] torch.distributed.DistBackendError: NCCL error in: x";
    assert_eq!(kind(starting(log)), K::StartupExit);
    let late = "torch.distributed.DistBackendError: NCCL error in: x\ntorch.OutOfMemoryError: CUDA out of memory.";
    assert_eq!(kind(starting(late)), K::OutOfMemory);
}

#[test]
fn a_value_error_of_the_configuration_is_an_argument_and_an_assertion_gives_its_code() {
    let raised = |place: &str| {
        format!(
            "Traceback (most recent call last):\n  File \"/x/{place}\", line 1, in f\n    raise ValueError(x)\nValueError: odd"
        )
    };
    assert_eq!(kind(starting(&raised("vllm/config/scheduler.py"))), K::InvalidArgument);
    assert_eq!(kind(starting(&raised("vllm/engine/arg_utils.py"))), K::InvalidArgument);
    assert_eq!(kind(starting(&raised("vllm/v1/engine/core.py"))), K::StartupExit);
    let log = "  File \"/x/a.py\", line 1, in f\n    assert heads % size == 0\n           ^^^^\nAssertionError";
    assert_eq!(failure(log).1, "exit code 1; AssertionError: assert heads % size == 0");
    let usage = "usage: vllm serve [options]\nvllm serve: error: something about an option";
    assert_eq!(kind(EngineEvidence { exit: Some(ProcessExit::Code(2)), ..starting(usage) }), K::InvalidArgument);
}

#[test]
fn an_empty_log_is_reported() {
    assert_eq!(failure("\n\n").1, "exit code 1; its log is empty");
    assert_eq!(kind(EngineEvidence { oom_kills: 1, ..starting("") }), K::HostMemory);
}

#[test]
fn recorded_failures_get_their_labels() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/public/vllm-failure-logs");
    let index = std::fs::read_to_string(directory.join("index.json")).unwrap();
    let index: Vec<serde_json::Value> = serde_json::from_str(&index).unwrap();
    assert_eq!(index.len(), 4);
    for entry in index {
        let log = std::fs::read_to_string(directory.join(entry["file"].as_str().unwrap())).unwrap();
        let (under_load, expected) = match entry["label"].as_str().unwrap() {
            "oom_under_load" => (true, K::OutOfMemoryLoad),
            "killed_after_start" => (true, K::Killed),
            // The log of the second does not differ from that of a killed process.
            "killed_during_start" | "init_failed_unknown" => (false, K::Killed),
            other => panic!("an unknown label: {other}"),
        };
        let exit = Some(ProcessExit::Code(i32::from(!under_load)));
        let failure = diagnose(&EngineEvidence { exit, under_load, ..starting(&log) });
        assert_eq!(failure.kind, expected, "{}: {failure:?}", entry["file"]);
    }
}

#[test]
fn recorded_refusals_are_the_configurations_own() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vllm-cases-0.32.0.json");
    let record: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let refused = record["cases"].as_array().unwrap().iter().filter(|case| case["outcome"] != "accepted");
    let mut unsupported = 0;
    for case in refused {
        let told = case["fragment"].as_str().unwrap();
        let (code, log) = match (case["outcome"].as_str(), told.split_once(": ")) {
            (Some("argparse_exit_2"), _) => (2, format!("usage: vllm serve\nvllm serve: error: {told}")),
            (_, Some((class, told))) if class.ends_with("Config") => {
                (1, format!("pydantic_core._pydantic_core.ValidationError: 1 validation error for {class}\n  {told}"))
            }
            _ => (1, format!("  File \"/vllm/config/x.py\", line 1, in f\nValueError: {told}")),
        };
        let failure = diagnose(&EngineEvidence { exit: Some(ProcessExit::Code(code)), ..starting(&log) });
        assert!(matches!(failure.kind, K::InvalidArgument | K::Unsupported), "{log}: {failure:?}");
        unsupported += i32::from(failure.kind == K::Unsupported);
    }
    assert!(unsupported >= 4, "{unsupported}");
}

proptest! {
    #[test]
    fn any_log_and_any_end_have_a_cause_in_one_line(
        log in "(?s).{0,400}",
        words in proptest::collection::vec("ERROR |INFO |\\(a pid=1\\) |\u{1b}\\[0m|CUDA out of memory|Error: |\\] |exit code: -|\n|  File |: ", 0..40),
        code in any::<i32>(), under_load in any::<bool>(), oom_kills in 0..3_u64, ended_by_tuner in any::<bool>(),
    ) {
        for log in [log, words.concat()] {
            let exit = Some(ProcessExit::Code(code));
            let evidence = EngineEvidence { log: &log, exit, under_load, oom_kills, ended_by_tuner, own_models: &[] };
            let failure = diagnose(&evidence);
            prop_assert!(!failure.message.trim().is_empty());
            prop_assert!(!failure.message.contains('\n') && failure.message.chars().count() < 600);
        }
    }

    #[test]
    fn lines_that_are_no_errors_never_change_the_cause(
        quiet in "(INFO|WARNING|DEBUG) 11-20 21:21:18 \\[a.py:1\\] .{0,80}", at in 0..4_usize,
    ) {
        let lines = ["INFO 11-20 [a.py:1] up", "KeyError: 'a'", "OSError: [Errno 28] No space left on device"];
        let mut with: Vec<&str> = lines.to_vec();
        with.insert(at.min(3), &quiet);
        prop_assert_eq!(diagnose(&starting(&with.join("\n"))), diagnose(&starting(&lines.join("\n"))));
    }
}
