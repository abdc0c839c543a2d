//! Lag of the load: a fair sample of the delays between the arrival of bytes and their reading.

use super::clock::{Nanos, micros};

/// Size of the sample, more than enough for a 99th percentile.
const SAMPLE_SIZE: usize = 10_000;

/// Sample and maximum of the delays.
#[derive(Debug, Default)]
pub(super) struct LoopLag {
    sample: Vec<u32>,
    pub(super) max_us: u32,
    /// Number of reads.
    seen: u64,
    /// Reads whose bytes had a kernel timestamp.
    stamped: u64,
    /// State of the random number generator.
    random: u64,
}

impl LoopLag {
    /// Records one read. `lag` is the time since its bytes arrived or, without a kernel timestamp, since `epoll`
    /// reported them.
    pub(super) fn read(&mut self, stamped: bool, lag: Nanos) {
        self.seen += 1;
        self.stamped += u64::from(stamped);
        let lag = micros(lag);
        self.max_us = self.max_us.max(lag);
        // Reservoir sampling (Vitter 1985, algorithm R): each read so far is in the sample with equal probability.
        if self.sample.len() < SAMPLE_SIZE {
            self.sample.push(lag);
            return;
        }
        // A linear congruential generator (Knuth's MMIX) is random enough to choose among delays.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = (u128::from(self.random) * u128::from(self.seen)) >> 64;
        if let Some(kept) = usize::try_from(place).ok().and_then(|place| self.sample.get_mut(place)) {
            *kept = lag;
        }
    }

    /// Returns whether the kernel timestamps arriving bytes.
    pub(super) fn kernel_stamps(&self) -> bool {
        // A majority is enough: the first packets lack a timestamp, because the kernel stamps only after a socket asks
        // for it.
        self.stamped * 2 > self.seen
    }

    /// Returns the sampled delays in microseconds, ascending.
    pub(super) fn sorted(&self) -> Vec<u32> {
        let mut sample = self.sample.clone();
        sample.sort_unstable();
        sample
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_keeps_a_fair_sample_and_the_largest() {
        let mut lag = LoopLag::default();
        for at in 0..200_000 {
            lag.read(at % 3 > 0, at * 1_000);
        }
        let sample = lag.sorted();
        assert_eq!((sample.len(), lag.max_us, lag.kernel_stamps()), (SAMPLE_SIZE, 199_999, true));
        let median = sample[SAMPLE_SIZE / 2];
        assert!((95_000..105_000).contains(&median), "{median}");
    }

    #[test]
    fn a_kernel_that_does_not_stamp_is_noticed() {
        let mut lag = LoopLag::default();
        lag.read(false, 5_000);
        assert_eq!((lag.kernel_stamps(), lag.sorted()), (false, vec![5]));
    }
}
