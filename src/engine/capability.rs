//! Optional capabilities of an engine's server: its readiness, its page of metrics, and the reader of its log.

use std::collections::BTreeMap;

use regex::Regex;

use super::{Resolved, Timeline};
use crate::trial::MemoryObservation;

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

/// Reads an engine's log, whose lines are known.
pub trait LogReader: Send + Sync {
    /// The phases of a start, before its first line.
    fn timeline(&self) -> Timeline;

    /// Reads the configuration that the log and the page of metrics report.
    fn resolved(&self, log: &str, page: &str) -> Resolved;

    /// Reads the figures of the device's memory.
    fn observe(&self, log: &str) -> MemoryObservation;
}
