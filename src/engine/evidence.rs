//! The state of an engine that has failed, and the failure that it shows if nothing is known of its log.

use std::fmt;
use std::process::ExitStatus;

use crate::trial::{Failure, FailureKind};

/// Signals by which somebody ends a process from outside: HUP, INT, KILL, TERM. Others tell of a fault of its own.
pub(crate) const FROM_OUTSIDE: [i32; 4] = [1, 2, 9, 15];

/// How the first process of a launch has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    Unknown,
}

/// What is known of an engine that has failed.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// Standard output and standard error.
    pub log: &'a str,
    /// `None` while it lives.
    pub exit: Option<Exit>,
    /// Whether it had become ready.
    pub under_load: bool,
    /// Processes that the kernel has killed for want of memory since the launch.
    pub oom_kills: u64,
    /// Whether the tuner itself had ended it, whose signals then say nothing.
    pub ended_by_tuner: bool,
    /// Models besides the served one, and adapters, that the configuration names and the rest of the study does not. Their
    /// absence is the configuration's failure.
    pub own_models: &'a [String],
}

impl Evidence<'_> {
    /// The kind of a failure of which nothing else is known.
    pub(crate) fn otherwise(&self) -> FailureKind {
        if self.under_load { FailureKind::Crash } else { FailureKind::StartupExit }
    }

    /// `exit code 1`, or that it lives.
    pub(crate) fn exit(&self) -> String {
        self.exit.map_or_else(|| "it still runs".to_owned(), |exit| exit.to_string())
    }

    /// The signal that ended the leader; shells report one of their children's as 128 and its number.
    pub(crate) fn signal(&self) -> Option<i32> {
        match self.exit? {
            Exit::Signal(signal) => Some(signal),
            Exit::Code(code) if FROM_OUTSIDE.contains(&(code - 128)) => Some(code - 128),
            Exit::Code(_) | Exit::Unknown => None,
        }
    }

    /// The failure of an engine of whose log nothing is known but its last line.
    pub(crate) fn by_exit(&self, last: Option<&str>) -> Failure {
        let outside = self.signal().filter(|signal| FROM_OUTSIDE.contains(signal) && !self.ended_by_tuner);
        if let Some(signal) = outside {
            return self.killed(Some(signal), &format!("signal {signal}"));
        }
        let last = last.map_or("its log is empty", str::trim);
        Failure { kind: self.otherwise(), message: format!("{}; {last}", self.exit()) }
    }

    /// The failure of an engine that a signal of somebody else has ended. `how` says which process and which signal.
    pub(crate) fn killed(&self, signal: Option<i32>, how: &str) -> Failure {
        // The kernel sends KILL and nothing else.
        if self.oom_kills > 0 && signal.is_none_or(|signal| signal == 9) {
            let message =
                format!("{how}; the kernel killed {} for want of memory meanwhile", processes(self.oom_kills));
            return Failure { kind: FailureKind::HostMemory, message };
        }
        let message = match signal {
            Some(_) => format!("{how}, which the tuner did not send"),
            None => format!("{how}, without a word on why, as by a signal that the tuner did not send"),
        };
        Failure { kind: FailureKind::Killed, message }
    }
}

fn processes(count: u64) -> String {
    if count == 1 { "a process".to_owned() } else { format!("{count} processes") }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Unknown,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unknown => f.write_str("unknown exit status"),
        }
    }
}
