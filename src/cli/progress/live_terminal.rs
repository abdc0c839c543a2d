//! The terminal of a live line that stays on one row, also while the window is resized.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use console::{Term, measure_text_width};
use indicatif::TermLike;

use crate::cli::output::layout_of;

/// Standard error as a terminal with one live line. It does not fill the line with blanks, so that a narrower window has
/// nothing to wrap but the text. Rows into which the window has wrapped the text are cleared with it.
#[derive(Debug)]
pub(super) struct LiveTerminal {
    /// Buffered, so that each update is one write.
    term: Term,
    /// Whether the terminal wraps lines again when its window is resized.
    reflows: bool,
    drawn: Mutex<DrawnLine>,
}

/// The columns of the drawn text, and those of the terminal at that time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DrawnLine {
    text: usize,
    terminal: usize,
}

impl DrawnLine {
    /// Returns the number of rows above the cursor's that the text takes in a window of this width.
    fn rows_above(self, columns: usize) -> usize {
        if columns >= self.terminal || columns == 0 { 0 } else { self.text.div_ceil(columns).saturating_sub(1) }
    }
}

impl LiveTerminal {
    pub(super) fn stderr() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        Self { term: Term::buffered_stderr(), reflows: has_reflow(variable), drawn: Mutex::default() }
    }

    fn drawn(&self) -> MutexGuard<'_, DrawnLine> {
        // A panic elsewhere must not end the progress display.
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn columns(&self) -> usize {
        layout_of(&self.term).width
    }
}

/// Returns whether the terminal wraps lines again when its window is resized. Exceptions are xterm, GNU screen and the
/// console of Linux, which cut them.
fn has_reflow(variable: impl Fn(&str) -> Option<String>) -> bool {
    let is_set = |name| variable(name).is_some_and(|text| !text.is_empty());
    !is_set("XTERM_VERSION") && !is_set("STY") && variable("TERM").as_deref() != Some("linux")
}

impl TermLike for LiveTerminal {
    fn width(&self) -> u16 {
        u16::try_from(self.columns()).unwrap_or(u16::MAX)
    }

    fn height(&self) -> u16 {
        TermLike::height(&self.term)
    }

    fn move_cursor_up(&self, rows: usize) -> io::Result<()> {
        self.term.move_cursor_up(rows)
    }

    fn move_cursor_down(&self, rows: usize) -> io::Result<()> {
        self.term.move_cursor_down(rows)
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.term.move_cursor_right(columns)
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.term.move_cursor_left(columns)
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.term.write_line(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        // The bar fills its line with blanks.
        if text.trim().is_empty() {
            return Ok(());
        }
        *self.drawn() = DrawnLine { text: measure_text_width(text), terminal: self.columns() };
        self.term.write_str(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        let drawn = std::mem::take(&mut *self.drawn());
        self.term.clear_line()?;
        let rows_above = if self.reflows { drawn.rows_above(self.columns()) } else { 0 };
        for _ in 0..rows_above {
            self.term.move_cursor_up(1)?;
            self.term.clear_line()?;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.term.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_further_rows_only_in_a_narrower_window() {
        let drawn = DrawnLine { text: 78, terminal: 80 };
        assert_eq!(
            [100, 80, 79, 78, 77, 60, 39, 38, 0].map(|columns| drawn.rows_above(columns)),
            [0, 0, 0, 0, 1, 1, 1, 2, 0]
        );
        assert_eq!(DrawnLine::default().rows_above(10), 0);
    }

    #[test]
    fn terminals_that_cut_lines_are_known() {
        let reflows =
            |name: &'static str, text: &'static str| has_reflow(move |asked| (asked == name).then(|| text.to_owned()));
        assert!(reflows("TERM", "xterm-256color") && reflows("TERM", "screen") && reflows("STY", ""));
        assert!(!reflows("XTERM_VERSION", "XTerm(390)") && !reflows("STY", "1.pts") && !reflows("TERM", "linux"));
    }
}
