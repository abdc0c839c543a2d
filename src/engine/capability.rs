//! Parts of the [`Engine`](super::Engine) interface: readiness, metrics page, preflight, simulation and log reader.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use regex::Regex;
use serde_json::{Map, Value as Json};

use super::{PhaseTimeline, ReportedConfig};
use crate::config::{Config, ResolvedConfig};
use crate::rule::Facts;
use crate::trial::{FlagDifference, MemoryObservation};
use crate::twin::{DevicePreset, MemoryPlan, PredictedStartFailure, Settings};

/// Conditions that a started server must meet before it receives load.
#[derive(Clone, Debug)]
pub struct Readiness {
    /// HTTP path that returns a success status once the server is up. `None` if an open port suffices.
    pub health: Option<String>,
    /// Pattern of a log line. `health` is first requested after a line has matched.
    pub log: Option<Regex>,
    pub model_name: ModelNameCheck,
    pub release: ReleasePage,
}

/// The page on which a server reports its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasePage {
    pub path: &'static str,
    /// The key of the release in the page's JSON object.
    pub key: &'static str,
}

impl ReleasePage {
    /// The page of vLLM. A server without it reports no release.
    pub const USUAL: Self = Self { path: "/version", key: "version" };
}

/// Check of the model's name in the server's list `/v1/models`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelNameCheck {
    /// The list must exist and contain the name that the server was started with.
    Required,
    /// Without a list, the name is not checked. A list of one model may contain any name, which requests then use. A
    /// longer list must contain the expected name.
    IfListed,
}

/// A server's metrics page, in Prometheus format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsPage {
    pub path: String,
    /// Series names on this server's page by quantity. The keys are from [`QUANTITIES`]. They take precedence over the
    /// built-in series names.
    pub names: BTreeMap<String, String>,
}

impl MetricsPage {
    /// Returns the page `/metrics` with the built-in series names only.
    #[must_use]
    pub fn usual() -> Self {
        Self { path: "/metrics".to_owned(), names: BTreeMap::new() }
    }
}

/// Quantities that the tuner reads from a metrics page.
pub const QUANTITIES: [&str; 16] = [
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
    "drafts",
    "draft_tokens",
    "accepted_draft_tokens",
    "mean_acceptance_length",
    "requests_finished",
];

/// The content of a file of flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigFileFlags {
    /// The model, if the file names it.
    pub model: Option<String>,
    /// All other entries as arguments of the command line.
    pub words: Vec<String>,
}

/// The entries of a file of flags.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigFileEntries {
    /// The flag that names the file on the command line, such as `--config`.
    pub flag: &'static str,
    /// Names of flags without dashes, with their values: `true` for a flag without an argument, a number, a text, or a
    /// list of texts.
    pub entries: BTreeMap<String, Json>,
}

/// The reason why a file of flags cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFileProblem {
    pub line: usize,
    pub problem: String,
}

/// The means that report whether an installed engine accepts a command line, without a start of the server (module
/// `preflight`).
#[derive(Clone, Debug)]
pub enum PreflightProgram {
    Python(PythonPreflight),
    Commands(Arc<dyn PreflightCommands>),
}

impl PreflightProgram {
    /// Returns the engine's name in messages.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Python(helper) => helper.engine,
            Self::Commands(commands) => commands.engine(),
        }
    }

    /// Returns a notice for a person who waits for the first answer.
    #[must_use]
    pub fn notice(&self) -> String {
        let duration = match self {
            Self::Python(_) => "; its import takes about 10 s",
            Self::Commands(_) => "",
        };
        format!("asking the installed {}{duration}", self.engine())
    }
}

/// The engine's own programs. They run once for each command line, and need milliseconds.
pub trait PreflightCommands: Send + Sync + fmt::Debug {
    /// Returns the engine's name in messages.
    fn engine(&self) -> &'static str;

    /// Returns the command that describes the installed engine. `program` is the path of its server.
    fn describe(&self, program: &str) -> Vec<String>;

    /// Reads the release and the kind of device (`cpu`, `cuda`) in the output of `describe`. `None` if it is not from
    /// this engine.
    fn read_description(&self, output: &str) -> Option<(String, String)>;

    /// Returns the command that only parses the arguments of a launch. It fails if the engine refuses them.
    fn parser(&self, program: &str, arguments: &[String]) -> Vec<String>;

    /// Returns the command that computes the memory of a launch. It fails if the engine refuses the configuration. `None`
    /// if the program for it is not installed.
    fn allocator(&self, program: &str, arguments: &[String]) -> Option<Vec<String>>;

    /// Returns the resolved values in the output of `allocator`.
    ///
    /// # Errors
    /// The reason why this host cannot run the launch.
    fn read_allocation(&self, output: &str) -> Result<Map<String, Json>, String>;

    /// Returns the reason in the output of a command that failed.
    fn reason(&self, output: &str) -> String;
}

/// Helper that runs in the engine's Python installation.
#[derive(Clone, Debug)]
pub struct PythonPreflight {
    /// The engine's name in messages.
    pub engine: &'static str,
    /// The source text in Python.
    pub source: &'static str,
    /// Optional packages that some flags need. The program reports the missing ones.
    pub packages: Vec<&'static str>,
    /// Environment variables of the program.
    pub variables: &'static [(&'static str, &'static str)],
}

/// Translation of an engine's flags into settings of the simulator in [`crate::twin`], called the twin.
pub trait TwinModel: Send + Sync {
    /// Returns the scheduler's settings and the division of the memory of `device`. `acceptance` is the share of
    /// draft tokens, 0 to 1, that the model accepts. If it is `None`, speculative decoding is not simulated.
    ///
    /// # Errors
    /// The predicted reason why the engine would not start.
    fn settings(
        &self,
        config: &Config,
        resolved: &ResolvedConfig,
        facts: &Facts<'_>,
        device: &DevicePreset,
        acceptance: Option<f64>,
    ) -> Result<(Settings, MemoryPlan), PredictedStartFailure>;

    /// Returns whether the twin simulates this flag. Other flags do not change its result.
    fn has_effect(&self, flag: &str) -> bool;

    /// Returns the number of data-parallel replicas, each on its own devices. It is at least 1. Implementations cap it
    /// to limit the cost of a simulation.
    fn replicas(&self, config: &Config, resolved: &ResolvedConfig) -> usize;
}

/// Reader of an engine's log, for engines whose log lines are known.
pub trait LogReader: Send + Sync {
    /// Returns a new timeline of start-up phases. The caller passes it each log line of one start.
    fn timeline(&self) -> PhaseTimeline;

    /// Reads the configuration that the engine reports in its log and on its metrics page.
    fn read_reported_config(&self, log: &str, page: &str) -> ReportedConfig;

    /// Returns the flags in `asked` whose reported value differs from the requested one. A flag without a reported
    /// value counts as equal.
    fn differences(&self, asked: &Config, resolved: &ReportedConfig) -> Vec<FlagDifference>;

    /// Reads the numbers that the log reports about the device's memory.
    fn read_memory(&self, log: &str) -> MemoryObservation;
}
