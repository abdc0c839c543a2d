//! Outcomes of trials: rejections, failures and measurements.

use std::fmt;

use super::{Measurement, redact, without_controls};

/// The outcome of a trial. A rejection or a failure is a result like any other: it is stored, shown and used by
/// samplers.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a study has hundreds of them at most")]
pub enum Outcome {
    /// Never launched: a rule predicts that it cannot work.
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

/// The kind of a failure, as far as the trial can determine it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureKind {
    /// The engine's command could not be started at all.
    Spawn,
    /// The engine's argument parser or configuration refused the flags.
    InvalidArgument,
    /// The engine does not support this here: a kernel, data type, quantization or block size that the device, the
    /// model or another flag rules out.
    Unsupported,
    /// The model's files are absent, unreadable, or may not be downloaded.
    ModelUnavailable,
    /// The device's memory ran out while the weights were loaded, or at a point that the log does not show.
    OutOfMemory,
    /// The device's memory ran out in the profiling run, which measures the memory that a step takes.
    OutOfMemoryProfile,
    /// The device's memory ran out during the allocation of the key/value cache.
    OutOfMemoryKvCache,
    /// The device's memory ran out in the warm-up of the engine's sampler, which runs with the largest number of
    /// requests.
    OutOfMemorySampler,
    /// The device's memory ran out while graphs were captured.
    OutOfMemoryGraphs,
    /// The device's memory ran out while requests were served.
    OutOfMemoryLoad,
    /// The memory left for the key/value cache is zero, or too small for one request.
    NoKvMemory,
    /// The host's memory ran out or was about to: the kernel or the tuner ended the engine.
    HostMemory,
    /// Another process holds memory of the device.
    DeviceBusy,
    /// The device, its driver, its fabric manager, or a library or file system that the engine needs is gone or
    /// unusable.
    DeviceLost,
    /// Another process holds the port.
    PortInUse,
    /// Processes or hosts could not communicate: collectives, name lookup, a download.
    Network,
    /// A disk is full, or too few files may be open.
    Disk,
    /// A signal ended the engine. It came neither from the kernel's lack of memory nor from the tuner.
    Killed,
    /// The engine ended during start-up for another reason.
    StartupExit,
    /// The engine was not ready before the start-up timeout, although it showed activity.
    StartupTimeout,
    /// The engine is alive but idle: no log, no processor time, no tokens.
    Hang,
    /// A server other than the launched engine answered on the port, or the server has another model.
    WrongServer,
    /// The engine ended while it was under load.
    Crash,
    /// Too many requests failed for a meaningful measurement.
    RequestErrors,
    /// The load generator was the bottleneck, so that the numbers do not reflect the engine.
    ClientBound,
}

/// The cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The configuration: another launch would fail again.
    Configuration,
    /// The environment of the engine. The configuration may be as good as any other, and is tried again.
    Environment,
    /// Either of them.
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

    /// Returns the name in the database and in JSON.
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

    /// Returns the cause, which decides whether another launch of the same configuration could end otherwise.
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

    /// Returns whether the configuration counts as the cause of the failure. If not, the configuration counts as
    /// untried.
    #[must_use]
    pub fn is_configuration_failure(self) -> bool {
        // With these kinds, the engine has not been measured, so nothing is known about the configuration.
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
    /// Returns the trial's state in the database and in JSON.
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

    /// Returns the outcome with a message that may be stored: on one line, without control characters and secrets.
    /// Messages quote servers and logs.
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

    /// Returns the reason for the lack of a measurement, in one line.
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
