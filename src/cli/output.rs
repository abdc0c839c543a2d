//! Standard output.

use std::io::Write;

use super::Failure;

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
