//! The panels of the best and of the selected configuration.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Sparkline};

use super::launches::phase_name;
use super::panel::ViewPanel;
use super::state::ViewState;
use super::text::{clean, cut, short_seconds, title_of, titled, with_unit, wrap};
use super::theme::FAINT;
use super::trials::fixed_flags;
use crate::config::Config;
use crate::objective::Constraint;
use crate::observation::{StudyObservation, TrialDetail};
use crate::report::number;
use crate::stats::f64_to_u64;
use crate::store::ListedTrial;
use crate::trial::{Measurement, Outcome};

/// Metrics that are shown besides those of the objective and its limits.
const METRICS: [&str; 5] = ["output_throughput", "request_throughput", "p99_ttft_ms", "p99_tpot_ms", "mean_e2el_ms"];

/// Rows of the chart of the generation rate, with its title.
const RATE_ROWS: u16 = 4;

/// The fewest rows of a panel with the chart.
const MIN_ROWS_WITH_CHART: u16 = 14;

pub(super) fn draw_best(frame: &mut Frame<'_>, place: Rect, state: &ViewState) {
    let mut title = "Best configuration".to_owned();
    let mut lines = Vec::new();
    if let Some(observation) = &state.data.observation {
        if let Some(trial) = state.best_number().and_then(|number| observation.trial(number)) {
            title = format!("Best configuration: trial {}", trial.number);
            lines = flag_lines(&trial.config, observation, state, place);
        } else {
            lines.push(Line::styled("no measurement within the limits yet", FAINT));
        }
    }
    draw_text(frame, place, state, ViewPanel::Best, &title, lines);
}

pub(super) fn draw_selected(frame: &mut Frame<'_>, place: Rect, state: &ViewState) {
    let columns = usize::from(place.width.saturating_sub(2));
    let Some((observation, number)) = state.data.observation.as_ref().zip(state.selected_number()) else {
        return draw_text(frame, place, state, ViewPanel::Selected, "Trial", Vec::new());
    };
    let title = format!("Trial {number}");
    let mut lines = Vec::new();
    if let Some(launch) = state.selected_launch() {
        lines.push(Line::styled(format!("proposed by {}", clean(launch.origin.name())), FAINT));
        lines.extend(flag_lines(&launch.config, observation, state, place));
        lines.extend(why_lines(launch.why.as_deref(), columns));
        return draw_text(frame, place, state, ViewPanel::Selected, &title, lines);
    }
    let Some(trial) = observation.trial(number) else {
        return draw_text(frame, place, state, ViewPanel::Selected, &title, lines);
    };
    lines.extend(outcome_lines(trial, state, columns));
    let detail = state.detail(number);
    if let Some(measurement) = detail.and_then(|detail| detail.scored.trial.outcome.measurement()) {
        lines.extend(metric_lines(measurement, observation, state));
    }
    if place.height >= MIN_ROWS_WITH_CHART {
        lines.push(Line::default());
    }
    lines.extend(flag_lines(&trial.config, observation, state, place));
    lines.extend(detail.into_iter().flat_map(|detail| detail_lines(detail, state, columns)));
    let rates = detail.map_or(&[][..], |detail| &detail.generation_rates);
    if rates.len() < 2 || place.height < MIN_ROWS_WITH_CHART || state.scrolled > 0 {
        return draw_text(frame, place, state, ViewPanel::Selected, &title, lines);
    }
    draw_text(frame, place, state, ViewPanel::Selected, &title, lines);
    draw_rates(frame, place, state, rates);
}

/// Draws the generation rate over the time of the load, at the bottom of the panel.
fn draw_rates(frame: &mut Frame<'_>, place: Rect, state: &ViewState, rates: &[f64]) {
    let theme = state.theme;
    let highest = rates.iter().copied().fold(0.0, f64::max);
    let chart = Rect {
        x: place.x + 1,
        y: place.bottom() - 1 - RATE_ROWS,
        width: place.width.saturating_sub(2),
        height: RATE_ROWS,
    };
    frame.render_widget(ratatui::widgets::Clear, chart);
    let title = format!("generation over the load, up to {} tok/s", number(highest));
    let title = cut(&title, usize::from(chart.width), theme).into_owned();
    frame.render_widget(Line::styled(title, FAINT), Rect { height: 1, ..chart });
    let columns = usize::from(chart.width);
    let bars: Vec<u64> = super::charts::binned(rates, columns, f64::max).into_iter().map(f64_to_u64).collect();
    let sparkline = Sparkline::default().data(bars).bar_set(theme.bars()).style(theme.active());
    frame.render_widget(sparkline, Rect { y: chart.y + 1, height: RATE_ROWS - 1, ..chart });
}

fn draw_text(
    frame: &mut Frame<'_>,
    place: Rect,
    state: &ViewState,
    panel: ViewPanel,
    title: &str,
    lines: Vec<Line<'static>>,
) {
    let rows = usize::from(place.height.saturating_sub(2));
    let scrolled = if state.focus == panel { state.scrolled } else { 0 };
    let skipped = scrolled.min(lines.len().saturating_sub(rows));
    let shown: Vec<_> = lines.into_iter().skip(skipped).collect();
    frame.render_widget(Paragraph::new(shown).block(state.theme.frame(title, panel, state.focus)), place);
}

