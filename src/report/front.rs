//! Renders the Pareto front of a study, and the configuration that comes nearest to limits that none keeps.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use super::configuration_results::mean_metrics;
use super::grid::grid;
use super::json::trial_json;
use super::table::number;
use crate::objective::Goal;
use crate::store::Study;
use crate::study_report::{ConfigurationResults, ExceededLimit, MetricSpread, NearestConfiguration, ParetoFront};

/// Returns the front as a table with the mean of each metric, and a line that explains it.
#[must_use]
pub(crate) fn front_text(front: &ParetoFront) -> String {
    let mut header = vec!["trial"];
    header.extend(front.goals.iter().map(|goal| goal.metric));
    header.extend(["measured", "configuration"]);
    let numbers: Vec<_> = (0..=front.goals.len() + 1).collect();
    let row = |results: &ConfigurationResults| {
        let first = &results.ranked.first.trial.proposal;
        let mut cells = vec![first.number.to_string()];
        cells.extend(front.goals.iter().map(|goal| results.metric(goal.metric).map(spread_text).unwrap_or_default()));
        cells.extend([format!("{}x", results.ranked.measurements), first.config.to_string()]);
        cells
    };
    let table = grid(&header, &numbers, front.members.iter().map(row).collect());
    let goals: Vec<_> = front.goals.iter().map(|goal| format!("{} {}", goal_name(goal.goal), goal.metric)).collect();
    let (members, candidates) = (front.members.len(), front.candidates);
    let configurations = if candidates == 1 { "configuration" } else { "configurations" };
    let mut text = format!(
        "{table}\n{members} of {candidates} {configurations} within the limits: no other one is better in one of these \
         without being worse in another ({})",
        goals.join(", ")
    );
    if front.incomplete > 0 {
        let (lack, them) =
            if front.incomplete == 1 { ("configuration lacks", "it is") } else { ("configurations lack", "they are") };
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{} {lack} one of these metrics: {them} left out", front.incomplete);
    }
    text
}

/// Returns the mean, and the range if there are several measurements.
#[must_use]
pub(crate) fn spread_text(spread: MetricSpread) -> String {
    match spread.measurements {
        1 => number(spread.mean),
        _ => format!("{} ({} to {})", number(spread.mean), number(spread.low), number(spread.high)),
    }
}

fn goal_name(goal: Goal) -> &'static str {
    match goal {
        Goal::Maximize => "maximize",
        Goal::Minimize => "minimize",
    }
}

/// Returns the goals and the front. Each member is its first trial with `mean_metrics` and `trials`.
#[must_use]
pub(crate) fn front_json(study: &Study, front: &ParetoFront) -> Json {
    let goals: Vec<_> =
        front.goals.iter().map(|goal| json!({"metric": goal.metric, "goal": goal_name(goal.goal)})).collect();
    let member = |results: &ConfigurationResults| {
        let mut json = trial_json(study, &results.ranked.first);
        json["mean_metrics"] = mean_metrics(results);
        json["measurements"] = results.ranked.measurements.into();
        json["trials"] = json!(results.ranked.trials);
        json
    };
    json!({
        "study": study.name,
        "goals": goals,
        "candidates": front.candidates,
        "incomplete": front.incomplete,
        "front": front.members.iter().map(member).collect::<Vec<_>>(),
    })
}

/// Writes the mean and the range of each metric for each member of the front.
///
/// # Errors
/// Never in practice: the writer is a buffer in memory.
pub(crate) fn front_csv(front: &ParetoFront) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut header = vec!["trial".to_owned()];
    for goal in &front.goals {
        header.extend(["", "_low", "_high"].map(|end| format!("{}{end}", goal.metric)));
    }
    header.extend(["measurements", "configuration"].map(str::to_owned));
    writer.write_record(header)?;
    for results in &front.members {
        let first = &results.ranked.first.trial.proposal;
        let mut cells = vec![first.number.to_string()];
        for goal in &front.goals {
            let spread = results.metric(goal.metric);
            let cell = |of: fn(MetricSpread) -> f64| spread.map(|spread| of(spread).to_string()).unwrap_or_default();
            cells.extend([cell(|spread| spread.mean), cell(|spread| spread.low), cell(|spread| spread.high)]);
        }
        cells.extend([results.ranked.measurements.to_string(), first.config.key()]);
        writer.write_record(cells)?;
    }
    super::csv::text_of(writer)
}

/// Describes the nearest configuration and its distance from each limit that it exceeds.
#[must_use]
pub(crate) fn nearest_text(nearest: &NearestConfiguration) -> String {
    let exceeded = |ExceededLimit { limit, worst, excess }: &ExceededLimit| match worst {
        Some(worst) => format!("{} is {}, {} beyond {limit}", limit.metric, number(*worst), percent(*excess)),
        None => format!("{} was not measured, and {limit} is required", limit.metric),
    };
    let limits: Vec<_> = nearest.exceeded.iter().map(exceeded).collect();
    let limits = if limits.is_empty() {
        "it keeps these limits, but one of its launches failed".to_owned()
    } else {
        limits.join("; ")
    };
    format!("the nearest is trial {} ({}): {limits}", nearest.trial, nearest.config)
}

/// Returns the excess over a limit in percent. A large one is a multiple of the limit, and over a limit of 0 it has no
/// meaning.
fn percent(excess: f64) -> String {
    match excess {
        ..10.0 => format!("{} %", number((1000.0 * excess).ceil() / 10.0)),
        ..1e6 => format!("{excess:.0} times the limit"),
        _ => "far".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::objective::{Constraint, MetricLimit};

    #[test]
    fn the_nearest_configuration_has_its_distance_from_each_limit() {
        let exceeded = |metric: &str, worst, excess| {
            let limit = Constraint { metric: metric.to_owned(), limit: MetricLimit::AtMost(500.0) };
            ExceededLimit { limit, worst, excess }
        };
        let exceeded = vec![exceeded("energy_j", None, f64::INFINITY), exceeded("p99_ttft_ms", Some(612.5), 0.225)];
        let nearest =
            NearestConfiguration { trial: 7, config: Config::new().with("a", 8_i64), measurements: 1, exceeded };
        let text = nearest_text(&nearest);
        assert_eq!(
            text,
            "the nearest is trial 7 (a=8): energy_j was not measured, and energy_j <= 500 is required; p99_ttft_ms is \
             612.5, 22.50 % beyond p99_ttft_ms <= 500"
        );
    }
}
