//! Renders predictions for people: a table with a row for each, and the details of each row.

use std::fmt::Write;

use super::{PredictedConfiguration, Predictions, describe_load, shown};
use crate::load::HighestLoad;
use crate::predict::{LoadLimit, LoadLimits, PredictedHighest, ServedLoad, StepTerm, wait_name, waits};
use crate::report::number;
use crate::report::table::table;
use crate::trial::LoadKnob;
use crate::twin::StartForecast;

/// Returns a ranked table and the details of each row.
#[must_use]
pub(crate) fn predictions_text(predictions: &Predictions<'_>) -> String {
    let Predictions { study, objective, engine, load, all, .. } = predictions;
    let mut text = format!("study {study}, {engine}, {}\n\n", describe_load(load));
    let metric = objective.metric.as_str();
    let limits: Vec<String> = objective.limits().map(ToString::to_string).collect();
    let limits = if limits.is_empty() { "limits".to_owned() } else { limits.join(", ") };
    let mut rows = table(["", "device", metric, "10 % to 90 %", &limits, "limited by", "configuration"], &[0, 2, 3]);
    for (rank, predicted) in all.iter().enumerate() {
        let prediction = &predicted.prediction;
        let served = prediction.served.as_ref();
        let range = served.and_then(|served| served.intervals.get(metric));
        rows.add_row([
            (rank + 1).to_string(),
            predicted.device.name.to_owned(),
            prediction.score.value().map(number).unwrap_or_default(),
            range.map(|(low, high)| format!("{} to {}", number(*low), number(*high))).unwrap_or_default(),
            limited_values(predictions, predicted),
            served.map(|served| short(&served.limits)).unwrap_or_default(),
            predicted.config.to_string(),
        ]);
    }
    let _ = writeln!(text, "{rows}");
    for (rank, predicted) in all.iter().enumerate() {
        let _ = writeln!(text, "\n{}. {} on {}", rank + 1, predicted.config, predicted.device.name);
        details(predictions, predicted, &mut text);
    }
    text
}

/// Returns the values of the limited metrics, or the state of a configuration that the twin could not measure.
fn limited_values(predictions: &Predictions<'_>, predicted: &PredictedConfiguration) -> String {
    let Some(measurement) = predicted.prediction.outcome.measurement() else { return predicted.state().to_owned() };
    let values = predictions.objective.limits().map(|limit| match measurement.metric(&limit.metric) {
        Some(value) if limit.violation(measurement) > 0.0 => format!("{} (over)", number(value)),
        Some(value) => number(value),
        None => "unknown".to_owned(),
    });
    values.collect::<Vec<_>>().join(", ")
}

fn details(predictions: &Predictions<'_>, predicted: &PredictedConfiguration, text: &mut String) {
    // Writing to a string cannot fail.
    let mut line = |name: &str, value: String| _ = writeln!(text, "   {name:<24}{value}");
    let outcome = &predicted.prediction.outcome;
    line("state", predicted.state().to_owned());
    if let Some(reason) = outcome.reason() {
        line("reason", reason);
    }
    let Some(served) = &predicted.prediction.served else { return };
    if let Some(measurement) = outcome.measurement() {
        for name in shown(predictions.objective) {
            let Some(value) = measurement.metric(name) else { continue };
            let range = served.intervals.get(name);
            let range = range.map(|(low, high)| format!("   {} to {}", number(*low), number(*high)));
            line(name, format!("{:>9}{}", number(value), range.unwrap_or_default()));
        }
    }
    line("limited by", limit_text(served));
    line("advice", served.limits.advice.clone());
    line("requests waited for", waits_text(served));
    line("step time", terms(served));
    line(
        "busy",
        format!(
            "{} of the time; the front end takes {} of a request's time",
            percent(served.limits.shares.busy),
            percent(served.limits.front_end)
        ),
    );
    line("cache", format!("{} blocks of {} tokens", served.blocks, served.resolved.block_size));
    let several = [
        ("tensor", served.resolved.tensor_parallel_size),
        ("pipeline", served.resolved.pipeline_parallel_size),
        ("data", served.replicas),
    ];
    let several: Vec<String> =
        several.iter().filter(|(_, size)| *size > 1).map(|(name, size)| format!("{name} {size}")).collect();
    if !several.is_empty() {
        line("parallel", several.join(", "));
    }
    if let Some(startup) = &served.startup {
        line("start-up", startup_forecast_text(startup));
    }
    line("highest load", highest(predictions, served));
    if !served.unknown.is_empty() {
        line("not predicted", format!("{}: ignored in the comparison with the limits", served.unknown.join(", ")));
    }
    line("basis", format!("{} ({} draws)", predicted.basis(&predictions.objective.metric), served.draws));
}

