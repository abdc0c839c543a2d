//! An engine that does not work at all: no configuration is to blame for that, and none will mend it.

use crate::trial::{Failure, FailureKind};

/// Starts that fail this often, or this often in a row for the same reason, before anything was measured say that the
/// engine does not work at all.
pub(super) const MOST_FAILED_STARTS: usize = 3;

/// What says that the engine does not work at all.
#[derive(Default)]
pub(super) struct FailedStarts {
    blamed: usize,
    /// The latest failed start, and how often in a row it was the same.
    refused: Option<(Failure, usize)>,
}

impl FailedStarts {
    pub(super) fn add(&mut self, failure: &Failure, was_ready: bool) {
        self.blamed += usize::from(blames_the_engine(failure.kind));
        self.refused = (!was_ready).then(|| {
            let before = self.refused.take().filter(|(last, _)| last == failure).map_or(0, |(_, times)| times);
            (failure.clone(), before + 1)
        });
    }

    pub(super) fn most(&self) -> usize {
        self.blamed.max(self.refused.as_ref().map_or(0, |(_, times)| *times))
    }
}

/// Failures at start-up that no configuration would cause on its own.
fn blames_the_engine(kind: FailureKind) -> bool {
    matches!(
        kind,
        FailureKind::Spawn | FailureKind::StartupExit | FailureKind::StartupTimeout | FailureKind::WrongServer
    )
}
