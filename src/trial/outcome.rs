//! How a trial ended.

use std::fmt;

use super::Measurement;

/// A rejected, failed or slow configuration is a result like any other: stored, shown and learnt from.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a study has hundreds of them at most")]
pub enum Outcome {
    /// Never launched: a rule says that it cannot work.
    Rejected(Rejection),
    /// Launched, and the engine or the load failed.
    Failed(Failure),
    Measured(Measurement),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Identifier of the rule.
    pub rule: String,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
}

/// What went wrong, as far as the trial can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// The engine's command could not be started at all.
    Spawn,
    /// The engine's argument parser or configuration refused the flags.
    InvalidArgument,
    /// Device or host memory ran out, or the KV cache is too small for one request.
    OutOfMemory,
    /// Another process holds the port.
    PortInUse,
    /// The engine ended during start-up for another reason.
    StartupExit,
    /// The engine was not ready before the start-up timeout.
    StartupTimeout,
    /// Something answered on the port that is not the engine that was started, or it serves another model.
    WrongServer,
    /// The engine ended while it was under load.
    Crash,
    /// Too many requests failed for the numbers to mean anything.
    RequestErrors,
    /// The load generator was the bottleneck: the numbers are its own and not the engine's.
    ClientBound,
}

impl FailureKind {
    pub const ALL: [Self; 10] = [
        Self::Spawn,
        Self::InvalidArgument,
        Self::OutOfMemory,
        Self::PortInUse,
        Self::StartupExit,
        Self::StartupTimeout,
        Self::WrongServer,
        Self::Crash,
        Self::RequestErrors,
        Self::ClientBound,
    ];

    /// The name in the database and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Spawn => "spawn",
            Self::InvalidArgument => "invalid_argument",
            Self::OutOfMemory => "out_of_memory",
            Self::PortInUse => "port_in_use",
            Self::StartupExit => "startup_exit",
            Self::StartupTimeout => "startup_timeout",
            Self::WrongServer => "wrong_server",
            Self::Crash => "crash",
            Self::RequestErrors => "request_errors",
            Self::ClientBound => "client_bound",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Outcome {
    /// The trial's state in the database and in JSON.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Rejected(_) => "rejected",
            Self::Failed(_) => "failed",
            Self::Measured(_) => "measured",
        }
    }

    #[must_use]
    pub fn measurement(&self) -> Option<&Measurement> {
        if let Self::Measured(measurement) = self { Some(measurement) } else { None }
    }

    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        if let Self::Failed(failure) = self { Some(failure) } else { None }
    }

    /// Why there is no measurement, in one line.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        match self {
            Self::Rejected(rejection) => Some(format!("{}: {}", rejection.rule, rejection.message)),
            Self::Failed(failure) => Some(format!("{}: {}", failure.kind, failure.message)),
            Self::Measured(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_kind_has_a_name_of_its_own() {
        for kind in FailureKind::ALL {
            assert_eq!(FailureKind::from_name(kind.name()), Some(kind));
        }
    }
}
