//! Conversion between the virtual time of the scheduler and the real time of clients.
//!
//! Instants are absolute: a virtual time corresponds to one real instant, even if earlier events were late.

use std::f64::consts::TAU;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::twin::LaunchSpeed;

/// The largest delay after which later events keep their instants. After a longer one the process was stopped or
/// starved, and all later events are delayed as well.
const MAX_LAG: Duration = Duration::from_secs(1);

/// The clock of one server, with the noise of its steps.
#[derive(Debug)]
pub(super) struct ServedClock {
    /// The real instant of virtual time zero.
    origin: Instant,
    scale: f64,
    rng: ChaCha8Rng,
    noise: f64,
    /// The launch's speed, and the study's time on the virtual clock at virtual time zero.
    speed: (LaunchSpeed, Duration),
    /// An instant, and the value of `CLOCK_MONOTONIC` at that instant.
    reference: (Instant, Duration),
}

impl ServedClock {
    /// Creates a clock. `scale` virtual seconds pass in one real second. `noise` is the standard deviation of the
    /// logarithm of a step's time.
    pub(super) fn new(scale: f64, seed: u64, noise: f64) -> Self {
        let origin = Instant::now();
        let monotonic = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        Self {
            origin,
            scale,
            rng: ChaCha8Rng::seed_from_u64(seed),
            noise,
            speed: (LaunchSpeed::EVEN, Duration::ZERO),
            reference: (origin, monotonic),
        }
    }

    /// Sets the launch's speed. `study_age` is the real time from the study's begin to virtual time zero.
    pub(super) fn with_speed(self, speed: LaunchSpeed, study_age: Duration) -> Self {
        let begin = Duration::try_from_secs_f64(study_age.as_secs_f64() * self.scale).unwrap_or(Duration::MAX);
        Self { speed: (speed, begin), ..self }
    }

    /// Returns the factor on all times at a virtual time.
    pub(super) fn slowness(&mut self, time: Duration) -> f64 {
        let (speed, begin) = &mut self.speed;
        speed.slowness(begin.saturating_add(time))
    }

    pub(super) fn to_virtual_time(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.origin).mul_f64(self.scale)
    }

    /// Returns the real instant of a virtual time; `None` if it is beyond the range of the type.
    pub(super) fn to_real_time(&self, time: Duration) -> Option<Instant> {
        let since = Duration::try_from_secs_f64(time.as_secs_f64() / self.scale).ok()?;
        self.origin.checked_add(since)
    }

    /// Converts to nanoseconds of `CLOCK_MONOTONIC`, a clock that all processes of the machine share.
    pub(super) fn monotonic_ns(&self, instant: Instant) -> u64 {
        let (known, monotonic) = self.reference;
        let at = match instant.checked_duration_since(known) {
            Some(after) => monotonic + after,
            None => monotonic.saturating_sub(known - instant),
        };
        u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Adjusts the clock to the delay of the present event. If the delay exceeds `MAX_LAG`, it is removed from virtual
    /// time.
    pub(super) fn catch_up(&mut self, lag: Duration) {
        if lag > MAX_LAG {
            self.origin += lag;
        }
    }

    /// Returns the virtual length of a step, with noise and the factor `slowness`.
    pub(super) fn noisy_length(&mut self, step: Duration, slowness: f64) -> Duration {
        let length = step.as_secs_f64() * self.factor() * slowness;
        Duration::try_from_secs_f64(length).unwrap_or(step)
    }

    /// Draws a log-normal factor with mean 1.
    fn factor(&mut self) -> f64 {
        if self.noise <= 0.0 {
            return 1.0;
        }
        // Box-Muller transform. One minus the sample keeps the logarithm finite.
        let (u, v): (f64, f64) = (self.rng.random(), self.rng.random());
        let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (TAU * v).cos();
        (self.noise * normal - self.noise * self.noise / 2.0).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{LaunchDraw, SpeedVariation};

    #[test]
    fn noise_has_mean_one_and_is_the_seed_s() {
        let samples = |seed| {
            let mut clock = ServedClock::new(1.0, seed, 0.2);
            (0..4000).map(|_| clock.factor()).collect::<Vec<_>>()
        };
        let first = samples(1);
        let mean = first.iter().sum::<f64>() / 4000.0;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!(first.iter().zip(samples(1)).all(|(a, b)| (a - b).abs() < 1e-12));
        assert!(first.iter().zip(samples(2)).any(|(a, b)| (a - b).abs() > 1e-3));
    }

    #[test]
    fn the_speed_follows_the_time_of_the_study_and_not_that_of_the_launch() {
        let variation = SpeedVariation { launch: 0.05, drift: 0.05, ..SpeedVariation::NONE };
        let draw = LaunchDraw { study_seed: 3, trial: 4, retry: 0 };
        let hours = Duration::from_hours;
        // At a scale of 60, two minutes of the study are two hours on the virtual clock.
        let mut clock = ServedClock::new(60.0, 1, 0.0).with_speed(variation.draw(draw), Duration::from_mins(2));
        for time in [hours(0), hours(1), hours(3)] {
            let expected = variation.draw(draw).slowness(hours(2) + time);
            assert!((clock.slowness(time) - expected).abs() < 1e-12);
            assert!((expected - 1.0).abs() > 1e-4, "{expected}");
        }
        let step = Duration::from_millis(10);
        assert_eq!(clock.noisy_length(step, 1.5), Duration::from_millis(15));
        assert_eq!(ServedClock::new(60.0, 1, 0.0).slowness(hours(1)).to_bits(), 1.0_f64.to_bits());
    }

    #[test]
    fn a_late_event_moves_no_other_unless_it_is_much_too_late() {
        let mut clock = ServedClock::new(20.0, 1, 0.0);
        let due = |clock: &ServedClock| clock.to_real_time(Duration::from_secs(40)).unwrap();
        let before = due(&clock);
        assert_eq!(before, clock.origin + Duration::from_secs(2));
        assert_eq!(clock.to_virtual_time(before), Duration::from_secs(40));
        clock.catch_up(Duration::from_millis(900));
        assert_eq!(due(&clock), before);
        clock.catch_up(Duration::from_secs(3));
        assert_eq!(due(&clock), before + Duration::from_secs(3));
        assert_eq!(ServedClock::new(1e-3, 1, 0.0).to_real_time(Duration::MAX), None);
    }
}
