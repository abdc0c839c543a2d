//! A shell script that starts the server.

use std::fmt::Write;

use super::{Exporter, Winner};
use crate::trial::REDACTED;

pub(super) struct Shell;

impl Exporter for Shell {
    fn name(&self) -> &'static str {
        "sh"
    }

    fn summary(&self) -> &'static str {
        "a script that starts the server; its arguments are passed on"
    }

    fn executable(&self) -> bool {
        true
    }

    fn export(&self, winner: &Winner<'_>) -> String {
        let trial = &winner.scored.trial;
        let mut script = String::from("#!/bin/sh\n");
        // Writing to a string cannot fail.
        let _ = writeln!(script, "# setpoint study {}, trial {}", winner.study.name, trial.number);
        let _ = writeln!(script, "# {}", winner.headline().replace(char::is_control, " "));
        let version = trial.engine_version.as_deref().unwrap_or("unknown");
        let _ = writeln!(script, "# engine version {version}");
        for line in winner.evidence() {
            let _ = writeln!(script, "# {}", line.replace(char::is_control, " "));
        }
        let _ = writeln!(
            script,
            "# Further arguments are passed on to the engine, for instance --host 0.0.0.0 --port 8000."
        );
        script.push_str("set -eu\n");
        for (name, value) in &trial.launch.env {
            if value == REDACTED {
                let _ = writeln!(script, ": \"${{{name}:?is a secret and was not stored: set it}}\"");
            } else {
                let _ = writeln!(script, "export {name}={}", quote(value));
            }
        }
        let words: Vec<_> = winner.command().iter().map(|word| quote(word)).collect();
        let _ = writeln!(script, "exec {} \"$@\"", lines(&words));
        script
    }
}

/// Quotes a word for the shell where it needs it. A NUL byte cannot occur in an argument.
#[must_use]
pub fn quote(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| word.replace('\0', ""), std::borrow::Cow::into_owned)
}

/// One flag a line, so that two exports can be compared.
fn lines(words: &[String]) -> String {
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