/// Returns a line for each flag that not all trials share, and one with those that they share.
fn flag_lines(config: &Config, observation: &StudyObservation, state: &ViewState, place: Rect) -> Vec<Line<'static>> {
    let columns = usize::from(place.width.saturating_sub(2));
    let fixed = fixed_flags(observation);
    let own = config.without(&fixed);
    let text = |(name, value): (&str, &crate::config::Value)| {
        let text = format!("--{name} {value}");
        cut(&clean(&text), columns, state.theme).into_owned()
    };
    let mut lines: Vec<_> = own.iter().map(text).map(Line::raw).collect();
    if lines.is_empty() {
        lines.push(Line::raw("the engine's defaults"));
    }
    if !fixed.is_empty() {
        lines.extend(
            wrap(&clean(&format!("in all trials: {fixed}")), columns).into_iter().map(|line| Line::styled(line, FAINT)),
        );
    }
    lines
}

/// Returns the value of the objective, or the cause of a failure.
fn outcome_lines(trial: &ListedTrial, state: &ViewState, columns: usize) -> Vec<Line<'static>> {
    let theme = state.theme;
    let origin = clean(trial.origin.name()).into_owned();
    let mut lines = Vec::new();
    if trial.state == "measured" {
        let limits = if trial.score.is_feasible() { "within the limits" } else { "over a limit" };
        let style = if trial.score.is_feasible() { theme.good() } else { theme.warning() };
        lines.push(Line::styled(format!("measured, {limits}; proposed by {origin}"), style));
    } else {
        lines.push(Line::styled(format!("{}; proposed by {origin}", clean(&trial.state)), theme.bad()));
        let code = trial.reason_code.as_deref().unwrap_or_default();
        let cause = format!("{code}: {}", trial.reason.as_deref().unwrap_or_default());
        lines.extend(wrap(&clean(&cause), columns).into_iter().map(Line::raw));
    }
    if trial.is_disturbed {
        lines.push(Line::styled("disturbed by other processes or a slowed device", theme.warning()));
    }
    lines
}

/// Returns the metrics with their limits.
fn metric_lines(measurement: &Measurement, observation: &StudyObservation, state: &ViewState) -> Vec<Line<'static>> {
    let objective = observation.objective.as_ref();
    let mut names: Vec<&str> = objective.map_or_else(Vec::new, |objective| objective.metrics().collect());
    names.extend(METRICS);
    let mut shown: Vec<&str> = Vec::new();
    let mut lines = Vec::new();
    for name in names {
        let Some(value) = measurement.metric(name).filter(|_| !shown.contains(&name)) else { continue };
        shown.push(name);
        let limit = objective.and_then(|objective| objective.limits().find(|limit| limit.metric == name));
        let is_kept = limit.is_none_or(|limit| limit.violation_of(Some(value)) <= 0.0);
        let text = format!("{:<14} {}{}", title_of(name), with_unit(value, name), limit_text(limit));
        let style = if is_kept { ratatui::style::Style::new() } else { state.theme.warning() };
        lines.push(Line::styled(clean(&text).into_owned(), style));
    }
    if let Some(curve) = &measurement.load_curve {
        lines.push(Line::styled(format!("highest load   {}", clean(&curve.text())), state.theme.good()));
    }
    lines
}

fn limit_text(limit: Option<&Constraint>) -> String {
    use crate::objective::MetricLimit::{AtLeast, AtMost};
    match limit.map(|limit| limit.limit) {
        Some(AtMost(value)) => format!(" (limit: at most {})", number(value)),
        Some(AtLeast(value)) => format!(" (limit: at least {})", number(value)),
        None => String::new(),
    }
}

/// Returns the phases of the start, the errors and the reason for the configuration.
fn detail_lines(detail: &TrialDetail, state: &ViewState, columns: usize) -> Vec<Line<'static>> {
    let theme = state.theme;
    let trial = &detail.scored.trial;
    let mut lines = Vec::new();
    let start = trial.startup_s.map(|start| format!("start {}, ", short_seconds(start))).unwrap_or_default();
    lines.push(Line::styled(format!("{start}{} in all", short_seconds(trial.elapsed_s)), FAINT));
    if !detail.phases.is_empty() {
        let phases = detail.phases.iter();
        let phases: Vec<_> =
            phases.map(|time| format!("{} {}", phase_name(&time.phase), short_seconds(time.duration_s))).collect();
        let text = format!("phases: {}", phases.join(", "));
        lines.extend(wrap(&text, columns).into_iter().map(|line| Line::styled(line, FAINT)));
    }
    if let Outcome::Measured(measurement) = &trial.outcome
        && measurement.failed > 0
    {
        let text = format!("{} of its requests failed", measurement.failed);
        lines.push(Line::styled(text, theme.warning()));
    }
    lines.extend(why_lines(trial.proposal.why.as_deref(), columns));
    lines
}

fn why_lines(why: Option<&str>, columns: usize) -> Vec<Line<'static>> {
    let text = why.map(|why| format!("why: {}", clean(why))).unwrap_or_default();
    let lines = wrap(&text, columns).into_iter().filter(|line| !line.is_empty());
    lines.map(|line| Line::styled(line, FAINT)).collect()
}

/// Returns the title of the objective's values with their unit.
pub(super) fn objective_title(observation: &StudyObservation) -> String {
    match &observation.objective {
        Some(objective) if objective.joint.is_some() => objective.value_name(),
        Some(objective) => titled(&objective.metric),
        None => "value".to_owned(),
    }
}
