//! Renders the measured loads of a trial, and the highest one within the limits.

use serde_json::{Value as Json, json};

use super::grid::grid;
use super::table::number;
use crate::objective::Objective;
use crate::study_report::StudyReport;
use crate::trial::{LoadCurve, LoadProbe, Measurement};

/// Metrics of a load that each table has, behind the limited ones.
const METRICS: [&str; 4] = ["request_throughput", "output_throughput", "p95_ttft_ms", "p95_tpot_ms"];

/// Adds `load_curve` to the best configuration.
pub(super) fn add_load_curve(json: &mut Json, report: &StudyReport) {
    if let Some(curve) = winner_curve(report) {
        json["load_curve"] = json!(curve);
    }
}

/// Returns a table of the measured loads of the best configuration, and its highest loads. Empty for another objective.
#[must_use]
pub(super) fn load_curve_lines(report: &StudyReport) -> Vec<String> {
    let Some(curve) = winner_curve(report) else { return Vec::new() };
    curve_lines(curve, report.objective.as_ref())
}

/// Returns the curve of the best configuration's first measured trial.
fn winner_curve(report: &StudyReport) -> Option<&LoadCurve> {
    let best = &report.winner()?.results.ranked;
    best.first.trial.outcome.measurement()?.load_curve.as_ref()
}

/// Returns the measured loads of one launch as a table, in the order of the loads, and the highest load of each set of
/// limits.
#[must_use]
pub(super) fn curve_lines(curve: &LoadCurve, objective: Option<&Objective>) -> Vec<String> {
    let mut metrics: Vec<&str> = Vec::new();
    let limited = objective.into_iter().flat_map(Objective::limits).map(|limit| limit.metric.as_str());
    for name in limited.chain(METRICS) {
        if !metrics.contains(&name) {
            metrics.push(name);
        }
    }
    let header: Vec<&str> = ["load", "limits", "seconds"].into_iter().chain(metrics.iter().copied()).collect();
    let row = |probe: &&LoadProbe| {
        let limits = if probe.kept { "kept" } else { "broken" };
        let values = metrics.iter().map(|name| value_text(&probe.measurement, name));
        [number(probe.load), limits.to_owned(), format!("{:.1}", probe.seconds)].into_iter().chain(values).collect()
    };
    let mut probes: Vec<&LoadProbe> = curve.probes.iter().collect();
    probes.sort_by(|a, b| a.load.total_cmp(&b.load));
    let numbers: Vec<usize> = (0..header.len()).filter(|column| *column != 1).collect();
    let mut lines: Vec<String> = Vec::new();
    if !probes.is_empty() {
        let table = grid(&header, &numbers, probes.iter().map(row).collect());
        lines.extend(table.lines().map(str::to_owned));
    }
    lines.push(format!("highest load within the limits: {}", curve.text()));
    if let Some(floor) = curve.lost_against {
        lines.push(format!("the search ended early: the highest load cannot reach {}", curve.knob.describe(floor)));
    }
    let tiers = curve.tiers.iter();
    lines.extend(tiers.map(|tier| format!("highest load within {}: {}", tier.name, tier.highest.text(curve.knob))));
    lines
}

/// Returns a value with half the width of its 95 % interval.
fn value_text(measurement: &Measurement, name: &str) -> String {
    let Some(value) = measurement.metric(name) else { return "-".to_owned() };
    let interval = measurement.confidence.get(name).and_then(|interval| interval.low.zip(interval.high));
    match interval {
        Some((low, high)) => format!("{} +-{}", number(value), number((high - low) / 2.0)),
        None => number(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Distribution, HighestMeasuredLoad, Interval, LoadBound, LoadKnob, TierLoad};

    #[test]
    fn the_table_is_in_the_order_of_the_loads_and_has_intervals() {
        let probe = |load: f64, p95: f64, kept| {
            let interval = Interval { low: Some(p95 - 10.0), high: Some(p95 + 10.0) };
            let measurement = Measurement {
                ttft_ms: Some(Distribution { p95, ..Distribution::default() }),
                confidence: [("p95_ttft_ms".to_owned(), interval)].into(),
                ..Measurement::default()
            };
            LoadProbe { load, seconds: 12.0, kept, measurement }
        };
        let highest = HighestMeasuredLoad {
            value: 40.5,
            low: Some(39.0),
            high: Some(42.0),
            bound: LoadBound::Between,
            cliff: true,
        };
        let relaxed =
            HighestMeasuredLoad { value: 64.0, low: Some(64.0), high: None, bound: LoadBound::AtLeast, cliff: false };
        let curve = LoadCurve {
            knob: LoadKnob::Concurrency,
            highest,
            lost_against: Some(60.0),
            probes: vec![probe(64.0, 900.0, false), probe(32.0, 150.0, true)],
            tiers: vec![TierLoad { name: "relaxed".to_owned(), highest: relaxed }],
        };
        let lines = curve_lines(&curve, None);
        assert!(lines[1].contains("32") && lines[1].contains("kept") && lines[1].contains("+-"), "{lines:?}");
        assert!(lines[2].contains("64") && lines[2].contains("broken"), "{lines:?}");
        assert_eq!(lines[3], "highest load within the limits: 40.5 at a time (39 to 42, a cliff)");
        assert_eq!(lines[4], "the search ended early: the highest load cannot reach 60 at a time");
        assert_eq!(lines[5], "highest load within relaxed: at least 64 at a time");
    }
}
