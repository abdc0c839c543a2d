//! How long a silent server may be busy: a single step of minutes moves no counter, and neither does a hung collective,
//! which spins at 100 %.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A launch that takes at least this share of one processor computes. A thread that waits for a device spins. The event
/// loops and the metrics page of an idle server take a few percent.
pub(super) const BUSY_SHARE: f64 = 0.2;

/// Prefill speed, in tokens per second, below which no server is expected: no device model is asked. The slowest recorded
/// step had 128,000 tokens in 734 s, which is 174 tokens per second.
const SLOWEST_PREFILL: f64 = 100.0;

/// The largest token budget that vLLM's server takes by default. A longer prompt needs a budget of its length unless it is
/// split, and then its steps are shorter.
const LARGEST_DEFAULT: u64 = 16_384;

/// The limit of a busy server, as a multiple of the estimated longest step.
const MOST_ESTIMATES: u32 = 3;

/// Estimates the longest step of a load: the requests that are under way at once, as far as the engine's token budget of a step admits them.
pub(in crate::tuner) fn longest_step(longest_request: u64, at_once: u64, budget: Option<u64>) -> Duration {
    let tokens =
        longest_request.saturating_mul(at_once.max(1)).min(budget.unwrap_or(LARGEST_DEFAULT.max(longest_request)));
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let seconds = tokens as f64 / SLOWEST_PREFILL;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Processor activity of a launch whose server is ready. Written by the thread that looks at its processes.
#[derive(Debug, Default)]
pub(super) struct Activity(Mutex<Option<Duration>>);

impl Activity {
    pub(super) fn set_idle(&self, idle: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(idle);
    }

    /// Returns for how long the launch has been idle; `None` if its processes are not seen.
    pub(super) fn idle(&self) -> Option<Duration> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The limits of a silence.
#[derive(Clone, Copy, Debug)]
pub(super) struct SilenceLimit {
    pub(super) stall: Duration,
    pub(super) longest_step: Duration,
}

impl SilenceLimit {
    fn of_busy(self) -> Duration {
        self.stall.max(self.longest_step.saturating_mul(MOST_ESTIMATES))
    }

    /// Decides whether a silence whose counters stand still is a hang, and gives the reason. A server whose processes are
    /// not seen counts as idle.
    pub(super) fn exceeded(self, silent: Duration, idle: Option<Duration>) -> Option<String> {
        let Self { stall, longest_step } = self;
        let busy = self.of_busy();
        match idle {
            None => Some(format!("its processes are not seen, and the limit is stall_timeout, {stall:.1?}")),
            Some(idle) if idle >= stall => Some(format!(
                "its processes have been idle for {idle:.1?}, and the limit is stall_timeout, {stall:.1?}"
            )),
            Some(_) if silent >= busy => Some(format!(
                "its processes are busy, and the limit is {busy:.1?}, the larger of stall_timeout ({stall:.1?}) and \
                 {MOST_ESTIMATES} times the estimated longest step ({longest_step:.1?})"
            )),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_server_may_be_silent_for_three_times_its_longest_step_and_an_idle_one_for_the_stall_timeout() {
        let seconds = Duration::from_secs;
        let limit = SilenceLimit { stall: seconds(60), longest_step: seconds(100) };
        let exceeded = |silent, idle: Option<u64>| limit.exceeded(seconds(silent), idle.map(seconds));
        assert_eq!(exceeded(299, Some(0)), None);
        assert!(exceeded(300, Some(0)).unwrap().contains("the limit is 300.0s"));
        assert_eq!(exceeded(250, Some(59)), None);
        assert!(exceeded(250, Some(60)).unwrap().contains("idle for 60.0s"));
        assert!(exceeded(60, None).unwrap().contains("not seen"));
        let short = SilenceLimit { longest_step: seconds(1), ..limit };
        assert!(short.exceeded(seconds(60), Some(seconds(0))).is_some(), "the stall timeout is the least");
    }

    #[test]
    fn the_longest_step_covers_the_slowest_recorded_one_and_ends_at_the_token_budget() {
        assert!(longest_step(128_000, 1, None) > Duration::from_secs(734));
        assert_eq!(longest_step(128_000, 8, Some(2000)), Duration::from_secs(20));
        assert_eq!(longest_step(50, 4, Some(2000)), Duration::from_secs(2));
    }
}
