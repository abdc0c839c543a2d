//! Renders tables and lists for people as plain text, without colour or line wrapping.

use std::fmt::Write;

use comfy_table::{CellAlignment, ColumnConstraint, Table, presets};

use super::configuration_results::expectation;
use super::load_curve::curve_lines;
use super::workloads::trial_workloads;
use crate::objective::{Objective, Score};
use crate::space::SpaceFile;
use crate::store::{Incident, ScoredTrial, Study, StudyCounts};
use crate::study_report::{RankingPlace, StudyReport};
use crate::trial::Outcome;

/// Limit of a configuration or reason in a table, in characters.
const MAX_TEXT_CHARS: usize = 90;

/// Returns an empty table. `numbers` are the indices of right-aligned columns.
pub(super) fn table<const N: usize>(header: [&str; N], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for column in numbers {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Returns two lines for each space: its path, engine and releases, and its purpose.
#[must_use]
pub(crate) fn spaces_table(spaces: &[(&str, SpaceFile)]) -> String {
    let releases = |file: &SpaceFile| match (file.first_version, file.last_version) {
        (Some(first), Some(last)) => format!(" {first} to {last}"),
        (Some(first), None) => format!(" from {first}"),
        (None, Some(last)) => format!(" up to {last}"),
        (None, None) => String::new(),
    };
    let mut text = String::new();
    for (path, file) in spaces {
        let parameters = file.space.parameters.len();
        let _ = writeln!(text, "{path}  ({}{}, {parameters} parameters)", file.engine, releases(file));
        let _ = writeln!(text, "    {}", file.description);
    }
    text
}

/// Returns one line for each study.
#[must_use]
pub(crate) fn studies_table(studies: &[(Study, StudyCounts)]) -> String {
    let mut table = table(["study", "measured", "failed", "rejected", "created", "objective"], &[1, 2, 3]);
    for (study, counts) in studies {
        table.add_row([
            study.name.clone(),
            counts.measured.to_string(),
            counts.failed.to_string(),
            counts.rejected.to_string(),
            study.created_at.clone(),
            study.objective().map(|objective| describe(&objective)).unwrap_or_default(),
        ]);
    }
    table.to_string()
}

/// Returns a text such as `maximize output_throughput, p99_ttft_ms <= 500`.
fn describe(objective: &Objective) -> String {
    let goal = match objective.goal {
        crate::objective::Goal::Maximize => "maximize",
        crate::objective::Goal::Minimize => "minimize",
    };
    let limits = objective.limits().map(|constraint| format!(", {constraint}"));
    format!("{goal} {}{}", objective.value_name(), limits.collect::<String>())
}

/// Returns the best configurations with the means of all their measurements, and one word for the reason of each place.
/// If a model of all measurements ranks them, the table has its expectation beside the mean.
#[must_use]
pub(crate) fn best_table(report: &StudyReport) -> String {
    let ranking = &report.ranking;
    let header = [
        "trial",
        &report.value_name(),
        "measured",
        "expected",
        "order",
        "p99 ttft ms",
        "mean tpot ms",
        "p99 e2el ms",
        "configuration",
    ];
    let mut table = table(header, &[0, 1, 2, 3, 5, 6, 7]);
    let is_judged = ranking.iter().any(|place| place.results.ranked.expected.is_some());
    if let Some(column) = table.column_mut(3).filter(|_| !is_judged) {
        column.set_constraint(ColumnConstraint::Hidden);
    }
    for RankingPlace { results: standing, rank_reason: order } in ranking {
        let ranked = &standing.ranked;
        let of = |name: &str| standing.metric(name).map(|spread| number(spread.mean)).unwrap_or_default();
        table.add_row([
            ranked.first.trial.proposal.number.to_string(),
            number(ranked.value),
            match standing.disturbed().len() {
                0 => format!("{}x", ranked.measurements),
                disturbed => format!("{}x, {disturbed} disturbed", ranked.measurements),
            },
            ranked.expected.map(expectation).unwrap_or_default(),
            order.name().to_owned(),
            of("p99_ttft_ms"),
            of("mean_tpot_ms"),
            of("p99_e2el_ms"),
            ranked.first.trial.proposal.config.to_string(),
        ]);
    }
    table.to_string()
}

/// Returns all facts about one trial, one per line.
#[must_use]
pub(crate) fn show_text(study: &Study, scored: &ScoredTrial) -> String {
    let trial = &scored.trial;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<24}{value}");
    };
    line("study", study.name.clone());
    line("trial", trial.proposal.number.to_string());
    line("state", state(scored).to_owned());
    if let Some(reason) = trial.outcome.reason() {
        line("reason", reason);
    }
    line("configuration", trial.proposal.config.to_string());
    line("proposed by", trial.proposal.origin.to_string());
    line("measured by", trial.measured_by().to_string());
    if let Some(why) = &trial.proposal.why {
        line("why", why.clone());
    }
    if let Some(gain) = trial.proposal.expected_gain {
        line("expected gain", format!("{:.2} % of the best value at that time", 100.0 * gain));
    }
    if let Some(expected) = trial.proposal.expected {
        let [mean, low, high] = [expected.mean, expected.low, expected.high].map(number);
        line("expected value", format!("{mean} (90 % interval {low} to {high})"));
    }
    line("command", shlex::try_join(trial.launch.command.iter().map(String::as_str)).unwrap_or_default());
    for (name, value) in &trial.launch.env {
        line("environment", format!("{name}={value}"));
    }
    line("started", trial.started_at.clone());
    if let Some(startup) = trial.startup_s {
        line("ready after", format!("{startup:.2} s"));
    }
    line("total", format!("{:.2} s", trial.elapsed_s));
    line("engine version", trial.engine_version.clone().unwrap_or_else(|| "unknown".to_owned()));
    if let Some(log) = &trial.log {
        line("log", log.display().to_string());
    }
    if let Outcome::Measured(measurement) = &trial.outcome {
        for name in crate::trial::Measurement::NAMES.iter().filter(|name| !name.starts_with("p50_")) {
            if let Some(value) = measurement.metric(name) {
                line(name, format!("{}{}", number(value), definition(name)));
            }
        }
        // Of an imported result no telemetry is stored, and its metrics may have other names.
        let is_other = |name: &&String| !crate::trial::Measurement::NAMES.contains(&name.as_str());
        let others = measurement.reported.iter().filter(|(name, _)| is_other(name));
        for (name, value) in others.chain(measurement.server.iter().filter(|_| !measurement.reported.is_empty())) {
            line(name, number(*value));
        }
        for row in trial_workloads(measurement).lines() {
            line("workload", row.to_owned());
        }
        for row in measurement.load_curve.iter().flat_map(|curve| curve_lines(curve, None)) {
            line("load", row);
        }
        for (class, count) in &measurement.errors {
            line("errors", format!("{class}: {count}"));
        }
        if let Some(window) = &measurement.window {
            line("window", format!("{:.1} s to {:.1} s: {}", window.from_s, window.to_s, window.reason));
        }
        if let Some(saved_s) = measurement.saved_s() {
            line("saved", format!("{saved_s:.1} s of the planned load, by the early end"));
        }
        for reason in &measurement.disturbed {
            line("disturbed", reason.clone());
        }
        if let Some(client) = &measurement.client {
            line("load generator", super::bench::client_line(client));
        }
    }
    text
}

