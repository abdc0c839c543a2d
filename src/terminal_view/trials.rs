//! The table of trials, the newest first.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::widgets::{Cell, Row, Table, TableState};

use super::panel::ViewPanel;
use super::state::ViewState;
use super::text::{clean, cut, short_seconds, short_time, title_of};
use super::theme::{FAINT, OVER_LIMIT, SELECTED};
use crate::config::Config;
use crate::objective::Score;
use crate::observation::{LaunchStage, RunningLaunch, StudyObservation};
use crate::report::{ShortFlagNames, metric_unit, number};
use crate::store::ListedTrial;
use crate::trial::{MeasuredBy, Origin};

const NUMBER_COLUMNS: u16 = 6;
const CHANGE_COLUMNS: u16 = 8;
const TIME_COLUMNS: u16 = 7;

/// Columns of the panel below which the duration is left out.
const NARROW: u16 = 64;

/// The cells of a row, and its style.
struct TrialRow {
    number: String,
    value: String,
    change: String,
    time: String,
    rest: String,
    style: Style,
}

/// The parts of a study that its rows depend on.
struct RowContext<'a> {
    observation: &'a StudyObservation,
    state: &'a ViewState,
    names: ShortFlagNames,
    /// Flags with the same value in every trial.
    fixed: Config,
    /// Columns of the changed flags.
    columns: usize,
}

pub(super) fn draw_trials(frame: &mut Frame<'_>, place: Rect, state: &ViewState) {
    let theme = state.theme;
    let numbers = state.numbers();
    let selected = state.selected_number().and_then(|number| numbers.iter().position(|other| *other == number));
    let title = match (selected, numbers.len()) {
        (_, 0) => "Trials".to_owned(),
        (place, count) => format!("Trials ({} of {count}, newest first)", place.unwrap_or_default() + 1),
    };
    let block = theme.frame(&title, ViewPanel::Trials, state.focus);
    let Some(observation) = &state.data.observation else {
        frame.render_widget(block, place);
        return;
    };
    let head = value_head(observation);
    let value_columns = u16::try_from(head.len()).unwrap_or(u16::MAX).clamp(10, 16);
    let has_time = place.width >= NARROW;
    let mut widths = vec![NUMBER_COLUMNS, value_columns, CHANGE_COLUMNS];
    widths.extend(has_time.then_some(TIME_COLUMNS));
    let gaps = u16::try_from(widths.len()).unwrap_or_default();
    let rest = place.width.saturating_sub(2 + gaps + widths.iter().sum::<u16>());
    let context = RowContext {
        observation,
        state,
        names: flag_names(observation),
        fixed: fixed_flags(observation),
        columns: usize::from(rest),
    };
    // Only visible rows are made.
    let visible = usize::from(place.height.saturating_sub(3)).max(1);
    let first = selected.map_or(0, |selected| selected.saturating_sub(visible / 2));
    let first = first.min(numbers.len().saturating_sub(visible));
    let cells = |row: TrialRow| {
        let mut cells = vec![
            Cell::from(right(&row.number, NUMBER_COLUMNS)),
            Cell::from(right(&row.value, value_columns)),
            Cell::from(right(&row.change, CHANGE_COLUMNS)),
        ];
        cells.extend(has_time.then(|| Cell::from(right(&row.time, TIME_COLUMNS))));
        cells.push(Cell::from(row.rest));
        Row::new(cells).style(row.style)
    };
    let shown = numbers.iter().skip(first).take(visible).filter_map(|number| context.row(*number));
    let rows: Vec<_> = shown.map(cells).collect();
    let mut titles = vec![
        right("trial", NUMBER_COLUMNS),
        right(&head, value_columns),
        right("change", CHANGE_COLUMNS),
        "changed flags, or the cause".to_owned(),
    ];
    if has_time {
        titles.insert(3, right("time", TIME_COLUMNS));
    }
    let constraints = widths.into_iter().map(Constraint::Length).chain([Constraint::Min(0)]);
    let table =
        Table::new(rows, constraints).header(Row::new(titles).style(FAINT)).block(block).row_highlight_style(SELECTED);
    let mut table_state = TableState::new().with_selected(selected.map(|selected| selected - first));
    frame.render_stateful_widget(table, place, &mut table_state);
}

fn right(text: &str, columns: u16) -> String {
    format!("{text:>columns$}", columns = usize::from(columns))
}

/// Returns the title of the column of values.
fn value_head(observation: &StudyObservation) -> String {
    let Some(objective) = &observation.objective else { return "value".to_owned() };
    match &objective.joint {
        Some(joint) => format!("{} ratio", joint.over.name()),
        None => format!("{} {}", title_of(&objective.metric), metric_unit(&objective.metric)).trim_end().to_owned(),
    }
}

fn flag_names(observation: &StudyObservation) -> ShortFlagNames {
    let parameters = observation.study.definition.pointer("/space/parameters").and_then(|space| space.as_object());
    ShortFlagNames::new(parameters.into_iter().flatten().map(|(name, _)| name.as_str()).collect::<Vec<_>>().into_iter())
}

