//! The cause of an engine's end: the first cause in its log, not the last wrapper around it. If the log names none,
//! the end of its processes decides.

#[cfg(test)]
mod class_tests;
mod collective;
mod line;
mod lost_device;
mod own_model;
mod patterns;
mod stage;
mod too_little_memory;
mod traceback;
#[cfg(test)]
mod tests;

use crate::engine::{EXTERNAL_SIGNALS, EngineEvidence, ProcessExit};
use crate::trial::{Failure, FailureKind, redact, without_controls};
use line::LogLine;
use patterns::{NETWORK, ROOT_CAUSES, RootCause, SILENT, TIMEOUTS, UNSUPPORTED, WRAPPERS};

/// Returns the cause of an engine's end.
///
/// A foreign KILL of the first process comes first, then a certain cause in the log. Then come other foreign signals,
/// the first exception in the log, and an end without any reason. Only error lines of the log count: those logged as
/// errors, exceptions, and complaints of programs such as argparse, the dynamic linker or the kernel.
///
/// The message is one line without control characters and without values that look like secrets.
#[must_use]
pub(in crate::engines::vllm) fn diagnose(evidence: &EngineEvidence<'_>) -> Failure {
    let Failure { kind, message } = failure(evidence);
    Failure { kind, message: redact(&without_controls(&message)).into_owned() }
}

fn failure(evidence: &EngineEvidence<'_>) -> Failure {
    let lines = line::read(evidence.log);
    let complaints = complaints(&lines, evidence.under_load);
    let told = |words: &str| complaints.iter().any(|(_, told)| told.contains(words));

    // Some releases send KILL to themselves after a failure and log that. Such a signal is no cause.
    let by_itself = evidence.ended_by_tuner || evidence.log.contains("Got fatal signal from worker processes");
    let signal = evidence.signal().filter(|_| !by_itself);
    // Exit code 137 of a container is not decided here, because the cause is often in its log.
    if signal == Some(9) && evidence.exit == Some(ProcessExit::Signal(9)) {
        return evidence.failure_from_signal(signal, "signal 9");
    }
    if let Some(failure) = complaints.iter().find_map(|(at, told)| root_failure(&lines, *at, told, evidence)) {
        return failure;
    }
    let is_wrapper = |told: &str| WRAPPERS.iter().any(|wrapper| told.contains(wrapper));
    let exception = complaints.iter().find(|(at, told)| lines[*at].exception().is_some() && !is_wrapper(told));
    if !evidence.ended_by_tuner {
        let child = complaints.iter().find_map(|(_, told)| Some((child_code(told)?.checked_neg()?, *told)));
        if let Some((child, told)) = child.filter(|(child, _)| EXTERNAL_SIGNALS.contains(child)) {
            return evidence.failure_from_signal(Some(child), &format!("{}: signal {child}", clean(told)));
        }
        if let Some(signal) = signal.filter(|signal| EXTERNAL_SIGNALS.contains(signal)) {
            return evidence.failure_from_signal(Some(signal), &format!("signal {signal}"));
        }
    }
    if let Some((_, told)) = complaints.iter().find(|(_, told)| told.contains(": error: "))
        && evidence.exit == Some(ProcessExit::Code(2))
    {
        return Failure { kind: FailureKind::InvalidArgument, message: clean(told) };
    }
    let is_silent = |told: &str| SILENT.iter().any(|silent| told.contains(silent)) && child_code(told).is_none();
    let silent = complaints.iter().find(|(_, told)| is_silent(told)).filter(|_| !evidence.ended_by_tuner);
    // Failures that follow from a vanished process are logged after the line that reports it.
    if let Some((at, told)) = exception
        && silent.is_none_or(|(silent, _)| at < silent)
    {
        return failure_from_exception(&lines, *at, told, evidence);
    }
    if let Some((_, told)) = silent {
        return evidence.failure_from_signal(None, &format!("{}; {}", evidence.exit(), clean(told)));
    }
    if !evidence.ended_by_tuner {
        // An engine ends in order and with 0 only on request, and the tuner made none.
        let in_order = evidence.log.contains("Application shutdown complete") && !told("Error");
        if evidence.under_load && evidence.exit == Some(ProcessExit::Code(0)) && in_order {
            return evidence.failure_from_signal(Some(15), "the engine shut down in order, as after signal 15");
        }
        if evidence.oom_kills > 0 && complaints.is_empty() {
            return evidence.failure_from_signal(None, &evidence.exit());
        }
    }
    let last = complaints.first().map(|(_, told)| *told);
    let last = last.or_else(|| lines.iter().rev().map(LogLine::message).find(|message| !message.is_empty()));
    let message = last.map_or_else(|| "its log is empty".to_owned(), clean);
    Failure { kind: evidence.fallback_kind(), message: format!("{}; {message}", evidence.exit()) }
}

