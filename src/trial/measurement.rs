//! The numbers that one trial's load gave.

use serde::{Deserialize, Serialize};

/// A latency over requests (for ITL: over gaps between chunks), in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    pub mean: f64,
    pub median: f64,
    /// Population standard deviation.
    pub std: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
}

/// One measured window. The definitions are those of `vllm bench serve`; `metrics` writes them down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    pub completed: u64,
    pub failed: u64,
    /// Seconds from the first send to the last finish.
    pub duration_s: f64,
    pub total_input_tokens: u64,
    pub total_output_tokens: u64,
    pub ttft_ms: Distribution,
    pub tpot_ms: Distribution,
    pub itl_ms: Distribution,
    pub e2el_ms: Distribution,
    /// Count of each error class among the failed requests, by name.
    pub errors: std::collections::BTreeMap<String, u64>,
}
impl Measurement {
    pub fn metric(&self, name: &str) -> Option<f64> {
        match name {
            "output_throughput" => Some(self.total_output_tokens as f64 / self.duration_s),
            "p99_ttft_ms" => Some(self.ttft_ms.p99),
            _ => None,
        }
    }
    pub fn set_distribution_for_test(&mut self, _: &str, v: f64) {
        self.ttft_ms.p99 = v
    }
}
