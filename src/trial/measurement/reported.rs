//! Measurements by other programs: only their reported values are known.

use std::collections::BTreeMap;

use super::Measurement;
use crate::stats::f64_to_u64;

impl Measurement {
    /// Creates the measurement of an imported result from its metrics and the values of its server, by name.
    #[must_use]
    pub fn of_reported(reported: BTreeMap<String, f64>, server: BTreeMap<String, f64>) -> Self {
        let count = |name: &str| reported.get(name).copied().map(f64_to_u64);
        Self {
            completed: count("completed").unwrap_or(0),
            failed: count("failed").unwrap_or(0),
            duration_s: reported.get("duration").copied().unwrap_or(0.0),
            total_input_tokens: count("total_input_tokens").unwrap_or(0),
            total_output_tokens: count("total_output_tokens").unwrap_or(0),
            server,
            reported,
            ..Self::default()
        }
    }
}

/// Returns a reported value. The median has two names.
pub(super) fn value(reported: &BTreeMap<String, f64>, name: &str) -> Option<f64> {
    let other = || Some(format!("median_{}", name.strip_prefix("p50_")?));
    reported.get(name).or_else(|| reported.get(&other()?)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reported_measurement_has_no_other_values_and_is_read_back() {
        let values = [("output_throughput", 207.097), ("median_ttft_ms", 94.1), ("p75_ttft_ms", 99.0)];
        let reported: BTreeMap<_, _> = values.map(|(name, value)| (name.to_owned(), value)).into();
        let server = [("gpu_memory_gib_max".to_owned(), 18.9)].into();
        let measurement = Measurement::of_reported(reported, server);
        assert_eq!(measurement.metric("p50_ttft_ms"), Some(94.1));
        assert_eq!(measurement.metric("gpu_memory_gib_max"), Some(18.9));
        for absent in ["completed", "failed", "duration", "request_throughput", "p99_ttft_ms"] {
            assert_eq!(measurement.metric(absent), None, "{absent}");
        }
        let json = serde_json::to_value(&measurement).unwrap();
        assert_eq!(json["output_throughput"], 207.097);
        assert!(json.get("completed").is_none(), "{json}");
        assert_eq!(serde_json::from_value::<Measurement>(json).unwrap(), measurement);
    }
}
