//! Standard output.

use std::io::Write;

use super::{Failure, Global};
use crate::trial::{for_terminal, json_for_terminal, redact};

/// A line for standard error: without control characters and secrets, which errors and logs may quote.
pub(super) fn shown(text: &str) -> String {
    for_terminal(&redact(text)).into_owned()
}

/// Writes text and a line end. Control characters of logs, servers and files never get to the terminal.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    print_styled(&for_terminal(text))
}

/// Writes text with colours of our own; whatever else it holds has been through [`for_terminal`].
pub(super) fn print_styled(text: &str) -> Result<(), Failure> {
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(text.trim_end_matches('\n').as_bytes())?;
    stdout.write_all(b"\n")?;
    stdout.flush()?;
    Ok(())
}

/// Writes one JSON document.
pub(super) fn print_json(json: &serde_json::Value) -> Result<(), Failure> {
    print(&json_for_terminal(&format!("{json:#}")))
}

/// Writes a line to standard error that is no result and no error.
pub(super) fn note(global: &Global, text: &str) {
    if global.quiet {
        return;
    }
    let line = if global.log_format.is_json() {
        json_for_terminal(&serde_json::json!({"event": "note", "text": text}).to_string()).into_owned()
    } else {
        shown(text)
    };
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}
