//! Detection of an engine that does not work at all, with any configuration.

use crate::trial::{Failure, FailureKind};

/// The number of `FailedStarts` before the first measurement after which the engine counts as broken.
pub(super) const MAX_FAILED_STARTS: usize = 3;

/// The number of starts that failed for reasons that no configuration causes on its own.
#[derive(Default)]
pub(super) struct FailedStarts {
    count: usize,
}

impl FailedStarts {
    /// Counts a failure, if it blames the engine.
    pub(super) fn add(&mut self, failure: &Failure) {
        self.count += usize::from(blames_the_engine(failure.kind));
    }

    /// Returns the number of starts that count.
    pub(super) fn count(&self) -> usize {
        self.count
    }
}

/// Returns whether no configuration causes such a failure of a start on its own.
fn blames_the_engine(kind: FailureKind) -> bool {
    matches!(
        kind,
        FailureKind::Spawn | FailureKind::StartupExit | FailureKind::StartupTimeout | FailureKind::WrongServer
    )
}
