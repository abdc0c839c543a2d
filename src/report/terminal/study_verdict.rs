//! The verdict of a study in one sentence: the gain over the engine's defaults and over today's deployment, and the
//! limits.

use crate::objective::{Goal, Objective};
use crate::report::configuration_results::interval_text;
use crate::study_report::{DeploymentOutcome, Gain, GainDoubt, StudyReport};

/// Returns the verdict about the winner. Empty without one.
#[must_use]
pub(in crate::report) fn verdict_text(report: &StudyReport) -> String {
    let Some(winner) = report.winner() else { return String::new() };
    let ranked = &winner.results.ranked;
    let number = ranked.first.trial.proposal.number;
    let (gain, over_deployment) = (report.gain(ranked), report.gain_over_deployment(ranked));
    let deployment = report.deployment_status.as_ref().map(|status| &status.outcome);
    let over_deployment = (deployment == Some(&DeploymentOutcome::Measured)).then_some(over_deployment);
    let defaults = match deployment {
        Some(DeploymentOutcome::IsDefaults) => "the engine's defaults, which are today's deployment",
        _ => "the engine's defaults",
    };
    let than_defaults = difference(report, gain, defaults);
    let than_deployment = over_deployment.and_then(|gain| difference(report, gain, "today's deployment"));
    let mut text = match (gain, over_deployment) {
        (Gain::None, _) => {
            let further = than_deployment.map(|text| format!(": they have {text}")).unwrap_or_default();
            format!("no configuration is better than {defaults}; keep them{further}")
        }
        (_, Some(Gain::None)) => {
            let further = than_defaults.map(|text| format!(": it has {text}")).unwrap_or_default();
            format!("no configuration is better than today's deployment, trial {number}; keep it{further}")
        }
        _ => {
            let differences: Vec<_> = than_defaults.into_iter().chain(than_deployment).collect();
            let verb = if differences.is_empty() { "is the best" } else { "has " };
            format!("trial {number} {verb}{}{}", differences.join(" and "), limits_text(report))
        }
    };
    text.push_str(baseline_note(gain, ["; the defaults break a limit", "; the defaults were not measured"]));
    text.push_str(match deployment {
        Some(DeploymentOutcome::Rejected(_)) => "; today's deployment was rejected before its launch",
        Some(DeploymentOutcome::Failed(_)) => "; today's deployment failed",
        Some(DeploymentOutcome::NotLaunched) => "; today's deployment was not launched",
        Some(DeploymentOutcome::Measured) => over_deployment.map_or("", |gain| {
            baseline_note(gain, ["; today's deployment breaks a limit", "; today's deployment was not measured"])
        }),
        Some(DeploymentOutcome::IsDefaults) | None => "",
    });
    text
}

fn limits_text(report: &StudyReport) -> &'static str {
    match report.objective.as_ref().map_or(0, |objective| objective.limits().count()) {
        0 => "",
        1 => ", and keeps the limit",
        _ => ", and keeps the limits",
    }
}

/// Returns the note about a baseline that is over a limit or has no value, from these two.
fn baseline_note(gain: Gain, [over_limit, unmeasured]: [&'static str; 2]) -> &'static str {
    match gain {
        Gain::Factor { baseline_over_limit: true, .. } => over_limit,
        Gain::Unknown => unmeasured,
        Gain::Factor { .. } | Gain::None => "",
    }
}

/// Returns a text such as `21.6 % higher output_throughput than today's deployment (significant)`. `None` without a
/// factor.
fn difference(report: &StudyReport, gain: Gain, baseline: &str) -> Option<String> {
    let Gain::Factor { factor, doubt, interval, .. } = gain else { return None };
    let significance = match doubt {
        None => "significant",
        Some(GainDoubt::WithinNoise) => "equal within noise",
        Some(GainDoubt::Wide) => "no clear winner",
        Some(_) => "not significant",
    };
    let interval = interval.map(|interval| format!(", {}", interval_text(interval))).unwrap_or_default();
    let significance = format!("{significance}{interval}");
    Some(format!("{} than {baseline} ({significance})", change_text(report.objective.as_ref()?, factor)))
}

/// Returns a text such as `21.6 % higher output_throughput`.
fn change_text(objective: &Objective, factor: f64) -> String {
    // The factor is above 1 for an improvement, so the metric's own ratio depends on the goal.
    let ratio = if objective.goal == Goal::Maximize { factor } else { 1.0 / factor };
    let direction = if ratio < 1.0 { "lower" } else { "higher" };
    format!("{:.1} % {direction} {}", 100.0 * (ratio - 1.0).abs(), objective.value_name())
}

#[cfg(test)]
#[path = "study_verdict_tests.rs"]
mod tests;