/// Returns the lines that may name a cause, in order. If the engine was ready, only lines after its start count.
fn complaints<'a>(lines: &[LogLine<'a>], under_load: bool) -> Vec<(usize, &'a str)> {
    let ready = |line: &LogLine<'_>| line.is_quiet() && line.message().contains("Application startup complete");
    let from = if under_load { lines.iter().position(ready).unwrap_or(0) } else { 0 };
    // Under load, a logged reply or prompt can look like an exception. It hardly looks like a traceback.
    let vouched = |at: usize| !under_load || !lines[at].is_weak_evidence();
    let numbered = lines.iter().enumerate().skip(from).filter(|(at, _)| vouched(*at));
    numbered.filter_map(|(at, line)| Some((at, line.complaint()?))).collect()
}

/// Returns the failure that a complaint names with certainty.
fn root_failure(lines: &[LogLine<'_>], at: usize, told: &str, evidence: &EngineEvidence<'_>) -> Option<Failure> {
    if let Some(error) = collective::read(lines, at, told) {
        let kind = match error.kind? {
            FailureKind::OutOfMemory => stage::out_of_memory_kind(lines, at, evidence.under_load),
            FailureKind::Unsupported if evidence.under_load => return None,
            kind => kind,
        };
        return Some(Failure { kind, message: with_last(told, error.last.as_deref()) });
    }
    if lost_device::is_invalid_ordinal(told) {
        let asked = !evidence.under_load && lost_device::shows_too_few_devices(lines);
        let kind = if asked { FailureKind::InvalidArgument } else { FailureKind::DeviceLost };
        return Some(Failure { kind, message: clean(told) });
    }
    if lost_device::names_lost_device(told, evidence.under_load) {
        return Some(Failure { kind: FailureKind::DeviceLost, message: clean(told) });
    }
    let is_possible = |cause: RootCause| !evidence.under_load || cause.is_possible_under_load();
    let (pattern, cause) = ROOT_CAUSES.iter().find(|(text, cause)| told.contains(text) && is_possible(*cause))?;
    // A failed RPC that did not time out only repeats a worker's failure. The worker's own line is the cause.
    if *pattern == "RPC call to " && !told.contains("timed out") {
        return None;
    }
    let message = match pattern.strip_prefix("validation error") {
        Some(_) => detail(lines, at).unwrap_or_else(|| clean(told)),
        None => clean(told),
    };
    let kind = match cause {
        RootCause::DeviceMemory => stage::out_of_memory_kind(lines, at, evidence.under_load),
        RootCause::TooLittleFreeMemory => return Some(too_little_memory::too_little_memory_failure(told)),
        RootCause::EngineEnded => evidence.fallback_kind(),
        RootCause::Kind(FailureKind::InvalidArgument) if is_unsupported(&message) => FailureKind::Unsupported,
        RootCause::Kind(FailureKind::ModelUnavailable) => {
            return Some(own_model::missing_model_failure(lines, at, message, evidence.own_models));
        }
        RootCause::Kind(kind) => *kind,
    };
    Some(Failure { kind, message })
}

/// Formats a complaint of the collectives' library with its last error.
fn with_last(told: &str, last: Option<&str>) -> String {
    match last.filter(|last| !told.contains(last)) {
        Some(last) => format!("{}; last error: {}", clean(told), clean(last)),
        None => clean(told),
    }
}

/// Returns the failure for the first exception in the log, which may be of any kind.
fn failure_from_exception(lines: &[LogLine<'_>], at: usize, told: &str, evidence: &EngineEvidence<'_>) -> Failure {
    let any = |texts: &[&str]| texts.iter().any(|text| told.contains(text));
    let otherwise =
        |message: &str| Failure { kind: evidence.fallback_kind(), message: format!("{}; {message}", evidence.exit()) };
    if let Some(name) = own_model::find_missing_model(told, evidence.own_models) {
        return own_model::own_model_failure(name, &clean(told));
    }
    if let Some(error) = collective::read(lines, at, told) {
        let message = with_last(told, error.last.as_deref());
        // The kind of CUDA's error is unknown. The cause may be the configuration or the device.
        return if error.is_unexplained {
            otherwise(&message)
        } else {
            Failure { kind: FailureKind::Network, message }
        };
    }
    let name = lines[at].exception().unwrap_or_default();
    // For an `AssertionError` without a message, the line of code above it contains the assertion.
    let is_bare = name.len() == told.len();
    let mut above = lines[..at].iter().rev().filter(|line| line.is_indented() && line.continues(&lines[at]));
    let code = above.find(|line| !line.message().trim_matches('^').is_empty()).map(LogLine::message);
    let message = match code.filter(|code| is_bare && !code.starts_with("File ")) {
        Some(code) => clean(&format!("{name}: {code}")),
        None => clean(told),
    };
    let certain = |kind| Failure { kind, message: message.clone() };
    if any(&NETWORK) {
        return certain(FailureKind::Network);
    }
    if let Some(warning) = lost_device::warning(lines) {
        return Failure {
            kind: FailureKind::DeviceLost,
            message: format!("{message}; logged before: {}", clean(warning)),
        };
    }
    if evidence.under_load {
        return otherwise(&message);
    }
    if any(&TIMEOUTS) {
        return certain(FailureKind::StartupTimeout);
    }
    if name == "KeyboardInterrupt" && !evidence.ended_by_tuner {
        return evidence.failure_from_signal(Some(15), "the engine was interrupted by a signal");
    }
    if is_unsupported(&message) {
        return certain(FailureKind::Unsupported);
    }
    if name.ends_with("ValueError") && is_from_configuration(lines, at) {
        return certain(FailureKind::InvalidArgument);
    }
    otherwise(&message)
}

fn is_unsupported(message: &str) -> bool {
    UNSUPPORTED.iter().any(|words| message.contains(words))
}

/// Returns whether the innermost call of the traceback above is in code that reads arguments and configuration:
/// `vllm/config/`, `vllm/config.py` or `vllm/engine/arg_utils.py`.
fn is_from_configuration(lines: &[LogLine<'_>], at: usize) -> bool {
    let above = lines[..at].iter().rev().take_while(|line| line.is_indented());
    let innermost = above.map(LogLine::message).find_map(|message| message.strip_prefix("File "));
    innermost.is_some_and(|place| place.contains("vllm/config") || place.contains("arg_utils.py"))
}

/// Returns the problem with one field, or with several fields together. It is below the first line of pydantic's
/// message.
fn detail(lines: &[LogLine<'_>], at: usize) -> Option<String> {
    let [first, second] =
        [at + 1, at + 2].map(|at| lines.get(at).map(LogLine::message).filter(|text| !text.is_empty()));
    let is_field = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
    match (first?, second) {
        (field, Some(told)) if is_field(field) => Some(format!("{field}: {}", clean(told))),
        (told, _) => Some(clean(told)),
    }
}

/// Returns the code in `died unexpectedly (exit code: -9)` or `Failed core proc(s): {'EngineCore': -9}`. A code below
/// 0 is a signal.
fn child_code(told: &str) -> Option<i32> {
    const BEFORE: [&str; 2] = ["exit code: ", "Failed core proc(s): {"];
    let (_, codes) = BEFORE.iter().find_map(|before| told.split_once(before))?;
    let leading = |text: &str| text.split(|c: char| !(c.is_ascii_digit() || c == '-')).next()?.parse().ok();
    let numbers: Vec<i32> = codes.split(": ").filter_map(leading).collect();
    numbers.iter().find(|code| **code < 0).or(numbers.first()).copied()
}

/// Removes pydantic's prefix and trailer, and cuts the line after 400 characters.
fn clean(told: &str) -> String {
    const MOST: usize = 400;
    let message = told.strip_prefix("Value error, ").unwrap_or(told);
    let message = message.split(" [type=").next().unwrap_or(message);
    match message.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message.to_owned(),
    }
}
