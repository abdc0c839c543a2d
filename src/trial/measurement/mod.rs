//! Measurements of a trial's load: values, names, and directions of improvement.

mod joint;
mod json;
mod load_curve;
mod part;
mod reported;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::SERVER_NAMES;
use crate::stats::to_f64;

pub use joint::WorkloadMeasurement;
pub use load_curve::{HighestMeasuredLoad, LoadBound, LoadCurve, LoadKnob, LoadProbe, TierLoad};
pub use part::{ClientReport, Distribution, Interval, MeasuredWindow, Speeds};

/// One measurement window. The definitions are those of `vllm bench serve`; `metrics` documents them.
///
/// In JSON it is one flat object with that program's names. A value that does not exist (TPOT of one-token replies, a
/// throughput without a duration) is absent there and `None` from [`metric`](Self::metric). It is never 0, because a 0
/// would win a minimisation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    /// Requests that ended successfully within the window.
    pub completed: u64,
    /// Requests that failed within the window.
    pub failed: u64,
    /// Seconds from the window's beginning to its end; for a whole run, from the first send to the last finish.
    pub duration_s: f64,
    /// Tokens by the server's count. In a steady window these are the prompts whose first chunk arrived in it, and the
    /// output tokens that arrived in it. Otherwise they are those of all completed requests.
    pub total_input_tokens: u64,
    pub total_output_tokens: u64,
    pub ttft_ms: Option<Distribution>,
    pub tpot_ms: Option<Distribution>,
    pub itl_ms: Option<Distribution>,
    pub e2el_ms: Option<Distribution>,
    /// Milliseconds from the due time of a request to its sending. Absent in a closed loop, because a request is due
    /// when it is sent.
    pub lateness_ms: Option<Distribution>,
    /// Output tokens per second of each request, after its first token.
    pub output_speed: Option<Speeds>,
    /// Completed requests that kept every limit; absent if there are no limits.
    pub good_requests: Option<u64>,
    /// Prompt tokens that the server reports as found in its prefix cache; absent if it does not report them.
    pub cached_prompt_tokens: Option<u64>,
    /// The largest number of output tokens in one whole second, counted from the first send.
    pub max_output_tokens_per_s: Option<f64>,
    /// The largest number of completed requests in flight in the same second.
    pub max_concurrent_requests: Option<u64>,
    /// Count of each error class among the failed requests, by name.
    pub errors: BTreeMap<String, u64>,
    /// Intervals that contain the true value of a metric with 95 % confidence, by the metric's name.
    pub confidence: BTreeMap<String, Interval>,
    /// The part of the run that was measured.
    pub window: Option<MeasuredWindow>,
    /// The load generator's report on its own influence.
    pub client: Option<ClientReport>,
    /// Values of the server and its host in this window, by the names of [`SERVER_NAMES`].
    pub server: BTreeMap<String, f64>,
    /// Reasons why the numbers do not reflect the engine alone, such as another process on its GPUs; `disturbed` in
    /// JSON.
    pub disturbed: Vec<String>,
    /// Whether some statistics were not computed from all values: ITL comes from a histogram of the whole run. In JSON
    /// it is `"exact": false`.
    pub approximate: bool,
    /// Metrics of an imported result, by name, as the other program reported them. If there are any, they and the
    /// server's values are all that is known: no throughput is computed from counts that the document may lack.
    pub reported: BTreeMap<String, f64>,
    /// The measurement of each workload, if the trial has several: see [`Measurement::joint`].
    pub workloads: Vec<WorkloadMeasurement>,
    /// The measured loads, if the trial has searched for the highest one. All other values are those of one of them.
    pub load_curve: Option<LoadCurve>,
}

/// The direction of improvement of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricDirection {
    Maximize,
    Minimize,
}

/// Generates names such as `mean_ttft_ms`: every statistic of every latency, in the order of `vllm bench serve`'s
/// output.
macro_rules! names {
    ($($scalar:literal),*; $($latency:literal),*; $($own:literal),*) => {
        &[$($scalar,)* $(
            concat!("mean_", $latency, "_ms"),
            concat!("median_", $latency, "_ms"),
            concat!("std_", $latency, "_ms"),
            concat!("p50_", $latency, "_ms"),
            concat!("p90_", $latency, "_ms"),
            concat!("p95_", $latency, "_ms"),
            concat!("p99_", $latency, "_ms"),
        )* $($own),*]
    };
}

impl Measurement {
    /// Every metric of the load that an objective or a constraint may use.
    pub const NAMES: &[&str] = names!(
        "completed", "failed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput",
        "output_throughput", "total_token_throughput"; "ttft", "tpot", "itl", "e2el", "lateness";
        "request_goodput", "mean_output_speed", "median_output_speed", "std_output_speed", "p50_output_speed",
        "p10_output_speed", "p5_output_speed", "p1_output_speed", "cached_prompt_tokens", "max_output_tokens_per_s",
        "max_concurrent_requests", "load_under_slo");

    /// The metric of the guard, among the values of the server: the agreement of greedy replies with the baseline's, as a
    /// share of the baseline's own agreement, 0 to 1.
    pub const GREEDY_AGREEMENT: &str = "greedy_agreement";

    /// The price of the launch's devices for the time of a million output tokens, among the values of the server.
    pub const COST_PER_MILLION_TOKENS: &str = "cost_per_million_tokens";

