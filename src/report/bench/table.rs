//! The columns of the tables of nightly benchmarks.
//!
//! Headers and order are those of vLLM's `.buildkite/nightly-benchmarks/scripts/convert-results-json-to-markdown.py`.
//! `RATES` is the serving table of vLLM Ascend's `benchmarks/scripts/convert_json_to_markdown.py`.

use serde_json::Value as Json;

use super::BenchResult;
use crate::job::BenchTest;

/// Header and content of a column.
pub(super) type HeadedColumn = (&'static str, BenchColumn);

/// The content of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum BenchColumn {
    Name,
    Device,
    /// Requests per second; `inf` for all at once.
    Rate,
    /// Number of completed requests.
    Completed,
    /// Number of tokens, of prompts and replies.
    Tokens,
    /// A metric by its name.
    Metric(&'static str),
}

/// The serving test.
pub(super) const SERVING: &[HeadedColumn] = &[
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

/// The latency test: end-to-end latency of batches of a fixed size.
const LATENCY: &[HeadedColumn] = &[
    ("Test name", BenchColumn::Name),
    ("GPU", BenchColumn::Device),
    ("Mean latency (ms)", BenchColumn::Metric("mean_e2el_ms")),
    ("Median latency (ms)", BenchColumn::Metric("median_e2el_ms")),
    ("P99 latency (ms)", BenchColumn::Metric("p99_e2el_ms")),
];

/// The throughput test.
const THROUGHPUT: &[HeadedColumn] = &[
    ("Test name", BenchColumn::Name),
    ("GPU", BenchColumn::Device),
    ("# of req.", BenchColumn::Completed),
    ("Total # of tokens", BenchColumn::Tokens),
    ("Elapsed time (s)", BenchColumn::Metric("duration")),
    ("Tput (req/s)", BenchColumn::Metric("request_throughput")),
    ("Tput (tok/s)", BenchColumn::Metric("total_token_throughput")),
];

/// The serving test by request rates. Latencies are medians.
pub(super) const RATES: &[HeadedColumn] = &[
    ("Test name", BenchColumn::Name),
    ("Request rate (req/s)", BenchColumn::Rate),
    ("Tput (req/s)", BenchColumn::Metric("request_throughput")),
    ("Output Tput (tok/s)", BenchColumn::Metric("output_throughput")),
    ("TTFT (ms)", BenchColumn::Metric("median_ttft_ms")),
    ("TPOT (ms)", BenchColumn::Metric("median_tpot_ms")),
    ("ITL (ms)", BenchColumn::Metric("median_itl_ms")),
];

/// Returns the columns of a test's table.
pub(super) fn columns(test: BenchTest) -> &'static [HeadedColumn] {
    match test {
        BenchTest::Latency => LATENCY,
        BenchTest::Throughput => THROUGHPUT,
        BenchTest::Serving => SERVING,
    }
}

impl BenchColumn {
    /// Returns a text, a number, or null if the run lacks the value.
    pub(super) fn of(self, run: &BenchResult) -> Json {
        let measurement = &run.measurement;
        match self {
            Self::Name => run.name.as_str().into(),
            Self::Device => run.device.as_str().into(),
            Self::Rate if run.rate.is_finite() => run.rate.into(),
            Self::Rate => "inf".into(),
            Self::Completed => measurement.completed.into(),
            Self::Tokens => (measurement.total_input_tokens + measurement.total_output_tokens).into(),
            Self::Metric(name) => measurement.metric(name).into(),
        }
    }
}
