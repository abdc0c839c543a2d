//! The time without any progress, and the signs of progress while an engine starts.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::server::LogTail;
use crate::stats::to_f64;

/// The time without progress.
///
/// At most `most` of the time between two observations counts, because stillness is not known for the rest. A tuner
/// that was stopped therefore reports no hang, and neither does one whose whole machine was suspended.
#[derive(Clone, Debug)]
pub(super) struct Stillness {
    most: Duration,
    last: Option<Instant>,
    still: Duration,
}

impl Stillness {
    pub(super) fn new(most: Duration) -> Self {
        Self { most, last: None, still: Duration::ZERO }
    }

    /// Adds the time since the last observation, or starts again from zero if something has `moved` since.
    pub(super) fn look(&mut self, now: Instant, moved: bool) -> Duration {
        let passed = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last)).min(self.most);
        self.last = Some(now);
        self.still = if moved { Duration::ZERO } else { self.still + passed };
        self.still
    }
}

/// The work of a launch since its start, as sums that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LaunchWork {
    /// Processor time of its processes.
    pub(super) cpu: Duration,
    /// Bytes that they have read from disks or written to them.
    pub(super) bytes: u64,
    /// Bytes that read calls have returned, from any source.
    pub(super) read: u64,
    /// The number of observations with a process that waited for its storage, or with a busy device.
    pub(super) wait_observations: u64,
    /// The number of times its log has grown by more than signs of waiting.
    pub(super) log: u64,
}

/// The share of one processor up to which a launch is idle: an engine that waits still runs its event loops.
pub(super) const IDLE_SHARE: f64 = 0.02;

/// The read rate in bytes per second up to which a launch is idle. In an idle launch, shells that poll still start
/// programs, and supervisors still read `/proc`.
const IDLE_READ_RATE: f64 = 65_536.0;

/// The time over which the share is computed, but at most a quarter of the limit. The kernel counts processor time in
/// ticks of 10 ms, so a shorter time would be inexact.
const MAX_RATE_SPAN: Duration = Duration::from_secs(2);

/// The most time between two observations of a start that counts, and at most a quarter of its limit. A hang therefore
/// needs several observations.
const MAX_OBSERVATION_GAP: Duration = Duration::from_secs(3);

/// Distinguishes an engine that hangs during its start from a slow one.
#[derive(Clone, Debug)]
pub(super) struct ProgressMonitor {
    limit: Duration,
    /// Share of one processor up to which the launch is idle.
    share: f64,
    before: Option<(Instant, LaunchWork)>,
    timer: Stillness,
    still: Duration,
}

impl ProgressMonitor {
    /// Creates a monitor. `limit` is the longest time without progress; zero means no limit.
    pub(super) fn new(limit: Duration, share: f64) -> Self {
        Self {
            limit,
            share,
            before: None,
            timer: Stillness::new(MAX_OBSERVATION_GAP.min(limit / 4)),
            still: Duration::ZERO,
        }
    }

    /// Returns the time without progress.
    pub(super) fn stillness(&self) -> Duration {
        self.still
    }

    /// Records an observation. Returns the time without progress if it exceeds the limit.
    pub(super) fn look(&mut self, now: Instant, work: LaunchWork) -> Option<Duration> {
        let Some((at, before)) = self.before else {
            self.before = Some((now, work));
            self.timer.look(now, true);
            return None;
        };
        let passed = now.saturating_duration_since(at);
        if passed >= MAX_RATE_SPAN.min(self.limit / 4) {
            let moved = work.log > before.log
                || work.bytes > before.bytes
                || work.wait_observations > before.wait_observations
                || exceeds_idle_rate(work.read.saturating_sub(before.read), passed)
                || work.cpu.saturating_sub(before.cpu) > passed.mul_f64(self.share);
            self.still = self.timer.look(now, moved);
            self.before = Some((now, work));
        }
        (!self.limit.is_zero() && self.still >= self.limit).then_some(self.still)
    }
}

/// Returns whether an idle launch would read fewer bytes in this time.
fn exceeds_idle_rate(bytes: u64, passed: Duration) -> bool {
    let bytes = to_f64(bytes);
    bytes > IDLE_READ_RATE * passed.as_secs_f64()
}

/// Lines that vLLM repeats while it waits for a hung process: `distributed/device_communicators/shm_broadcast.py` every
/// 60 s, `v1/engine/utils.py` every 10 s.
const WAITING_LINES: [&str; 2] = ["No available shared memory broadcast block found", "core engine proc(s) to "];

/// Characters that are kept of a line.
const MAX_LINE_CHARS: usize = 200;

/// Distinguishes a log that makes progress from one that only repeats signs of waiting.
#[derive(Debug)]
pub(super) struct LogProgress {
    tail: LogTail,
    /// Bytes at the last observation.
    length: u64,
    /// The number of changes that were more than signs of waiting.
    moves: u64,
    /// The last line that is not empty, and the time at which it was first seen.
    last: Option<(String, Instant)>,
}

impl LogProgress {
    pub(super) fn new(path: &Path) -> Self {
        Self { tail: LogTail::new(path), length: 0, moves: 0, last: None }
    }

