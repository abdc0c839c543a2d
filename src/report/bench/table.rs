//! The columns of the serving table of vLLM's nightly benchmarks.
//!
//! Headers and order are those of `serving_column_mapping` in vLLM's
//! `.buildkite/nightly-benchmarks/scripts/convert-results-json-to-markdown.py`.

use serde_json::Value as Json;

use super::Benchmark;

/// The content of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum Column {
    Name,
    Device,
    /// A count.
    Completed,
    /// A metric by its name.
    Metric(&'static str),
}

pub(super) const COLUMNS: &[(&str, Column)] = &[
    ("Test name", Column::Name),
    ("GPU", Column::Device),
    ("# of req.", Column::Completed),
    ("Tput (req/s)", Column::Metric("request_throughput")),
    ("Output Tput (tok/s)", Column::Metric("output_throughput")),
    ("Total Tput (tok/s)", Column::Metric("total_token_throughput")),
    ("Mean TTFT (ms)", Column::Metric("mean_ttft_ms")),
    ("Median TTFT (ms)", Column::Metric("median_ttft_ms")),
    ("P99 TTFT (ms)", Column::Metric("p99_ttft_ms")),
    ("Mean TPOT (ms)", Column::Metric("mean_tpot_ms")),
    ("Median TPOT (ms)", Column::Metric("median_tpot_ms")),
    ("P99 TPOT (ms)", Column::Metric("p99_tpot_ms")),
    ("Mean ITL (ms)", Column::Metric("mean_itl_ms")),
    ("Median ITL (ms)", Column::Metric("median_itl_ms")),
    ("P99 ITL (ms)", Column::Metric("p99_itl_ms")),
];

impl Column {
    /// Returns a text, a number, or null if the run lacks the value.
    pub(super) fn of(self, run: &Benchmark) -> Json {
        match self {
            Self::Name => run.name.as_str().into(),
            Self::Device => run.device.as_str().into(),
            Self::Completed => run.measurement.completed.into(),
            Self::Metric(name) => run.measurement.metric(name).into(),
        }
    }
}
