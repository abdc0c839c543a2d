//! The state of a failed engine, and the failure that follows from it without knowledge of the log's lines.

use std::fmt;
use std::process::ExitStatus;

use crate::trial::{Failure, FailureKind};

/// Signals that usually come from outside of a process: HUP, INT, KILL, TERM. Others indicate a fault in the process.
pub(crate) const EXTERNAL_SIGNALS: [i32; 4] = [1, 2, 9, 15];

/// The end of a launch's first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    Code(i32),
    Signal(i32),
    Unknown,
}

/// The evidence about a failed engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineEvidence<'a> {
    /// The text of its standard output and standard error.
    pub log: &'a str,
    /// The exit of the first process. `None` while it runs.
    pub exit: Option<ProcessExit>,
    /// Whether the engine was ready before it failed.
    pub under_load: bool,
    /// The number of processes of the host that the kernel has killed for lack of memory since the launch.
    pub oom_kills: u64,
    /// Whether the tuner itself ended the engine. Then signals do not indicate a cause.
    pub ended_by_tuner: bool,
    /// Models besides the served one, and adapters, that this configuration names but the rest of the study does not.
    /// If one is missing, the failure belongs to the configuration.
    pub own_models: &'a [String],
}

impl EngineEvidence<'_> {
    /// Returns the kind of a failure whose evidence shows no cause.
    pub(crate) fn fallback_kind(&self) -> FailureKind {
        if self.under_load { FailureKind::Crash } else { FailureKind::StartupExit }
    }

    /// Formats the exit, such as `exit code 1`, or states that the process still runs.
    pub(crate) fn exit(&self) -> String {
        self.exit.map_or_else(|| "it still runs".to_owned(), |exit| exit.to_string())
    }

    /// Returns the signal that ended the first process. A shell reports a signal of its child as exit code 128 plus the
    /// signal's number. Such a code only counts for signals of `EXTERNAL_SIGNALS`.
    pub(crate) fn signal(&self) -> Option<i32> {
        match self.exit? {
            ProcessExit::Signal(signal) => Some(signal),
            ProcessExit::Code(code) if EXTERNAL_SIGNALS.contains(&(code - 128)) => Some(code - 128),
            ProcessExit::Code(_) | ProcessExit::Unknown => None,
        }
    }

    /// Returns the failure of an engine from its exit and the last line of its log.
    pub(crate) fn failure_from_exit(&self, last: Option<&str>) -> Failure {
        let outside = self.signal().filter(|signal| EXTERNAL_SIGNALS.contains(signal) && !self.ended_by_tuner);
        if let Some(signal) = outside {
            return self.failure_from_signal(Some(signal), &format!("signal {signal}"));
        }
        let last = last.map_or("its log is empty", str::trim);
        Failure { kind: self.fallback_kind(), message: format!("{}; {last}", self.exit()) }
    }

    /// Returns the failure of an engine that a foreign signal has ended. `signal` is `None` if its number is unknown.
    /// `how` describes the end at the beginning of the message.
    pub(crate) fn failure_from_signal(&self, signal: Option<i32>, how: &str) -> Failure {
        // The kernel's OOM killer sends only KILL.
        if self.oom_kills > 0 && signal.is_none_or(|signal| signal == 9) {
            let message =
                format!("{how}; since the launch the kernel killed {} for lack of memory", processes(self.oom_kills));
            return Failure { kind: FailureKind::HostMemory, message };
        }
        let message = match signal {
            Some(_) => format!("{how}, which the tuner did not send"),
            None => format!("{how}; the log has no cause, as after a signal that the tuner did not send"),
        };
        Failure { kind: FailureKind::Killed, message }
    }
}

fn processes(count: u64) -> String {
    if count == 1 { "a process".to_owned() } else { format!("{count} processes") }
}

impl From<ExitStatus> for ProcessExit {
    fn from(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Unknown,
        }
    }
}

impl fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unknown => f.write_str("unknown exit status"),
        }
    }
}
