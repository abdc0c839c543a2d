//! Optional capabilities of an engine's server: its readiness, its page of metrics, and the reader of its log.

use std::collections::BTreeMap;

use regex::Regex;

use super::{ReportedConfig, Timeline};
use crate::config::{Config, ResolvedConfig};
use crate::rule::Facts;
use crate::trial::{Difference, MemoryObservation};
use crate::twin::{DevicePreset, MemoryPlan, Settings, Shortage};

/// How a server shows that it serves.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// The path that answers with success once the server is up. `None`: the port accepts connections.
    pub health: Option<String>,
    /// A line of the log that has to come before.
    pub log: Option<Regex>,
    pub model_name: ModelNameCheck,
}

/// The check of the list of served models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelNameCheck {
    /// The server lists the model by the name that it was started with.
    Required,
    /// A server without a list is not asked for a name, and one that serves a single model may name it as it likes.
    IfListed,
}

/// A server's page of numbers in Prometheus' format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsPage {
    pub path: String,
    /// The server's names of [`QUANTITIES`], before those that are known of other servers.
    pub names: BTreeMap<String, String>,
}

impl MetricsPage {
    /// The page of most servers, with names that are known.
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

/// A program that the engine's own Python runs, and that says what the engine would say of a command line (`preflight`).
#[derive(Clone, Debug)]
pub struct PreflightProgram {
    /// The engine's name in messages.
    pub engine: &'static str,
    /// Python.
    pub source: &'static str,
    /// Packages that an installation may lack: the program looks for them.
    pub packages: Vec<&'static str>,
    /// Variables of its environment.
    pub variables: &'static [(&'static str, &'static str)],
}

/// How the twin simulates an engine.
pub trait TwinModel: Send + Sync {
    /// Returns the scheduler's settings and the division of the memory of `device`. `acceptance` is the share of drafts, 0 to 1, that
    /// the model agrees with; without it there is no speculation.
    ///
    /// # Errors
    /// When the engine would not start.
    fn settings(
        &self,
        config: &Config,
        resolved: &ResolvedConfig,
        facts: &Facts<'_>,
        device: &DevicePreset,
        acceptance: Option<f64>,
    ) -> Result<(Settings, MemoryPlan), Shortage>;

    /// Whether a flag changes what the twin computes.
    fn has_effect(&self, flag: &str) -> bool;

    /// Returns how many engines serve at once, each on devices of its own: at least 1, and no more than are worth a simulation.
    fn replicas(&self, config: &Config, resolved: &ResolvedConfig) -> usize;
}

/// Reads an engine's log, whose lines are known.
pub trait LogReader: Send + Sync {
    /// The phases of a start, before its first line.
    fn timeline(&self) -> Timeline;

    /// Reads the configuration that the log and the page of metrics report.
    fn resolved(&self, log: &str, page: &str) -> ReportedConfig;

    /// Returns the flags that were set explicitly and that the engine does not run with. What it does not tell counts as granted.
    fn differences(&self, asked: &Config, resolved: &ReportedConfig) -> Vec<Difference>;

    /// Reads the figures of the device's memory.
    fn observe(&self, log: &str) -> MemoryObservation;
}
