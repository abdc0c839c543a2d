//! The time of a run: the machine's clock, or one that moves only when a simulated launch ends.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::store::now;

/// A clock that starts at zero with the run. Clones show the same time.
#[derive(Clone, Debug)]
pub(super) enum RunTime {
    Machine {
        begin: Instant,
    },
    /// The time since the beginning of the run.
    Simulated(Arc<Mutex<Duration>>),
}

impl RunTime {
    pub(super) fn machine() -> Self {
        Self::Machine { begin: Instant::now() }
    }

    pub(super) fn simulated() -> Self {
        Self::Simulated(Arc::default())
    }

    /// Returns the time since the beginning of the run.
    pub(super) fn elapsed(&self) -> Duration {
        match self {
            Self::Machine { begin } => begin.elapsed(),
            Self::Simulated(elapsed) => *elapsed.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Returns the present time in the database's format. A simulated run begins at the Unix epoch.
    pub(super) fn timestamp(&self) -> String {
        match self {
            Self::Machine { .. } => now(),
            Self::Simulated(_) => {
                let reached = Timestamp::UNIX_EPOCH.checked_add(self.elapsed());
                reached.unwrap_or(Timestamp::MAX).to_string()
            }
        }
    }

    /// Moves a simulated clock forward to this time since its beginning. Does nothing to the machine's clock.
    pub(super) fn advance_to(&self, elapsed: Duration) {
        if let Self::Simulated(now) = self {
            let mut now = now.lock().unwrap_or_else(PoisonError::into_inner);
            *now = elapsed.max(*now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_clock_moves_only_forward_and_only_on_request() {
        let time = RunTime::simulated();
        assert_eq!((time.elapsed(), &*time.timestamp()), (Duration::ZERO, "1970-01-01T00:00:00Z"));
        time.clone().advance_to(Duration::from_secs(90));
        time.advance_to(Duration::from_secs(30));
        assert_eq!((time.elapsed(), &*time.timestamp()), (Duration::from_secs(90), "1970-01-01T00:01:30Z"));
    }
}