    /// The highest load within the limits, in users or requests per second.
    pub const LOAD_UNDER_SLO: &str = "load_under_slo";

    /// Returns the seconds of the planned load that an early end saved, summed over several workloads
    /// and over the probes of a load search. `None` for a load
    /// that went to its end.
    #[must_use]
    pub fn saved_s(&self) -> Option<f64> {
        let of_workloads = self.workloads.iter().map(|part| &part.measurement);
        // The measurement itself is that of one of the probes.
        let of_probes = self.load_curve.iter().flat_map(|curve| &curve.probes).map(|probe| &probe.measurement);
        let own = self.window.iter().filter(|_| self.load_curve.is_none()).filter_map(|window| window.saved_s);
        own.chain(of_workloads.chain(of_probes).filter_map(Self::saved_s)).reduce(|a, b| a + b)
    }

    /// Returns the metric of this name. Latencies are in milliseconds, the duration is in seconds, rates are per
    /// second; `SERVER_METRICS` has the units of the server's values. `None` for an unknown name, and if the window
    /// lacks the metric.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<f64> {
        if !self.workloads.is_empty() {
            return joint::metric(&self.workloads, name);
        }
        if !self.reported.is_empty() {
            return reported::value(&self.reported, name).or_else(|| self.server.get(name).copied());
        }
        let value = match name {
            "completed" => to_f64(self.completed),
            "failed" => to_f64(self.failed),
            "duration" => self.duration_s,
            "total_input_tokens" => to_f64(self.total_input_tokens),
            "total_output_tokens" => to_f64(self.total_output_tokens),
            "request_throughput" => to_f64(self.completed) / self.duration_s,
            "output_throughput" => to_f64(self.total_output_tokens) / self.duration_s,
            "total_token_throughput" => to_f64(self.total_input_tokens + self.total_output_tokens) / self.duration_s,
            "request_goodput" => to_f64(self.good_requests?) / self.duration_s,
            "cached_prompt_tokens" => to_f64(self.cached_prompt_tokens?),
            "max_output_tokens_per_s" => self.max_output_tokens_per_s?,
            "max_concurrent_requests" => to_f64(self.max_concurrent_requests?),
            Self::LOAD_UNDER_SLO => self.load_curve.as_ref()?.highest.value,
            _ => match self.server.get(name) {
                Some(value) => *value,
                None => self.statistic(name)?,
            },
        };
        value.is_finite().then_some(value)
    }

    /// Adds the cost of a million output tokens to the values of the server. `price_per_hour` is that of all devices of
    /// the launch. A load without output tokens has no cost.
    pub(crate) fn add_cost(&mut self, price_per_hour: f64) {
        let cost_at = |rate: f64| price_per_hour / 3600.0 * 1e6 / rate;
        let Some(rate) = self.metric("output_throughput").filter(|rate| *rate > 0.0) else { return };
        if let Some(Interval { low, high }) = self.confidence.get("output_throughput") {
            let bound = |rate: Option<f64>| rate.filter(|rate| *rate > 0.0).map(cost_at);
            let interval = Interval { low: bound(*high), high: bound(*low) };
            self.confidence.insert(Self::COST_PER_MILLION_TOKENS.to_owned(), interval);
        }
        self.server.insert(Self::COST_PER_MILLION_TOKENS.to_owned(), cost_at(rate));
    }

    /// Returns a statistic of a distribution.
    fn statistic(&self, name: &str) -> Option<f64> {
        if let Some(statistic) = name.strip_suffix("_output_speed") {
            return self.output_speed?.statistic(statistic);
        }
        let (statistic, latency) = name.strip_suffix("_ms")?.split_once('_')?;
        let distribution = match latency {
            "ttft" => self.ttft_ms,
            "tpot" => self.tpot_ms,
            "itl" => self.itl_ms,
            "e2el" => self.e2el_ms,
            "lateness" => self.lateness_ms,
            _ => None,
        };
        distribution?.statistic(statistic)
    }

    /// Returns every name that an objective or a constraint may use.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        let server = SERVER_NAMES.iter().map(|(name, _)| *name);
        Self::NAMES.iter().copied().chain(server).chain([Self::GREEDY_AGREEMENT, Self::COST_PER_MILLION_TOKENS])
    }

    /// Returns whether an objective or a constraint may use this name.
    #[must_use]
    pub fn is_known(name: &str) -> bool {
        Self::names().any(|known| known == name)
    }

    /// Returns the direction of improvement of the metric of this name; `None` for an unknown name.
    #[must_use]
    pub fn direction(name: &str) -> Option<MetricDirection> {
        if let Some((_, direction)) = SERVER_NAMES.iter().find(|(known, _)| *known == name) {
            return Some(*direction);
        }
        let smaller = name.ends_with("_ms")
            || matches!(name, "failed" | "duration" | "std_output_speed" | Self::COST_PER_MILLION_TOKENS);
        let direction = if smaller { MetricDirection::Minimize } else { MetricDirection::Maximize };
        Self::is_known(name).then_some(direction)
    }

    /// Returns the known metric that resembles `name` most, for errors that suggest it.
    #[must_use]
    pub fn nearest(name: &str) -> &'static str {
        let similarity = |known: &str| strsim::normalized_damerau_levenshtein(known, name);
        let best = Self::names().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        best.unwrap_or_default()
    }
}
