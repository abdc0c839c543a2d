//! An engine that does not work at all: no configuration is to blame for that, and none will mend it.

use crate::trial::{Failure, FailureKind};

/// Starts that fail this often, or this often in a row for the same reason, before anything was measured say that the
/// engine does not work at all.
pub(super) const MOST_FAILED_STARTS: usize = 3;

/// Starts that failed for reasons which no configuration would cause on its own.
#[derive(Default)]
pub(super) struct FailedStarts {
    blamed: usize,
}

impl FailedStarts {
    pub(super) fn add(&mut self, failure: &Failure) {
        self.blamed += usize::from(blames_the_engine(failure.kind));
    }

    pub(super) fn most(&self) -> usize {
        self.blamed
    }
}

/// Failures at start-up that no configuration would cause on its own.
fn blames_the_engine(kind: FailureKind) -> bool {
    matches!(
        kind,
        FailureKind::Spawn | FailureKind::StartupExit | FailureKind::StartupTimeout | FailureKind::WrongServer
    )
}
