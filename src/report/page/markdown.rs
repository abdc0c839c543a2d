//! Renders a document as Markdown, for a wiki, an issue or a terminal.

use std::fmt::Write as _;

use super::StudyDocument;
use super::document::{Fact, LoadCurvePart, TrialPart, ValuePart};
use super::template::time_text;
use crate::report::table::number;
use crate::report::terminal::short_duration;

/// The most trials of the table. Others are counted.
const MAX_TRIALS: usize = 50;
/// The most trial numbers of a cell.
const MAX_NUMBERS: usize = 8;

/// Returns the report of a study as Markdown, in the order of the page.
#[must_use]
pub(crate) fn report_markdown(document: &StudyDocument) -> String {
    let mut text = Markdown::default();
    text.line(&format!("# {}", escaped(&document.study.name)));
    text.line(&format!("**{}**", escaped(&document.verdict.text)));
    command(&mut text, document);
    gain(&mut text, document);
    flags(&mut text, document);
    front(&mut text, document);
    for curve in &document.load_curves {
        load_curve(&mut text, curve);
    }
    importance(&mut text, document);
    time(&mut text, document);
    failures(&mut text, document);
    trials(&mut text, document);
    reproduce(&mut text, document);
    text.0
}

/// A text of blocks, with a blank line between them.
#[derive(Default)]
struct Markdown(String);

impl Markdown {
    fn line(&mut self, line: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn list<'a>(&mut self, items: impl Iterator<Item = &'a String>) {
        let items: Vec<_> = items.map(|item| format!("- {}", escaped(item))).collect();
        if !items.is_empty() {
            self.line(&items.join("\n"));
        }
    }

    fn code(&mut self, code: &str) {
        // A fence is longer than each run of its characters in the code.
        let mut longest = 0;
        let mut run = 0;
        for c in code.chars() {
            run = if c == '`' { run + 1 } else { 0 };
            longest = longest.max(run);
        }
        let fence = "`".repeat(3.max(longest + 1));
        self.line(&format!("{fence}sh\n{code}\n{fence}"));
    }

    /// Adds a table. Columns of `numbers` are aligned to the right.
    fn table(&mut self, header: &[&str], numbers: &[usize], rows: &[Vec<String>]) {
        let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
        let marks = (0..header.len()).map(|index| if numbers.contains(&index) { "---:" } else { "---" }.to_owned());
        let mut lines = vec![line(header.iter().map(|name| escaped(name)).collect()), line(marks.collect())];
        lines.extend(rows.iter().map(|cells| line(cells.iter().map(|cell| escaped(cell)).collect())));
        self.line(&lines.join("\n"));
    }
}

/// Escapes the characters that Markdown or HTML would interpret. Line ends become blanks.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '\n' => escaped.push(' '),
            '\\' | '`' | '*' | '[' | ']' | '|' | '#' | '~' => escaped.extend(['\\', c]),
            _ => escaped.push(c),
        }
    }
    escaped
}

fn optional(value: Option<f64>) -> String {
    value.map(number).unwrap_or_default()
}

fn numbers(trials: &[u32]) -> String {
    let shown: Vec<_> = trials.iter().take(MAX_NUMBERS).map(ToString::to_string).collect();
    let more = trials.len().saturating_sub(MAX_NUMBERS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}

fn command(text: &mut Markdown, document: &StudyDocument) {
    let Some(winner) = &document.winner else { return };
    text.line("## Winning command");
    text.code(&winner.command);
    let name = document.objective.as_ref().map_or("value", |objective| objective.name.as_str());
    text.line(&escaped(&format!("trial {}: {name} {}", winner.trial, winner.value_text)));
}

fn gain(text: &mut Markdown, document: &StudyDocument) {
    if document.values.is_empty() {
        return;
    }
    text.line("## Gain");
    let lines: Vec<_> = document.gains.iter().map(|gain| format!("over {}: {}", gain.over, gain.text)).collect();
    text.list(lines.iter());
    let row = |part: &ValuePart| {
        let limits = if part.is_feasible { "kept" } else { "broken" };
        let [value, low, high] = [part.value, part.low, part.high].map(number);
        vec![part.name.clone(), value, low, high, part.measurements.to_string(), limits.to_owned()]
    };
    let rows: Vec<_> = document.values.iter().map(row).collect();
    text.table(&["configuration", "value", "lowest", "highest", "measurements", "limits"], &[1, 2, 3, 4], &rows);
    text.list(document.remarks.iter());
}

fn flags(text: &mut Markdown, document: &StudyDocument) {
    text.line("## Flags that matter");
    let rows = document.flags.iter().map(|flag| vec![flag.flag.clone(), flag.value.clone(), flag.text.clone()]);
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        text.table(&["flag", "value", "effect"], &[], &rows);
    }
    text.list(document.flags_note.iter());
}

/// Adds the first front: throughput against the first latency.
fn front(text: &mut Markdown, document: &StudyDocument) {
    let Some(front) = document.fronts.first() else { return };
    text.line("## Throughput against latency");
    let place = |metric: &str| document.metrics.iter().position(|name| *name == metric);
    let (Some(x), Some(y)) = (place(front.x), place(front.y)) else { return };
    let row = |number: &u32| {
        let trial = document.trials.iter().find(|trial| trial.trial == *number)?;
        let metrics = trial.metrics.as_ref()?;
        Some(vec![number.to_string(), optional(metrics[x]), optional(metrics[y]), trial.config.to_string()])
    };
    let rows: Vec<_> = front.trials.iter().filter_map(row).collect();
    text.table(&["trial", front.x, front.y, "configuration"], &[0, 1, 2], &rows);
}

