//! One clock for all processes: nanoseconds of `CLOCK_MONOTONIC`, which is shared by the whole machine.

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

/// Returns the present instant in nanoseconds.
pub(crate) fn now() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Converts a kernel time stamp, taken from `CLOCK_REALTIME`, to the clock of [`now`]. The two clocks are compared at
/// this moment, so that setting the clock does not shift earlier measurements.
pub(crate) fn from_realtime(stamp: TimeSpec) -> u64 {
    let age = read(ClockId::CLOCK_REALTIME).saturating_sub(nanos(stamp));
    now().saturating_sub(age)
}

fn read(clock: ClockId) -> u64 {
    nanos(clock_gettime(clock).expect("Linux has both clocks"))
}

/// Converts a time of the kernel to nanoseconds.
pub(crate) fn nanos(at: TimeSpec) -> u64 {
    let of = |part: i64| u64::try_from(part).unwrap_or(0);
    of(at.tv_sec()) * 1_000_000_000 + of(at.tv_nsec())
}

/// Converts nanoseconds to milliseconds.
pub(crate) fn ms(nanos: u64) -> f64 {
    std::time::Duration::from_nanos(nanos).as_secs_f64() * 1e3
}
