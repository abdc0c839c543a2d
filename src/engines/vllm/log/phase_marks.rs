//! The lines of vLLM's log that end and begin the phases of a start.
//!
//! Sources: the start-up lines of vLLM 0.6.3 to 0.32.0, and logs of 0.9.0.1 and 0.32.0. Only a line's text identifies
//! it, because its prefix differs from release to release.

use crate::engine::PhaseMark;
use crate::engine::StartPhase::{
    self, Compile, Configure, FirstToken, Graphs, Import, KvCache, Processes, Server, Weights,
};

/// Texts of lines, the phase that each line ends, and the phase after it. If a line contains several texts, the first
/// in this list counts.
const MARKS: [(&str, Option<StartPhase>, StartPhase); 31] = [
    ("vLLM API server version ", Some(Import), Configure),
    ("non-default args: {", None, Configure),
    ("args: Namespace(", None, Configure),
    ("Resolved architecture: ", None, Configure),
    // Both lines come near the end of the configuration. The first exists since 0.10, the second only in some cases.
    // The engine's process then starts, and logs nothing until its import is complete.
    ("Using max model len ", None, Processes),
    ("Chunked prefill is enabled with max_num_batched_tokens=", None, Processes),
    ("Started engine process with PID ", None, Processes),
    ("Waiting for init message from front-end", None, Processes),
    ("Initializing an LLM engine (v", None, Processes),
    ("Initializing a V0 LLM engine (v", None, Processes),
    ("Initializing a V1 LLM engine (v", None, Processes),
    ("Starting to load model ", None, Weights),
    ("Loading weights took ", Some(Weights), KvCache),
    ("Loading model weights took ", Some(Weights), KvCache),
    ("Model loading took ", Some(Weights), KvCache),
    // The first line of this phase follows the tracing, so the time before it belongs to the phase.
    ("Using cache directory: ", Some(Compile), Compile),
    ("Dynamo bytecode transform time: ", Some(Compile), Compile),
    ("torch.compile takes ", Some(Compile), KvCache),
    ("torch.compile took ", Some(Compile), KvCache),
    ("Memory profiling takes ", Some(KvCache), KvCache),
    ("Available KV cache memory: ", Some(KvCache), KvCache),
    (" KV cache size: ", Some(KvCache), KvCache),
    (", # CPU blocks: ", Some(KvCache), KvCache),
    ("Capturing the model for CUDA graphs", None, Graphs),
    ("Capturing cudagraphs for decoding", None, Graphs),
    ("Capturing CUDA graph", Some(Graphs), Graphs),
    ("Graph capturing finished in ", Some(Graphs), Graphs),
    ("init engine (profile, create kv cache, warmup model) took ", None, Server),
    ("Starting vLLM API server ", None, Server),
    ("Starting vLLM server on ", None, Server),
    ("Application startup complete.", Some(Server), FirstToken),
];

