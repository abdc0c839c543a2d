//! Runs of the load generator as people and programs read them: the text of `vllm bench serve`, its JSON, and the two
//! tables of vLLM's nightly benchmarks.

mod columns;
mod json;
mod markdown;
mod table;
mod text;

#[cfg(test)]
mod tests;

use serde_json::Value as Json;

use crate::trial::Measurement;

pub(crate) use json::benchmark_json;
pub(super) use text::client_line;

/// One run with what it was asked to do.
#[derive(Clone, Debug)]
pub(crate) struct Benchmark {
    /// Names the run in tables.
    pub name: String,
    /// The run's start in local time, as `vllm bench serve` writes it: `20260131-235959`.
    pub date: String,
    /// The server's dialect, such as `vllm`.
    pub backend: String,
    /// The name under which the server serves the model.
    pub model: String,
    pub tokenizer: Option<String>,
    /// What the server runs on, as far as it is known.
    pub device: String,
    /// Requests that were asked for; `None` where the run had no fixed number.
    pub requests: Option<u64>,
    /// Requests per second; infinite for a closed loop, for all at once and for a trace.
    pub rate: f64,
    /// Infinite for constant gaps.
    pub burstiness: f64,
    /// A rate that changes: from, to (requests per second), over (seconds).
    pub ramp: Option<[f64; 3]>,
    pub concurrency: Option<u64>,
    pub seed: u64,
    /// Whether the numbers were to be those of the steady state.
    pub steady: bool,
    pub measurement: Measurement,
    /// How the run came to its end: `complete`, `interrupted`, or the reason why it was ended early.
    pub end: String,
    /// Requests that were under way when the run was ended, and sessions that were due and had not begun.
    pub unfinished: u64,
    pub unsent: u64,
    /// How the server fell behind what it was offered, where it did: latencies say how long the run was then.
    pub saturated: Option<String>,
    /// Why the numbers must not be used; empty where they may.
    pub invalid: Vec<String>,
    /// One object for each second, and what was sampled of the server, where it was asked for.
    pub series: Option<Json>,
    pub server_series: Option<Json>,
}

impl Benchmark {
    /// Whether the numbers may be used.
    #[must_use]
    pub(crate) fn is_valid(&self) -> bool {
        self.invalid.is_empty()
    }
}

/// The runs of one command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Runs<'a> {
    One(&'a Benchmark),
    /// Those of a profile, in order.
    Profile(&'a [Benchmark]),
}

impl<'a> Runs<'a> {
    fn all(self) -> &'a [Benchmark] {
        match self {
            Self::One(run) => std::slice::from_ref(run),
            Self::Profile(runs) => runs,
        }
    }
}

/// One way to write runs.
pub(crate) struct BenchFormat {
    pub name: &'static str,
    /// One line for `--help`.
    pub help: &'static str,
    pub write: fn(Runs<'_>) -> String,
}

impl std::fmt::Debug for BenchFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Every format; the first is the default.
pub(crate) const BENCH_FORMATS: &[BenchFormat] = &[
    BenchFormat { name: "text", help: "The text of `vllm bench serve`", write: text::write },
    BenchFormat {
        name: "json",
        help: "The JSON of `vllm bench serve --save-result`, with what is new here",
        write: json::write,
    },
    BenchFormat { name: "markdown", help: "The table of vLLM's nightly benchmarks", write: markdown::write },
    BenchFormat { name: "columns", help: "The same by columns, as pandas reads it", write: columns::write },
];
