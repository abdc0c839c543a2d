//! A start that found less memory free on the device than `--gpu-memory-utilization` asks for.

use std::sync::LazyLock;

use regex::Regex;

use super::clean;
use crate::trial::{Failure, FailureKind};

/// Memory that a process's own context takes, in GiB. More than that somebody else holds.
const OWN_CONTEXT: f64 = 1.0;

/// The share of the memory that vLLM takes by default, in releases up to 0.19. Later ones take 0.92.
const DEFAULT_SHARE: f64 = 0.9;

/// `Free memory on device cuda:0 (39.2/44.5 GiB) on startup is less than desired GPU memory utilization (0.95, 42.3 GiB).`
static NUMBERS: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r"\(([0-9.]+)\s*/\s*([0-9.]+) GiB\).*utilization \(([0-9.]+),";
    Regex::new(pattern).unwrap_or_else(|error| panic!("bug: {error}"))
});

/// Whose failure it is, and what in the configuration would avoid it.
///
/// It is the configuration's if nobody else holds memory, or if the defaults would have started with what is free.
pub(super) fn failure(told: &str) -> Failure {
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
    // Two digits, rounded down: what is written has to fit.
    let most = (share * 100.0).floor() / 100.0;
    let message = if most > 0.0 {
        format!("{message} (gpu-memory-utilization up to {most:.2} fits the {free} GiB that are free)")
    } else {
        message
    };
    Failure { kind, message }
}
