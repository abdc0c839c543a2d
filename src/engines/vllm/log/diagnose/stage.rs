//! The stage of an engine at an out-of-memory error. It determines the flag that would have helped.

use super::line::LogLine;
use crate::trial::FailureKind;

/// Functions of vLLM in the traceback, with their stage. Sources: `vllm/v1/worker/gpu_worker.py` and
/// `gpu_model_runner.py` of 0.8 to 0.32, `vllm/worker/worker.py` and `model_runner.py` of V0.
const FRAMES: [(&str, FailureKind); 16] = [
    ("_dummy_sampler_run", FailureKind::OutOfMemorySampler),
    ("_dummy_pooler_run", FailureKind::OutOfMemorySampler),
    ("capture_model", FailureKind::OutOfMemoryGraphs),
    ("_capture_cudagraphs", FailureKind::OutOfMemoryGraphs),
    ("_warmup_and_capture", FailureKind::OutOfMemoryGraphs),
    ("profile_cudagraph_memory", FailureKind::OutOfMemoryGraphs),
    ("initialize_kv_cache", FailureKind::OutOfMemoryKvCache),
    ("initialize_kv_cache_tensors", FailureKind::OutOfMemoryKvCache),
    ("_allocate_kv_cache_tensors", FailureKind::OutOfMemoryKvCache),
    ("_allocate_kv_cache", FailureKind::OutOfMemoryKvCache),
    ("_init_cache_engine", FailureKind::OutOfMemoryKvCache),
    ("profile_run", FailureKind::OutOfMemoryProfile),
    ("determine_available_memory", FailureKind::OutOfMemoryProfile),
    ("determine_num_available_blocks", FailureKind::OutOfMemoryProfile),
    ("load_model", FailureKind::OutOfMemory),
    ("load_weights", FailureKind::OutOfMemory),
];

/// Lines of a start, with the stage that follows them. Sources: vLLM's own lines in the releases of `flags/flags.json`.
const LINES: [(&str, FailureKind); 12] = [
    ("Model loading took ", FailureKind::OutOfMemoryProfile),
    ("Loading model weights took ", FailureKind::OutOfMemoryProfile),
    ("Available KV cache memory: ", FailureKind::OutOfMemoryKvCache),
    ("# CPU blocks: ", FailureKind::OutOfMemoryKvCache),
    (" KV cache size: ", FailureKind::OutOfMemoryKvCache),
    ("Maximum concurrency for ", FailureKind::OutOfMemoryKvCache),
    ("Capturing the model for CUDA graphs", FailureKind::OutOfMemoryGraphs),
    ("Capturing cudagraphs", FailureKind::OutOfMemoryGraphs),
    ("Capturing CUDA graph", FailureKind::OutOfMemoryGraphs),
    ("Graph capturing finished in ", FailureKind::OutOfMemorySampler),
    // The setup of the server takes no device memory, so the kind stays general.
    ("init engine (", FailureKind::OutOfMemory),
    ("Application startup complete", FailureKind::OutOfMemoryLoad),
];

/// vLLM's own texts, which follow the exception of torch.
const SAMPLER: [&str; 2] = ["when warming up sampler", "when warming up pooler"];

/// Returns the kind of an out-of-memory error on the line `at`.
pub(super) fn out_of_memory_kind(lines: &[LogLine<'_>], at: usize, under_load: bool) -> FailureKind {
    if under_load {
        return FailureKind::OutOfMemoryLoad;
    }
    let is_sampler = |line: &LogLine<'_>| line.complaint().is_some_and(|told| SAMPLER.iter().any(|s| told.contains(s)));
    if lines[at..].iter().any(is_sampler) {
        return FailureKind::OutOfMemorySampler;
    }
    // The innermost known call in the traceback decides: the profile itself captures a graph to measure its memory.
    let mut traceback = lines[..at].iter().rev().take_while(|line| line.is_indented());
    let known = |line: &LogLine<'_>| {
        let (_, function) = line.message().strip_prefix("File ")?.rsplit_once(", in ")?;
        FRAMES.iter().find(|(name, _)| *name == function).map(|(_, kind)| *kind)
    };
    if let Some(kind) = traceback.find_map(known) {
        return kind;
    }
    let after =
        |line: &LogLine<'_>| LINES.iter().find(|(text, _)| line.message().contains(text)).map(|(_, kind)| *kind);
    lines[..at].iter().rev().find_map(after).unwrap_or(FailureKind::OutOfMemory)
}
