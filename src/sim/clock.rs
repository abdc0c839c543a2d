//! Between virtual time, in which the scheduler decides, and real time, in which clients wait.

use std::f64::consts::TAU;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::time::Instant;

/// Falling further behind than this is not caught up: the process was stopped or starved.
const MOST_LAG: Duration = Duration::from_secs(1);

/// The timeline of steps. Each step begins where the last one was due to end, so that late wake-ups do not add up.
#[derive(Debug)]
pub(super) struct Clock {
    origin: Instant,
    scale: f64,
    due: Instant,
    rng: ChaCha8Rng,
    noise: f64,
}

impl Clock {
    /// `scale` virtual seconds pass in one real second; `noise` is the log-normal spread of step times.
    pub(super) fn new(scale: f64, seed: u64, noise: f64) -> Self {
        let origin = Instant::now();
        Self { origin, scale, due: origin, rng: ChaCha8Rng::seed_from_u64(seed), noise }
    }

    /// Virtual time of the step that is next.
    pub(super) fn now(&self) -> Duration {
        self.virtual_of(self.due)
    }

    pub(super) fn virtual_of(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.origin).mul_f64(self.scale)
    }

    /// After an idle time, or one much too late: go on from now.
    pub(super) fn catch_up(&mut self, idle: bool) {
        let now = Instant::now();
        if (idle && self.due < now) || now.saturating_duration_since(self.due) > MOST_LAG {
            self.due = now;
        }
    }

    /// When a step of this virtual length ends.
    pub(super) fn schedule(&mut self, step: Duration) -> Instant {
        let real = step.as_secs_f64() / self.scale * self.factor();
        self.due += Duration::from_secs_f64(real.clamp(0.0, 86_400.0));
        self.due
    }

    /// Log-normal with mean 1.
    fn factor(&mut self) -> f64 {
        if self.noise <= 0.0 {
            return 1.0;
        }
        // Box-Muller; one minus the sample keeps the logarithm finite.
        let (u, v): (f64, f64) = (self.rng.random(), self.rng.random());
        let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (TAU * v).cos();
        (self.noise * normal - self.noise * self.noise / 2.0).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_has_mean_one_and_is_the_seed_s() {
        let samples = |seed| {
            let mut clock = Clock::new(1.0, seed, 0.2);
            (0..4000).map(|_| clock.factor()).collect::<Vec<_>>()
        };
        let first = samples(1);
        let mean = first.iter().sum::<f64>() / 4000.0;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!(first.iter().zip(samples(1)).all(|(a, b)| (a - b).abs() < 1e-12));
        assert!(first.iter().zip(samples(2)).any(|(a, b)| (a - b).abs() > 1e-3));
    }
}