fn load_curve(text: &mut Markdown, curve: &LoadCurvePart) {
    text.line(&format!("## Load curve of {}", escaped(&curve.name)));
    text.line(&format!("highest load within the limits: {}", escaped(&curve.text)));
    let mut metrics: Vec<&str> = curve.points.iter().flat_map(|point| point.metrics.keys().copied()).collect();
    metrics.sort_unstable();
    metrics.dedup();
    let header: Vec<&str> = ["load", "limits"].into_iter().chain(metrics.iter().copied()).collect();
    let rows: Vec<Vec<String>> = curve
        .points
        .iter()
        .map(|point| {
            let limits = if point.kept { "kept" } else { "broken" };
            let values = metrics.iter().map(|name| optional(point.metrics.get(name).copied()));
            [number(point.load), limits.to_owned()].into_iter().chain(values).collect()
        })
        .collect();
    let columns: Vec<_> = (0..header.len()).filter(|column| *column != 1).collect();
    text.table(&header, &columns, &rows);
}

fn importance(text: &mut Markdown, document: &StudyDocument) {
    text.line("## Importance of the parameters");
    text.list(document.importance_note.iter());
    for about in document.importance.iter().flat_map(|importance| &importance.about) {
        let r2 = about.held_out_r2.map_or_else(|| "none".to_owned(), |r2| format!("{r2:.2}"));
        let name = escaped(&about.name);
        text.line(&format!("{name}: {} measurements, R^2 of held-out measurements {r2}", about.measured));
        text.list(about.doubts.iter());
        let share = |share: crate::sampler::VarianceShare| {
            let [share, low, high] = [share.share, share.low, share.high].map(|share| 100.0 * share);
            format!("{share:.0} % ({low:.0} to {high:.0})")
        };
        let rows: Vec<_> =
            about.parameters.iter().map(|it| vec![it.parameter.clone(), share(it.alone), share(it.total)]).collect();
        text.table(&["parameter", "alone", "total"], &[1, 2], &rows);
    }
}

fn time(text: &mut Markdown, document: &StudyDocument) {
    text.line("## Use of time");
    text.line(&escaped(&document.time.text));
    let used = document.time.parts.iter().map(|part| vec![part.name.to_owned(), short_duration(part.seconds)]);
    let saved = document.time.saved.iter();
    let saved = saved.map(|it| vec![format!("saved: {} {}", it.count, it.by), short_duration(it.seconds)]);
    text.table(&["part", "time"], &[1], &used.chain(saved).collect::<Vec<_>>());
}

fn failures(text: &mut Markdown, document: &StudyDocument) {
    let failures = document.failures.iter();
    let failures =
        failures.map(|it| vec![it.kind.to_owned(), it.count.to_string(), it.line.clone(), numbers(&it.trials)]);
    let rejections = document
        .rejections
        .iter()
        .map(|it| vec![format!("rejected by {}", it.rule), it.count.to_string(), it.line.clone(), numbers(&it.trials)]);
    let rows: Vec<_> = failures.chain(rejections).collect();
    if !rows.is_empty() {
        text.line("## Failures");
        text.table(&["cause", "trials", "line", "numbers"], &[1], &rows);
    }
}

fn trials(text: &mut Markdown, document: &StudyDocument) {
    text.line("## Trials");
    let row = |trial: &TrialPart| {
        let result = match (trial.value, &trial.reason_code) {
            (Some(value), _) => number(value),
            (None, Some(code)) => code.clone(),
            (None, None) => String::new(),
        };
        let limits = trial.is_feasible.map(|kept| if kept { "kept" } else { "broken" }).unwrap_or_default();
        let time = trial.elapsed_s.map(short_duration).unwrap_or_default();
        let (number, config) = (trial.trial.to_string(), trial.config.to_string());
        vec![number, trial.state.clone(), trial.origin.clone(), result, limits.to_owned(), time, config]
    };
    let rows: Vec<_> = document.trials.iter().take(MAX_TRIALS).map(row).collect();
    text.table(&["trial", "state", "proposed by", "value", "limits", "time", "configuration"], &[0, 3, 5], &rows);
    let more = document.trials.len().saturating_sub(MAX_TRIALS);
    if more > 0 {
        text.line(&format!("{more} more trials: `setpoint trials` lists all"));
    }
}

fn reproduce(text: &mut Markdown, document: &StudyDocument) {
    text.line("## Reproduce");
    let row = |(name, value): &Fact| vec![name.clone(), value.clone()];
    text.table(&["fact", "value"], &[], &document.study.facts.iter().map(row).collect::<Vec<_>>());
    for context in &document.reproduce.contexts {
        let kind = if context.is_present { "present" } else { "earlier" };
        text.line(&format!("{kind} context, {} trials", context.trials));
        text.table(&["fact", "value"], &[], &context.facts.iter().map(row).collect::<Vec<_>>());
    }
    for command in &document.reproduce.commands {
        text.line(&format!("{}:", escaped(command.purpose)));
        text.code(&command.command);
    }
    let written = time_text(&document.written_at);
    text.line(&format!("written by setpoint {} at {written}", document.setpoint_version));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_texts_stay_text() {
        assert_eq!(escaped("<b>|`x`\n[a](b)*"), "&lt;b&gt;\\|\\`x\\` \\[a\\](b)\\*");
        let mut text = Markdown::default();
        text.code("echo ````x");
        assert!(text.0.starts_with("`````sh\n") && text.0.ends_with("`````\n"), "{}", text.0);
    }
}
