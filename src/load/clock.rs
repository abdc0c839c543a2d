//! One clock for sends and arrivals: nanoseconds since the load's start, never backwards.

use std::time::{Duration, Instant, SystemTime};

use nix::sys::time::TimeSpec;

/// Nanoseconds on an [`ArrivalClock`].
pub(crate) type Nanos = u64;

const MICROSECOND: Nanos = 1_000;

/// Maximum number of comparisons of the clocks.
const MAX_READINGS: usize = 4;
/// Maximum duration of one comparison on a thread that is not interrupted.
const UNINTERRUPTED_LIMIT: Duration = Duration::from_micros(5);

/// A monotonic clock that also reads the kernel's arrival stamps, which are in wall-clock time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrivalClock {
    base: Instant,
    /// Wall clock minus this clock, as of the last [`adjust`](Self::adjust).
    offset: Duration,
}

impl ArrivalClock {
    pub(super) fn start() -> Self {
        let mut clock = Self { base: Instant::now(), offset: Duration::ZERO };
        clock.adjust();
        clock
    }

    pub(super) fn now(&self) -> Nanos {
        nanos(self.base.elapsed())
    }

    /// Converts an instant of this clock to the standard library's.
    pub(super) fn instant(&self, at: Nanos) -> Instant {
        self.base + Duration::from_nanos(at)
    }

    /// Compares with the wall clock again. Called before each batch of reads, so that a step of the wall clock spoils
    /// at most one batch.
    pub(super) fn adjust(&mut self) {
        let base = self.base;
        self.offset = offset(|| {
            let before = base.elapsed();
            // A wall clock before 1970 gives stamps that are clamped into the present.
            let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            [before, wall, base.elapsed()]
        });
    }

    /// Converts an arrival stamp to this clock, clamped to the range from `earliest` to `now`.
    pub(super) fn arrival(&self, stamp: TimeSpec, earliest: Nanos, now: Nanos) -> Nanos {
        nanos(Duration::from(stamp).saturating_sub(self.offset)).clamp(earliest.min(now), now)
    }
}

/// Returns the wall clock minus this clock. `read` takes this clock, the wall clock and this clock again. An
/// interruption between them would shift every arrival to an earlier time, so the fastest reading counts.
fn offset(mut read: impl FnMut() -> [Duration; 3]) -> Duration {
    let mut best = (Duration::MAX, Duration::ZERO);
    for _ in 0..MAX_READINGS {
        let [before, wall, after] = read();
        let took = after.saturating_sub(before);
        if took < best.0 {
            best = (took, wall.saturating_sub(before));
        }
        if took <= UNINTERRUPTED_LIMIT {
            break;
        }
    }
    best.1
}

/// Converts to nanoseconds. Saturates after 584 years.
pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Converts to microseconds. Saturates after 71 minutes.
pub(super) fn micros(nanos: Nanos) -> u32 {
    u32::try_from(nanos / MICROSECOND).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_on_the_loads_own_clock_and_never_leaves_the_exchange() {
        let mut clock = ArrivalClock::start();
        clock.offset = Duration::from_secs(1_000);
        let stamp = TimeSpec::from(Duration::from_secs(1_000) + Duration::from_micros(70));
        assert_eq!(clock.arrival(stamp, 10_000, 90_000), 70_000);
        assert_eq!(clock.arrival(stamp, 80_000, 90_000), 80_000);
        assert_eq!(clock.arrival(stamp, 10_000, 50_000), 50_000);
        assert_eq!(clock.arrival(TimeSpec::from(Duration::ZERO), 10_000, 90_000), 10_000);
    }

    #[test]
    fn an_interrupted_comparison_of_the_clocks_does_not_count() {
        let us = |us: [u64; 3]| us.map(Duration::from_micros);
        let of = |readings: &[[u64; 3]]| {
            let mut readings = readings.iter();
            offset(|| us(*readings.next().expect("no more than needed")))
        };
        assert_eq!(of(&[[10, 1011, 12]]), Duration::from_micros(1001));
        assert_eq!(of(&[[10, 9010, 8010], [9000, 10_001, 9002]]), Duration::from_micros(1001));
        let slow = [[0, 1900, 1000], [0, 1020, 30], [0, 1400, 500], [0, 1600, 700]];
        assert_eq!(of(&slow), Duration::from_micros(1020), "the least bad of them");
    }
}
