//! Detection of an open loop that overloads the server.
//!
//! In a stable queue the number of requests in flight rises and falls. In an overloaded queue it rises for ever, at the
//! difference between the rates of arrivals and completions. A rise alone proves nothing: an empty server fills up, and
//! a queue near its limit has long excursions. So all of these conditions must hold over the last half of the run:
//!
//! - It is long enough: the median request fits into it, and 100 requests ended in it.
//! - The number in flight grew by at least 5 % of the arrivals, and is twice that of the run's first quarter.
//! - It grew by more than a random walk would: the mean of the 16 increments is more than 5 standard errors above 0. In
//!   a stable queue the increments even compensate each other, so that such growth is rarer still.
//! - The rate of completions in the fourth quarter of the run is at most 10 % above the lower one of the second and
//!   third quarters. A server that fills up, or follows a ramp of the arrivals, completes more and more.
//! - Requests still arrive: in the fourth quarter at least half as many as in the third.
//!
//! They must continue to hold while the run becomes longer by a fifth. A coincidence in one second then ends no run.
//! The thresholds were chosen on simulated queues. Some of those queues are in the tests of this file.

use crate::stats::to_f64;

/// Number of samples at which every second one is dropped.
const MAX_SAMPLES: usize = 512;
/// Minimum number of samples for a check.
const MIN_SAMPLES: usize = 64;
const INCREMENTS: usize = 16;
/// Minimum number of requests that ended in the last half of the run.
const MIN_ENDED: f64 = 100.0;
/// Minimum growth of the number in flight, as a share of the arrivals.
const MIN_GROWTH: f64 = 0.05;
/// Minimum ratio of the number in flight to that of the first quarter.
const MIN_START_RATIO: f64 = 2.0;
const MIN_STANDARD_ERRORS: f64 = 5.0;
/// Maximum ratio of the fourth quarter's rate of completions to the earlier ones.
const MAX_COMPLETION_RATIO: f64 = 1.1;
/// Minimum ratio of the fourth quarter's rate of arrivals to the third's.
const MIN_ARRIVAL_RATIO: f64 = 0.5;
/// Minimum ratio of the current length of the run to its length when the conditions began to hold.
const PERSISTENCE_RATIO: f64 = 1.2;

/// The load at one tick.
#[derive(Clone, Copy, Debug)]
struct LoadSample {
    /// Seconds since the window's start.
    at_s: f64,
    /// Requests that are due and have not ended.
    unfinished: f64,
    /// Requests that have ended since the start.
    ended: f64,
}

/// Samples at equal intervals. If there are too many, every second one is dropped.
#[derive(Debug)]
pub(super) struct SaturationDetector {
    samples: Vec<LoadSample>,
    /// One of this many ticks becomes a sample.
    every: usize,
    /// Ticks since the last sample.
    passed: usize,
    /// Instant of the first of the uninterrupted checks that found the server behind.
    since_s: Option<f64>,
}

impl Default for SaturationDetector {
    fn default() -> Self {
        Self { samples: Vec::new(), every: 1, passed: 0, since_s: None }
    }
}

impl SaturationDetector {
    /// Records a tick: the requests that are due and have not ended, and the number that have ended so far.
    pub(super) fn add(&mut self, at_s: f64, present: usize, left: u64) {
        self.passed += 1;
        if self.passed < self.every {
            return;
        }
        self.passed = 0;
        self.samples.push(LoadSample { at_s, unfinished: to_f64(present), ended: to_f64(left) });
        if self.samples.len() >= MAX_SAMPLES {
            let mut nth = 0;
            self.samples.retain(|_| {
                nth += 1;
                nth % 2 == 0
            });
            self.every *= 2;
        }
    }

    /// Returns the reason if all checks have found for long enough that the server cannot keep up. `median_s` is the
    /// median E2EL so far.
    pub(super) fn verdict(&mut self, median_s: f64) -> Option<String> {
        let now = self.samples.last()?.at_s;
        let seen = self.check_once(median_s);
        self.since_s = seen.as_ref().map(|_| self.since_s.unwrap_or(now));
        seen.filter(|_| self.since_s.is_some_and(|since| now >= PERSISTENCE_RATIO * since))
    }

