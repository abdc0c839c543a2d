//! How a trial ended.

use std::fmt;

use super::{Measurement, redact, without_controls};

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
    /// The engine has no way to do this here: a kernel, data type, quantization or block size that the device, the model or
    /// another flag rules out.
    Unsupported,
    /// The model's files are not there, cannot be read, or may not be downloaded.
    ModelUnavailable,
    /// The device's memory ran out, at a moment that the log does not tell or while the weights were loaded.
    OutOfMemory,
    /// The same in the trial run that measures how much memory a step takes.
    OutOfMemoryProfile,
    /// The same when the key/value cache was allocated.
    OutOfMemoryKvCache,
    /// The same when the sampler was tried with as many requests as may run at once.
    OutOfMemorySampler,
    /// The same while graphs were captured.
    OutOfMemoryGraphs,
    /// The same while requests were served.
    OutOfMemoryLoad,
    /// What is left for the key/value cache is nothing, or too little for one request.
    NoKvMemory,
    /// The host's memory ran out, or was about to: the kernel or the tuner ended the engine.
    HostMemory,
    /// Another process holds memory of the device.
    DeviceBusy,
    /// The device, its driver, its fabric manager, or a library or file system that the engine needs is gone or unusable.
    DeviceLost,
    /// Another process holds the port.
    PortInUse,
    /// Processes or hosts could not talk to each other: collectives, name lookup, a download.
    Network,
    /// A disk is full, or too few files may be open.
    Disk,
    /// A signal ended the engine that neither the kernel's want of memory nor the tuner had sent.
    Killed,
    /// The engine ended during start-up for another reason.
    StartupExit,
    /// The engine was not ready before the start-up timeout, although it was at work.
    StartupTimeout,
    /// The engine lives and does nothing: no log, no processor time, no tokens.
    Hang,
    /// Something answered on the port that is not the engine that was started, or it serves another model.
    WrongServer,
    /// The engine ended while it was under load.
    Crash,
    /// Too many requests failed for the numbers to mean anything.
    RequestErrors,
    /// The load generator was the bottleneck: the numbers are its own and not the engine's.
    ClientBound,
}

/// What a failure says something about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The configuration: launched again, it would fail again.
    Configuration,
    /// What the engine runs on. The configuration may be as good as any other, and is tried again.
    Environment,
    /// Either.
    Unclear,
}

impl FailureKind {
    pub const ALL: [Self; 25] = [
        Self::Spawn,
        Self::InvalidArgument,
        Self::Unsupported,
        Self::ModelUnavailable,
        Self::OutOfMemory,
        Self::OutOfMemoryProfile,
        Self::OutOfMemoryKvCache,
        Self::OutOfMemorySampler,
        Self::OutOfMemoryGraphs,
        Self::OutOfMemoryLoad,
        Self::NoKvMemory,
        Self::HostMemory,
        Self::DeviceBusy,
        Self::DeviceLost,
        Self::PortInUse,
        Self::Network,
        Self::Disk,
        Self::Killed,
        Self::StartupExit,
        Self::StartupTimeout,
        Self::Hang,
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
            Self::Unsupported => "unsupported",
            Self::ModelUnavailable => "model_unavailable",
            Self::OutOfMemory => "out_of_memory",
            Self::OutOfMemoryProfile => "out_of_memory_profile",
            Self::OutOfMemoryKvCache => "out_of_memory_kv_cache",
            Self::OutOfMemorySampler => "out_of_memory_sampler",
            Self::OutOfMemoryGraphs => "out_of_memory_graphs",
            Self::OutOfMemoryLoad => "out_of_memory_load",
            Self::NoKvMemory => "no_kv_memory",
            Self::HostMemory => "host_memory",
            Self::DeviceBusy => "device_busy",
            Self::DeviceLost => "device_lost",
            Self::PortInUse => "port_in_use",
            Self::Network => "network",
            Self::Disk => "disk",
            Self::Killed => "killed",
            Self::StartupExit => "startup_exit",
            Self::StartupTimeout => "startup_timeout",
            Self::Hang => "hang",
            Self::WrongServer => "wrong_server",
            Self::Crash => "crash",
            Self::RequestErrors => "request_errors",
            Self::ClientBound => "client_bound",
        }
    }

    /// Whether another launch of the same configuration could end otherwise.
    #[must_use]
    pub fn blame(self) -> Blame {
        match self {
            Self::InvalidArgument
            | Self::Unsupported
            | Self::OutOfMemory
            | Self::OutOfMemoryProfile
            | Self::OutOfMemoryKvCache
            | Self::OutOfMemorySampler
            | Self::OutOfMemoryGraphs
            | Self::OutOfMemoryLoad
            | Self::NoKvMemory
            | Self::HostMemory
            | Self::Hang
            | Self::Crash
            | Self::RequestErrors => Blame::Configuration,
            Self::ModelUnavailable
            | Self::DeviceBusy
            | Self::DeviceLost
            | Self::PortInUse
            | Self::Network
            | Self::Disk
            | Self::Killed => Blame::Environment,
            Self::Spawn | Self::StartupExit | Self::StartupTimeout | Self::WrongServer | Self::ClientBound => {
                Blame::Unclear
            }
        }
    }

    /// Whether it tells of the configuration. Where it does not, the configuration is as unknown as before.
    #[must_use]
    pub fn is_own(self) -> bool {
        // What only says that the launch or the load did not come about is not the configuration's either.
        self.blame() != Blame::Environment && !matches!(self, Self::Spawn | Self::WrongServer | Self::ClientBound)
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

    /// The outcome with a message that may be stored: on one line, without control characters and secrets. Messages quote
    /// servers and logs.
    #[must_use]
    pub fn for_storage(self) -> Self {
        match self {
            Self::Failed(Failure { kind, message }) => {
                let message = redact(&without_controls(&message)).trim().to_owned();
                Self::Failed(Failure { kind, message })
            }
            other => other,
        }
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
