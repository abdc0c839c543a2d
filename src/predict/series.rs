//! Batch and queue over time, thinned to the resolution of a plot. The memory is bounded for any length of the load.

use std::time::Duration;

use crate::stats::{f64_to_usize, to_f64};
use crate::twin::ScheduledStep;

/// The largest number of points.
pub const MAX_POINTS: usize = 600;

/// Initial interval of a point in seconds. Each thinning doubles it.
const FINEST: f64 = 1e-3;

/// Batch and queue over time, on the clients' clock from the begin of the measured load.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchSeries {
    /// Interval of a point in seconds.
    pub step_s: f64,
    /// Largest number of tokens of a step.
    pub budget: u32,
    pub points: Vec<SeriesPoint>,
}

/// Means over one interval. The first interval begins at 0 seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SeriesPoint {
    /// Requests in the batches of all engines together.
    pub running: f64,
    /// Requests in the queues of all engines together.
    pub waiting: f64,
    /// Share of the cache's blocks in use, 0 to 1, as a mean over the engines.
    pub kv: f64,
    /// Tokens of a step, as a mean over the time with a step under way.
    pub tokens: f64,
}

/// Sums over one interval, each value multiplied by its seconds. `busy` is the sum of the seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    running: f64,
    waiting: f64,
    kv: f64,
    tokens: f64,
    busy: f64,
}

impl Sums {
    fn plus(self, other: Self) -> Self {
        Self {
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
            kv: self.kv + other.kv,
            tokens: self.tokens + other.tokens,
            busy: self.busy + other.busy,
        }
    }
}

/// Builds the series from steps.
#[derive(Debug)]
pub(super) struct StepRecorder {
    width: f64,
    budget: u32,
    sums: Vec<Sums>,
}

impl StepRecorder {
    pub(super) fn new(budget: u32) -> Self {
        Self { width: FINEST, budget, sums: Vec::new() }
    }

    /// Adds the part of a step from `begin` to its end. Earlier steps cover the rest. `begin` and the step are on the
    /// device's clock, which is `pace` times as fast as the clients' clock.
    pub(super) fn step(&mut self, seen: &ScheduledStep, begin: Duration, pace: f64) {
        let (mut from, to) = (begin.as_secs_f64() / pace, seen.end.as_secs_f64() / pace);
        while place(to, self.width) >= MAX_POINTS {
            self.widen();
        }
        let mut at = place(from, self.width);
        while from < to {
            let until = (to_f64(at + 1) * self.width).min(to);
            // After rounding, nothing of an interval may be left.
            if until > from {
                if self.sums.len() <= at {
                    self.sums.resize(at + 1, Sums::default());
                }
                let seconds = until - from;
                self.sums[at] = self.sums[at].plus(Sums {
                    running: to_f64(seen.running) * seconds,
                    waiting: to_f64(seen.waiting) * seconds,
                    kv: seen.kv_usage * seconds,
                    tokens: f64::from(seen.work.tokens) * seconds,
                    busy: seconds,
                });
                from = until;
            }
            at += 1;
        }
    }

    /// Doubles the interval of a point, so that the number of points halves.
    fn widen(&mut self) {
        self.width *= 2.0;
        let pair = |pair: &[Sums]| pair.iter().copied().fold(Sums::default(), Sums::plus);
        self.sums = self.sums.chunks(2).map(pair).collect();
    }

    /// Returns the means for this number of engines.
    pub(super) fn finish(&self, engines: usize) -> BatchSeries {
        let width = self.width;
        let point = |sums: &Sums| SeriesPoint {
            running: sums.running / width,
            waiting: sums.waiting / width,
            kv: sums.kv / width / to_f64(engines.max(1)),
            tokens: if sums.busy > 0.0 { sums.tokens / sums.busy } else { 0.0 },
        };
        BatchSeries { step_s: width, budget: self.budget, points: self.sums.iter().map(point).collect() }
    }
}

/// Returns the index of the interval that contains the time `at`.
fn place(at: f64, width: f64) -> usize {
    f64_to_usize(at / width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::BatchWork;
    use proptest::prelude::*;

    fn seen(start_ms: u64, end_ms: u64, running: usize) -> ScheduledStep {
        let work = BatchWork { tokens: 8, ..BatchWork::default() };
        let (start, end) = (Duration::from_millis(start_ms), Duration::from_millis(end_ms));
        ScheduledStep { replica: 0, start, end, running, waiting: 1, kv_usage: 0.5, wait: None, work }
    }

    #[test]
    fn a_step_counts_where_it_lies_and_idle_time_is_empty() {
        let mut recorder = StepRecorder::new(16);
        for step in [seen(0, 2, 4), seen(4, 6, 2)] {
            recorder.step(&step, step.start, 2.0);
        }
        let series = recorder.finish(1);
        // The device's clock goes twice as fast as the clients'.
        let running: Vec<_> = series.points.iter().map(|point| point.running).collect();
        assert!((series.step_s - 1e-3).abs() < 1e-12 && series.budget == 16);
        assert_eq!(running.len(), 3);
        assert!(running.iter().zip([4.0, 0.0, 2.0]).all(|(a, b)| (a - b).abs() < 1e-9), "{running:?}");
        assert!((series.points[0].tokens - 8.0).abs() < 1e-9 && (series.points[2].kv - 0.5).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn a_series_has_few_points_and_loses_no_time(lengths in prop::collection::vec(1_u64..5000, 1..400)) {
            let mut recorder = StepRecorder::new(16);
            let mut now = 0;
            for length in &lengths {
                let step = seen(now, now + length, 3);
                recorder.step(&step, step.start, 1.0);
                now += length;
            }
            let series = recorder.finish(1);
            prop_assert!(series.points.len() <= MAX_POINTS);
            let total: f64 = series.points.iter().map(|point| point.running * series.step_s).sum();
            let expected = 3.0 * Duration::from_millis(now).as_secs_f64();
            prop_assert!((total - expected).abs() < 1e-6 * expected, "{total} {expected}");
        }
    }
}
