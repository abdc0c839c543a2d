//! The window with the studies of the database.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::draw::window;
use super::state::ViewState;
use super::text::{clean, cut};
use super::theme::SELECTED;

/// Columns and rows of the window, if the terminal has them.
const COLUMNS: u16 = 72;
const MOST_ROWS: u16 = 18;

pub(super) fn draw_chooser(frame: &mut Frame<'_>, area: Rect, state: &ViewState) {
    let (theme, studies) = (state.theme, &state.data.studies);
    let rows = u16::try_from(studies.len() + 2).unwrap_or(u16::MAX).min(MOST_ROWS);
    let place = window(frame, area, COLUMNS, rows);
    let visible = usize::from(place.height.saturating_sub(2));
    let marked = state.chooser.unwrap_or_default();
    let first = (marked + 1).saturating_sub(visible);
    let line = |(index, observed): (usize, &crate::observation::ObservedStudy)| {
        let mark = if observed.is_running { theme.running() } else { " " };
        let counts = observed.counts;
        let text = format!(
            "{mark} {}  {} measured, {} failed, since {}",
            clean(&observed.study.name),
            counts.measured,
            counts.failed,
            clean(&observed.study.created_at).get(..16).unwrap_or_default().replace('T', " "),
        );
        let text = cut(&text, usize::from(place.width.saturating_sub(2)), theme).into_owned();
        Line::styled(text, if index == marked { SELECTED } else { ratatui::style::Style::new() })
    };
    let lines: Vec<_> = studies.iter().enumerate().skip(first).take(visible).map(line).collect();
    let title = "Studies (Enter shows one, Esc closes)";
    let frame_of_window = theme.plain_frame(title).border_style(theme.active());
    frame.render_widget(Paragraph::new(lines).block(frame_of_window), place);
}
