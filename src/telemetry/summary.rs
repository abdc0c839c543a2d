//! Reduction of series to one number each.

use std::collections::BTreeMap;

use super::{LoadSpan, SeriesTable, Telemetry};
use crate::stats::{mean, to_f64};

/// Returns the numbers of a window, under the names of [`NAMES`](super::NAMES). Unknown numbers are absent.
///
/// `output_tokens` is the number that clients received in the window.
#[must_use]
pub(crate) fn summarize(telemetry: &Telemetry, window: &LoadSpan, output_tokens: u64) -> BTreeMap<String, f64> {
    let mut summary = SummaryBuilder { window, values: BTreeMap::new() };
    let server = &telemetry.server;
    for gauge in ["requests_running", "requests_waiting", "kv_cache_usage"] {
        summary.add(&format!("{gauge}_mean"), mean(&server.within(gauge, window)));
        summary.add(&format!("{gauge}_max"), max(server.within(gauge, window)));
    }
    summary.add("requests_swapped_max", max(server.within("requests_swapped", window)));
    for (name, counter) in [
        ("preemptions", "preemptions"),
        ("server_prompt_tokens", "prompt_tokens"),
        ("server_generation_tokens", "generation_tokens"),
        ("server_requests_finished", "requests_finished"),
        ("engine_steps", "engine_steps"),
    ] {
        summary.add(name, server.increase(counter, window));
    }
    let rate = match (server.increase("prefix_cache_hits", window), server.increase("prefix_cache_queries", window)) {
        (Some(hits), Some(queries)) => share(hits, queries),
        _ => mean(&server.within("prefix_cache_hit_rate", window)),
    };
    summary.add("prefix_cache_hit_rate", rate);
    let accepted = server.increase("accepted_draft_tokens", window);
    let drafted = server.increase("draft_tokens", window);
    summary
        .add("draft_acceptance_rate", accepted.zip(drafted).and_then(|(accepted, drafted)| share(accepted, drafted)));
    let drafts = server.increase("drafts", window).filter(|drafts| *drafts > 0.0);
    // Each step of a sequence yields one token of the model and the accepted ones of its draft.
    let length = accepted.zip(drafts).map(|(accepted, drafts)| 1.0 + accepted / drafts);
    let reported = || mean(&server.within("mean_acceptance_length", window)).filter(|length| *length >= 1.0);
    summary.add("mean_acceptance_length", length.or_else(reported));

    summary.add("server_cpu_s", telemetry.process.increase("cpu_s", window));
    summary.add("server_rss_gib_max", max(telemetry.process.within("rss_gib", window)));
    summary.add("server_pss_gib", telemetry.process.last("pss_gib"));

    let host = &telemetry.host;
    let cpu = host.increase("cpu_busy_s", window).zip(host.increase("cpu_all_s", window));
    summary.add("host_cpu_share_mean", cpu.and_then(|(busy, all)| share(busy, all)));
    let least = host.within("memory_available_gib", window).into_iter().reduce(f64::min);
    summary.add("host_memory_available_gib_min", least);

    summary.gpus(&telemetry.gpus, output_tokens);
    summary.values
}

struct SummaryBuilder<'a> {
    window: &'a LoadSpan,
    values: BTreeMap<String, f64>,
}

