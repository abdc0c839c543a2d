//! The card at the end of a study: verdict, command, gain, cost, and the next command.

use anstyle::{AnsiColor, Style};

use super::layout::{TextLayout, wrap_command, wrap_text};
use super::study_verdict::verdict_text;
use super::trial_row::short_duration;
use crate::report::number;
use crate::report::study::{early_ends_text, findings_lines};
use crate::study_report::{Gain, StudyCost, StudyReport};
use crate::trial::{REDACTED, for_terminal};

/// Blanks before a command and before the further lines of a sentence.
const INDENT: usize = 2;

/// The way from a doubtful gain to a significant one.
const CONTINUE_HINT: &str =
    "not significant yet: the same command with a larger --trials or --time continues the study";

/// The commands of a card, as quoted words of a shell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CardCommands {
    /// Starts the winner, with its variables.
    pub launch: Vec<String>,
    /// Writes the winner as a script.
    pub export: Vec<String>,
}

/// Returns the card of a study, with colours. Empty without a best configuration.
#[must_use]
pub(crate) fn card_text(report: &StudyReport, cost: &StudyCost, commands: &CardCommands, layout: TextLayout) -> String {
    let Some(winner) = report.winner() else { return String::new() };
    let gain = report.gain(&winner.results.ranked);
    let verdict = wrap(&format!("verdict: {}", verdict_text(report)), layout);
    let mut lines = vec![paint(&verdict, verdict_style(gain))];
    lines.extend(findings_lines(report).iter().map(|line| wrap(line, layout)));
    lines.push(wrap(&cost_text(report, cost), layout));
    lines.extend(payback_text(report, cost).map(|text| wrap(&text, layout)));
    let gains = [gain, report.gain_over_deployment(&winner.results.ranked)];
    if gains.iter().any(|gain| matches!(gain, Gain::Factor { doubt: Some(_), factor, .. } if *factor > 1.0)) {
        lines.push(wrap(CONTINUE_HINT, layout));
    }
    lines.push("command:".to_owned());
    lines.push(for_terminal(&wrap_command(&commands.launch, layout, INDENT)).into_owned());
    if commands.launch.iter().any(|word| word.contains(REDACTED)) {
        lines.push(wrap(&format!("replace {REDACTED} in the command: secrets are not stored"), layout));
    }
    lines.push("next, write the winner as a script:".to_owned());
    lines.push(for_terminal(&export_text(commands, layout)).into_owned());
    lines.join("\n")
}

/// Returns the next command. Programs that read a pipe find it on one line.
fn export_text(commands: &CardCommands, layout: TextLayout) -> String {
    let width = if layout.wraps_sentences { layout.width } else { usize::MAX };
    wrap_command(&commands.export, TextLayout { width, ..layout }, INDENT)
}

fn wrap(text: &str, layout: TextLayout) -> String {
    wrap_text(&for_terminal(text), layout, INDENT)
}

fn verdict_style(gain: Gain) -> Style {
    let is_gain = gain.is_significant() == Some(true) && gain.factor().is_some_and(|factor| factor > 1.0);
    if is_gain { AnsiColor::Green.on_default().bold() } else { Style::new().bold() }
}

/// Paints each line on its own, so that pagers keep the style.
fn paint(text: &str, style: Style) -> String {
    text.lines().map(|line| format!("{style}{line}{style:#}")).collect::<Vec<_>>().join("\n")
}

pub(in crate::report) fn cost_text(report: &StudyReport, cost: &StudyCost) -> String {
    let launches = if cost.launches == 1 { "launch" } else { "launches" };
    let gpus = cost.gpus.as_ref().zip(cost.gpu_hours());
    let devices = match gpus {
        Some((gpus, hours)) => format!(", {} GPU hours on {} {}", number(hours), gpus.count, gpus.name),
        None if cost.is_simulated => " on the simulated engine".to_owned(),
        None => String::new(),
    };
    let saved = early_ends_text(report).map(|text| format!("; {text}")).unwrap_or_default();
    let looks = looks_text(cost) + &fast_starts_text(cost);
    let (count, time) = (cost.launches, short_duration(cost.wall_s));
    format!("cost of the study: {count} {launches}{looks} in {time}{devices}{saved}")
}

/// Returns the number of live looks and the starts that they have saved. Empty without looks.
fn looks_text(cost: &StudyCost) -> String {
    let (count, noun) = (cost.live_looks, if cost.live_looks == 1 { "look" } else { "looks" });
    let saved = short_duration(cost.saved_by_looks_s);
    if count == 0 { String::new() } else { format!(" and {count} live {noun} (which saved {saved} of starts)") }
}

/// Returns the number of fast starts and the time that they have saved. Empty without any.
fn fast_starts_text(cost: &StudyCost) -> String {
    let (count, noun) = (cost.fast_starts, if cost.fast_starts == 1 { "start" } else { "starts" });
    let saved = short_duration(cost.saved_by_fast_starts_s);
    if count == 0 { String::new() } else { format!(", {count} fast {noun} (which saved {saved})") }
}

/// Returns the time after which the winner has paid for the study, against today's deployment if it was measured.
fn payback_text(report: &StudyReport, cost: &StudyCost) -> Option<String> {
    let ranked = &report.winner()?.results.ranked;
    let (gain, baseline) = match report.deployment {
        Some(_) => (report.gain_over_deployment(ranked), "today's deployment"),
        None => (report.gain(ranked), "the engine's defaults"),
    };
    let time = short_duration(cost.payback_h(report, gain)? * 3600.0);
    Some(format!("paid back after {time} of serving it instead of {baseline}: the time of the study / (gain - 1)"))
}

#[cfg(test)]
#[path = "study_card_tests.rs"]
pub(super) mod tests;