pub(super) fn fixed_flags(observation: &StudyObservation) -> Config {
    let fixed = observation.study.definition.pointer("/space/fixed");
    fixed.and_then(|fixed| serde_json::from_value(fixed.clone()).ok()).unwrap_or_default()
}

impl RowContext<'_> {
    fn row(&self, number: u32) -> Option<TrialRow> {
        match self.observation.running.iter().find(|launch| launch.number == number) {
            Some(launch) => Some(self.running(launch)),
            None => self.observation.trial(number).map(|trial| self.ended(trial)),
        }
    }

    fn running(&self, launch: &RunningLaunch) -> TrialRow {
        let theme = self.state.theme;
        let (value, style) = match launch.stage {
            LaunchStage::Interrupted => ("interrupted", theme.warning()),
            LaunchStage::Waiting => ("waiting", theme.active()),
            LaunchStage::Starting => ("starting", theme.active()),
            LaunchStage::Serving => ("serving", theme.active()),
        };
        let symbol = if launch.stage == LaunchStage::Interrupted { theme.stopped() } else { theme.running() };
        TrialRow {
            number: format!("{symbol} {}", launch.number),
            value: value.to_owned(),
            change: String::new(),
            time: match launch.stage {
                LaunchStage::Interrupted => String::new(),
                _ => short_time(launch.elapsed),
            },
            rest: self.changes(&launch.origin, &launch.config, None),
            style,
        }
    }

    fn ended(&self, trial: &ListedTrial) -> TrialRow {
        let theme = self.state.theme;
        let is_best = self.observation.best.as_ref().is_some_and(|best| best.number == trial.number);
        let (symbol, style) = match (trial.state.as_str(), trial.score) {
            ("measured", _) if is_best => (theme.star(), theme.best()),
            ("measured", Score::Feasible { .. }) => (theme.measured(), Style::new()),
            ("measured", _) => (OVER_LIMIT, theme.warning()),
            ("rejected", _) => (theme.rejected(), FAINT),
            _ => (theme.failed(), theme.bad()),
        };
        let style = if trial.is_earlier { FAINT } else { style };
        let baseline = self.observation.baseline.filter(|_| trial.number != 0);
        let change = trial.score.value().zip(baseline).map(|(value, baseline)| change_text(value, baseline));
        let cause = (trial.state != "measured").then(|| cause_text(trial));
        TrialRow {
            number: format!("{symbol} {}", trial.number),
            value: trial.score.value().map_or_else(|| clean(&trial.state).into_owned(), number),
            change: change.unwrap_or_default(),
            time: if trial.elapsed_s > 0.0 { short_seconds(trial.elapsed_s) } else { String::new() },
            rest: match cause {
                Some(cause) => cut(&cause, self.columns, theme).into_owned(),
                None => self.changes(&trial.origin, &trial.config, Some(trial)),
            },
            style,
        }
    }

    /// Describes the flags that differ from the engine's defaults, after the purpose of the trial.
    fn changes(&self, origin: &Origin, config: &Config, ended: Option<&ListedTrial>) -> String {
        let own = config.without(&self.fixed);
        let is_look = ended.is_some_and(|trial| matches!(trial.measured_by, MeasuredBy::LiveLook(_)));
        let purpose = match origin {
            _ if ended.is_some_and(|trial| trial.is_earlier) => "earlier context: ",
            _ if is_look => "live look: ",
            Origin::Confirmation | Origin::Turn | Origin::BaselineRepeat => "again: ",
            Origin::Deployment => "deployment: ",
            Origin::Start => "start point: ",
            Origin::Ablation => "fewer flags: ",
            Origin::Probe => "probe: ",
            Origin::Interference => "neighbours: ",
            Origin::RuleTest => "rule test: ",
            _ => "",
        };
        let layout = crate::report::TextLayout {
            width: self.columns,
            wraps_sentences: false,
            is_utf8: self.state.theme.is_utf8,
        };
        let columns = self.columns.saturating_sub(purpose.len());
        let flags = self.names.changes(&own, &Config::new(), layout, columns);
        let flags = if own.is_empty() { "engine's defaults".to_owned() } else { flags };
        cut(&clean(&format!("{purpose}{flags}")), self.columns, self.state.theme).into_owned()
    }
}

fn cause_text(trial: &ListedTrial) -> String {
    let message = trial.reason.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
    let code = trial.reason_code.as_deref().unwrap_or("unknown cause");
    clean(&format!("{code}: {message}")).into_owned()
}

/// Returns the difference from the defaults in percent.
fn change_text(value: f64, baseline: f64) -> String {
    match 100.0 * (value / baseline - 1.0) {
        share if !share.is_finite() => String::new(),
        share if share.abs() >= 1000.0 => format!("{:.1}x", value / baseline),
        share => format!("{share:+.1} %"),
    }
}
