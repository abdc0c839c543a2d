//! One clock for sends and arrivals: nanoseconds since the load's start, never backwards.

use std::time::{Duration, Instant, SystemTime};

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

/// Nanoseconds on a [`Clock`].
pub(super) type Nanos = u64;

pub(super) const MICROSECOND: Nanos = 1_000;

/// A monotonic clock that also reads the kernel's arrival stamps, which are in wall-clock time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    base: Instant,
    /// Wall clock minus this clock, as of the last [`adjust`](Self::adjust).
    offset: Duration,
}

impl Clock {
    pub(super) fn start() -> Self {
        let mut clock = Self { base: Instant::now(), offset: Duration::ZERO };
        clock.adjust();
        clock
    }

    pub(super) fn now(&self) -> Nanos {
        nanos(self.base.elapsed())
    }

    pub(super) fn instant(&self, at: Nanos) -> Instant {
        self.base + Duration::from_nanos(at)
    }

    /// Compares with the wall clock again. Done before each batch of reads, so that a step of the wall clock can spoil
    /// no more than one of them.
    pub(super) fn adjust(&mut self) {
        let elapsed = self.base.elapsed();
        // A wall clock before 1970 gives stamps that are clamped into the present.
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.offset = wall.saturating_sub(elapsed);
    }

    /// An arrival stamp on this clock, no earlier than `earliest` and no later than `now`.
    pub(super) fn arrival(&self, stamp: TimeSpec, earliest: Nanos, now: Nanos) -> Nanos {
        nanos(Duration::from(stamp).saturating_sub(self.offset)).clamp(earliest.min(now), now)
    }
}

/// Saturates after 584 years.
pub(super) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Microseconds, up to 71 minutes.
pub(super) fn micros(nanos: Nanos) -> u32 {
    u32::try_from(nanos / MICROSECOND).unwrap_or(u32::MAX)
}

/// Processor time that the calling thread has used.
///
/// # Errors
/// When the kernel does not count it.
pub(super) fn thread_cpu() -> std::io::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_on_the_loads_own_clock_and_never_leaves_the_exchange() {
        let mut clock = Clock::start();
        clock.offset = Duration::from_secs(1_000);
        let stamp = TimeSpec::from(Duration::from_secs(1_000) + Duration::from_micros(70));
        assert_eq!(clock.arrival(stamp, 10_000, 90_000), 70_000);
        assert_eq!(clock.arrival(stamp, 80_000, 90_000), 80_000);
        assert_eq!(clock.arrival(stamp, 10_000, 50_000), 50_000);
        assert_eq!(clock.arrival(TimeSpec::from(Duration::ZERO), 10_000, 90_000), 10_000);
    }

    #[test]
    fn a_thread_that_works_uses_processor_time() {
        let before = thread_cpu().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while thread_cpu().unwrap() == before {
            assert!(Instant::now() < deadline, "no processor time was counted");
        }
    }
}
