//! Colours and symbols of the view. Each state has a symbol of its own, so that nothing is shown by its colour alone.

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::{bar, border};
use ratatui::widgets::Block;

use super::panel::ViewPanel;

/// The mark of a measurement over a limit.
pub(super) const OVER_LIMIT: &str = "!";

/// The style of titles and keys.
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

/// The style of the selected row.
pub(super) const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// The style of labels and frames. A colour would be invisible on some backgrounds.
pub(super) const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

/// The properties of the terminal that colours and symbols depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ViewTheme {
    pub has_color: bool,
    /// Whether the terminal shows other characters than ASCII.
    pub is_utf8: bool,
}

const ASCII_BORDER: border::Set<'_> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

const ASCII_BARS: bar::Set<'_> = bar::Set {
    full: "#",
    seven_eighths: "#",
    three_quarters: "=",
    five_eighths: "=",
    half: "-",
    three_eighths: "-",
    one_quarter: ".",
    one_eighth: ".",
    empty: " ",
};

impl ViewTheme {
    /// Returns the theme of this process's terminal. Colours are off if `NO_COLOR` is set.
    pub(crate) fn of_environment() -> Self {
        let has_color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { has_color, is_utf8: crate::report::TextLayout::terminal(0).is_utf8 }
    }

    fn colored(self, color: Color) -> Style {
        if self.has_color { Style::new().fg(color) } else { Style::new() }
    }

    pub(super) fn good(self) -> Style {
        self.colored(Color::Green)
    }

    pub(super) fn best(self) -> Style {
        self.good().add_modifier(Modifier::BOLD)
    }

    pub(super) fn bad(self) -> Style {
        self.colored(Color::Red)
    }

    pub(super) fn warning(self) -> Style {
        self.colored(Color::Yellow)
    }

    pub(super) fn active(self) -> Style {
        self.colored(Color::Cyan)
    }

    fn either(self, fine: &'static str, plain: &'static str) -> &'static str {
        if self.is_utf8 { fine } else { plain }
    }

    pub(super) fn measured(self) -> &'static str {
        self.either("✓", "+")
    }

    pub(super) fn failed(self) -> &'static str {
        self.either("✗", "x")
    }

    pub(super) fn rejected(self) -> &'static str {
        self.either("–", "-")
    }

    pub(super) fn running(self) -> &'static str {
        self.either("▶", ">")
    }

    pub(super) fn stopped(self) -> &'static str {
        self.either("■", "#")
    }

    pub(super) fn star(self) -> &'static str {
        self.either("★", "*")
    }

    pub(super) fn next(self) -> &'static str {
        self.either(" › ", " > ")
    }

    pub(super) fn ellipsis(self) -> &'static str {
        self.either("…", "...")
    }

    pub(super) fn separator(self) -> &'static str {
        self.either(" · ", " - ")
    }

    pub(super) fn arrows(self) -> &'static str {
        self.either("↑↓", "arrows")
    }

    pub(super) fn progress(self) -> [&'static str; 2] {
        if self.is_utf8 { ["█", "░"] } else { ["#", "-"] }
    }

    pub(super) fn bars(self) -> bar::Set<'static> {
        if self.is_utf8 { bar::NINE_LEVELS } else { ASCII_BARS }
    }

    /// Returns the frame of a panel. The focused one stands out.
    pub(super) fn frame(self, title: &str, panel: ViewPanel, focus: ViewPanel) -> Block<'static> {
        let is_focused = panel == focus;
        let style = if is_focused { self.active() } else { FAINT };
        let title_style = if is_focused { self.active().add_modifier(Modifier::BOLD) } else { STRONG };
        self.plain_frame(title).border_style(style).title_style(title_style)
    }

    pub(super) fn plain_frame(self, title: &str) -> Block<'static> {
        let set = if self.is_utf8 { border::ROUNDED } else { ASCII_BORDER };
        Block::bordered().border_set(set).title(format!(" {title} ")).title_style(STRONG)
    }
}
