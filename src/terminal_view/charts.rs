//! The objective over the trials, and the load curve of a trial.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph, Sparkline, SparklineBar};

use super::configuration::objective_title;
use super::panel::ViewPanel;
use super::state::ViewState;
use super::text::{clean, cut, title_of};
use super::theme::FAINT;
use crate::objective::{Goal, MetricLimit, Objective, Score};
use crate::observation::StudyObservation;
use crate::report::{metric_unit, number};
use crate::stats::{f64_to_u64, to_f64};
use crate::trial::{LoadCurve, LoadProbe};

/// Marks of loads that keep the limits, and of those that break one.
const KEPT: char = 'o';
const BROKEN: char = 'x';

/// The largest width of a bar.
const MAX_BAR_COLUMNS: usize = 5;

/// Steps of a bar of the sparkline.
const STEPS: f64 = 1000.0;

/// Draws one bar for each trial, or for several neighbouring ones: the best value of a trial that kept the limits.
pub(super) fn draw_objective(frame: &mut Frame<'_>, place: Rect, state: &ViewState) {
    let theme = state.theme;
    let Some(observation) = &state.data.observation else {
        frame.render_widget(theme.frame("Objective", ViewPanel::Objective, state.focus), place);
        return;
    };
    let columns = usize::from(place.width.saturating_sub(2)).max(1);
    let bars = objective_bars(observation, columns);
    let values = || bars.iter().filter_map(|bar| bar.value);
    let highest = values().fold(0.0, f64::max);
    let lowest = values().fold(f64::INFINITY, f64::min);
    let range = if highest > 0.0 { format!(", {} to {}", number(lowest), number(highest)) } else { String::new() };
    let title = format!("{} by trial{range}", clean(&objective_title(observation)));
    let title = cut(&title, columns.saturating_sub(2), theme).into_owned();
    let bar_columns = bar_columns(bars.len(), columns);
    let bar = |bar: &ObjectiveBar| {
        let style = match bar.is_kept {
            _ if bar.is_best => theme.best(),
            true => theme.active(),
            false => theme.warning(),
        };
        let height = bar.value.map(|value| f64_to_u64(STEPS * value / highest.max(f64::MIN_POSITIVE)));
        let filled = std::iter::repeat_n(SparklineBar::from(height).style(Some(style)), bar_columns);
        let gap = (bar_columns > 1).then(|| SparklineBar::from(None));
        filled.chain(gap)
    };
    let per_bar = observation.trials.len().div_ceil(columns).max(1);
    let mut block = theme.frame(&title, ViewPanel::Objective, state.focus);
    if per_bar > 1 {
        block = block.title_bottom(Line::styled(format!(" best of {per_bar} trials in each bar "), FAINT));
    } else {
        let text = " oldest trial on the left; gaps: failed or rejected ";
        block = block.title_bottom(Line::styled(cut(text, columns, theme).into_owned(), FAINT));
    }
    let sparkline = Sparkline::default()
        .data(bars.iter().flat_map(bar).collect::<Vec<_>>())
        .max(f64_to_u64(STEPS))
        .bar_set(theme.bars())
        .absent_value_symbol(" ")
        .block(block);
    frame.render_widget(sparkline, place);
}

/// Returns the columns of a bar. Bars of several columns have a gap of one behind them.
fn bar_columns(bars: usize, columns: usize) -> usize {
    match columns / bars.max(1) {
        0..=2 => 1,
        share => (share - 1).min(MAX_BAR_COLUMNS),
    }
}

/// The value of neighbouring trials.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ObjectiveBar {
    value: Option<f64>,
    is_kept: bool,
    is_best: bool,
}

fn objective_bars(observation: &StudyObservation, columns: usize) -> Vec<ObjectiveBar> {
    let goal = observation.objective.as_ref().map_or(Goal::Maximize, |objective| objective.goal);
    let best = observation.best.as_ref().map(|best| best.number);
    let per_bar = observation.trials.len().div_ceil(columns).max(1);
    let bar = |trials: &[crate::store::ListedTrial]| {
        trials.iter().fold(ObjectiveBar::default(), |bar, trial| {
            let is_kept = matches!(trial.score, Score::Feasible { .. });
            let Some(value) = trial.score.value() else { return bar };
            let is_better = match (bar.value, goal) {
                (None, _) => true,
                (Some(_), _) if bar.is_kept != is_kept => is_kept,
                (Some(other), Goal::Maximize) => value > other,
                (Some(other), Goal::Minimize) => value < other,
            };
            let is_best = bar.is_best || Some(trial.number) == best;
            if is_better {
                ObjectiveBar { value: Some(value), is_kept, is_best }
            } else {
                ObjectiveBar { is_best, ..bar }
            }
        })
    };
    observation.trials.chunks(per_bar).map(bar).collect()
}