/// Returns the definition of a metric whose value may surprise. Empty for other metrics.
fn definition(name: &str) -> &'static str {
    match name {
        "max_concurrent_requests" => {
            "  (requests in flight within the same whole second, as vLLM counts them: one that ends and the next of \
             the same user both count, so the number can exceed that of the users)"
        }
        "max_output_tokens_per_s" => "  (tokens in the best whole second)",
        _ => "",
    }
}

/// Returns a line for each launch of a trial that failed for a reason of its environment, as a part of [`show_text`].
#[must_use]
pub(crate) fn incidents_text(incidents: &[Incident]) -> String {
    incidents.iter().fold(String::new(), |mut text, incident| {
        let Incident { attempt, at, failure, log, .. } = incident;
        let log = log.as_ref().map(|log| format!(" (log {})", log.display())).unwrap_or_default();
        let _ = writeln!(text, "{:<24}{attempt}, {at}, {}: {}{log}", "incident", failure.kind, failure.message);
        text
    })
}

fn state(scored: &ScoredTrial) -> &'static str {
    match (&scored.trial.outcome, scored.score) {
        (Outcome::Measured(_), Score::Infeasible { .. }) => "over a limit",
        (outcome, _) => outcome.name(),
    }
}

pub(super) fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Formats whole numbers exactly, and others with about four significant digits.
#[must_use]
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{ExpectedConfiguration, RankedConfiguration};
    use crate::study_report::{ConfigurationResults, RankReason};
    use crate::trial::{Distribution, Measurement, Trial};

    #[test]
    fn the_table_has_means_expectations_and_the_reason_of_the_order() {
        let measured = |number, p99| {
            let ttft_ms = Some(Distribution { p99, ..Distribution::default() });
            let trial =
                Trial::example(number, "auto", Outcome::Measured(Measurement { ttft_ms, ..Measurement::default() }));
            ScoredTrial { trial, score: Score::Feasible { value: 9.0 } }
        };
        let first = measured(3, 40.0);
        let trials = vec![3, 8];
        let single = RankedConfiguration {
            first,
            trials,
            value: 9.0,
            measurements: 2,
            range: (9.0, 9.0),
            expected: None,
            is_confirmed: false,
        };
        let repeats = vec![measured(3, 40.0), measured(8, 60.0)];
        let place = |ranked| RankingPlace {
            results: ConfigurationResults { ranked, measured_trials: repeats.clone() },
            rank_reason: RankReason::Mean,
        };
        let table = |ranking| best_table(&StudyReport { ranking, ..StudyReport::example("s") });
        let expected = ExpectedConfiguration { trial: 3, value: 8.25, deviation: 0.0125, feasible: 0.9 };
        let judged = RankedConfiguration { expected: Some(expected), ..single.clone() };
        let without = table(vec![place(single.clone())]);
        assert!(without.contains("measured") && !without.contains("expected"), "{without}");
        assert!(without.contains("mean") && without.contains(" 50 "), "the mean of both latencies: {without}");
        let with = table(vec![place(judged), place(single)]);
        assert!(with.contains("expected") && with.contains("8.250 +-2.5 %"), "{with}");
    }

    #[test]
    fn the_most_concurrent_requests_come_with_their_definition() {
        let measurement = Measurement { max_concurrent_requests: Some(96), ..Measurement::default() };
        let trial = Trial::example(0, "baseline", Outcome::Measured(measurement));
        let json = serde_json::Value::default();
        let study = Study {
            id: 1,
            name: "s".to_owned(),
            definition: json.clone(),
            host: json,
            setpoint_version: String::new(),
            created_at: String::new(),
        };
        let text = show_text(&study, &ScoredTrial { trial, score: Score::Feasible { value: 1.0 } });
        let line = text.lines().find(|line| line.starts_with("max_concurrent_requests")).unwrap();
        assert!(line.contains("96  (requests in flight within the same whole second"), "{line}");
    }

    #[test]
    fn numbers_keep_about_four_digits() {
        let shown: Vec<_> = [12345.6, 123.45, 12.345, 1.2345, 0.0, 96.0].map(number).to_vec();
        assert_eq!(shown, ["12346", "123.5", "12.35", "1.234", "0", "96"]);
    }
}
