//! Telemetry of the server and its machine as stored with a trial, with the names, units and directions of its metrics.
//!
//! `telemetry` computes the numbers and documents their formulas.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::MetricDirection;

/// Telemetry of one launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerTelemetry {
    /// Values of the measurement window by their [`SERVER_METRICS`] names. Without a window: of all samples.
    pub summary: BTreeMap<String, f64>,
    /// Samples over time, as `telemetry` documents them.
    pub series: Json,
    /// Reasons why the window's numbers do not reflect the engine alone.
    pub disturbed: Vec<String>,
}

/// Generates two tables from one list.
macro_rules! names {
    ($($name:literal, $unit:literal, $direction:ident;)*) => {
        /// Every name of the server's side that an objective or a constraint may use, with the direction of
        /// improvement.
        pub const SERVER_NAMES: &[(&str, MetricDirection)] = &[$(($name, MetricDirection::$direction)),*];

        /// These names with their units; a share is from 0 to 1.
        pub const SERVER_METRICS: &[(&str, &str, MetricDirection)] = &[$(($name, $unit, MetricDirection::$direction)),*];
    };
}

names! {
    "requests_running_mean", "requests", Maximize;
    "requests_running_max", "requests", Maximize;
    "requests_waiting_mean", "requests", Minimize;
    "requests_waiting_max", "requests", Minimize;
    "requests_swapped_max", "requests", Minimize;
    "kv_cache_usage_mean", "share", Minimize;
    "kv_cache_usage_max", "share", Minimize;
    "preemptions", "count", Minimize;
    "prefix_cache_hit_rate", "share", Maximize;
    "server_prompt_tokens", "tokens", Maximize;
    "server_generation_tokens", "tokens", Maximize;
    "server_requests_finished", "requests", Maximize;
    "engine_steps", "count", Minimize;
    "draft_acceptance_rate", "share", Maximize;
    "mean_acceptance_length", "tokens", Maximize;
    "server_cpu_s", "s", Minimize;
    "server_rss_gib_max", "GiB", Minimize;
    "server_pss_gib", "GiB", Minimize;
    "host_cpu_share_mean", "share", Minimize;
    "host_memory_available_gib_min", "GiB", Maximize;
    "gpu_memory_gib_max", "GiB", Minimize;
    "gpu_utilization_mean", "share", Maximize;
    "gpu_power_w_mean", "W", Minimize;
    "gpu_temperature_c_max", "C", Minimize;
    "gpu_sm_clock_mhz_mean", "MHz", Maximize;
    "gpu_memory_clock_mhz_mean", "MHz", Maximize;
    "gpu_throttled_share", "share", Minimize;
    "energy_j", "J", Minimize;
    "energy_per_output_token_j", "J", Minimize;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Measurement;

    #[test]
    fn telemetry_names_are_unique_and_differ_from_those_of_the_load() {
        let mut names: Vec<_> = SERVER_NAMES.iter().map(|(name, _)| *name).collect();
        assert!(names.iter().all(|name| !Measurement::NAMES.contains(name)));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SERVER_NAMES.len());
    }
}
