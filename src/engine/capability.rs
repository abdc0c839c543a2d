//! Optional capabilities of an engine's server: its readiness, its page of metrics, and the reader of its log.

use std::collections::BTreeMap;

use regex::Regex;

use super::{PhaseTimeline, ReportedConfig};
use crate::config::{Config, ResolvedConfig};
use crate::rule::Facts;
use crate::trial::{FlagDifference, MemoryObservation};
use crate::twin::{DevicePreset, MemoryPlan, Settings, StartShortage};

/// The signs of a server's readiness.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// The path that answers with success once the server is up. `None` if an open port suffices.
    pub health: Option<String>,
    /// A line that must appear in the log first.
    pub log: Option<Regex>,
    pub model_name: ModelNameCheck,
}

/// The check of the list of served models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelNameCheck {
    /// The server lists the model by the name that it was started with.
    Required,
    /// A server without a list is not asked for a name. A server of a single model may use any name for it.
    IfListed,
}

/// A server's page of numbers in Prometheus' format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsPage {
    pub path: String,
    /// The server's names of [`QUANTITIES`]. They take precedence over the known names of other servers.
    pub names: BTreeMap<String, String>,
}

impl MetricsPage {
    /// Returns the usual page of a server, with known names only.
    #[must_use]
    pub fn usual() -> Self {
        Self { path: "/metrics".to_owned(), names: BTreeMap::new() }
    }
}

/// Quantities that a page of metrics may report.
pub const QUANTITIES: [&str; 12] = [
    "requests_running",
    "requests_waiting",
    "requests_swapped",
    "kv_cache_usage",
    "preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prefix_cache_hit_rate",
    "prompt_tokens",
    "generation_tokens",
    "engine_steps",
    "requests_finished",
];

/// A program for the engine's own Python that answers with the engine's verdict on a command line (`preflight`).
#[derive(Clone, Debug)]
pub struct PreflightProgram {
    /// The engine's name in messages.
    pub engine: &'static str,
    /// The source text in Python.
    pub source: &'static str,
    /// Packages that an installation may lack. The program checks for them.
    pub packages: Vec<&'static str>,
    /// Variables for its environment.
    pub variables: &'static [(&'static str, &'static str)],
}

/// The simulation of an engine by the twin.
pub trait TwinModel: Send + Sync {
    /// Returns the scheduler's settings and the division of the memory of `device`. `acceptance` is the share of
    /// drafts, 0 to 1, that the model accepts. Without it there is no speculation.
    ///
    /// # Errors
    /// If the engine would not start.
    fn settings(
        &self,
        config: &Config,
        resolved: &ResolvedConfig,
        facts: &Facts<'_>,
        device: &DevicePreset,
        acceptance: Option<f64>,
    ) -> Result<(Settings, MemoryPlan), StartShortage>;

    /// Returns whether a flag changes the result of the twin.
    fn has_effect(&self, flag: &str) -> bool;

    /// Returns the number of engines that serve at once, each on its own devices. It is at least 1, and limited to a
    /// number that is worth a simulation.
    fn replicas(&self, config: &Config, resolved: &ResolvedConfig) -> usize;
}

/// A reader of an engine's log with known lines.
pub trait LogReader: Send + Sync {
    /// Returns the phases of a start, before its first line.
    fn timeline(&self) -> PhaseTimeline;

    /// Reads the configuration that the log and the page of metrics report.
    fn resolved(&self, log: &str, page: &str) -> ReportedConfig;

    /// Returns the flags that were set explicitly but that the engine does not run with. Flags that it does not report
    /// count as granted.
    fn differences(&self, asked: &Config, resolved: &ReportedConfig) -> Vec<FlagDifference>;

    /// Reads the numbers about the device's memory.
    fn observe(&self, log: &str) -> MemoryObservation;
}
