//! Writes results to standard output and notes to standard error.

use std::io::Write;

use super::{CommandFailure, GlobalOptions};
use crate::report::{TextLayout, wrap_text};
use crate::trial::{for_terminal, json_for_terminal, redact};

/// Returns a line for standard error without the control characters and secrets that quoted errors and logs may
/// contain.
pub(super) fn sanitized(text: &str) -> String {
    for_terminal(&redact(text)).into_owned()
}

/// Blanks before the further lines of a note.
pub(super) const INDENT: usize = 2;

/// Columns of a terminal that does not report its size.
const USUAL_COLUMNS: usize = 80;

/// Returns the layout of standard error or output.
pub(super) fn layout_of(output: &console::Term) -> TextLayout {
    if !output.is_term() {
        return TextLayout::pipe();
    }
    let columns = output.size_checked().map_or(USUAL_COLUMNS, |(_, columns)| columns.into());
    // Pseudo terminals of programs may have a width of zero.
    TextLayout::terminal(if columns == 0 { USUAL_COLUMNS } else { columns })
}

/// Writes text and a line end. Control characters except line ends and tabs become blanks: the text may quote logs,
/// servers and files.
pub(super) fn print(text: &str) -> Result<(), CommandFailure> {
    print_styled(&for_terminal(text))
}

/// Writes text with this program's own colours. The caller has passed all other parts through [`for_terminal`].
pub(super) fn print_styled(text: &str) -> Result<(), CommandFailure> {
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(text.trim_end_matches('\n').as_bytes())?;
    stdout.write_all(b"\n")?;
    stdout.flush()?;
    Ok(())
}

/// Writes one JSON document.
pub(super) fn print_json(json: &serde_json::Value) -> Result<(), CommandFailure> {
    print(&json_for_terminal(&format!("{json:#}")))
}

/// Writes a line to standard error that is neither a result nor an error, unless `--quiet` is set.
pub(super) fn note(global: &GlobalOptions, text: &str) {
    if global.quiet {
        return;
    }
    let line = if global.log_format.is_json() {
        json_for_terminal(&serde_json::json!({"event": "note", "text": text}).to_string()).into_owned()
    } else {
        wrap_text(&sanitized(text), layout_of(&console::Term::stderr()), INDENT)
    };
    // A failed write to standard error cannot be reported anywhere, so the error is ignored.
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}
