//! The findings of a study in its document: verdict, winner, gains, flags and remarks.

use super::document::{
    FlagPart, GainPart, LimitPart, LoadCurvePart, LoadPointPart, ObjectivePart, SetFlag, ValuePart, VerdictPart,
    WinnerPart,
};
use crate::objective::{Goal, MetricLimit, Objective};
use crate::report::configuration_results::{deployment_gain_text, gain_text, value_text};
use crate::report::study::remark_lines;
use crate::report::terminal::{CardCommands, TextLayout, metric_unit, verdict_text, wrap_command};
use crate::report::winning_flags::{finding_text, flags_note};
use crate::store::RankedConfiguration;
use crate::study_report::{Gain, NoWinner, StudyDetails, StudyReport};
use crate::trial::{LoadCurve, Measurement};

/// Columns of a command on the page.
const COMMAND_LAYOUT: TextLayout = TextLayout { width: 96, wraps_sentences: true, is_utf8: true };
/// Blanks before the further lines of a command.
const COMMAND_INDENT: usize = 2;

/// Metrics of a load curve, besides those of the limits.
const LOAD_METRICS: [&str; 6] =
    ["output_throughput", "request_throughput", "p95_ttft_ms", "p95_tpot_ms", "mean_ttft_ms", "mean_tpot_ms"];

pub(super) fn objective_part(objective: &Objective) -> ObjectivePart {
    ObjectivePart {
        metric: objective.metric.clone(),
        name: objective.value_name(),
        unit: metric_unit(&objective.metric).to_owned(),
        goal: goal_name(objective.goal),
    }
}

pub(super) fn goal_name(goal: Goal) -> &'static str {
    match goal {
        Goal::Maximize => "maximize",
        Goal::Minimize => "minimize",
    }
}

pub(super) fn limit_parts(objective: Option<&Objective>) -> Vec<LimitPart> {
    let limits = objective.into_iter().flat_map(Objective::limits);
    let part = |limit: &crate::objective::Constraint| {
        let (at_most, at_least) = match limit.limit {
            MetricLimit::AtMost(bound) => (Some(bound), None),
            MetricLimit::AtLeast(bound) => (None, Some(bound)),
        };
        LimitPart { metric: limit.metric.clone(), text: limit.to_string(), at_most, at_least }
    };
    limits.map(part).collect()
}

/// Returns the verdict. `reason` explains a missing winner.
pub(super) fn verdict_part(report: &StudyReport, reason: Option<&NoWinner>, is_running: bool) -> VerdictPart {
    let Some(winner) = report.winner() else {
        let text = match reason {
            Some(NoWinner::Unmeasured { failed: 0, .. }) | None => "no trial has been measured yet".to_owned(),
            Some(reason) => no_winner_text(reason),
        };
        return VerdictPart { text, kind: if is_running { "running" } else { "none" } };
    };
    let ranked = &winner.results.ranked;
    let (gain, over_deployment) = (report.gain(ranked), report.gain_over_deployment(ranked));
    let text = verdict_text(report);
    if is_running {
        return VerdictPart { text: format!("so far: {text}"), kind: "running" };
    }
    let is_kept = matches!(gain, Gain::None) || (report.deployment.is_some() && matches!(over_deployment, Gain::None));
    let is_gain = |gain: Gain| gain.is_significant() == Some(true) && gain.factor().is_some_and(|factor| factor > 1.0);
    let kind = match (is_kept, is_gain(gain) || is_gain(over_deployment)) {
        (true, _) => "keep",
        (false, true) => "better",
        (false, false) => "doubtful",
    };
    VerdictPart { text, kind }
}

/// Explains why a study has no best configuration.
fn no_winner_text(reason: &NoWinner) -> String {
    match reason {
        NoWinner::WithoutValue { measured, metric, .. } => {
            format!("none of the {measured} measured trials has a value of {metric}")
        }
        NoWinner::Unmeasured { failed: 0, .. } => "no trial has been measured".to_owned(),
        NoWinner::Unmeasured { failed, .. } => format!("no trial has been measured: {failed} launches failed"),
        NoWinner::OverLimits { measured } => format!("none of the {measured} measured trials kept the limits"),
    }
}

pub(super) fn winner_part(report: &StudyReport, commands: &CardCommands) -> Option<WinnerPart> {
    let ranked = &report.winner()?.results.ranked;
    let proposal = &ranked.first.trial.proposal;
    let set =
        |(flag, value): (&str, &crate::config::Value)| SetFlag { flag: flag.to_owned(), value: value.to_string() };
    Some(WinnerPart {
        trial: proposal.number,
        value: ranked.value,
        // The name of the value has a field of its own.
        value_text: value_text("", ranked).trim_start().to_owned(),
        command: command_text(&commands.launch),
        export: commands.export.join(" "),
        config: proposal.config.iter().map(set).collect(),
    })
}

/// Returns the lines of a command, aligned to the left.
pub(super) fn command_text(words: &[String]) -> String {
    let text = wrap_command(words, COMMAND_LAYOUT, COMMAND_INDENT);
    text.trim_start().to_owned()
}

