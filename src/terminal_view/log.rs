//! The panel with the last lines of a log.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::panel::ViewPanel;
use super::state::ViewState;
use super::text::fold;
use crate::observation::LaunchStage;

pub(super) fn draw_log(frame: &mut Frame<'_>, place: Rect, state: &ViewState) {
    let (title, lines) = log_of(state);
    let inner = state.theme.frame(&title, ViewPanel::Log, state.focus);
    let (columns, rows) = (usize::from(place.width.saturating_sub(2)), usize::from(place.height.saturating_sub(2)));
    let scrolled = if state.focus == ViewPanel::Log { state.scrolled } else { 0 };
    // Lines are folded from the end, until the panel is full.
    let needed = rows + scrolled;
    let mut folded: Vec<String> = Vec::new();
    for line in lines.iter().rev() {
        folded.extend(fold(line, columns).into_iter().rev());
        if folded.len() >= needed {
            break;
        }
    }
    let skipped = scrolled.min(folded.len().saturating_sub(rows));
    let mut shown: Vec<_> = folded.into_iter().skip(skipped).take(rows).map(Line::raw).collect();
    shown.reverse();
    frame.render_widget(Paragraph::new(shown).block(inner), place);
}

/// Returns title and lines of the log to show: that of the selected trial, or else that of the current launch.
fn log_of(state: &ViewState) -> (String, Vec<String>) {
    let none = |text: &str| ("Log".to_owned(), vec![text.to_owned()]);
    let Some(observation) = &state.data.observation else { return none("") };
    let launch = state.selected_launch().or(observation.running.first().filter(|_| state.selected.is_none()));
    if let Some(launch) = launch {
        let is_empty = launch.log_lines.is_empty();
        let lines = if is_empty { vec!["the log is still empty".to_owned()] } else { launch.log_lines.clone() };
        let is_live = launch.stage != LaunchStage::Interrupted;
        return (format!("Log of trial {}{}", launch.number, if is_live { " (live)" } else { "" }), lines);
    }
    let Some(number) = state.selected_number() else { return none("no trial yet") };
    let Some(detail) = state.detail(number) else { return (format!("Log of trial {number}"), Vec::new()) };
    let lines = match (detail.log_lines.is_empty(), &detail.scored.trial.log) {
        (false, _) => detail.log_lines.clone(),
        (true, Some(_)) => vec!["the log is empty or gone".to_owned()],
        (true, None) => vec!["no process was started".to_owned()],
    };
    (format!("Log of trial {number}"), lines)
}
