//! The columns of the serving table of vLLM's nightly benchmarks.
//!
//! Headers and order are those of `serving_column_mapping` in vLLM's
//! `.buildkite/nightly-benchmarks/scripts/convert-results-json-to-markdown.py`.

use serde_json::Value as Json;

use super::BenchResult;

/// The content of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum BenchColumn {
    Name,
    Device,
    /// Number of completed requests.
    Completed,
    /// A metric by its name.
    Metric(&'static str),
}

/// Header and content of each column.
pub(super) const COLUMNS: &[(&str, BenchColumn)] = &[
    ("Test name", BenchColumn::Name),
    ("GPU", BenchColumn::Device),
    ("# of req.", BenchColumn::Completed),
    ("Tput (req/s)", BenchColumn::Metric("request_throughput")),
    ("Output Tput (tok/s)", BenchColumn::Metric("output_throughput")),
    ("Total Tput (tok/s)", BenchColumn::Metric("total_token_throughput")),
    ("Mean TTFT (ms)", BenchColumn::Metric("mean_ttft_ms")),
    ("Median TTFT (ms)", BenchColumn::Metric("median_ttft_ms")),
    ("P99 TTFT (ms)", BenchColumn::Metric("p99_ttft_ms")),
    ("Mean TPOT (ms)", BenchColumn::Metric("mean_tpot_ms")),
    ("Median TPOT (ms)", BenchColumn::Metric("median_tpot_ms")),
    ("P99 TPOT (ms)", BenchColumn::Metric("p99_tpot_ms")),
    ("Mean ITL (ms)", BenchColumn::Metric("mean_itl_ms")),
    ("Median ITL (ms)", BenchColumn::Metric("median_itl_ms")),
    ("P99 ITL (ms)", BenchColumn::Metric("p99_itl_ms")),
];

impl BenchColumn {
    /// Returns a text, a number, or null if the run lacks the value.
    pub(super) fn of(self, run: &BenchResult) -> Json {
        match self {
            Self::Name => run.name.as_str().into(),
            Self::Device => run.device.as_str().into(),
            Self::Completed => run.measurement.completed.into(),
            Self::Metric(name) => run.measurement.metric(name).into(),
        }
    }
}
