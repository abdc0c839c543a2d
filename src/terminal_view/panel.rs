//! The panels of the view, and their places by the size of the terminal.

use ratatui::layout::{Constraint, Layout, Rect};

/// A panel of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViewPanel {
    Trials,
    Launches,
    Selected,
    Best,
    Objective,
    LoadCurve,
    Log,
}

/// The places of everything that is drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ViewLayout {
    pub header: Rect,
    /// The visible panels.
    pub panels: Vec<(ViewPanel, Rect)>,
    /// The names of the panels that share one place. Empty if all are visible.
    pub tabs: Option<Rect>,
    pub footer: Rect,
}

/// The facts about a study that the layout depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayoutNeeds {
    pub focus: ViewPanel,
    /// Whether the study searches for the highest load.
    pub has_load_curve: bool,
    pub launches: u16,
}

/// The size below which nothing useful can be shown.
const MIN_COLUMNS: u16 = 30;
const MIN_ROWS: u16 = 8;

/// The size below which only the focused panel is shown.
const SMALL_COLUMNS: u16 = 60;
const SMALL_ROWS: u16 = 18;

/// The smallest size that shows all panels.
const MEDIUM_COLUMNS: u16 = 110;
const MEDIUM_ROWS: u16 = 32;

/// The fewest columns with the best and the selected trial beside each other.
const LARGE_COLUMNS: u16 = 160;

impl ViewPanel {
    /// Returns the panels in the order of the Tab key.
    pub(super) fn all(has_load_curve: bool) -> Vec<Self> {
        let mut panels = vec![Self::Trials, Self::Launches, Self::Log, Self::Selected, Self::Best, Self::Objective];
        panels.extend(has_load_curve.then_some(Self::LoadCurve));
        panels
    }

    /// Returns the name in the list of panels.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Trials => "trials",
            Self::Launches => "launch",
            Self::Selected => "trial",
            Self::Best => "best",
            Self::Objective => "objective",
            Self::LoadCurve => "load curve",
            Self::Log => "log",
        }
    }
}

impl ViewLayout {
    /// Returns the places within a terminal of this size. `None` if it is too small.
    pub(super) fn new(area: Rect, needs: LayoutNeeds) -> Option<Self> {
        if area.width < MIN_COLUMNS || area.height < MIN_ROWS {
            return None;
        }
        let header_rows = if area.height < SMALL_ROWS { 1 } else { 2 };
        let [header, body, footer] =
            Layout::vertical([Constraint::Length(header_rows), Constraint::Min(1), Constraint::Length(1)]).areas(area);
        let (tabs, panels) = if area.width < SMALL_COLUMNS || area.height < SMALL_ROWS {
            (None, vec![(needs.focus, body)])
        } else if area.width < MEDIUM_COLUMNS || area.height < MEDIUM_ROWS {
            small(body, needs)
        } else {
            (None, wide(body, needs))
        };
        Some(Self { header, panels, tabs, footer })
    }

    /// Returns the rows of text of a panel; 0 if it is not visible.
    pub(super) fn rows_of(&self, panel: ViewPanel) -> u16 {
        let place = self.panels.iter().find(|(shown, _)| *shown == panel);
        place.map_or(0, |(_, place)| place.height.saturating_sub(2))
    }
}

/// Returns the rows of the panel of launches: two lines for each and the frame.
fn launch_rows(needs: LayoutNeeds, most: u16) -> u16 {
    (2 * needs.launches.max(1) + 2).min(most)
}

/// Two panels are always visible. The others share the place below.
fn small(body: Rect, needs: LayoutNeeds) -> (Option<Rect>, Vec<(ViewPanel, Rect)>) {
    let below = match needs.focus {
        ViewPanel::Trials | ViewPanel::Launches => ViewPanel::Log,
        other => other,
    };
    let [trials, launches, tabs, pane] = Layout::vertical([
        Constraint::Fill(5),
        Constraint::Length(launch_rows(needs, body.height / 4)),
        Constraint::Length(1),
        Constraint::Fill(4),
    ])
    .areas(body);
    (Some(tabs), vec![(ViewPanel::Trials, trials), (ViewPanel::Launches, launches), (below, pane)])
}

fn wide(body: Rect, needs: LayoutNeeds) -> Vec<(ViewPanel, Rect)> {
    let is_large = body.width >= LARGE_COLUMNS;
    let [left, right] = Layout::horizontal([Constraint::Fill(56), Constraint::Fill(44)]).areas(body);
    let chart_rows = if is_large { 13 } else { 9 };
    let [trials, charts] = Layout::vertical([Constraint::Min(8), Constraint::Length(chart_rows)]).areas(left);
    let mut panels = vec![(ViewPanel::Trials, trials)];
    if needs.has_load_curve {
        let [objective, curve] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(charts);
        panels.extend([(ViewPanel::Objective, objective), (ViewPanel::LoadCurve, curve)]);
    } else {
        panels.push((ViewPanel::Objective, charts));
    }
    let launches = Constraint::Length(launch_rows(needs, body.height / 4));
    if is_large {
        let [launches, both, log] =
            Layout::vertical([launches, Constraint::Fill(9), Constraint::Fill(10)]).areas(right);
        let [best, selected] = Layout::horizontal([Constraint::Fill(4), Constraint::Fill(5)]).areas(both);
        panels.extend([
            (ViewPanel::Launches, launches),
            (ViewPanel::Best, best),
            (ViewPanel::Selected, selected),
            (ViewPanel::Log, log),
        ]);
    } else {
        let [launches, best, selected, log] =
            Layout::vertical([launches, Constraint::Fill(8), Constraint::Fill(12), Constraint::Fill(10)]).areas(right);
        panels.extend([
            (ViewPanel::Launches, launches),
            (ViewPanel::Best, best),
            (ViewPanel::Selected, selected),
            (ViewPanel::Log, log),
        ]);
    }
    panels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_layout_without_overlaps_and_each_panel_can_be_reached() {
        for has_load_curve in [false, true] {
            for (columns, rows) in [(30, 8), (40, 10), (59, 40), (80, 24), (109, 33), (120, 40), (200, 60), (400, 200)]
            {
                for focus in ViewPanel::all(has_load_curve) {
                    let area = Rect::new(0, 0, columns, rows);
                    let layout = ViewLayout::new(area, LayoutNeeds { focus, has_load_curve, launches: 9 }).unwrap();
                    assert!(layout.rows_of(focus) >= 3, "{focus:?} at {columns}x{rows}");
                    let mut places: Vec<_> = layout.panels.iter().map(|(_, place)| *place).collect();
                    places.extend([layout.header, layout.footer]);
                    places.extend(layout.tabs);
                    for (index, place) in places.iter().enumerate() {
                        assert!(area.union(*place) == area, "{place} at {columns}x{rows}");
                        let overlaps = places[index + 1..].iter().any(|other| !place.intersection(*other).is_empty());
                        assert!(!overlaps, "{place} at {columns}x{rows}");
                    }
                }
            }
        }
        let needs = LayoutNeeds { focus: ViewPanel::Trials, has_load_curve: false, launches: 0 };
        assert!(ViewLayout::new(Rect::new(0, 0, 29, 50), needs).is_none());
        assert!(ViewLayout::new(Rect::new(0, 0, 0, 0), needs).is_none());
    }
}