/// Reduces values to at most this many: neighbouring ones are joined.
pub(super) fn binned(values: &[f64], columns: usize, join: fn(f64, f64) -> f64) -> Vec<f64> {
    let per_bin = values.len().div_ceil(columns.max(1)).max(1);
    values.chunks(per_bin).filter_map(|bin| bin.iter().copied().reduce(join)).collect()
}

/// Draws a limited metric over the loads that the selected trial, or else the best one, has measured.
pub(super) fn draw_load_curve(frame: &mut Frame<'_>, place: Rect, state: &ViewState) {
    let theme = state.theme;
    let columns = usize::from(place.width.saturating_sub(4));
    let curve_of = |number: u32| {
        let curve = state.detail(number)?.scored.trial.outcome.measurement()?.load_curve.as_ref()?;
        Some((number, curve))
    };
    let selected = state.selected.and_then(curve_of);
    let found = selected.or_else(|| state.best_number().and_then(curve_of));
    let objective = state.data.observation.as_ref().and_then(|observation| observation.objective.as_ref());
    let Some(((trial, curve), objective)) = found.zip(objective) else {
        let block = theme.frame("Load curve", ViewPanel::LoadCurve, state.focus);
        let text = Line::styled("no load curve of the selected or the best trial", FAINT);
        return frame.render_widget(Paragraph::new(text).block(block), place);
    };
    let title = format!("Load curve of trial {trial}: {}", clean(&curve.text()));
    let block = theme.frame(&cut(&title, columns, theme), ViewPanel::LoadCurve, state.focus);
    let (metric, limit) = limited_metric(objective);
    let points = |is_kept: bool| -> Vec<(f64, f64)> {
        let of = |probe: &&LoadProbe| probe.kept == is_kept;
        let point = |probe: &LoadProbe| Some((probe.load, probe.measurement.metric(metric)?));
        curve.probes.iter().filter(of).filter_map(point).collect()
    };
    let (kept, broken) = (points(true), points(false));
    let (largest_load, largest) = bounds(curve, &kept, &broken, limit);
    let limits = limit.map(|limit| [(0.0, limit), (largest_load, limit)]);
    let scatter =
        |points, mark| Dataset::default().data(points).marker(Marker::Custom(mark)).graph_type(GraphType::Scatter);
    // A later dataset is drawn over an earlier one.
    let mut datasets = Vec::new();
    if let Some(points) = &limits {
        let line = if theme.is_utf8 { Marker::Braille } else { Marker::Custom('-') };
        let line = Dataset::default().data(points).marker(line).graph_type(GraphType::Line);
        datasets.push(line.style(theme.warning()));
    }
    datasets.push(scatter(&kept, KEPT).style(theme.best()));
    datasets.push(scatter(&broken, BROKEN).style(theme.bad()));
    let labels = |largest: f64| [0.0, largest / 2.0, largest].map(axis_label);
    let metric_name = format!("{} {}", title_of(metric), metric_unit(metric)).trim_end().to_owned();
    let x_axis = Axis::default().title(curve.knob.unit()).bounds([0.0, largest_load]).labels(labels(largest_load));
    let y_axis = Axis::default().title(clean(&metric_name).into_owned()).bounds([0.0, largest]).labels(labels(largest));
    let chart = Chart::new(datasets)
        .block(block.title_bottom(Line::styled(limit_note(limit, metric), FAINT)))
        .x_axis(x_axis.style(Style::new()))
        .y_axis(y_axis.style(Style::new()))
        .legend_position(None);
    frame.render_widget(chart, place);
}

/// Returns the first metric with a limit, and the limit.
fn limited_metric(objective: &Objective) -> (&str, Option<f64>) {
    let limits = objective.load_goal.iter().flat_map(|goal| &goal.limits).next();
    match limits {
        Some(limit) => {
            let (MetricLimit::AtMost(value) | MetricLimit::AtLeast(value)) = limit.limit;
            (limit.metric.as_str(), Some(value))
        }
        None => ("request_goodput", None),
    }
}

/// Returns the largest load and the largest value of the chart. Values far above the limit would hide the others.
fn bounds(curve: &LoadCurve, kept: &[(f64, f64)], broken: &[(f64, f64)], limit: Option<f64>) -> (f64, f64) {
    let load = curve.probes.iter().map(|probe| probe.load).fold(0.0, f64::max);
    let values = kept.iter().chain(broken).map(|(_, value)| *value);
    let value = values.chain(limit).fold(0.0, f64::max);
    let value = limit.map_or(value, |limit| value.min(limit * to_f64(4_u64)));
    (if load > 0.0 { load * 1.05 } else { 1.0 }, if value > 0.0 { value * 1.05 } else { 1.0 })
}

fn limit_note(limit: Option<f64>, metric: &str) -> String {
    let line = limit.map(|limit| format!("; line: {} {}", number(limit), metric_unit(metric))).unwrap_or_default();
    format!(" {KEPT} limits kept, {BROKEN} broken{} ", line.trim_end())
}

/// Returns a number with at most one decimal place.
fn axis_label(value: f64) -> String {
    let text = if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") };
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
