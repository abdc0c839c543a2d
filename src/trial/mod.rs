//! Trials: a configuration, its launch and its outcome.

mod control;
mod draft_bias;
mod launch;
mod live_knob;
mod measurement;
mod outcome;
mod placement;
mod proposal;
mod replies;
mod secret;
mod startup;
mod telemetry;

use std::path::PathBuf;

#[cfg(test)]
use crate::config::Config;
use crate::guard::CheckedReplies;

pub use control::{for_terminal, is_control, json_for_terminal, without_controls};
pub use draft_bias::draft_bias;
pub use launch::{CommandLine, CommandParts, LaunchCommand, LaunchWords};
pub use live_knob::{LiveKnob, LiveRange, moved_knobs};
pub use measurement::{
    ClientReport, Distribution, HighestMeasuredLoad, Interval, LoadBound, LoadCurve, LoadKnob, LoadProbe,
    MeasuredWindow, Measurement, MetricDirection, Speeds, TierLoad, WorkloadMeasurement,
};
pub use outcome::{Blame, Failure, FailureKind, Outcome, Rejection};
pub use placement::Placement;
pub use proposal::{ExpectedValue, Origin, Proposal};
pub use replies::Replies;
pub use secret::{REDACTED, is_secret, redact};
pub use startup::{FlagDifference, MemoryObservation, PhaseTime, Startup};
pub use telemetry::{SERVER_METRICS, SERVER_NAMES, ServerTelemetry};

/// One configuration, tried or rejected.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    pub proposal: Proposal,
    pub launch: LaunchCommand,
    /// RFC 3339, UTC, milliseconds.
    pub started_at: String,
    /// Seconds from spawn to readiness; `None` if the server never became ready.
    pub startup_s: Option<f64>,
    /// Seconds from the start of the trial to its outcome.
    pub elapsed_s: f64,
    /// The release that the server reported.
    pub engine_version: Option<String>,
    /// The path of the launch's log; `None` if no process was started.
    pub log: Option<PathBuf>,
    pub outcome: Outcome,
    /// Number of the probe that started although this launch had failed: the failure is the configuration's own.
    pub probe: Option<u32>,
}

/// Records of a launch besides its outcome.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchRecords {
    /// Phases of the start-up, if a process was started.
    pub startup: Option<Startup>,
    /// Telemetry, if a load was driven.
    pub telemetry: Option<ServerTelemetry>,
    /// Times of the requests, if they were measured.
    pub replies: Option<Replies>,
    /// Greedy replies to the bundled prompts, if the guard requested them.
    pub answers: Option<CheckedReplies>,
    /// Measurements that the score does not use, in the order of measuring.
    pub set_aside: Vec<SetAsideMeasurement>,
}

/// A measurement that the score does not use. Usually the load was driven again after it.
#[derive(Clone, Debug, PartialEq)]
pub struct SetAsideMeasurement {
    pub flaw: SampleFlaw,
    pub measurement: Measurement,
}

/// The reason why a measurement does not reflect the engine alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleFlaw {
    /// The load generator was the bottleneck.
    ClientBound,
    /// Other processes used the engine's devices, or the devices were slowed down.
    Disturbed,
}

impl SampleFlaw {
    /// Returns the name in the database.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ClientBound => "client_bound",
            Self::Disturbed => "disturbed",
        }
    }
}

/// How a trial was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredBy {
    /// A launch of exactly the configuration's command.
    PlainLaunch,
    /// A launch of this command that a waiting process forked.
    FastLaunch,
    /// A launch with the engine's helper for live looks.
    PreparedLaunch,
    /// Both of them.
    PreparedFastLaunch,
    /// A live look on the server of this trial.
    LiveLook(u32),
}

impl MeasuredBy {
    /// Returns the way of a trial that is measured on the server of `server_of`, or else by a launch.
    #[must_use]
    pub fn new(server_of: Option<u32>, is_prepared: bool, is_fast: bool) -> Self {
        match (server_of, is_prepared, is_fast) {
            (Some(server_of), ..) => Self::LiveLook(server_of),
            (None, true, true) => Self::PreparedFastLaunch,
            (None, true, false) => Self::PreparedLaunch,
            (None, false, true) => Self::FastLaunch,
            (None, false, false) => Self::PlainLaunch,
        }
    }

    /// Returns the name in the database and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PlainLaunch => "plain_launch",
            Self::FastLaunch => "fast_launch",
            Self::PreparedLaunch => "prepared_launch",
            Self::PreparedFastLaunch => "prepared_fast_launch",
            Self::LiveLook(_) => "live_look",
        }
    }
}

impl std::fmt::Display for MeasuredBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PlainLaunch => f.write_str("a plain launch"),
            Self::FastLaunch => f.write_str("a fast start"),
            Self::PreparedLaunch => f.write_str("a launch with the engine's helper for live looks"),
            Self::PreparedFastLaunch => f.write_str("a fast start with the engine's helper for live looks"),
            Self::LiveLook(server_of) => write!(f, "a live look on the server of trial {server_of}"),
        }
    }
}

/// Returns whether the configuration counts as the cause of a failure of this kind. If `probe` is a trial that started
/// nevertheless, that is proven for every kind.
#[must_use]
pub fn is_configuration_failure(kind: FailureKind, probe: Option<u32>) -> bool {
    probe.is_some() || kind.is_configuration_failure()
}

impl Trial {
    /// Returns how this trial was measured, or would have been.
    #[must_use]
    pub fn measured_by(&self) -> MeasuredBy {
        MeasuredBy::new(self.proposal.server_of, self.launch.is_prepared, self.launch.is_fast)
    }
}

#[cfg(test)]
impl Trial {
    /// Creates a minimal trial with this outcome.
    pub(crate) fn example(number: u32, origin: impl Into<Origin>, outcome: Outcome) -> Self {
        Self::of(Proposal::example(number, origin), outcome)
    }

    /// Creates a minimal trial of this proposal.
    pub(crate) fn of(proposal: Proposal, outcome: Outcome) -> Self {
        Self {
            proposal,
            launch: LaunchCommand::default(),
            started_at: "2026-01-02T03:04:05.678Z".to_owned(),
            startup_s: None,
            elapsed_s: 1.0,
            engine_version: None,
            log: None,
            outcome,
            probe: None,
        }
    }

    pub(crate) fn with_config(mut self, config: Config) -> Self {
        self.proposal.config = config;
        self
    }
}
