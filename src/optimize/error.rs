//! Errors in a caller's messages.

use serde_json::Value as Json;
use thiserror::Error;

/// Maximum number of characters of a caller's text in a message.
const MAX_QUOTED: usize = 80;

/// A line that cannot be followed. It ends the run.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum ProtocolError {
    #[error("the line is not UTF-8")]
    NotText,
    #[error("the line is not JSON ({reason}): {line}")]
    NotJson { reason: String, line: String },
    #[error("{place} is missing")]
    Missing { place: String },
    #[error("{place} is {found}, expected {expected}")]
    Unfit { place: String, found: String, expected: String },
    #[error("{place} repeats {found}")]
    Repeated { place: String, found: String },
    #[error("{place} is {found}: {problem}")]
    Unusable { place: String, found: String, problem: String },
    #[error("{place}: {reason} in {expression:?}")]
    Expression { place: String, expression: String, reason: String },
    #[error("the {message} message came {when}")]
    OutOfTurn { message: &'static str, when: &'static str },
}

impl ProtocolError {
    /// Returns the next step for the caller.
    #[must_use]
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::OutOfTurn { .. } => "send one space message, then ask and tell messages, then an end message",
            _ => "docs/src/optimize.md shows each message",
        }
    }

    pub(super) fn unexpected(place: impl Into<String>, found: &Json, expected: impl Into<String>) -> Self {
        Self::Unfit { place: place.into(), found: quote(&found.to_string()), expected: expected.into() }
    }

    pub(super) fn unusable(place: impl Into<String>, found: &Json, problem: impl Into<String>) -> Self {
        Self::Unusable { place: place.into(), found: quote(&found.to_string()), problem: problem.into() }
    }

    pub(super) fn repeated(place: impl Into<String>, found: &Json) -> Self {
        Self::Repeated { place: place.into(), found: quote(&found.to_string()) }
    }
}

/// Returns a text, shortened if it is long.
pub(super) fn quote(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
