//! The cause of a described server's end: by the study's patterns, otherwise by its exit.

use regex::Regex;

use super::regex;
use crate::document::{DocumentError, Section, nearest};
use crate::engine::{EngineEvidence, ProcessExit};
use crate::trial::{Failure, FailureKind, redact, without_controls};

/// A pattern for a line of the log, and the kind of failure that it indicates.
#[derive(Debug)]
pub(super) struct FailurePattern {
    pattern: Regex,
    kind: FailureKind,
}

impl FailurePattern {
    /// Reads one table of `[[engine.failures]]`.
    pub(super) fn read(section: &Section<'_>) -> Result<Self, DocumentError> {
        let pattern: String = section.required("pattern")?;
        let name: String = section.required("kind")?;
        let Some(kind) = FailureKind::ALL.into_iter().find(|kind| kind.name() == name) else {
            let known = FailureKind::ALL.map(FailureKind::name);
            let hint = nearest(&name, known).map(|near| format!("did you mean {near:?}?"));
            let problem = format!("{name:?} is not a kind of failure; there are {}", known.join(", "));
            return Err(section.error("kind", problem, hint));
        };
        Ok(Self { pattern: regex(section, "pattern", &pattern)?, kind })
    }
}

/// The maximum length of a failure's message, in characters.
const MAX_TEXT: usize = 400;

/// Returns the failure of the first pattern that matches a line. If none matches, the failure follows from the exit,
/// and from whether the engine was ready.
pub(super) fn diagnose(evidence: &EngineEvidence<'_>, patterns: &[FailurePattern]) -> Failure {
    let lines = || evidence.log.lines().filter(|line| !line.trim().is_empty());
    let by_pattern = || {
        let mut matches =
            patterns.iter().filter_map(|one| Some((one, lines().find(|line| one.pattern.is_match(line))?)));
        matches.next().map(|(one, line)| Failure { kind: one.kind, message: line.trim().to_owned() })
    };
    // A KILL that the tuner did not send takes precedence over the log.
    let is_killed = evidence.exit == Some(ProcessExit::Signal(9)) && !evidence.ended_by_tuner;
    let failure = if is_killed { None } else { by_pattern() };
    let Failure { kind, message } = failure.unwrap_or_else(|| evidence.failure_from_exit(lines().next_back()));
    let message = redact(&without_controls(&message)).chars().take(MAX_TEXT).collect();
    Failure { kind, message }
}
