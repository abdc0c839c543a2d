//! Renders runs of the load generator: the text of `vllm bench serve`, its JSON, and the two tables of vLLM's nightly
//! benchmarks.

mod columns;
mod json;
mod markdown;
mod summary;
mod table;
mod text;

#[cfg(test)]
mod seed_tests;
#[cfg(test)]
mod tests;

use serde_json::Value as Json;

use crate::import::GpuMemoryUse;
use crate::job::BenchTest;
use crate::trial::Measurement;

pub(crate) use json::benchmark_json;
pub(super) use text::client_line;

/// One run with its settings and its measurement.
#[derive(Clone, Debug)]
pub(crate) struct BenchResult {
    /// The table of vLLM's nightly benchmarks to which the run belongs.
    pub test: BenchTest,
    /// Name of the run in tables.
    pub name: String,
    /// The run's start in local time, as `vllm bench serve` writes it: `20260131-235959`.
    pub date: String,
    /// The server's dialect, such as `vllm`.
    pub backend: String,
    /// The name under which the server serves the model.
    pub model: String,
    pub tokenizer: Option<String>,
    /// The device that the server runs on, as far as it is known.
    pub device: String,
    /// Requested number of requests; `None` if the run had no fixed number.
    pub requests: Option<u64>,
    /// Requests per second. Infinite for a closed loop, for all at once, for a trace and for a ramp.
    pub rate: f64,
    /// Shape of the gamma distribution of arrival gaps: 1 for a Poisson process, infinite for constant gaps.
    pub burstiness: f64,
    /// A rate that changes linearly: first rate, last rate (both in requests per second), duration (seconds).
    pub ramp: Option<[f64; 3]>,
    /// Largest number of requests in flight; `None` without a limit.
    pub concurrency: Option<u64>,
    pub request_timeout_s: f64,
    /// The largest number of tokens that a reply was to have; `None` without a request.
    pub output_len: Option<u32>,
    /// Memory of the fullest GPU; `None` if the server has no GPU of this machine.
    pub memory: Option<GpuMemoryUse>,
    pub seed: u64,
    /// Whether the numbers of the steady state were requested.
    pub steady: bool,
    pub measurement: Measurement,
    /// The end of the run: `complete`, `interrupted`, or the reason of an early end.
    pub end: String,
    /// Requests in flight when the run ended, and sessions that were due but had not begun.
    pub unfinished: u64,
    pub unsent: u64,
    /// Description of the overload, if the server fell behind the offered load. Latencies then depend on the length of
    /// the run.
    pub saturated: Option<String>,
    /// Reasons for which the numbers must not be used. Empty if they may be used.
    pub invalid: Vec<String>,
    /// The load's metrics for each second, and the samples of the server. `None` unless `--series` was given.
    pub series: Option<Json>,
    pub server_series: Option<Json>,
}

impl BenchResult {
    /// Returns whether the numbers may be used.
    #[must_use]
    pub(crate) fn is_valid(&self) -> bool {
        self.invalid.is_empty()
    }
}

/// The runs of one command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BenchRuns<'a> {
    One(&'a BenchResult),
    /// The runs of a profile, in order.
    Profile(&'a [BenchResult]),
}

impl<'a> BenchRuns<'a> {
    fn all(self) -> &'a [BenchResult] {
        match self {
            Self::One(run) => std::slice::from_ref(run),
            Self::Profile(runs) => runs,
        }
    }
}

/// One format for runs.
pub(crate) struct BenchFormat {
    pub name: &'static str,
    /// One line for `--help`.
    pub help: &'static str,
    pub write: fn(BenchRuns<'_>) -> String,
}

impl std::fmt::Debug for BenchFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Every format. The first is the default.
pub(crate) const BENCH_FORMATS: &[BenchFormat] = &[
    BenchFormat { name: "text", help: "The text of `vllm bench serve`", write: text::write },
    BenchFormat {
        name: "json",
        help: "The JSON of `vllm bench serve --save-result`, with additional fields",
        write: json::write,
    },
    BenchFormat { name: "markdown", help: "The tables of vLLM's nightly benchmarks", write: markdown::write },
    BenchFormat { name: "columns", help: "The same tables by columns, as JSON for pandas", write: columns::write },
    BenchFormat {
        name: "rates",
        help: "The table with seven columns of vLLM Ascend's nightly benchmarks: request rate and medians",
        write: markdown::write_rates,
    },
    BenchFormat {
        name: "summary",
        help: "Used GPU memory, and JSON with averages and percentiles in seconds",
        write: summary::write,
    },
];