pub(super) fn gain_parts(report: &StudyReport) -> Vec<GainPart> {
    let Some(winner) = report.winner() else { return Vec::new() };
    let ranked = &winner.results.ranked;
    let part = |over: &'static str, gain: Gain, text: String| {
        let interval = match gain {
            Gain::Factor { interval, .. } => interval,
            Gain::None | Gain::Unknown => None,
        };
        GainPart {
            over,
            // The name of the baseline has a field of its own.
            text: text.split_once(": ").map_or(text.as_str(), |(_, text)| text).to_owned(),
            factor: gain.factor(),
            low: interval.map(|interval| interval.low),
            high: interval.map(|interval| interval.high),
            confidence: interval.map(|interval| interval.confidence),
            is_significant: gain.is_significant(),
        }
    };
    let gain = report.gain(ranked);
    let mut parts = vec![part("the engine's defaults", gain, gain_text(gain))];
    if report.deployment_status.is_some() {
        let gain = report.gain_over_deployment(ranked);
        parts.push(part("today's deployment", gain, deployment_gain_text(gain)));
    }
    parts
}

/// Returns the winner, the defaults and today's deployment with their values.
pub(super) fn value_parts(report: &StudyReport) -> Vec<ValuePart> {
    let part = |(name, roles, ranked): ComparedConfiguration<'_>| ValuePart {
        name,
        roles,
        value: ranked.value,
        low: ranked.range.0,
        high: ranked.range.1,
        measurements: ranked.measurements,
        is_feasible: ranked.first.score.is_feasible(),
    };
    compared_configurations(report).into_iter().map(part).collect()
}

/// A configuration with its name and its roles.
type ComparedConfiguration<'a> = (String, Vec<&'static str>, &'a RankedConfiguration);

/// Returns the winner and the baselines that differ from it.
fn compared_configurations(report: &StudyReport) -> Vec<ComparedConfiguration<'_>> {
    let number = |ranked: &RankedConfiguration| ranked.first.trial.proposal.number;
    let winner = report.winner().map(|place| &place.results.ranked);
    let mut all: Vec<ComparedConfiguration<'_>> = Vec::new();
    all.extend(winner.map(|ranked| (format!("winner, trial {}", number(ranked)), vec!["winner"], ranked)));
    let baselines = [
        ("the engine's defaults", "defaults", &report.baseline),
        ("today's deployment", "deployment", &report.deployment),
    ];
    for (name, role, ranked) in baselines {
        let Some(ranked) = ranked else { continue };
        match all.iter_mut().find(|(_, _, other)| number(other) == number(ranked)) {
            Some((known, roles, _)) => {
                *known = format!("{known}, {name}");
                roles.push(role);
            }
            None => all.push((name.to_owned(), vec![role], ranked)),
        }
    }
    all
}

/// Returns the measured loads of the winner and the baselines.
pub(super) fn load_curve_parts(details: &StudyDetails) -> Vec<LoadCurvePart> {
    let report = &details.report;
    let mut metrics: Vec<&'static str> = Vec::new();
    let limited = report.objective.iter().flat_map(Objective::limits);
    let limited = limited.filter_map(|limit| Measurement::names().find(|name| *name == limit.metric));
    for name in limited.chain(LOAD_METRICS) {
        if !metrics.contains(&name) {
            metrics.push(name);
        }
    }
    let part = |(name, _, ranked): ComparedConfiguration<'_>| {
        let trial = &ranked.first.trial;
        let curve = trial.outcome.measurement()?.load_curve.as_ref()?;
        Some(LoadCurvePart { points: points_of(curve, &metrics), ..curve_part(name, trial.proposal.number, curve) })
    };
    compared_configurations(report).into_iter().filter_map(part).collect()
}

fn curve_part(name: String, trial: u32, curve: &LoadCurve) -> LoadCurvePart {
    LoadCurvePart {
        name,
        trial,
        unit: curve.knob.unit(),
        highest: curve.highest.value,
        low: curve.highest.low,
        high: curve.highest.high,
        text: curve.text(),
        points: Vec::new(),
    }
}

/// Returns the measured loads in ascending order.
fn points_of(curve: &LoadCurve, metrics: &[&'static str]) -> Vec<LoadPointPart> {
    let point = |probe: &crate::trial::LoadProbe| LoadPointPart {
        load: probe.load,
        kept: probe.kept,
        metrics: metrics.iter().filter_map(|name| Some((*name, probe.measurement.metric(name)?))).collect(),
    };
    let mut points: Vec<_> = curve.probes.iter().map(point).collect();
    points.sort_by(|a, b| a.load.total_cmp(&b.load));
    points
}

/// Returns the flags of the confirmed winner with their effects, and a note about missing ones.
pub(super) fn flag_parts(report: &StudyReport) -> (Vec<FlagPart>, Option<String>) {
    const NOT_CONFIRMED: &str = "the effects of single flags are measured after the confirmation of a winner";
    let Some(winner) = report.winner() else { return (Vec::new(), Some(NOT_CONFIRMED.to_owned())) };
    let Some(result) = report.ablation(&winner.results.ranked) else {
        return (Vec::new(), Some(NOT_CONFIRMED.to_owned()));
    };
    let part = |flag: &crate::decision::FlagEffect| FlagPart {
        flag: flag.name.clone(),
        value: flag.value.as_ref().map(ToString::to_string).unwrap_or_default(),
        text: finding_text(flag),
        effect: flag.effect,
        low: flag.low,
        high: flag.high,
        is_kept: flag.is_kept(),
    };
    (result.flags.iter().map(part).collect(), flags_note(result))
}

/// Returns the further findings, one sentence each.
pub(super) fn remark_parts(report: &StudyReport) -> Vec<String> {
    remark_lines(report)
}
