//! Draws the whole view.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};

use super::panel::ViewPanel;
use super::state::{ViewPurpose, ViewState};
use super::theme::{FAINT, SELECTED, STRONG};
use super::{charts, chooser, configuration, header, help, launches, log, trials};

/// Draws the state. The state's size is that of the frame.
pub(super) fn draw(frame: &mut Frame<'_>, state: &ViewState) {
    let Some(layout) = state.layout() else {
        let text = format!("terminal too small\n{} x {}, at least 30 x 8", state.size.width, state.size.height);
        frame.render_widget(Paragraph::new(text), frame.area());
        return;
    };
    header::draw_header(frame, layout.header, state);
    for (panel, place) in &layout.panels {
        match panel {
            ViewPanel::Trials => trials::draw_trials(frame, *place, state),
            ViewPanel::Launches => launches::draw_launches(frame, *place, state),
            ViewPanel::Selected => configuration::draw_selected(frame, *place, state),
            ViewPanel::Best => configuration::draw_best(frame, *place, state),
            ViewPanel::Objective => charts::draw_objective(frame, *place, state),
            ViewPanel::LoadCurve => charts::draw_load_curve(frame, *place, state),
            ViewPanel::Log => log::draw_log(frame, *place, state),
        }
    }
    if let Some(place) = layout.tabs {
        draw_tabs(frame, place, state, &layout.panels);
    }
    draw_footer(frame, layout.footer, state);
    if state.chooser.is_some() {
        chooser::draw_chooser(frame, frame.area(), state);
    }
    if state.is_help_open {
        help::draw_help(frame, frame.area(), state);
    }
}

/// Draws the names of the panels that share the place below. The visible one stands out.
fn draw_tabs(frame: &mut Frame<'_>, place: Rect, state: &ViewState, shown: &[(ViewPanel, Rect)]) {
    let has_curve = state.data.observation.as_ref().and_then(|observation| observation.objective.as_ref());
    let has_curve = has_curve.is_some_and(|objective| objective.load_goal.is_some());
    let others = ViewPanel::all(has_curve);
    let others = others.into_iter().filter(|panel| !matches!(panel, ViewPanel::Trials | ViewPanel::Launches));
    let mut spans = vec![Span::raw(" ")];
    for panel in others {
        let is_shown = shown.iter().any(|(visible, _)| *visible == panel);
        let style = if is_shown { SELECTED } else { FAINT };
        spans.extend([Span::styled(format!(" {} ", panel.name()), style), Span::raw(" ")]);
    }
    frame.render_widget(Line::from(spans), place);
}

/// Draws the keys, or the problem that the user should know.
fn draw_footer(frame: &mut Frame<'_>, place: Rect, state: &ViewState) {
    let theme = state.theme;
    if let Some(problem) = &state.data.problem {
        let text = super::text::clean(problem);
        let text = super::text::cut(&text, usize::from(place.width), theme).into_owned();
        frame.render_widget(Line::styled(text, theme.bad()), place);
        return;
    }
    if state.is_stopping && state.purpose == ViewPurpose::Tune {
        let text = " stopping in order; Ctrl-C again stops at once";
        frame.render_widget(Line::styled(text, theme.warning()), place);
        return;
    }
    let leave = match state.purpose {
        ViewPurpose::Watch => "quit",
        ViewPurpose::Tune => "plain output",
    };
    let mut keys = vec![("?", "help"), ("q", leave), ("Tab", "next panel"), (theme.arrows(), "select or scroll")];
    keys.push(("b", "best"));
    if state.data.studies.len() > 1 {
        keys.push(("s", "studies"));
    }
    if state.purpose == ViewPurpose::Tune {
        keys.insert(2, ("Ctrl-C", "stop"));
    }
    let mut spans = Vec::new();
    let mut columns = 0;
    for (key, effect) in keys {
        columns += super::text::width(key) + effect.len() + 4;
        if columns > usize::from(place.width) {
            break;
        }
        spans.extend([Span::raw(" "), Span::styled(key, STRONG), Span::raw(format!(" {effect}  "))]);
    }
    frame.render_widget(Line::from(spans), place);
}

/// Returns a place of at most this size in the middle, cleared for a window.
pub(super) fn window(frame: &mut Frame<'_>, area: Rect, columns: u16, rows: u16) -> Rect {
    let (width, height) = (columns.min(area.width), rows.min(area.height));
    let (x, y) = (area.x + (area.width - width) / 2, area.y + (area.height - height) / 2);
    let place = Rect { x, y, width, height };
    frame.render_widget(Clear, place);
    place
}