impl SummaryBuilder<'_> {
    fn add(&mut self, name: &str, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.values.insert(name.to_owned(), value);
        }
    }

    fn gpus(&mut self, gpus: &[SeriesTable], output_tokens: u64) {
        let window = self.window;
        let means = |name: &str| gpus.iter().filter_map(|gpu| mean(&gpu.within(name, window))).collect::<Vec<_>>();
        let most = |name: &str| max(gpus.iter().flat_map(|gpu| gpu.within(name, window)).collect());
        self.add("gpu_memory_gib_max", most("memory_gib"));
        self.add("gpu_utilization_mean", mean(&means("utilization")));
        self.add("gpu_temperature_c_max", most("temperature_c"));
        self.add("gpu_sm_clock_mhz_mean", mean(&means("sm_clock_mhz")));
        self.add("gpu_memory_clock_mhz_mean", mean(&means("memory_clock_mhz")));
        self.add("gpu_throttled_share", max(means("throttled")));
        // A sum that lacks a device would be wrong.
        let power = means("power_w");
        self.add("gpu_power_w_mean", (!power.is_empty() && power.len() == gpus.len()).then(|| power.iter().sum()));
        let energy = |gpu: &SeriesTable| gpu.increase("energy_j", window).or_else(|| gpu.integral("power_w", window));
        let energy = gpus.iter().map(energy).collect::<Option<Vec<_>>>().filter(|all| !all.is_empty());
        let energy = energy.map(|all| all.iter().sum::<f64>());
        self.add("energy_j", energy);
        let tokens = (output_tokens > 0).then_some(to_f64(output_tokens));
        self.add("energy_per_output_token_j", energy.zip(tokens).map(|(energy, tokens)| energy / tokens));
    }
}

/// Returns `part / whole`, or `None` if `whole` is not above 0. Both numbers are interpolated, so the quotient is
/// clamped to the range from 0 to 1.
fn share(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| (part / whole).clamp(0.0, 1.0))
}

