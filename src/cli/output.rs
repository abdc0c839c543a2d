//! Standard output.

use std::io::Write;

use super::{Failure, Global};

/// Writes text and a line end.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(text.trim_end_matches('\n').as_bytes())?;
    stdout.write_all(b"\n")?;
    stdout.flush()?;
    Ok(())
}

/// Writes one JSON document.
pub(super) fn print_json(json: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{json:#}"))
}

/// Writes a line to standard error that is no result and no error.
pub(super) fn note(global: &Global, text: &str) {
    if global.quiet {
        return;
    }
    let line = if global.log_format.is_json() {
        serde_json::json!({"event": "note", "text": text}).to_string()
    } else {
        text.to_owned()
    };
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}
