//! Renders the results of a study on each of its workloads.

use serde_json::{Value as Json, json};

use super::grid::grid;
use super::table::number;
use crate::study_report::{LoadCrossover, SplitGain, WorkloadResult, WorkloadResults};
use crate::trial::{Measurement, WorkloadMeasurement};

/// Adds `workloads`, `per_workload` and `crossovers` to the best configuration.
pub(super) fn add_workloads(json: &mut Json, results: &WorkloadResults) {
    json["workloads"] = results.workloads.iter().map(workload_json).collect();
    json["per_workload"] = results.split.as_ref().map_or(Json::Null, split_json);
    json["crossovers"] = results.crossovers.iter().map(crossover_json).collect();
}

fn workload_json(result: &WorkloadResult) -> Json {
    let WorkloadResult { name, weight, value, baseline, gain, best_trial, best_value } = result;
    json!({
        "name": name,
        "weight": weight,
        "value": value,
        "baseline": baseline,
        "gain": gain,
        "best_trial": best_trial,
        "best_value": best_value,
    })
}

fn split_json(split: &SplitGain) -> Json {
    let (low, high) = split.range.unzip();
    json!({"gain": split.gain, "low": low, "high": high, "significant": split.is_significant()})
}

fn crossover_json(crossover: &LoadCrossover) -> Json {
    let LoadCrossover { between, workloads, from, to } = crossover;
    json!({"between": between, "workloads": workloads, "from": from, "to": to})
}

/// Returns a table of the workloads, and a line for each further finding. `metric` is the objective's.
#[must_use]
pub(super) fn workload_lines(results: &WorkloadResults, metric: &str) -> Vec<String> {
    let header = ["workload", "weight", metric, "defaults", "gain", "best alone", "of trial"];
    let row = |result: &WorkloadResult| {
        vec![
            result.name.clone(),
            number(result.weight),
            number(result.value),
            result.baseline.map(number).unwrap_or_default(),
            result.gain.map(|gain| format!("{gain:.2}x")).unwrap_or_default(),
            number(result.best_value),
            result.best_trial.to_string(),
        ]
    };
    let table = grid(&header, &[1, 2, 3, 4, 5, 6], results.workloads.iter().map(row).collect());
    let mut lines: Vec<_> = table.lines().map(str::to_owned).collect();
    lines.extend(results.split.as_ref().map(split_text));
    lines.extend(results.crossovers.iter().map(crossover_text));
    lines
}

fn split_text(split: &SplitGain) -> String {
    let gain = 100.0 * split.gain;
    let noise = match (split.range, split.is_significant()) {
        (Some((low, high)), Some(is_significant)) => {
            let verdict = if is_significant { "significant" } else { "within the noise" };
            format!("{verdict}, {:+.1} to {:+.1} %", 100.0 * low, 100.0 * high)
        }
        _ => "the noise is unknown: no launch was repeated".to_owned(),
    };
    format!("one configuration for each workload would gain {gain:.1} % on the mean ({noise})")
}

fn crossover_text(crossover: &LoadCrossover) -> String {
    let LoadCrossover { between: [low, high], workloads: [lower, higher], from, to } = crossover;
    format!(
        "the best configuration changes between the loads {} ({lower}, trial {from}) and {} ({higher}, trial {to})",
        number(*low),
        number(*high)
    )
}

/// Returns the usual metrics of each workload of a trial, as a table. Empty for one workload.
#[must_use]
pub(super) fn trial_workloads(measurement: &Measurement) -> String {
    const METRICS: [(&str, &str); 6] = [
        ("completed", "completed"),
        ("duration", "duration s"),
        ("output_throughput", "output tok/s"),
        ("mean_ttft_ms", "mean ttft ms"),
        ("p99_ttft_ms", "p99 ttft ms"),
        ("mean_tpot_ms", "mean tpot ms"),
    ];
    if measurement.workloads.is_empty() {
        return String::new();
    }
    let row = |part: &WorkloadMeasurement| {
        let metric = |(name, _): &(&str, &str)| part.measurement.metric(name).map(number).unwrap_or_default();
        std::iter::once(part.name.clone()).chain(METRICS.iter().map(metric)).collect()
    };
    let header: Vec<_> = std::iter::once("").chain(METRICS.iter().map(|(_, title)| *title)).collect();
    grid(&header, &[1, 2, 3, 4, 5, 6], measurement.workloads.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(range: Option<(f64, f64)>) -> WorkloadResults {
        let result = |name: &str, gain: f64| WorkloadResult {
            name: name.to_owned(),
            weight: 2.0,
            value: 100.0 * gain,
            baseline: Some(100.0),
            gain: Some(gain),
            best_trial: 7,
            best_value: 150.0,
        };
        let workloads = ["chat-16", "chat-64"].map(str::to_owned);
        WorkloadResults {
            workloads: vec![result("chat-16", 1.1), result("chat-64", 1.2)],
            split: Some(SplitGain { gain: 0.031, range }),
            crossovers: vec![LoadCrossover { between: [16.0, 64.0], workloads, from: 3, to: 7 }],
        }
    }

    #[test]
    fn the_lines_have_each_workload_and_the_findings_with_their_noise() {
        let lines = workload_lines(&results(Some((0.01, 0.05))), "output_throughput");
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert!(lines[2].contains("chat-64") && lines[2].contains("1.20x"), "{lines:?}");
        let split = "one configuration for each workload would gain 3.1 % on the mean (significant, +1.0 to +5.0 %)";
        assert_eq!(lines[3], split);
        assert!(
            lines[4].ends_with("between the loads 16 (chat-16, trial 3) and 64 (chat-64, trial 7)"),
            "{}",
            lines[4]
        );
        let unknown = workload_lines(&results(None), "output_throughput");
        assert!(unknown[3].ends_with("(the noise is unknown: no launch was repeated)"), "{}", unknown[3]);
    }

    #[test]
    fn the_json_has_the_fields_of_the_contract() {
        let mut json = json!({});
        add_workloads(&mut json, &results(Some((-0.01, 0.07))));
        assert_eq!(
            (&json["workloads"][0]["name"], &json["workloads"][0]["best_trial"]),
            (&"chat-16".into(), &7.into())
        );
        assert_eq!(json["per_workload"]["significant"], false);
        assert_eq!((&json["crossovers"][0]["between"][1], &json["crossovers"][0]["to"]), (&64.0.into(), &7.into()));
    }
}
