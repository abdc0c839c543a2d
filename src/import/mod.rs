//! Results of earlier measurements, of other programs and of this one, read from their documents.
//!
//! A reader either returns every result of a document, with the lines that it could not read, or one error: a document
//! that was cut off is never read by half. Metrics get the names of `trial::Measurement::NAMES`, latencies are
//! converted to milliseconds. Definitions stay those of the program that measured.

mod block;
mod file;
mod launch;
mod object;
mod optuna;
mod rows;
mod table;
mod text;
mod trials;

#[cfg(test)]
mod other_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub(crate) use file::{MEMORY_FILE, PARAMETERS_FILE, read_path};
pub(crate) use trials::{ImportedStudy, TOTAL_MEMORY};

/// Largest document that is read. Results of benchmarks have a few megabytes at most, with one record per request.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// One result of a document.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ImportedResult {
    pub file: PathBuf,
    /// The line on which it begins, from 1.
    pub line: usize,
    /// The document's name of the test, if it has one.
    pub name: Option<String>,
    /// The launch of the engine; `None` if the document does not show it. Then the configuration is unknown.
    pub launch: Option<ImportedLaunch>,
    pub load: LoadDescription,
    /// Metrics by our names.
    pub metrics: BTreeMap<String, f64>,
    /// The text of the failure, if the document shows one.
    pub failure: Option<ImportedFailure>,
    pub memory: Option<GpuMemoryUse>,
    /// The device's name.
    pub device: Option<String>,
    pub engine_version: Option<String>,
    /// The instant of the measurement, RFC 3339.
    pub measured_at: Option<String>,
}

/// A launch of the engine, as far as a document shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ImportedLaunch {
    /// The words of the command. Empty if only flags are known.
    pub command: Vec<String>,
    /// Environment variables before the command.
    pub env: BTreeMap<String, String>,
    /// The flags with their values.
    pub config: crate::config::Config,
    pub model: Option<String>,
}

/// The load of a measurement, as far as a document describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadDescription {
    pub model: Option<String>,
    /// Requests per second. Infinite for all at once.
    pub rate: Option<f64>,
    pub concurrency: Option<u64>,
    pub requests: Option<u64>,
    /// Mean or requested number of tokens of a prompt and of a reply.
    pub input_len: Option<u64>,
    pub output_len: Option<u64>,
}

/// A failure of a launch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ImportedFailure {
    pub message: String,
    /// The kind, from documents that contain our names of kinds. Otherwise the engine's diagnosis decides.
    pub kind: Option<crate::trial::FailureKind>,
    /// The rule that rejected the configuration before a launch.
    pub rule: Option<String>,
}

/// Used and total memory of a device, in MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuMemoryUse {
    pub used_mib: u64,
    pub total_mib: u64,
}

/// A line that contains no result, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadLine {
    pub file: PathBuf,
    pub line: usize,
    pub text: String,
    pub reason: &'static str,
}

/// The content of a document.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ImportedDocument {
    pub results: Vec<ImportedResult>,
    pub unread: Vec<UnreadLine>,
    /// The objective, if the document has one.
    pub objective: Option<crate::objective::Objective>,
}

/// The reason for which a document cannot be read. Then none of its results is used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {problem}", file.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
pub(crate) struct ImportError {
    pub file: PathBuf,
    pub line: Option<usize>,
    pub problem: String,
    pub hint: Option<String>,
}

/// A problem with its line, before the file is known.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LineProblem {
    /// The line, from 1; 0 if the problem concerns the whole document.
    line: usize,
    problem: String,
    hint: Option<String>,
}

impl LineProblem {
    fn new(line: usize, problem: impl Into<String>) -> Self {
        Self { line, problem: problem.into(), hint: None }
    }

    /// Creates the problem of a document that ends before its content does.
    fn cut_off(line: usize, problem: impl Into<String>) -> Self {
        let hint = "the file seems to be cut off: copy it again; nothing of it was imported";
        Self { line, problem: problem.into(), hint: Some(hint.to_owned()) }
    }

    fn of_file(self, file: &std::path::Path) -> ImportError {
        let line = (self.line > 0).then_some(self.line);
        ImportError { file: file.to_owned(), line, problem: self.problem, hint: self.hint }
    }
}

impl GpuMemoryUse {
    /// Reads a line such as `19344MiB / 46068MiB`, as `nvidia-smi` shows memory.
    #[must_use]
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (used, total) = line.split_once('/')?;
        let mib = |text: &str| text.trim().strip_suffix("MiB")?.trim_end().parse().ok();
        Some(Self { used_mib: mib(used)?, total_mib: mib(total)? })
    }
}

impl std::fmt::Display for GpuMemoryUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}MiB / {}MiB", self.used_mib, self.total_mib)
    }
}
