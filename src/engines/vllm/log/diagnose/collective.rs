//! Errors of NCCL and RCCL, classified by their last error. The class of an error (`unhandled cuda error`) only names
//! the layer below.
//!
//! Sources: `ncclGetErrorString`, `ncclGetLastError` and the `WARN` calls of NCCL 2.21 to 2.28, `getNcclErrorDetailStr`
//! of torch, `vllm/distributed/device_communicators/pynccl_wrapper.py`.

use super::line::LogLine;
use super::lost_device;
use crate::trial::FailureKind;

/// Names of an error of the collectives' library.
const ERRORS: [&str; 9] = [
    "NCCL error",
    "NCCL Error",
    "RCCL error",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclInvalidUsage",
    "ncclInvalidArgument",
    "ncclRemoteError",
];

/// The number of lines of one message below its first.
const BELOW: usize = 8;

/// Texts in lower case and their meanings. The first match counts.
const MEANINGS: &[(&str, FailureKind)] = &[
    ("out of memory", FailureKind::OutOfMemory),
    ("failed to cuda malloc", FailureKind::OutOfMemory),
    ("failed to cuda calloc", FailureKind::OutOfMemory),
    ("no space left on device", FailureKind::Disk),
    ("shared memory segment", FailureKind::Disk),
    ("failed to extend /dev/shm", FailureKind::Disk),
    ("posix_fallocate failed", FailureKind::Disk),
    ("duplicate gpu detected", FailureKind::Unsupported),
    ("peer access", FailureKind::Unsupported),
    ("invalid argument", FailureKind::Unsupported),
    ("invalid usage", FailureKind::Unsupported),
    ("invalidusage", FailureKind::Unsupported),
    ("invalidargument", FailureKind::Unsupported),
    ("invalid device function", FailureKind::Unsupported),
    ("no kernel image", FailureKind::Unsupported),
    ("not supported", FailureKind::Unsupported),
    ("unsupported", FailureKind::Unsupported),
    ("invalid resource handle", FailureKind::Unsupported),
];

/// An error of the collectives' library (NCCL or RCCL), with its last error.
#[derive(Debug)]
pub(super) struct CollectiveError {
    /// `None` if its text indicates neither a lack of memory or disk space, nor a lost device, nor an unsupported
    /// feature.
    pub(super) kind: Option<FailureKind>,
    /// The library's text after `Last error:` or in its last warning, if there is one.
    pub(super) last: Option<String>,
    /// Whether it is a CUDA error without further explanation.
    pub(super) is_unexplained: bool,
}

/// Reads the error of the collectives' library on the line `at`. `told` is the complaint of this line. `None` if it is
/// another error.
pub(super) fn read(lines: &[LogLine<'_>], at: usize, told: &str) -> Option<CollectiveError> {
    let below = lines.get(at + 1..).unwrap_or_default().iter().take_while(|line| line.continues(&lines[at]));
    let below: Vec<&str> =
        below.take(BELOW).map(LogLine::message).take_while(|text| !text.contains("Traceback (")).collect();
    let is_error = |text: &&str| ERRORS.iter().any(|error| text.contains(error));
    let is_named = is_error(&told) || (told.contains("DistBackendError") && below.iter().any(is_error));
    if !is_named {
        return None;
    }
    let last = last_error(&below, told).or_else(|| warning(&lines[..=at]));
    let whole = format!("{told} {} {}", below.join(" "), last.as_deref().unwrap_or_default());
    // The last error decides. Without one, the class decides.
    let kind = last.as_deref().and_then(meaning).or_else(|| meaning(&whole));
    let lower = whole.to_lowercase();
    let is_unexplained = lower.contains("unhandled cuda error") || lower.contains("unhandledcudaerror");
    let is_network =
        ["socket", "connect", "timeout", "timed out", "remote process"].iter().any(|text| lower.contains(text));
    Some(CollectiveError { kind, last, is_unexplained: is_unexplained && !is_network })
}

fn meaning(text: &str) -> Option<FailureKind> {
    let lower = text.to_lowercase();
    let named = |kinds: &[FailureKind]| {
        MEANINGS.iter().find(|(text, kind)| kinds.contains(kind) && lower.contains(text)).map(|(_, kind)| *kind)
    };
    let memory = named(&[FailureKind::OutOfMemory, FailureKind::Disk]);
    let lost = || {
        (lost_device::names_lost_device(text, false) || lost_device::is_invalid_ordinal(text))
            .then_some(FailureKind::DeviceLost)
    };
    memory.or_else(lost).or_else(|| named(&[FailureKind::Unsupported]))
}

/// Returns the text after `Last error:`, on its line or below it.
fn last_error(below: &[&str], told: &str) -> Option<String> {
    const MARK: &str = "Last error:";
    let of = |text: &str| text.split_once(MARK).map(|(_, rest)| rest.trim().to_owned());
    let (number, first) = match of(told) {
        Some(first) => (0, first),
        None => below.iter().enumerate().find_map(|(number, text)| Some((number + 1, of(text)?)))?,
    };
    if !first.is_empty() {
        return Some(first);
    }
    below.get(number).filter(|text| !text.is_empty()).map(|text| (*text).to_owned())
}

/// Returns the last warning of the library:
/// `host:123:456 [0] transport.cc:1 NCCL WARN Cuda failure 2 'out of memory'`.
fn warning(lines: &[LogLine<'_>]) -> Option<String> {
    let of = |line: &LogLine<'_>| line.message().split_once("NCCL WARN ").map(|(_, text)| text.trim().to_owned());
    lines.iter().rev().find_map(of)
}
