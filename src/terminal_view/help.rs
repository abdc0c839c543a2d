//! The window that explains keys and symbols.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::draw::window;
use super::state::{ViewPurpose, ViewState};
use super::theme::{FAINT, OVER_LIMIT, STRONG};

pub(super) fn draw_help(frame: &mut Frame<'_>, area: Rect, state: &ViewState) {
    let theme = state.theme;
    let leave = match state.purpose {
        ViewPurpose::Watch => "leave; the study goes on",
        ViewPurpose::Tune => "leave the view; the study goes on with plain output",
    };
    let interrupt = match state.purpose {
        ViewPurpose::Watch => "leave",
        ViewPurpose::Tune => "stop the study in order; again: at once",
    };
    let keys = [
        ("Up Down, j k", "select a trial, or scroll the text of the panel"),
        ("PgUp PgDn, Home End", "the same by pages, to the first or the last one"),
        ("Tab, Shift-Tab", "next, previous panel"),
        ("b", "select the best trial"),
        ("Esc", "select the newest trial again"),
        ("s", "choose among the studies of the database"),
        ("q", leave),
        ("Ctrl-C", interrupt),
        ("Ctrl-Z", "suspend; `fg` resumes"),
        ("Ctrl-L", "draw the screen again"),
    ];
    let symbols = [
        (theme.star(), theme.best(), "the best configuration so far"),
        (theme.measured(), theme.good(), "measured, within the limits"),
        (OVER_LIMIT, theme.warning(), "measured, over a limit"),
        (theme.failed(), theme.bad(), "launched and failed"),
        (theme.rejected(), FAINT, "rejected before a launch"),
        (theme.running(), theme.active(), "running"),
        (theme.stopped(), theme.warning(), "interrupted; the next run launches it again"),
    ];
    let mut lines: Vec<Line<'_>> = keys
        .iter()
        .map(|(key, effect)| Line::from(vec![Span::styled(format!("{key:<20}"), STRONG), Span::raw(*effect)]))
        .collect();
    lines.push(Line::default());
    for (symbol, style, meaning) in symbols {
        lines.push(Line::from(vec![Span::styled(format!("{symbol:<20}"), style), Span::raw(meaning)]));
    }
    lines.push(Line::default());
    lines.push(Line::styled("Changes are against trial 0, the engine's defaults.", FAINT));
    let rows = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let place = window(frame, area, 76, rows);
    let frame_of_window = theme.plain_frame("Help").border_style(theme.active());
    frame.render_widget(Paragraph::new(lines).block(frame_of_window), place);
}
