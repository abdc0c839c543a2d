//! Exports the environment variables of a trial as a file that `docker --env-file` and systemd's `EnvironmentFile=`
//! read in the same way.
//!
//! Docker takes a line as it is: quotes and backslashes are a part of the value. systemd removes quotes around a value,
//! backslashes, and blanks at both ends. A value on that they differ has no common spelling and is refused.
//!
//! The arguments are not in the file: no engine reads them from a variable.

use std::fmt::Write;

use super::{ExportError, ExportedTrial, Exporter, quote};
use crate::trial::{is_control, without_controls};

pub(super) struct EnvExporter;

const HINT: &str = "use --format sh or systemd, which can quote the value";

impl Exporter for EnvExporter {
    fn name(&self) -> &'static str {
        "env"
    }

    fn summary(&self) -> &'static str {
        "environment variables as a file for `docker --env-file` and systemd's EnvironmentFile="
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let variables = winner.variables();
        let mut file = String::new();
        let words: Vec<_> = winner.command().iter().map(|word| quote(word)).collect();
        let mut comments = winner.description();
        comments.push(format!("for the command: {}", words.join(" ")));
        comments.extend(
            variables.impossible.iter().map(|name| format!("omitted, because no variable can have this name: {name}")),
        );
        for comment in comments {
            let _ = writeln!(file, "# {}", without_controls(&comment));
        }
        for (name, value) in variables.values {
            if let Some(reason) = find_difference(value) {
                let problem = format!("docker and systemd read the value of {name} in different ways: it {reason}");
                return Err(ExportError::unsuitable(problem, HINT));
            }
            let _ = writeln!(file, "{name}={value}");
        }
        for name in variables.secrets {
            let _ = writeln!(file, "# A secret, which was not stored: insert it and remove the #.\n#{name}=");
        }
        Ok(file)
    }
}

/// Returns the property of a value that docker and systemd read in different ways.
fn find_difference(value: &str) -> Option<&'static str> {
    if value.contains(|c| is_control(c) && c != '\t') {
        Some("contains a line end or another control character")
    } else if value.contains('\\') {
        Some("contains a backslash")
    } else if value.starts_with(['"', '\'']) {
        Some("begins with a quote")
    } else if value.trim() != value {
        Some("begins or ends with a blank")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_read_in_two_ways_is_refused() {
        for value in ["a\nb", "a\\b", "\"a\"", "'a", " a", "a\t", "\u{2028}"] {
            assert!(find_difference(value).is_some(), "{value:?}");
        }
        for value in ["", "8", "a b", "{\"a\": 'b'}", "$HOME `x` %n", "a=b#c;d", "a\tb", "\u{e9}"] {
            assert_eq!(find_difference(value), None, "{value:?}");
        }
    }
}
