//! The cause of the server's end, by the lines of its log.
//!
//! Sources: `common/arg.cpp`, `src/llama-model-loader.cpp`, `src/llama-context.cpp`, `src/llama-kv-cache.cpp`,
//! `ggml/src/gguf.cpp`, `ggml/src/ggml-alloc.c` and `tools/server/server-http.cpp` of b11434, and logs of that build.

use crate::engine::{EngineEvidence, ProcessExit};
use crate::trial::FailureKind::{
    self, DeviceLost, HostMemory, InvalidArgument, ModelUnavailable, OutOfMemory, OutOfMemoryKvCache, OutOfMemoryLoad,
    OutOfMemoryProfile, PortInUse, Unsupported,
};
use crate::trial::{Failure, redact, without_controls};

/// Texts of lines, with the kind of failure of each. The first text in this list that the log contains counts: general
/// lines follow the specific ones that explain them.
const CAUSES: [(&str, FailureKind); 30] = [
    ("error: invalid argument: ", InvalidArgument),
    ("error while handling argument ", InvalidArgument),
    ("error while handling environment variable ", InvalidArgument),
    ("expected value for argument", InvalidArgument),
    ("the argument has been removed", InvalidArgument),
    ("Unsupported cache type: ", InvalidArgument),
    ("couldn't bind HTTP server socket", PortInUse),
    ("failed to open GGUF file ", ModelUnavailable),
    ("invalid magic characters", ModelUnavailable),
    ("failed to read header", ModelUnavailable),
    ("is not within the file bounds, model is corrupted", ModelUnavailable),
    ("unknown model architecture: ", ModelUnavailable),
    ("unsupported model architecture: ", ModelUnavailable),
    ("failed to download model: ", ModelUnavailable),
    ("failed to fetch model metadata: ", ModelUnavailable),
    ("quantized V cache ", Unsupported),
    (" does not divide n_embd_head", Unsupported),
    ("model does not support different K ", Unsupported),
    ("n_seq_max must be <= ", Unsupported),
    ("SPLIT_MODE_TENSOR ", Unsupported),
    ("n_batch and n_ubatch cannot both be zero", Unsupported),
    ("failed to allocate buffer for kv cache", OutOfMemoryKvCache),
    ("failed to allocate compute pp buffers", OutOfMemoryProfile),
    ("failed to allocate compute tg buffers", OutOfMemoryProfile),
    ("failed to reserve initial output buffer", OutOfMemoryProfile),
    ("failed to fit params to free device memory", OutOfMemory),
    ("unable to allocate ", OutOfMemory),
    ("cudaMalloc failed: out of memory", OutOfMemory),
    ("std::bad_alloc", HostMemory),
    ("CUDA error: ", DeviceLost),
];

/// The beginning of the line that an assertion or an abort writes before its backtrace.
const ABORTS: [&str; 2] = ["GGML_ASSERT(", "GGML_ABORT("];

/// The maximum length of a failure's message, in characters.
const MAX_TEXT: usize = 400;

/// Returns the cause that the log has. Without one, the exit decides.
pub(super) fn diagnose(evidence: &EngineEvidence<'_>) -> Failure {
    let lines: Vec<&str> = evidence.log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // The log of a killed server has no cause. Lines of an earlier retry could be taken for one.
    let is_killed = evidence.exit == Some(ProcessExit::Signal(9)) && !evidence.ended_by_tuner;
    let cause = if is_killed { None } else { find_cause(&lines, evidence.under_load) };
    let Failure { kind, message } = cause.unwrap_or_else(|| evidence.failure_from_exit(lines.last().copied()));
    let message = redact(&without_controls(&message)).chars().take(MAX_TEXT).collect();
    Failure { kind, message }
}

fn find_cause(lines: &[&str], is_under_load: bool) -> Option<Failure> {
    let line_with = |text: &str| lines.iter().find(|line| line.contains(text));
    let known = CAUSES.iter().find_map(|(text, kind)| Some((*kind, line_with(text)?)));
    let (kind, line) = known.or_else(|| {
        let kind = if is_under_load { FailureKind::Crash } else { FailureKind::StartupExit };
        ABORTS.iter().find_map(|text| Some((kind, line_with(text)?)))
    })?;
    let kind = if is_under_load && matches!(kind, OutOfMemory | OutOfMemoryProfile) { OutOfMemoryLoad } else { kind };
    Some(Failure { kind, message: without_prefix(line).to_owned() })
}

/// Removes the time and the level before a line's text, such as `0.00.123.456 E srv    load_model: `.
fn without_prefix(line: &str) -> &str {
    let mut words = line.splitn(3, ' ');
    let is_time = |word: &str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    match (words.next(), words.next(), words.next()) {
        (Some(time), Some(level), Some(text)) if is_time(time) && level.len() == 1 => text,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(log: &str, exit: ProcessExit, under_load: bool) -> FailureKind {
        let evidence =
            EngineEvidence { log, exit: Some(exit), under_load, oom_kills: 0, ended_by_tuner: false, own_models: &[] };
        diagnose(&evidence).kind
    }

    #[test]
    fn the_most_specific_line_is_the_cause() {
        let failed = ProcessExit::Code(1);
        for (log, expected) in [
            ("error: invalid argument: --max-num-seqs", InvalidArgument),
            (
                "llama_init_from_model: quantized V cache requires flash_attn to be enabled\n\
                 srv load_model: failed to create_context with model 'm.gguf'\nexiting due to model loading error",
                Unsupported,
            ),
            (
                "gguf_init_from_file: failed to open GGUF file 'm.gguf' (No such file or directory)\n\
                 llama_model_load: error loading model: llama_model_loader: failed to load model from m.gguf",
                ModelUnavailable,
            ),
            ("start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080", PortInUse),
            (
                "alloc: failed to allocate CPU buffer of size 9\nfailed to allocate buffer for kv cache",
                OutOfMemoryKvCache,
            ),
            (
                "graph_reserve: failed to allocate compute buffers\nfailed to allocate compute pp buffers",
                OutOfMemoryProfile,
            ),
            ("anything else", FailureKind::StartupExit),
        ] {
            assert_eq!(kind(log, failed, false), expected, "{log}");
        }
    }

    #[test]
    fn a_killed_server_has_no_cause_in_its_log_and_an_abort_is_a_crash() {
        let log = "failed to allocate buffer for kv cache\n";
        assert_eq!(kind(log, ProcessExit::Signal(9), true), FailureKind::Killed);
        let abort = "/ggml/src/ggml.c:414: GGML_ASSERT(n > 0) failed";
        assert_eq!(kind(abort, ProcessExit::Signal(6), true), FailureKind::Crash);
        assert_eq!(kind("cudaMalloc failed: out of memory", ProcessExit::Signal(6), true), OutOfMemoryLoad);
    }

    #[test]
    fn the_time_and_the_level_of_a_line_are_left_out() {
        assert_eq!(without_prefix("0.00.012.345 E srv  load_model: failed"), "srv  load_model: failed");
        assert_eq!(without_prefix("error: invalid argument: -x"), "error: invalid argument: -x");
    }
}