/// Returns a text such as `offered load (weights)`.
fn short(limits: &LoadLimits) -> String {
    let name = limits.main.name();
    if let LoadLimit::Load(term) = limits.main { format!("{name} ({})", term.name()) } else { name.to_owned() }
}

fn limit_text(served: &ServedLoad) -> String {
    let limits = &served.limits;
    let (name, share) = (limits.main.name(), percent(limits.share));
    match limits.main {
        LoadLimit::Queue(_) => format!("{name}: requests waited for it {share} of the busy time"),
        LoadLimit::Load(term) => {
            format!(
                "{name}: requests wait for less than half of the busy time; {} takes {share} of the time of steps",
                term.name()
            )
        }
        LoadLimit::FrontEnd => format!("{name}: {share} of a request's time is spent there"),
        LoadLimit::Idle => format!("{name}: the engine is idle for {share} of the time"),
    }
}

fn waits_text(served: &ServedLoad) -> String {
    let shares = waits(&served.limits.shares).filter(|(_, share)| *share >= 5e-4);
    let mut parts: Vec<String> =
        shares.map(|(wait, share)| format!("{} {}", wait_name(wait), percent(share))).collect();
    let nothing = 1.0 - served.limits.shares.waits.iter().sum::<f64>();
    parts.push(format!("nothing {}", percent(nothing.max(0.0))));
    parts.join(", ")
}

fn terms(served: &ServedLoad) -> String {
    let mut terms: Vec<_> = StepTerm::ALL.into_iter().zip(served.limits.shares.terms).collect();
    terms.sort_by(|a, b| b.1.total_cmp(&a.1));
    let shown = terms.iter().filter(|(_, share)| *share >= 5e-3);
    shown.map(|(term, share)| format!("{} {}", term.name(), percent(*share))).collect::<Vec<_>>().join(", ")
}

/// Describes the highest load that keeps the study's limits.
fn highest(predictions: &Predictions<'_>, served: &ServedLoad) -> String {
    let Some(PredictedHighest { knob, value, interval, .. }) = &served.highest else {
        return "not predicted: the study has no constraint".to_owned();
    };
    let limits = predictions.objective.limits().filter(|limit| !served.unknown.contains(&limit.metric));
    let mut limits: Vec<String> = limits.map(ToString::to_string).collect();
    let goodput = predictions.load.goodput.iter().map(ToString::to_string);
    let good = goodput.map(|limit| format!("{limit} for {}", percent(crate::predict::MIN_GOOD_SHARE)));
    limits.extend(good);
    let (limits, unit) = (limits.join(", "), knob.unit());
    let load = |value: f64| if *knob == LoadKnob::Concurrency { format!("{value:.0}") } else { number(value) };
    let range = interval.map(|(low, high)| format!(" ({} to {})", load(low), load(high))).unwrap_or_default();
    match value {
        HighestLoad::At(value) => format!("{} {unit}{range} with {limits}", load(*value)),
        HighestLoad::AtLeast(value) => format!("at least {} {unit}{range} with {limits}", load(*value)),
        HighestLoad::Below(value) => format!("none: {limits} is not kept even at {} {unit}", load(*value)),
    }
}

/// Returns a text such as `41 s (95 % interval 25 to 60): import 12, weights 6`.
fn startup_forecast_text(startup: &StartForecast) -> String {
    let parts = startup.parts.iter().filter(|part| part.median_s >= 0.5);
    let parts: Vec<String> =
        parts.map(|part| format!("{} {:.0}", part.phase.replace('_', " "), part.median_s)).collect();
    let StartForecast { mean_s, low_s, high_s, .. } = startup;
    format!("{mean_s:.0} s (95 % interval {low_s:.0} to {high_s:.0}): {}", parts.join(", "))
}

/// Formats a share as a percentage.
fn percent(share: f64) -> String {
    match share * 100.0 {
        small if small > 0.0 && small < 0.1 => "less than 0.1 %".to_owned(),
        small if small > 0.0 && small < 1.0 => format!("{small:.1} %"),
        share => format!("{share:.0} %"),
    }
}