/// Returns the mark of a line. `None` if the line is not about phases.
pub(super) fn phase_mark(line: &str) -> Option<PhaseMark> {
    let (_, ended, begins) = MARKS.iter().find(|(text, _, _)| line.contains(text))?;
    Some(PhaseMark { ended: *ended, begins: *begins })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::PhaseTimeline;

    /// Returns the phases of lines, each with the second of its appearance.
    fn timed(lines: &[(u64, &str)], end: u64) -> Vec<(String, f64)> {
        let mut timeline = PhaseTimeline::new(phase_mark);
        for (at, line) in lines {
            timeline.process_line(line, Duration::from_secs(*at));
        }
        timeline.end(Duration::from_secs(end)).into_iter().map(|time| (time.phase, time.duration_s)).collect()
    }

    fn told(times: &[(String, f64)]) -> String {
        times.iter().map(|(name, seconds)| format!("{name} {seconds:.0}")).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_start_of_v1_in_0_9_is_divided_by_its_log() {
        // Seconds since 19:59:40.
        let lines = [
            (7, "INFO 07-22 19:59:47 [__init__.py:243] Automatically detected platform cuda."),
            (14, "INFO 07-22 19:59:54 [api_server.py:1289] vLLM API server version 0.9.0.1"),
            (15, "INFO 07-22 19:59:55 [cli_args.py:300] non-default args: {'disable_log_requests': True}"),
            (30, "INFO 07-22 20:00:10 [config.py:2118] Chunked prefill is enabled with max_num_batched_tokens=2048."),
            (38, "INFO 07-22 20:00:18 [core.py:65] Initializing a V1 LLM engine (v0.9.0.1) with config: model='m'"),
            (44, "INFO 07-22 20:00:24 [gpu_model_runner.py:1531] Starting to load model meta-llama/Llama-3.1-8B..."),
            (49, "INFO 07-22 20:00:29 [default_loader.py:280] Loading weights took 2.38 seconds"),
            (49, "INFO 07-22 20:00:29 [gpu_model_runner.py:1549] Model loading took 14.9889 GiB and 5.413280 seconds"),
            (
                56,
                "INFO 07-22 20:00:36 [backends.py:459] Using cache directory: /home/ada/.cache/vllm/torch_compile_cache/8",
            ),
            (56, "INFO 07-22 20:00:36 [backends.py:469] Dynamo bytecode transform time: 6.22 s"),
            (61, "INFO 07-22 20:00:41 [monitor.py:33] torch.compile takes 6.22 s in total"),
            (61, "INFO 07-22 20:00:41 [kv_cache_utils.py:637] GPU KV cache size: 191,328 tokens"),
            (81, "INFO 07-22 20:01:01 [gpu_model_runner.py:1933] Graph capturing finished in 20 secs, took 0.52 GiB"),
            (81, "INFO 07-22 [core.py:167] init engine (profile, create kv cache, warmup model) took 31.72 seconds"),
            (84, "INFO 07-22 20:01:04 [api_server.py:1336] Starting vLLM API server on http://0.0.0.0:8000"),
            (85, "INFO:     Application startup complete."),
        ];
        assert_eq!(
            told(&timed(&lines, 86)),
            "import 14, configure 16, processes 14, weights 5, compile 12, kv_cache 0, graphs 20, server 4, first_token 1"
        );
    }

    #[test]
    fn an_eager_start_of_0_32_on_a_cpu_has_neither_compilation_nor_graphs() {
        // Seconds since 01:16:16.
        let lines = [
            (18, "(APIServer pid=3) INFO 11-22 01:16:34 [api_utils.py:286] non-default args: {'max_num_seqs': 1}"),
            (18, "(APIServer pid=3) INFO 11-22 01:16:34 [model.py:733] Resolved architecture: Qwen2ForCausalLM"),
            (18, "(APIServer pid=3) INFO 11-22 01:16:34 [model.py:2152] Using max model len 1024"),
            (28, "(EngineCore pid=9) INFO 11-22 01:16:44 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with"),
            (
                43,
                "(Worker pid=2) INFO 11-22 01:16:59 [cpu_model_runner.py:68] Starting to load model .vllm-cpu/model...",
            ),
            (44, "(Worker pid=2) INFO 11-22 01:16:59 [default_loader.py:501] Loading weights took 0.02 seconds"),
            (45, "(EngineCore pid=9) INFO [kv_cache_utils.py:2327] CPU KV cache size: 524,288 tokens, Maximum"),
            (
                45,
                "(EngineCore pid=9) INFO [core.py:402] init engine (profile, create kv cache, warmup model) took 0.45 s",
            ),
            (46, "(APIServer pid=3) INFO 11-22 01:17:01 [entry.py:140] Starting vLLM server on http://127.0.0.1:18090"),
            (46, "INFO:     Application startup complete."),
        ];
        assert_eq!(
            told(&timed(&lines, 47)),
            "import 18, configure 0, processes 25, weights 1, kv_cache 1, server 1, first_token 1"
        );
    }

    #[test]
    fn a_start_of_v0_has_its_profile_before_its_graphs() {
        let lines = [
            (8, "INFO 07-22 20:36:51 [api_server.py:1289] vLLM API server version 0.9.0.1"),
            (18, "INFO 07-22 20:37:01 [api_server.py:257] Started engine process with PID 227717"),
            (25, "INFO 07-22 20:37:08 [llm_engine.py:230] Initializing a V0 LLM engine (v0.9.0.1) with config: model"),
            (33, "INFO 07-22 20:37:16 [model_runner.py:1170] Starting to load model meta-llama/Llama-3.1-8B..."),
            (38, "INFO 07-22 20:37:21 [model_runner.py:1202] Model loading took 14.9889 GiB and 5.027402 seconds"),
            (48, "INFO 07-22 20:37:31 [worker.py:291] Memory profiling takes 9.87 seconds"),
            (48, "INFO 07-22 20:37:31 [executor_base.py:112] # cuda blocks: 24292, # CPU blocks: 4096"),
            (49, "INFO 07-22 [model_runner.py:1512] Capturing cudagraphs for decoding. This may lead to unexpected"),
            (55, "Capturing CUDA graph shapes:  63%|██████▎   | 12/19 [00:06<00:03,  1.96it/s]"),
        ];
        assert_eq!(
            told(&timed(&lines, 60)),
            "import 8, configure 10, processes 15, weights 5, kv_cache 11, graphs 11",
            "the engine died in the capture"
        );
    }

    #[test]
    fn the_slowest_worker_decides_how_long_the_weights_took() {
        let lines = [
            (1, "(Worker_TP0 pid=1) INFO [gpu_model_runner.py:1] Starting to load model m..."),
            (1, "(Worker_TP1 pid=2) INFO [gpu_model_runner.py:1] Starting to load model m..."),
            (4, "(Worker_TP0 pid=1) INFO [gpu_model_runner.py:1] Model loading took 7.0 GiB and 3.0 seconds"),
            (9, "(Worker_TP1 pid=2) INFO [gpu_model_runner.py:1] Model loading took 7.0 GiB and 8.0 seconds"),
        ];
        assert_eq!(told(&timed(&lines, 10)), "import 1, weights 8, kv_cache 1");
    }

    #[test]
    fn a_log_line_begins_the_next_phase() {
        let begins = |line: &str| phase_mark(line).map(|mark| mark.begins);
        assert_eq!(begins("INFO [x.py:1] Starting to load model m..."), Some(Weights));
        assert_eq!(begins("(Worker pid=1) INFO [x.py:1] Loading weights took 2.38 seconds"), Some(KvCache));
        assert_eq!(begins("INFO [x.py:1] Using FLASH_ATTN backend."), None);
    }

    proptest! {
        #[test]
        fn the_phases_of_any_log_add_up_to_the_start(
            lines in proptest::collection::vec((0..MARKS.len(), 0..1000_u64), 0..30),
            rest in 0..1000_u64,
        ) {
            let (mut timeline, mut at) = (PhaseTimeline::new(phase_mark), Duration::ZERO);
            let mut before = timeline.phase();
            for (mark, after) in lines {
                at += Duration::from_millis(after);
                timeline.process_line(MARKS[mark].0, at);
                prop_assert!(timeline.phase() >= before);
                before = timeline.phase();
            }
            at += Duration::from_millis(rest);
            let times = timeline.end(at);
            let sum: f64 = times.iter().map(|time| time.duration_s).sum();
            prop_assert!((sum - at.as_secs_f64()).abs() < 1e-9, "{times:?}");
        }
    }
}