    /// Performs a single check.
    fn check_once(&self, median_s: f64) -> Option<String> {
        let n = self.samples.len();
        let half = self.samples.get(n / 2..).filter(|_| n >= MIN_SAMPLES)?;
        let (begin, middle, end) = (half.first()?, &half[half.len() / 2], half.last()?);
        let (span, left) = (end.at_s - begin.at_s, end.ended - begin.ended);
        let growth = end.unfinished - begin.unfinished;
        let long = span >= median_s && left >= MIN_ENDED;

        let first = &self.samples[..n / 4];
        let start = first.iter().map(|sample| sample.unfinished).sum::<f64>() / to_f64(first.len());
        let large = growth >= MIN_GROWTH * (growth + left) && end.unfinished >= MIN_START_RATIO * start.max(1.0);

        let edge = |i: usize| half[i * (half.len() - 1) / INCREMENTS].unfinished;
        let increments: Vec<f64> = (0..INCREMENTS).map(|i| edge(i + 1) - edge(i)).collect();
        let mean = increments.iter().sum::<f64>() / to_f64(INCREMENTS);
        let variance = increments.iter().map(|step| (step - mean).powi(2)).sum::<f64>()
            / to_f64(INCREMENTS - 1)
            / to_f64(INCREMENTS);
        let significant = mean > 0.0 && mean > MIN_STANDARD_ERRORS * variance.sqrt();

        let per_s = |from: &LoadSample, to: &LoadSample, value: fn(&LoadSample) -> f64| {
            (value(to) - value(from)) / (to.at_s - from.at_s)
        };
        let left_of = |sample: &LoadSample| sample.ended;
        let came_of = |sample: &LoadSample| sample.ended + sample.unfinished;
        let before = per_s(&self.samples[n / 4], begin, left_of).min(per_s(begin, middle, left_of));
        let flat = per_s(middle, end, left_of) <= MAX_COMPLETION_RATIO * before;
        let arriving = per_s(middle, end, came_of) >= MIN_ARRIVAL_RATIO * per_s(begin, middle, came_of);

        (long && large && significant && flat && arriving).then(|| {
            format!(
                "the server falls behind: {:.2} requests per second arrive, {:.2} are answered, and the unfinished \
                 requests rose from {} to {} in the last {span:.0} s",
                (growth + left) / span,
                left / span,
                begin.unfinished,
                end.unfinished
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Simulates ticks, ten a second, up to `until` seconds, for a queue whose requests come and end at these instants.
    /// Requests a verdict every second, and returns the instant of the first one.
    fn fires(came: &[f64], ended: &[f64], median_s: f64, until: u32) -> Option<f64> {
        let mut ended = ended.to_vec();
        ended.sort_by(f64::total_cmp);
        let mut saturation = SaturationDetector::default();
        (1..until * 10).find_map(|tick| {
            let at = f64::from(tick) / 10.0;
            let (come, left) = (came.partition_point(|x| *x <= at), ended.partition_point(|x| *x <= at));
            saturation.add(at, come - left, left as u64);
            let asked = tick % 10 == 0;
            saturation.verdict(median_s).filter(|_| asked).map(|_| at)
        })
    }

    fn exponential(rng: &mut ChaCha8Rng, mean: f64) -> f64 {
        -(1.0 - rng.random::<f64>()).ln() * mean
    }

    /// Simulates one server with exponential service, `rate` arrivals per second and this load, for `until` seconds.
    /// Returns the instants of arrivals and ends.
    fn one_server(seed: u64, rate: f64, load: f64, until: u32) -> (Vec<f64>, Vec<f64>) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut at, mut free) = (0.0_f64, 0.0_f64);
        let (mut came, mut ended) = (Vec::new(), Vec::new());
        while at < f64::from(until) {
            at += exponential(&mut rng, 1.0 / rate);
            free = free.max(at) + exponential(&mut rng, load / rate);
            came.push(at);
            ended.push(free);
        }
        (came, ended)
    }

    #[test]
    fn a_stable_queue_never_fires_however_near_its_limit() {
        for (load, seeds) in [(0.7, 0..5), (0.95, 0..25)] {
            for seed in seeds {
                let (came, ended) = one_server(seed, 20.0, load, 600);
                assert_eq!(fires(&came, &ended, 0.5, 600), None, "load {load}, seed {seed}");
            }
        }
    }

    #[test]
    fn an_overloaded_queue_fires() {
        for seed in 0..10 {
            let (came, ended) = one_server(seed, 20.0, 1.2, 600);
            let at = fires(&came, &ended, 5.0, 600);
            assert!(at.is_some_and(|at| at > 20.0), "load 1.2, seed {seed}: {at:?}");
            let (came, ended) = one_server(seed, 20.0, 3.0, 600);
            let at = fires(&came, &ended, 5.0, 600);
            assert!(at.is_some_and(|at| at < 120.0), "load 3, seed {seed}: {at:?}");
        }
    }

    #[test]
    fn a_server_that_fills_up_does_not_fire() {
        // Every request is served at once, for a minute in the mean, or for exactly a minute.
        for seed in 0..20 {
            let mut rng = ChaCha8Rng::seed_from_u64(1000 + seed);
            let (came, _) = one_server(seed, 10.0, 0.5, 400);
            let random: Vec<f64> = came.iter().map(|at| at + exponential(&mut rng, 60.0)).collect();
            let fixed: Vec<f64> = came.iter().map(|at| at + 60.0).collect();
            // At the beginning, the median of the ended requests is small.
            assert_eq!(fires(&came, &random, 5.0, 400), None, "seed {seed}");
            assert_eq!(fires(&came, &fixed, 60.0, 400), None, "seed {seed}");
        }
    }

    #[test]
    fn a_ramp_that_the_server_follows_does_not_fire() {
        let came: Vec<f64> = (1..9000).map(|i| (f64::from(i) * 40.0).sqrt()).collect();
        let ended: Vec<f64> = came.iter().map(|at| at + 20.0).collect();
        assert_eq!(fires(&came, &ended, 20.0, 600), None);
    }

    #[test]
    fn an_end_of_the_arrivals_is_no_overload() {
        let (mut came, mut ended) = one_server(1, 20.0, 1.2, 10);
        came.truncate(150);
        ended.truncate(150);
        assert_eq!(fires(&came, &ended, 1.0, 60), None);
    }
}
