//! Exports a shell script that starts the server.

use std::fmt::Write;

use super::{ExportError, ExportedTrial, Exporter};
use crate::engine::is_variable;
use crate::trial::{REDACTED, is_control, without_controls};

pub(super) struct ShellExporter;

impl Exporter for ShellExporter {
    fn name(&self) -> &'static str {
        "sh"
    }

    fn summary(&self) -> &'static str {
        "a shell script that starts the server; its arguments are passed on to the engine"
    }

    fn executable(&self) -> bool {
        true
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let trial = &winner.scored.trial;
        let mut script = String::from("#!/bin/sh\n");
        // Writing to a string cannot fail.
        for line in winner.description() {
            comment(&mut script, &line);
        }
        comment(&mut script, "Further arguments are passed on to the engine, for instance --host 0.0.0.0 --port 8000.");
        script.push_str("set -eu\n");
        for (name, value) in &trial.launch.env {
            if !is_variable(name) {
                comment(&mut script, &format!("omitted, because a shell cannot set a variable of this name: {name}"));
            } else if value.contains(REDACTED) {
                let _ = writeln!(script, ": \"${{{name}:?is a secret and was not stored: set it}}\"");
            } else {
                let _ = writeln!(script, "export {name}={}", quote(value));
            }
        }
        if winner.command().iter().any(|word| word.contains(REDACTED)) {
            let text = format!("a secret was not stored: replace {REDACTED} with it and remove this line");
            let _ = writeln!(script, "echo {} >&2; exit 1", quote(&text));
        }
        let words: Vec<_> = winner.command().iter().map(|word| quote(word)).collect();
        let _ = writeln!(script, "exec {} \"$@\"", lines(&words));
        Ok(script)
    }
}

/// Writes a comment of one line. Control characters, including line ends, become blanks.
pub(super) fn comment(script: &mut String, text: &str) {
    let _ = writeln!(script, "# {}", without_controls(text));
}

/// Quotes a word for the shell if it needs quotes. NUL bytes are removed, because arguments cannot contain them.
///
/// Control characters other than line ends and tabs are written as escapes of `printf`, so that neither an editor nor a
/// terminal obeys them. Line ends at the end of such a word are lost, because `$(...)` removes them.
#[must_use]
pub(crate) fn quote(word: &str) -> String {
    let word = word.replace('\0', "");
    if !word.contains(|c| is_control(c) && c != '\n' && c != '\t') {
        return shlex::try_quote(&word).map_or_else(|_| String::new(), std::borrow::Cow::into_owned);
    }
    let mut format = String::new();
    for c in word.chars() {
        match c {
            '%' => format.push_str("%%"),
            '\\' => format.push_str("\\\\"),
            '\'' => format.push_str("\\047"),
            c if is_control(c) => {
                let mut bytes = [0; 4];
                let escapes = c.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\{byte:03o}"));
                format.extend(escapes);
            }
            c => format.push(c),
        }
    }
    format!("\"$(printf '{format}')\"")
}

/// Joins the words with one flag per line, so that two exports can be compared.
pub(super) fn lines(words: &[String]) -> String {
    let mut text = String::new();
    for (index, word) in words.iter().enumerate() {
        let separator = match index {
            0 => "",
            _ if word.starts_with("--") => " \\\n  ",
            _ => " ",
        };
        text.push_str(separator);
        text.push_str(word);
    }
    text
}
