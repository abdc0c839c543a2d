//! Renders the server's telemetry of a trial for people and programs.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::number;
use crate::telemetry::NAMES;
use crate::trial::ServerTelemetry;

/// Returns `summary` by name, and `series` as [`crate::telemetry::Telemetry::to_json`] writes it.
#[must_use]
pub(crate) fn telemetry_json(telemetry: &ServerTelemetry) -> Json {
    json!({"summary": telemetry.summary, "series": telemetry.series})
}

/// A line of the text: its label, and the names of its metrics with their labels.
type LineMetrics = (&'static str, &'static [(&'static str, &'static str)]);

const TEXT_LINES: &[LineMetrics] = &[
    (
        "scheduler",
        &[
            ("requests_running_mean", "running"),
            ("requests_running_max", "at most"),
            ("requests_waiting_mean", "waiting"),
            ("requests_waiting_max", "at most"),
            ("requests_swapped_max", "swapped at most"),
            ("preemptions", "preemptions"),
        ],
    ),
    (
        "kv cache",
        &[("kv_cache_usage_mean", "used"), ("kv_cache_usage_max", "at most"), ("prefix_cache_hit_rate", "prefix hits")],
    ),
    (
        "server work",
        &[
            ("server_prompt_tokens", "prompt tokens"),
            ("server_generation_tokens", "generated tokens"),
            ("server_requests_finished", "requests"),
            ("engine_steps", "steps"),
        ],
    ),
    (
        "speculation",
        &[("draft_acceptance_rate", "accepted"), ("mean_acceptance_length", "tokens of a sequence and step")],
    ),
    (
        "server processes",
        &[
            ("server_cpu_s", "cpu"),
            ("server_rss_gib_max", "resident at most"),
            ("server_pss_gib", "shared counted once"),
        ],
    ),
    ("host", &[("host_cpu_share_mean", "cpu"), ("host_memory_available_gib_min", "available at least")]),
    (
        "gpu",
        &[
            ("gpu_utilization_mean", "busy"),
            ("gpu_memory_gib_max", "memory at most"),
            ("gpu_sm_clock_mhz_mean", "sm clock"),
            ("gpu_memory_clock_mhz_mean", "memory clock"),
            ("gpu_temperature_c_max", "temperature at most"),
            ("gpu_throttled_share", "slowed down"),
        ],
    ),
    (
        "energy",
        &[("gpu_power_w_mean", "power"), ("energy_j", "in all"), ("energy_per_output_token_j", "per output token")],
    ),
];

/// Returns the summary in a few lines, and the reasons for missing parts.
#[must_use]
pub(crate) fn telemetry_text(telemetry: &ServerTelemetry) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<24}{value}");
    };
    for (part, values) in TEXT_LINES {
        let known = values.iter().filter_map(|(name, words)| {
            let value = telemetry.summary.get(*name)?;
            Some(format!("{words} {}", with_unit(name, *value)))
        });
        let known: Vec<_> = known.collect();
        if !known.is_empty() {
            line(part, &known.join(", "));
        }
    }
    let notes = telemetry.series["notes"].as_array();
    for note in notes.into_iter().flatten().filter_map(Json::as_str) {
        line("telemetry", note);
    }
    if let Some(missed) = telemetry.series["missed"].as_u64().filter(|missed| *missed > 0) {
        line("telemetry", &format!("{missed} samples were too slow or failed"));
    }
    text
}

/// Formats a value of the summary with the unit of its name.
pub(super) fn with_unit(name: &str, value: f64) -> String {
    match NAMES.iter().find(|(known, _, _)| *known == name).map(|(_, unit, _)| *unit) {
        Some("share") => format!("{:.1} %", value * 100.0),
        Some(unit @ ("s" | "GiB" | "W" | "C" | "MHz" | "J")) => format!("{} {unit}", number(value)),
        _ => number(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_its_place_in_the_text() {
        let shown: Vec<_> = TEXT_LINES.iter().flat_map(|(_, values)| *values).map(|(name, _)| *name).collect();
        assert!(NAMES.iter().all(|(name, _, _)| shown.contains(name)));
        assert_eq!(shown.len(), NAMES.len());
    }

    #[test]
    fn the_text_has_lines_for_known_values_only() {
        let summary = [
            ("requests_running_mean", 15.25),
            ("requests_running_max", 16.0),
            ("preemptions", 0.0),
            ("prefix_cache_hit_rate", 0.125),
            ("energy_j", 1234.5),
        ];
        let telemetry = ServerTelemetry {
            summary: summary.map(|(name, value)| (name.to_owned(), value)).into(),
            series: json!({"missed": 2, "notes": ["http://h/metrics answers with status 404"]}),
            ..ServerTelemetry::default()
        };
        let expected = "\
scheduler               running 15.25, at most 16, preemptions 0
kv cache                prefix hits 12.5 %
energy                  in all 1234 J
telemetry               http://h/metrics answers with status 404
telemetry               2 samples were too slow or failed
";
        assert_eq!(telemetry_text(&telemetry), expected);
        assert_eq!(telemetry_text(&ServerTelemetry::default()), "");
    }
}
