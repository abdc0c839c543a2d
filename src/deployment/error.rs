//! The reason why a deployment cannot be read.

use std::fmt;

/// An error in a deployment: the place, the problem and a hint for its repair. It contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct DeploymentError {
    /// The path of the file, or a description of the text.
    pub place: String,
    pub line: Option<usize>,
    pub problem: String,
    pub hint: Option<String>,
}

impl fmt::Display for DeploymentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

/// A problem at a line of a text, before its place is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LineProblem {
    pub(super) line: Option<usize>,
    pub(super) problem: String,
    pub(super) hint: Option<String>,
}

impl LineProblem {
    pub(super) fn new(line: impl Into<Option<usize>>, problem: impl Into<String>) -> Self {
        Self { line: line.into(), problem: problem.into(), hint: None }
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(super) fn at(self, place: impl Into<String>) -> DeploymentError {
        DeploymentError { place: place.into(), line: self.line, problem: self.problem, hint: self.hint }
    }
}