    /// Reads new lines. Returns the number of changes so far.
    pub(super) fn look(&mut self, now: Instant) -> u64 {
        let length = self.tail.length();
        if length == self.length {
            return self.moves;
        }
        self.length = length;
        let added = self.tail.read_new();
        let lines: Vec<_> = added.split(['\n', '\r']).filter(|line| !line.trim().is_empty()).collect();
        // An incomplete line counts as a change as well.
        if lines.is_empty() || lines.iter().any(|line| !WAITING_LINES.iter().any(|waiting| line.contains(waiting))) {
            self.moves += 1;
        }
        if let Some(line) = lines.last() {
            self.last = Some((line.trim().chars().take(MAX_LINE_CHARS).collect(), now));
        }
        self.moves
    }

    /// Describes the last line, with its age.
    pub(super) fn last(&self, now: Instant) -> String {
        match &self.last {
            Some((line, at)) => {
                format!("the last line of its log, {:.0?} ago: {line}", now.saturating_duration_since(*at))
            }
            None => "its log is empty".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the second at which a start with this work in each second counts as hung.
    fn hangs_after(limit: u64, seconds: u32, work: impl Fn(u32) -> LaunchWork) -> Option<u32> {
        let (begin, mut start) =
            (Instant::now(), ProgressMonitor::new(SECOND * u32::try_from(limit).unwrap(), IDLE_SHARE));
        (0..=seconds).find(|second| start.look(begin + SECOND * *second, work(*second)).is_some())
    }

    #[test]
    fn a_start_hangs_when_neither_processor_nor_disk_nor_log_moves() {
        let nothing = LaunchWork::default();
        assert_eq!(hangs_after(60, 200, |_| nothing), Some(60));
        assert_eq!(hangs_after(0, 10_000, |_| nothing), None, "zero is never");
        let cpu = |share: f64| move |second: u32| LaunchWork { cpu: (SECOND * second).mul_f64(share), ..nothing };
        assert_eq!(hangs_after(60, 200, cpu(0.019)), Some(60), "event loops turn");
        assert_eq!(hangs_after(60, 10_000, cpu(0.03)), None, "slow, and at work");
        assert_eq!(hangs_after(60, 10_000, |second| LaunchWork { bytes: u64::from(second / 50), ..nothing }), None);
        assert_eq!(hangs_after(60, 10_000, |second| LaunchWork { log: u64::from(second / 50), ..nothing }), None);
        let read = |per_s: u64| move |second: u32| LaunchWork { read: u64::from(second) * per_s, ..nothing };
        assert_eq!(hangs_after(60, 10_000, read(100_000)), None, "a slow network file system");
        assert_eq!(hangs_after(60, 200, read(60_000)), Some(60), "a shell that polls");
        assert_eq!(
            hangs_after(60, 10_000, |second| LaunchWork { wait_observations: u64::from(second / 50), ..nothing }),
            None
        );
        let until = |second: u32| LaunchWork { log: u64::from(second.min(30)), ..nothing };
        assert_eq!(hangs_after(60, 200, until), Some(90));
    }

    #[test]
    fn the_time_while_the_tuner_was_stopped_does_not_count() {
        let (begin, mut start) = (Instant::now(), ProgressMonitor::new(SECOND * 60, IDLE_SHARE));
        for second in (0..30).chain(3600..3625) {
            assert_eq!(start.look(begin + SECOND * second, LaunchWork::default()), None, "{second}");
        }
        assert!(
            start.look(begin + SECOND * 3640, LaunchWork::default()).is_none(),
            "a gap counts as {MAX_OBSERVATION_GAP:?}"
        );
        assert!((3641..3650).any(|second| start.look(begin + SECOND * second, LaunchWork::default()).is_some()));
    }

    #[test]
    fn signs_of_waiting_do_not_count_as_progress_of_a_log_and_the_last_line_is_kept() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let (mut log, now) = (LogProgress::new(file.path()), Instant::now());
        assert_eq!(log.last(now), "its log is empty");
        let moves = log.look(now);
        assert_eq!(log.look(now), moves);
        writeln!(file, "INFO loading\n").unwrap();
        assert_eq!(log.look(now), moves + 1);
        for _ in 0..3 {
            writeln!(
                file,
                "INFO [shm_broadcast.py:733] No available shared memory broadcast block found in 60 seconds."
            )
            .unwrap();
            assert_eq!(log.look(now), moves + 1);
        }
        assert!(log.last(now + SECOND * 7).starts_with("the last line of its log, 7s ago: INFO [shm_broadcast"));
        writeln!(file, "{}", "x".repeat(1 << 20)).unwrap();
        assert_eq!(log.look(now), moves + 2);
        assert!(log.last(now).len() < 300);
        file.as_file().set_len(0).unwrap();
        assert_eq!(log.look(now), moves + 3, "written anew");
        let missing = &mut LogProgress::new(Path::new("/no/such/log"));
        assert_eq!(missing.look(now), 0);
    }

    proptest! {
        /// For any sequence of moves, the stillness is never longer than the time since the last move.
        #[test]
        fn stillness_never_exceeds_the_time_since_the_last_move(steps in prop::collection::vec((0u64..10_000, any::<bool>()), 1..100)) {
            let (mut now, mut stillness) = (Instant::now(), Stillness::new(MAX_OBSERVATION_GAP));
            let mut moved_at = now;
            for (passed, moved) in steps {
                now += Duration::from_millis(passed);
                if moved {
                    moved_at = now;
                }
                prop_assert!(stillness.look(now, moved) <= now - moved_at);
            }
        }
    }
}
