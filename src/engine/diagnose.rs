//! Why an engine ended: the first known pattern of its log, not the last wrapper around it.

use crate::trial::{Failure, FailureKind};

/// A line that contains `pattern` says what went wrong. Sources: vLLM's own texts, releases as in `flag`.
const PATTERNS: [(&str, FailureKind); 22] = [
    ("torch.OutOfMemoryError", FailureKind::OutOfMemory),
    ("torch.cuda.OutOfMemoryError", FailureKind::OutOfMemory),
    ("CUDA out of memory", FailureKind::OutOfMemory),
    ("HIP out of memory", FailureKind::OutOfMemory),
    ("CUDA error: out of memory", FailureKind::OutOfMemory),
    ("Failed to load model - not enough GPU memory", FailureKind::OutOfMemory),
    ("No available memory for the cache blocks", FailureKind::OutOfMemory),
    ("To serve at least one request with the model", FailureKind::OutOfMemory),
    ("is larger than the maximum number of tokens that can be stored in KV cache", FailureKind::OutOfMemory),
    ("is less than desired GPU memory utilization", FailureKind::OutOfMemory),
    ("is less than desired CPU memory utilization", FailureKind::OutOfMemory),
    ("Address already in use", FailureKind::PortInUse),
    ("error: unrecognized arguments", FailureKind::InvalidArgument),
    ("error: argument ", FailureKind::InvalidArgument),
    ("validation error for ", FailureKind::InvalidArgument),
    ("No common block size for", FailureKind::InvalidArgument),
    ("Block size must be a multiple of", FailureKind::InvalidArgument),
    ("must be divisible by tensor parallel size", FailureKind::InvalidArgument),
    ("is greater than the derived max_model_len", FailureKind::InvalidArgument),
    ("is smaller than max_model_len", FailureKind::InvalidArgument),
    ("must be greater than or equal to max_num_seqs", FailureKind::InvalidArgument),
    ("larger than the number of available GPUs", FailureKind::InvalidArgument),
];

/// The failure that a log tells of; `otherwise` where it holds no known pattern.
///
/// `exit` is the exit status in words, for instance `exit code 1` or `signal 9`.
#[must_use]
pub fn diagnose(log: &str, exit: &str, otherwise: FailureKind) -> Failure {
    let lines: Vec<&str> = log.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        // A log line may speak of a thing without being an error: "headroom", a documentation address.
        let Some((pattern, kind)) = PATTERNS.iter().find(|(pattern, _)| line.contains(pattern)) else { continue };
        let message = match (*pattern, lines.get(index + 1), lines.get(index + 2)) {
            // A bound of one field: its name stands on a line of its own, before what is wrong with it.
            ("validation error for ", Some(field), Some(told)) if is_field(field) => {
                format!("{}: {}", clean(field), clean(told))
            }
            ("validation error for ", Some(told), _) => clean(told),
            _ => clean(line),
        };
        return Failure { kind: *kind, message };
    }
    // Later exceptions only report that the first one happened.
    let first_error = lines.iter().find(|line| is_exception(message_of(line)));
    let told = first_error.or_else(|| lines.iter().rev().find(|line| !line.trim().is_empty()));
    let message = told.map_or_else(|| "its log is empty".to_owned(), |line| clean(line));
    Failure { kind: otherwise, message: format!("{exit}; {message}") }
}

/// The text behind `(EngineCore pid=7) ERROR 11-20 21:21:18 [core.py:1510] `.
fn message_of(line: &str) -> &str {
    let line = match line.split_once(") ") {
        Some((process, rest)) if process.starts_with('(') && process.contains(" pid=") => rest,
        _ => line,
    };
    let logged = line.starts_with("ERROR ") || line.starts_with("INFO ");
    match line.split_once("] ") {
        Some((_, message)) if logged => message.trim(),
        _ => line.trim(),
    }
}

/// `max_num_seqs`, or `some.nested.field`, and nothing else.
fn is_field(line: &str) -> bool {
    let field = message_of(line);
    !field.is_empty() && field.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c))
}

/// `SomeError: text`, the last line of a traceback.
fn is_exception(message: &str) -> bool {
    message.split_once(": ").is_some_and(|(name, _)| {
        let last = name.rsplit('.').next().unwrap_or(name);
        !name.contains(' ') && (last.ends_with("Error") || last.ends_with("Exception") || last == "error")
    })
}

/// One line without prefix, pydantic's trailer and overlong tails.
fn clean(line: &str) -> String {
    const MOST: usize = 400;
    let message = message_of(line);
    let message = message.strip_prefix("Value error, ").unwrap_or(message);
    let message = message.split(" [type=").next().unwrap_or(message);
    match message.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(log: &str) -> (FailureKind, String) {
        let failure = diagnose(log, "exit code 1", FailureKind::StartupExit);
        (failure.kind, failure.message)
    }

    #[test]
    fn the_first_cause_counts_and_not_the_wrapper() {
        let log = "\
(Worker pid=9) ERROR 11-20 21:21:18 [multiproc_executor.py:1063] ValueError: No common block size for 8 (CPU_ATTN: [MultipleOf(32)]).
(EngineCore pid=7) ERROR 11-20 21:21:18 [core.py:1510] RuntimeError: Worker failed with error 'No common block size'
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}";
        let message = "ValueError: No common block size for 8 (CPU_ATTN: [MultipleOf(32)]).";
        assert_eq!(failure(log), (FailureKind::InvalidArgument, message.to_owned()));
    }

    #[test]
    fn a_pydantic_error_gives_its_second_line() {
        let log = "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig
  Value error, max_num_batched_tokens (100) must be greater than or equal to max_num_seqs (200). [type=value_error, input]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error";
        let message = "max_num_batched_tokens (100) must be greater than or equal to max_num_seqs (200).";
        assert_eq!(failure(log), (FailureKind::InvalidArgument, message.to_owned()));
    }

    #[test]
    fn a_field_bound_gives_the_field_and_what_is_wrong_with_it() {
        let log =
            "(APIServer pid=7) pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig
(APIServer pid=7) max_num_seqs
(APIServer pid=7)   Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0]";
        let message = "max_num_seqs: Input should be greater than or equal to 1";
        assert_eq!(failure(&log.replace("(APIServer pid=7) ", "")), (FailureKind::InvalidArgument, message.to_owned()));
        assert_eq!(failure(log), (FailureKind::InvalidArgument, message.to_owned()));
    }

    #[test]
    fn headroom_is_not_out_of_memory_and_a_warning_about_files_is_no_error() {
        let log = "INFO 11-20 [a.py:1] keeping 5% headroom (OOM margin)
WARNING 11-20 [b.py:2] Found ulimit of 20000: errors like `OSError: [Errno 24] Too many open files`
KeyError: 'layers'
RuntimeError: Engine core initialization failed. See root cause above.";
        assert_eq!(failure(log), (FailureKind::StartupExit, "exit code 1; KeyError: 'layers'".to_owned()));
    }

    #[test]
    fn too_few_gpus_are_an_invalid_argument() {
        for words in ["is", "cannot be"] {
            let log = format!("ValueError: World size (2) {words} larger than the number of available GPUs (1)");
            assert_eq!(failure(&log), (FailureKind::InvalidArgument, log));
        }
    }

    #[test]
    fn an_empty_log_says_so() {
        assert_eq!(failure("\n\n").1, "exit code 1; its log is empty");
    }
}
