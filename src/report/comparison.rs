//! Renders two configurations side by side.

use serde_json::{Value as Json, json};

use super::front::spread_text;
use super::grid::grid;
use crate::config::Value;
use crate::objective::Goal;
use crate::study_report::{ComparedMetric, ComparedSide, ConfigurationComparison, Significance};

/// Returns a text of a side such as `chat, trial 7`.
fn side_name(side: &ComparedSide) -> String {
    format!("{}, trial {}", side.study.name, side.number())
}

/// Returns the flags that differ, the metrics with their change, and remarks. `all` adds the rarer metrics.
#[must_use]
pub(crate) fn comparison_text(comparison: &ConfigurationComparison, all: bool) -> String {
    let [first, second] = comparison.sides.each_ref().map(side_name);
    let mut parts = vec![format!("A  {first}\nB  {second}"), flags(comparison)];
    let metrics: Vec<_> = if all { comparison.metrics.iter().collect() } else { comparison.usual_metrics() };
    if !metrics.is_empty() {
        let rows = metrics.iter().map(|metric| metric_row(metric)).collect();
        let rows = grid(&["metric", "A", "B", "change", "", "significant"], &[1, 2, 3], rows);
        let left = comparison.metrics.len() - metrics.len();
        let further = if left > 0 { format!("\n({left} further metrics with --all)") } else { String::new() };
        parts.push(format!("{rows}{further}"));
        if metrics.iter().any(|metric| metric.significance() == Significance::MeasuredOnce) {
            parts.push(
                "measured once: the spread between launches is unknown, so no difference is proven (budget.confirm measures \
                 again)"
                    .to_owned(),
            );
        }
    }
    if !comparison.warnings.is_empty() {
        let lines: Vec<_> = comparison.warnings.iter().map(|warning| format!("warning: {warning}")).collect();
        parts.push(lines.join("\n"));
    }
    parts.join("\n\n")
}

fn flags(comparison: &ConfigurationComparison) -> String {
    let equal = match comparison.equal_flags {
        0 => "no flag is set to the same value".to_owned(),
        1 => "1 flag is equal".to_owned(),
        count => format!("{count} flags are equal"),
    };
    if comparison.changes.is_empty() {
        return format!("the configurations are equal: {equal}");
    }
    let rows = comparison.changes.iter().map(|change| {
        let [first, second] = change.values.each_ref().map(|value| value_text(value.as_ref()));
        vec![change.name.clone(), first, second]
    });
    format!("{}\n({equal})", grid(&["flag", "A", "B"], &[1, 2], rows.collect()))
}

pub(super) fn value_text(value: Option<&Value>) -> String {
    value.map_or_else(|| "(default)".to_owned(), ToString::to_string)
}

pub(super) fn metric_row(metric: &ComparedMetric) -> Vec<String> {
    let [first, second] = metric.spreads.map(|spread| spread.map_or_else(|| "absent".to_owned(), spread_text));
    let change = metric.change_percent().map(|change| format!("{change:+.1} %")).unwrap_or_default();
    let better = match metric.is_better() {
        Some(true) => "better",
        Some(false) => "worse",
        None => "",
    };
    // Equal values need no proof.
    let significant = if better.is_empty() { "" } else { metric.significance().name() };
    vec![metric.name.to_owned(), first, second, change, better.to_owned(), significant.to_owned()]
}

/// Returns both sides, `flags` that differ, all `metrics`, and `warnings`. `significant` is null if one side was measured
/// once.
#[must_use]
pub(crate) fn comparison_json(comparison: &ConfigurationComparison) -> Json {
    let side = |side: &ComparedSide| {
        json!({
            "study": side.study.name,
            "trial": side.number(),
            "state": side.scored.trial.outcome.name(),
            "trials": side.results.as_ref().map(|results| &results.ranked.trials),
            "config": side.scored.trial.proposal.config,
            "earlier_context": side.context.is_earlier,
        })
    };
    let [a, b] = comparison.sides.each_ref().map(side);
    let flags: Vec<_> = comparison
        .changes
        .iter()
        .map(|change| json!({"flag": change.name, "a": change.values[0], "b": change.values[1]}))
        .collect();
    json!({
        "a": a,
        "b": b,
        "flags": flags,
        "equal_flags": comparison.equal_flags,
        "metrics": comparison.metrics.iter().map(metric_json).collect::<Vec<_>>(),
        "warnings": comparison.warnings,
    })
}

fn metric_json(metric: &ComparedMetric) -> Json {
    let spread = |spread| match spread {
        Some(crate::study_report::MetricSpread { mean, low, high, measurements }) => {
            json!({"mean": mean, "low": low, "high": high, "measurements": measurements})
        }
        None => Json::Null,
    };
    json!({
        "metric": metric.name,
        "better": if metric.goal == Goal::Maximize { "higher" } else { "lower" },
        "a": spread(metric.spreads[0]),
        "b": spread(metric.spreads[1]),
        "change_percent": metric.change_percent(),
        "b_is_better": metric.is_better(),
        "significant": metric.significance().is_significant(),
    })
}

/// Writes a line for each flag that differs and for each metric. `kind` distinguishes them.
///
/// # Errors
/// Never in practice: the writer is a buffer in memory.
pub(crate) fn comparison_csv(comparison: &ConfigurationComparison) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "kind",
        "name",
        "a",
        "a_low",
        "a_high",
        "a_measurements",
        "b",
        "b_low",
        "b_high",
        "b_measurements",
        "change_percent",
        "b_is_better",
        "significant",
    ])?;
    for change in &comparison.changes {
        let [first, second] =
            change.values.each_ref().map(|value| value.as_ref().map(ToString::to_string).unwrap_or_default());
        writer.write_record(["flag", &change.name, &first, "", "", "", &second, "", "", "", "", "", ""])?;
    }
    for metric in &comparison.metrics {
        let mut cells = vec!["metric".to_owned(), metric.name.to_owned()];
        for spread in metric.spreads {
            match spread {
                Some(spread) => {
                    cells.extend([spread.mean, spread.low, spread.high].map(|value| value.to_string()));
                    cells.push(spread.measurements.to_string());
                }
                None => cells.extend([const { String::new() }; 4]),
            }
        }
        cells.push(metric.change_percent().map(|change| change.to_string()).unwrap_or_default());
        let flag = |flag: Option<bool>| flag.map(|flag| flag.to_string()).unwrap_or_default();
        cells.extend([flag(metric.is_better()), flag(metric.significance().is_significant())]);
        writer.write_record(cells)?;
    }
    super::csv::text_of(writer)
}
