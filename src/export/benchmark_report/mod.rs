//! Exports a measured trial as a Benchmark Report 0.2.1, the result format of llm-d-benchmark.
//!
//! Everything that is stored is in the report, and nothing else: an unknown value is absent. The report is about one
//! trial, not about all measurements of its configuration.

mod scenario;

use serde_json::{Map, Value as Json, json};

use super::yaml::write_yaml;
use super::{ExportError, ExportedTrial, Exporter};
use crate::stats::{Fnv1a, f64_to_u64};
use crate::trial::{Measurement, Origin};

pub(super) struct BenchmarkReportExporter;

const VERSION: &str = "0.2.1";

impl Exporter for BenchmarkReportExporter {
    fn name(&self) -> &'static str {
        "benchmark-report"
    }

    fn summary(&self) -> &'static str {
        "the measurement of this one trial as a Benchmark Report 0.2.1 of llm-d-benchmark, in YAML"
    }

    fn needs_command(&self) -> bool {
        false
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let number = winner.scored.trial.proposal.number;
        let measurement = winner.scored.trial.outcome.measurement().ok_or_else(|| {
            let problem = format!("trial {number} was not measured, so that it has no results to report");
            ExportError::unsuitable(problem, "export a trial that was measured")
        })?;
        let component = scenario::component(winner);
        let label = component["metadata"]["label"].as_str().map(str::to_owned);
        let mut report = json!({
            "version": VERSION,
            "run": run(winner),
            "scenario": {"stack": [component], "load": scenario::load(winner)},
            "results": {
                "request_performance": {"aggregate": {
                    "requests": requests(winner, measurement),
                    "latency": latencies(measurement),
                    "throughput": throughputs(measurement),
                }},
                "observability": {"components": [label.map(|label| component_resources(&label, measurement))]},
            },
        });
        prune(&mut report);
        // `results` is required, also if the report is about no known number.
        if report.get("results").is_none() {
            report["results"] = json!({});
        }
        write_yaml(&winner.description(), &[report])
    }
}

/// Removes nulls, and the objects and lists that have no content then.
fn prune(value: &mut Json) {
    let is_empty = |value: &Json| match value {
        Json::Null => true,
        Json::Object(object) => object.is_empty(),
        Json::Array(list) => list.is_empty(),
        _ => false,
    };
    match value {
        Json::Object(object) => {
            // A flag without an argument has null as its value.
            object.iter_mut().filter(|(key, _)| *key != "args").for_each(|(_, value)| prune(value));
            object.retain(|_, value| !is_empty(value));
        }
        Json::Array(list) => {
            list.iter_mut().for_each(prune);
            list.retain(|value| !is_empty(value));
        }
        _ => {}
    }
}

fn run(winner: &ExportedTrial<'_>) -> Json {
    let (study, trial) = (&winner.report.study, &winner.scored.trial);
    // An imported result may have been measured at another time.
    let is_own = trial.proposal.origin != Origin::Import;
    let number = trial.proposal.number;
    json!({
        "uid": digest(&[&study.created_at, &study.name, &number.to_string(), &trial.started_at]),
        "eid": digest(&[&study.created_at, &study.name]),
        "description": format!("trial {number} of the setpoint study {}", study.name),
        "time": is_own.then(|| json!({
            "start": trial.started_at,
            "duration": format!("PT{}S", trial.elapsed_s),
        })),
    })
}

/// Returns a hash of texts as an identifier.
fn digest(texts: &[&str]) -> String {
    let hash = texts.iter().fold(Fnv1a::new(), |hash, text| hash.with(text.as_bytes()).with(&[0]));
    format!("{:016x}", hash.value())
}

/// Returns a statistic, or null without a mean, which the format requires.
fn statistic(units: &str, mean: Option<f64>, others: &[(&str, Option<f64>)]) -> Json {
    let Some(mean) = mean else { return Json::Null };
    let mut object = Map::from_iter([("units".to_owned(), json!(units)), ("mean".to_owned(), json!(mean))]);
    object.extend(others.iter().filter_map(|(name, value)| Some(((*name).to_owned(), json!((*value)?)))));
    Json::Object(object)
}

fn requests(winner: &ExportedTrial<'_>, measurement: &Measurement) -> Json {
    let count = |name: &str| measurement.metric(name).map(f64_to_u64);
    let (completed, failures) = (count("completed"), count("failed"));
    let imported =
        winner.scored.trial.proposal.config.get_i64("import.requests").and_then(|total| u64::try_from(total).ok());
    let Some(total) = imported.or_else(|| Some(completed? + failures?)) else { return Json::Null };
    // The tokens of a steady window are not those of its completed requests.
    let is_whole = measurement.window.as_ref().is_none_or(|window| !window.steady);
    let mean = |tokens: &str| {
        let completed = measurement.metric("completed").filter(|completed| is_whole && *completed > 0.0)?;
        Some(measurement.metric(tokens)? / completed)
    };
    json!({
        "total": total,
        "failures": failures,
        "input_length": statistic("count", mean("total_input_tokens"), &[]),
        "output_length": statistic("count", mean("total_output_tokens"), &[]),
    })
}

