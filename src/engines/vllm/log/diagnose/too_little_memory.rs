//! A start that found less free memory on the device than `--gpu-memory-utilization` demands.

use std::sync::LazyLock;

use regex::Regex;

use super::clean;
use crate::trial::{Failure, FailureKind};

/// The memory of a process's own context, in GiB. If more is in use, other processes hold it.
const OWN_CONTEXT: f64 = 1.0;

/// vLLM's default share of the memory in releases up to 0.19. Later releases have 0.92.
const DEFAULT_SHARE: f64 = 0.9;

/// The numbers in `Free memory on device cuda:0 (39.2/44.5 GiB) on startup is less than desired GPU memory utilization
/// (0.95, 42.3 GiB).`
static NUMBERS: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"\(([0-9.]+)\s*/\s*([0-9.]+) GiB\).*utilization \(([0-9.]+),";
    Regex::new(pattern).unwrap_or_else(|error| panic!("bug: {error}"))
});

/// Returns the failure. Its message contains the largest value of the flag that would avoid it.
///
/// The configuration is the cause in two cases. Either no other process holds memory, or the default share would fit
/// the free memory and the configuration demands more. Otherwise the device is busy.
pub(super) fn too_little_memory_failure(told: &str) -> Failure {
    let message = clean(told);
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| *number > 0.0);
    let numbers =
        NUMBERS.captures(told).and_then(|found| Some((number(&found[1])?, number(&found[2])?, number(&found[3])?)));
    let Some((free, total, asked)) = numbers else {
        return Failure { kind: FailureKind::DeviceBusy, message };
    };
    let (share, held) = (free / total, total - free);
    let is_asked_for = held < OWN_CONTEXT || (share >= DEFAULT_SHARE && asked > DEFAULT_SHARE);
    let kind = if is_asked_for { FailureKind::InvalidArgument } else { FailureKind::DeviceBusy };
    // Two digits, rounded down, so that the suggested value fits.
    let most = (share * 100.0).floor() / 100.0;
    let message = if most > 0.0 {
        format!("{message} (gpu-memory-utilization up to {most:.2} fits the {free} GiB that are free)")
    } else {
        message
    };
    Failure { kind, message }
}
