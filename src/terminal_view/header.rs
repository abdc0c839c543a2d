//! The first lines: the study with its state and counts, and the best configuration with its gain.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::state::ViewState;
use super::text::{clean, cut, progress_bar, short_seconds, short_time, title_of, width, with_unit};
use super::theme::{FAINT, STRONG};
use crate::objective::{Goal, Objective};
use crate::observation::StudyObservation;
use crate::report::{metric_unit, number};

/// Columns of the bar of the budget.
const BAR_COLUMNS: usize = 12;

pub(super) fn draw_header(frame: &mut Frame<'_>, place: Rect, state: &ViewState) {
    let columns = usize::from(place.width);
    let lines = match &state.data.observation {
        None => vec![vec![(" the study has not begun yet".to_owned(), FAINT)]],
        Some(observation) if place.height < 2 => vec![study_parts(observation, state, true)],
        Some(observation) => vec![study_parts(observation, state, false), best_parts(observation, state)],
    };
    for (row, parts) in (0..place.height).zip(lines) {
        let line = fitting(parts, columns, state);
        frame.render_widget(line, Rect { y: place.y + row, height: 1, ..place });
    }
}

/// Joins the parts that fit. The first one is cut if it alone is too long.
fn fitting(parts: Vec<(String, Style)>, columns: usize, state: &ViewState) -> Line<'static> {
    let (mut spans, mut taken) = (Vec::new(), 0);
    let gap = state.theme.separator();
    for (text, style) in parts.into_iter().filter(|(text, _)| !text.is_empty()) {
        let text = if spans.is_empty() { cut(&text, columns, state.theme).into_owned() } else { text };
        let needed = width(&text) + if spans.is_empty() { 0 } else { width(gap) };
        if taken + needed > columns {
            continue;
        }
        if !spans.is_empty() {
            spans.push(Span::styled(gap, FAINT));
        }
        taken += needed;
        spans.push(Span::styled(text, style));
    }
    Line::from(spans)
}

/// Returns the parts of the first line, the most important first.
fn study_parts(observation: &StudyObservation, state: &ViewState, is_short: bool) -> Vec<(String, Style)> {
    let theme = state.theme;
    let counts = observation.counts;
    let run_time = state.run_time().map(|time| format!(" for {}", short_time(time))).unwrap_or_default();
    let status = match &observation.tuner {
        Some(_) => (format!("{} running{run_time}", theme.running()), theme.active()),
        None if counts.running > 0 => {
            (format!("{} stopped, {} interrupted", theme.stopped(), counts.running), theme.warning())
        }
        None => (format!("{} stopped", theme.stopped()), FAINT),
    };
    let mut parts = vec![(format!(" study {}", clean(&observation.study.name)), STRONG), status];
    if let Some(live) = &state.live {
        let bar = live.share.map(|share| format!("{} ", progress_bar(share, BAR_COLUMNS, theme)));
        parts.push((format!("{}{}", bar.unwrap_or_default(), live.budget), Style::new()));
    }
    if is_short && let Some(best) = &observation.best {
        parts.push((format!("{} best {}", theme.star(), number(best.value)), theme.best()));
    }
    parts.push((format!("{} measured", counts.measured), Style::new()));
    let other = |count: i64, what: &str, style| (count > 0).then(|| (format!("{count} {what}"), style));
    parts.extend(other(counts.failed, "failed", theme.bad()));
    parts.extend(other(counts.rejected, "rejected", FAINT));
    parts.extend(other(counts.live_looks, "live looks", FAINT));
    let launched = format!("launches took {}", short_seconds(observation.launched_s()));
    parts.push((launched, FAINT));
    let process = observation.tuner.as_ref().filter(|tuner| !tuner.process.is_empty());
    parts.extend(process.map(|tuner| (format!("process {}", clean(&tuner.process)), FAINT)));
    parts
}

/// Returns the parts of the second line: the best configuration, its gain, and the goal.
fn best_parts(observation: &StudyObservation, state: &ViewState) -> Vec<(String, Style)> {
    let theme = state.theme;
    let metric = observation.objective.as_ref().map_or("", |objective| objective.metric.as_str());
    let value = |value: f64| match observation.objective.as_ref().and_then(|objective| objective.joint.as_ref()) {
        Some(_) => number(value),
        None => with_unit(value, metric),
    };
    let mut parts = Vec::new();
    match &observation.best {
        None => parts.push((" no measurement within the limits yet".to_owned(), FAINT)),
        Some(best) => {
            let text = format!(" {} best: trial {}, {}", theme.star(), best.number, value(best.value));
            parts.push((text, theme.best()));
            parts.extend(best.gain.map(|gain| {
                let style = if gain > 1.0 { theme.good() } else { Style::new() };
                (format!("{gain:.2}x the engine's defaults"), style)
            }));
            let is_open = !best.is_settled && observation.tuner.is_some();
            let confirmed = match (best.is_confirmed, is_open, best.measurements) {
                (true, false, _) => ("confirmed".to_owned(), theme.good()),
                (true, true, _) => ("being confirmed".to_owned(), theme.active()),
                (false, _, 1) => ("measured once".to_owned(), FAINT),
                (false, _, count) => (format!("measured {count} times"), FAINT),
            };
            parts.push(confirmed);
        }
    }
    parts.extend(observation.baseline.map(|baseline| (format!("defaults {}", value(baseline)), FAINT)));
    parts.extend(observation.objective.as_ref().map(|objective| (goal_text(objective), FAINT)));
    parts
}

/// Returns a text such as `goal: highest output (tok/s), p99 TTFT at most 500 ms`.
fn goal_text(objective: &Objective) -> String {
    let direction = match objective.goal {
        Goal::Maximize => "highest",
        Goal::Minimize => "lowest",
    };
    let limits = objective.limits().map(|limit| {
        let (word, value) = match limit.limit {
            crate::objective::MetricLimit::AtMost(value) => ("at most", value),
            crate::objective::MetricLimit::AtLeast(value) => ("at least", value),
        };
        let text = format!(", {} {word} {} {}", title_of(&limit.metric), number(value), metric_unit(&limit.metric));
        clean(text.trim_end()).into_owned()
    });
    format!("goal: {direction} {}{}", clean(&title_of(&objective.value_name())), limits.collect::<String>())
}