fn max(values: Vec<f64>) -> Option<f64> {
    values.into_iter().reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::NAMES;
    use std::time::{Duration, Instant};

    fn at(began: Instant, seconds: u64) -> Instant {
        began + Duration::from_secs(seconds)
    }

    fn span(began: Instant, from: u64, to: u64) -> LoadSpan {
        LoadSpan { range: at(began, from)..at(began, to), ends_load: true }
    }

    /// Returns samples of ten seconds. The window is from 2 to 8.
    fn full(began: Instant) -> Telemetry {
        let mut telemetry = Telemetry::empty(began, Duration::from_secs(1));
        telemetry.gpus = vec![SeriesTable::default(), SeriesTable::default()];
        for (second, n) in (0..=10_u64).zip(0_u32..) {
            let (now, n) = (at(began, second), f64::from(n));
            // Values outside of the window differ, and must not count.
            let inside = (2..=8).contains(&second);
            let gauge = |value: f64| if inside { value } else { 99.0 };
            telemetry.server.push(
                now,
                &vec![
                    ("requests_running", gauge(n)),
                    ("requests_waiting", gauge(2.0)),
                    ("requests_swapped", gauge(1.0)),
                    ("kv_cache_usage", gauge(n / 10.0)),
                    ("preemptions", 2.0 * n),
                    ("prefix_cache_queries", 100.0 * n),
                    ("prefix_cache_hits", 25.0 * n),
                    ("prompt_tokens", 100.0 * n),
                    ("generation_tokens", 50.0 * n),
                    ("requests_finished", n),
                    ("engine_steps", 40.0 * n),
                    ("drafts", 10.0 * n),
                    ("draft_tokens", 40.0 * n),
                    ("accepted_draft_tokens", 15.0 * n),
                ],
            );
            telemetry.process.push(now, &vec![("cpu_s", 1.5 * n), ("rss_gib", gauge(3.0))]);
            let row = vec![
                ("cpu_busy_s", n),
                ("cpu_all_s", 4.0 * n),
                ("memory_available_gib", if inside { 8.0 } else { 1.0 }),
            ];
            telemetry.host.push(now, &row);
            let device = |power: f64, memory: f64, throttled: f64| {
                vec![
                    ("memory_gib", gauge(memory)),
                    ("utilization", gauge(0.5)),
                    ("power_w", power),
                    ("temperature_c", gauge(60.0 + memory)),
                    ("sm_clock_mhz", gauge(1400.0)),
                    ("memory_clock_mhz", gauge(1500.0)),
                    ("throttled", throttled),
                ]
            };
            let mut first = device(300.0, 70.0, 0.0);
            first.push(("energy_j", 250.0 * n));
            telemetry.gpus[0].push(now, &first);
            telemetry.gpus[1].push(now, &device(100.0, 71.0, if second % 2 == 0 { 1.0 } else { 0.0 }));
        }
        let last = vec![("cpu_s", 15.0), ("rss_gib", 3.0), ("pss_gib", 2.5)];
        telemetry.process.push(at(began, 11), &last);
        telemetry
    }

    #[test]
    fn every_name_is_computed_as_it_is_defined() {
        let began = Instant::now();
        let summary = summarize(&full(began), &span(began, 2, 8), 300);
        let expected = [
            ("requests_running_mean", 5.0),
            ("requests_running_max", 8.0),
            ("requests_waiting_mean", 2.0),
            ("requests_waiting_max", 2.0),
            ("requests_swapped_max", 1.0),
            ("kv_cache_usage_mean", 0.5),
            ("kv_cache_usage_max", 0.8),
            ("preemptions", 12.0),
            ("prefix_cache_hit_rate", 0.25),
            ("server_prompt_tokens", 600.0),
            ("server_generation_tokens", 300.0),
            ("server_requests_finished", 6.0),
            ("engine_steps", 240.0),
            ("draft_acceptance_rate", 0.375),
            ("mean_acceptance_length", 2.5),
            ("server_cpu_s", 9.0),
            ("server_rss_gib_max", 3.0),
            ("server_pss_gib", 2.5),
            ("host_cpu_share_mean", 0.25),
            ("host_memory_available_gib_min", 8.0),
            ("gpu_memory_gib_max", 71.0),
            ("gpu_utilization_mean", 0.5),
            ("gpu_power_w_mean", 400.0),
            ("gpu_temperature_c_max", 131.0),
            ("gpu_sm_clock_mhz_mean", 1400.0),
            ("gpu_memory_clock_mhz_mean", 1500.0),
            ("gpu_throttled_share", 4.0 / 7.0),
            // The first device counts its energy, the other's power is integrated.
            ("energy_j", 1500.0 + 600.0),
            ("energy_per_output_token_j", 7.0),
        ];
        for (name, value) in expected {
            let found = summary.get(name).copied();
            assert!(found.is_some_and(|found| (found - value).abs() < 1e-9), "{name}: {found:?}, not {value}");
        }
        assert_eq!(summary.len(), NAMES.len(), "{summary:?}");
        assert!(NAMES.iter().all(|(name, _, _)| summary.contains_key(*name)));
    }

    #[test]
    fn a_value_that_was_not_observed_is_absent_and_not_zero() {
        let began = Instant::now();
        let empty = Telemetry::empty(began, Duration::from_secs(1));
        assert!(summarize(&empty, &span(began, 0, 5), 10).is_empty());
        // No sample lies within a window of an instant, and counters still close.
        let range = began + Duration::from_millis(2300)..began + Duration::from_millis(2400);
        let brief = LoadSpan { range, ends_load: true };
        let summary = summarize(&full(began), &brief, 0);
        assert!(!summary.contains_key("kv_cache_usage_mean") && !summary.contains_key("energy_per_output_token_j"));
        assert!((summary["server_generation_tokens"] - 5.0).abs() < 1e-6, "{summary:?}");
    }

    #[test]
    fn the_rate_of_v0_is_its_gauge() {
        let began = Instant::now();
        let mut telemetry = Telemetry::empty(began, Duration::from_secs(1));
        for (second, rate) in [(0, 0.1), (1, 0.4), (2, 0.6), (3, 0.9)] {
            telemetry.server.push(at(began, second), &vec![("prefix_cache_hit_rate", rate)]);
        }
        let summary = summarize(&telemetry, &span(began, 1, 2), 1);
        assert!((summary["prefix_cache_hit_rate"] - 0.5).abs() < 1e-12, "{summary:?}");
    }

    #[test]
    fn energy_is_unknown_if_one_device_does_not_report_it() {
        let began = Instant::now();
        let mut telemetry = full(began);
        telemetry.gpus.push(SeriesTable::default());
        let summary = summarize(&telemetry, &span(began, 2, 8), 300);
        assert!(!summary.contains_key("energy_j") && !summary.contains_key("gpu_power_w_mean"), "{summary:?}");
        assert!(summary.contains_key("gpu_memory_gib_max"));
    }
}