fn latencies(measurement: &Measurement) -> Json {
    let latency = |name: &str, units: &str| {
        let of = |statistic: &str| measurement.metric(&format!("{statistic}_{name}_ms"));
        let others =
            [("p50", of("p50")), ("p90", of("p90")), ("p95", of("p95")), ("p99", of("p99")), ("stddev", of("std"))];
        statistic(units, of("mean"), &others)
    };
    json!({
        "time_to_first_token": latency("ttft", "ms"),
        "time_per_output_token": latency("tpot", "ms/token"),
        "inter_token_latency": latency("itl", "ms/token"),
        "request_latency": latency("e2el", "ms"),
    })
}

fn throughputs(measurement: &Measurement) -> Json {
    let input = measurement.metric("total_input_tokens").zip(measurement.metric("duration"));
    let rate = |name: &str, units: &str| statistic(units, measurement.metric(name), &[]);
    json!({
        "input_token_rate": statistic(
            "tokens/s", input.filter(|(_, duration)| *duration > 0.0).map(|(tokens, duration)| tokens / duration), &[],
        ),
        "output_token_rate": statistic(
            "tokens/s", measurement.metric("output_throughput"), &[("max", measurement.metric("max_output_tokens_per_s"))],
        ),
        "total_token_rate": rate("total_token_throughput", "tokens/s"),
        "request_rate": rate("request_throughput", "queries/s"),
    })
}

/// Returns the server's values within the measurement window, or null without any.
fn component_resources(label: &str, measurement: &Measurement) -> Json {
    let of = |name: &str| measurement.metric(name);
    let percent = |name: &str| of(name).map(|share| share * 100.0);
    let mut aggregate = json!({
        "kv_cache_usage": statistic("percent", percent("kv_cache_usage_mean"), &[("max", percent("kv_cache_usage_max"))]),
        "cache_hit_rate": statistic("percent", percent("prefix_cache_hit_rate"), &[]),
        "gpu_utilization": statistic("percent", percent("gpu_utilization_mean"), &[]),
        "power_consumption": statistic("Watts", of("gpu_power_w_mean"), &[]),
        "running_requests": statistic("count", of("requests_running_mean"), &[("max", of("requests_running_max"))]),
        "waiting_requests": statistic("count", of("requests_waiting_mean"), &[("max", of("requests_waiting_max"))]),
    });
    prune(&mut aggregate);
    let is_empty = aggregate.as_object().is_none_or(Map::is_empty);
    if is_empty { Json::Null } else { json!({"component_label": label, "aggregate": aggregate}) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::objective::Score;
    use crate::store::ScoredTrial;
    use crate::study_report::StudyReport;
    use crate::trial::{Failure, FailureKind, Outcome, Trial};

    #[test]
    fn an_imported_result_has_only_its_reported_numbers() {
        let reported =
            [("mean_ttft_ms", 12.5), ("p99_ttft_ms", 40.0), ("p99_itl_ms", 3.0), ("output_throughput", 100.0)];
        let reported = reported.map(|(name, value)| (name.to_owned(), value)).into();
        let outcome = Outcome::Measured(Measurement::of_reported(reported, [].into()));
        let trial =
            Trial::example(3, Origin::Import, outcome).with_config(Config::new().with("import.requests", 32_i64));
        let scored = ScoredTrial { trial, score: Score::Feasible { value: 1.0 } };
        let report = StudyReport::example("old");
        let text = BenchmarkReportExporter.export(&ExportedTrial::without_results(&report, &scored)).unwrap();
        let expected = "results:\n  request_performance:\n    aggregate:\n      latency:\n        time_to_first_token:\n          \
                        mean: 12.5\n          p99: 40.0\n          units: ms\n      requests:\n        total: 32\n      \
                        throughput:\n        output_token_rate:\n          mean: 100.0\n          units: tokens/s\nrun:\n";
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("scenario") && !text.contains("time:\n    start"), "{text}");
    }

    #[test]
    fn values_of_the_server_have_the_units_of_the_format() {
        let server = [("kv_cache_usage_mean".to_owned(), 0.25), ("gpu_power_w_mean".to_owned(), 400.0)].into();
        let measurement = Measurement { server, ..Measurement::default() };
        let expected = json!({
            "component_label": "a",
            "aggregate": {
                "kv_cache_usage": {"units": "percent", "mean": 25.0},
                "power_consumption": {"units": "Watts", "mean": 400.0},
            },
        });
        assert_eq!(component_resources("a", &measurement), expected);
        assert_eq!(component_resources("a", &Measurement::default()), Json::Null);
    }

    #[test]
    fn a_trial_without_a_measurement_has_no_report() {
        let failure = Failure { kind: FailureKind::OutOfMemory, message: String::new() };
        let trial = Trial::example(3, "auto", Outcome::Failed(failure));
        let scored = ScoredTrial { trial, score: Score::Feasible { value: 1.0 } };
        let report = StudyReport::example("old");
        let error = BenchmarkReportExporter.export(&ExportedTrial::without_results(&report, &scored)).unwrap_err();
        assert_eq!(error.to_string(), "trial 3 was not measured, so that it has no results to report");
    }
}
