//! The limits of a busy server's silence. A single step of several minutes moves no counter. Neither does a hung
//! collective, which keeps a processor or a device at 100 %.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::stats::to_f64;

/// The least share of one processor at which a launch counts as busy. A thread that waits for a device spins. The event
/// loops and the metrics page of an idle server take a few percent.
pub(super) const BUSY_SHARE: f64 = 0.2;

/// The assumed prefill speed, in tokens per second, if neither the twin nor a measured launch gives one. The slowest
/// recorded step had 128,000 tokens in 734 s, which is 174 tokens per second.
const SLOWEST_PREFILL: f64 = 100.0;

/// The largest token budget that vLLM's server takes by default. A longer prompt needs a budget of its length unless it
/// is split, and then its steps are shorter.
const LARGEST_DEFAULT_BUDGET: u64 = 16_384;

/// The limit of a busy server, as a multiple of the estimated longest step.
const STEP_MULTIPLE: u32 = 3;

/// Returns the tokens of the largest step of a load. It contains the concurrent requests, as far as the engine's token
/// budget of a step admits them.
pub(in crate::tuner) fn largest_step(longest_request: u64, at_once: u64, budget: Option<u64>) -> u64 {
    longest_request.saturating_mul(at_once.max(1)).min(budget.unwrap_or(LARGEST_DEFAULT_BUDGET.max(longest_request)))
}

/// The origin of an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EstimateSource {
    Twin,
    Measured,
    Assumed,
}

impl fmt::Display for EstimateSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twin => f.write_str("estimated by the twin"),
            Self::Measured => f.write_str("measured"),
            Self::Assumed => write!(f, "assumed {SLOWEST_PREFILL} tokens/s"),
        }
    }
}

/// An estimate of the longest step of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tuner) struct StepEstimate {
    duration: Duration,
    source: EstimateSource,
}

impl StepEstimate {
    /// Takes the longer of two estimates: the twin's, and `tokens` at the measured speed in tokens per second. If both
    /// are missing, the slowest expected speed is assumed.
    pub(in crate::tuner) fn new(tokens: u64, twin: Option<Duration>, measured: Option<f64>) -> Self {
        let at = |speed: f64| Duration::try_from_secs_f64(to_f64(tokens) / speed).unwrap_or(Duration::MAX);
        let twin = twin.map(|duration| Self { duration, source: EstimateSource::Twin });
        let measured = measured.map(|speed| Self { duration: at(speed), source: EstimateSource::Measured });
        let longest = twin.into_iter().chain(measured).max_by_key(|estimate| estimate.duration);
        longest.unwrap_or_else(|| Self { duration: at(SLOWEST_PREFILL), source: EstimateSource::Assumed })
    }
}

/// The idle times of a launch's processes and devices; `None` if they cannot be observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Idleness {
    pub(super) processes: Option<Duration>,
    pub(super) devices: Option<Duration>,
}

/// Activity of a launch, written by the threads that observe its processes and its devices.
#[derive(Debug, Default)]
pub(super) struct LaunchActivity {
    idleness: Mutex<Idleness>,
    is_start_still: AtomicBool,
    has_busy_device: AtomicBool,
}

impl LaunchActivity {
    /// Stores the idle time of the processes.
    pub(super) fn set_processes(&self, idle: Duration) {
        self.lock().processes = Some(idle);
    }

    /// Stores the idle time of the devices, and whether one computed at the last reading.
    pub(super) fn set_devices(&self, idle: Option<Duration>, is_busy: bool) {
        self.lock().devices = idle;
        self.has_busy_device.store(is_busy, Ordering::Relaxed);
    }

    pub(super) fn has_busy_device(&self) -> bool {
        self.has_busy_device.load(Ordering::Relaxed)
    }

    /// Stores whether the launch is starting while its processes and its log stand still.
    pub(super) fn set_start_still(&self, is_still: bool) {
        self.is_start_still.store(is_still, Ordering::Relaxed);
    }

    pub(super) fn is_start_still(&self) -> bool {
        self.is_start_still.load(Ordering::Relaxed)
    }

    pub(super) fn idleness(&self) -> Idleness {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Idleness> {
        self.idleness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Idleness {
    /// Names those for which `holds` is true, as in a sentence.
    fn named(self, holds: impl Fn(Duration) -> bool) -> &'static str {
        match [self.processes, self.devices].map(|idle| idle.is_some_and(&holds)) {
            [true, true] => "processes and devices",
            [false, true] => "devices",
            [_, false] => "processes",
        }
    }
}

/// The limits of a silence.
#[derive(Clone, Copy, Debug)]
pub(super) struct SilenceLimit {
    pub(super) stall: Duration,
    pub(super) longest_step: StepEstimate,
}

impl SilenceLimit {
    fn of_busy(self) -> Duration {
        self.stall.max(self.longest_step.duration.saturating_mul(STEP_MULTIPLE))
    }

    /// Decides whether a silence with unchanged counters is a hang, and returns the reason. A server is busy if its
    /// processes or its devices are. It counts as idle if neither can be observed.
    pub(super) fn hang_reason(self, silent: Duration, idle: Idleness) -> Option<String> {
        let Self { stall, longest_step: StepEstimate { duration, source } } = self;
        let busy = self.of_busy();
        match [idle.processes, idle.devices].into_iter().flatten().min() {
            None => Some(format!("its processes cannot be observed, and the limit is stall_timeout, {stall:.1?}")),
            // Observations are some time apart: at the end of the limit the known idle time may cover only a part of
            // the silence.
            Some(least) if least >= stall || silent >= busy && least * 2 >= silent => {
                let named = idle.named(|_| true);
                Some(format!("its {named} have been idle for {least:.1?}, and the limit is stall_timeout, {stall:.1?}"))
            }
            Some(_) if silent >= busy => {
                let named = idle.named(|idle| idle < stall);
                Some(format!(
                    "its {named} are busy, and the limit is {busy:.1?}, the larger of stall_timeout ({stall:.1?}) and \
                     {STEP_MULTIPLE} times the longest step ({duration:.1?}, {source})"
                ))
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn idle(processes: Option<u64>, devices: Option<u64>) -> Idleness {
        Idleness { processes: processes.map(seconds), devices: devices.map(seconds) }
    }

    fn limit(longest_step: StepEstimate) -> SilenceLimit {
        SilenceLimit { stall: seconds(60), longest_step }
    }

    #[test]
    fn a_busy_server_may_be_silent_for_three_times_its_longest_step_and_an_idle_one_for_the_stall_timeout() {
        let limit = limit(StepEstimate::new(1, Some(seconds(100)), None));
        let exceeded = |silent, processes: Option<u64>| limit.hang_reason(seconds(silent), idle(processes, None));
        assert_eq!(exceeded(299, Some(0)), None);
        let told = exceeded(300, Some(0)).unwrap();
        assert!(told.starts_with("its processes are busy, and the limit is 300.0s"), "{told}");
        assert!(told.ends_with("3 times the longest step (100.0s, estimated by the twin)"), "{told}");
        assert_eq!(exceeded(250, Some(59)), None);
        assert!(exceeded(250, Some(60)).unwrap().starts_with("its processes have been idle for 60.0s"));
        assert!(exceeded(60, None).unwrap().contains("cannot be observed"));
        let short = self::limit(StepEstimate::new(100, None, None));
        let told = |processes| short.hang_reason(seconds(60), idle(Some(processes), None)).unwrap();
        assert!(told(0).starts_with("its processes are busy, "), "the stall timeout is the least");
        assert!(told(45).starts_with("its processes have been idle for 45.0s, and the limit is stall_timeout, "));
    }

    #[test]
    fn a_server_is_busy_if_its_processes_or_its_devices_are() {
        let limit = limit(StepEstimate::new(1, None, Some(0.01)));
        let exceeded = |silent, processes, devices| limit.hang_reason(seconds(silent), idle(processes, devices));
        for (processes, devices) in [(Some(90), Some(0)), (Some(0), Some(90)), (Some(0), Some(0)), (None, Some(0))] {
            assert_eq!(exceeded(299, processes, devices), None, "{processes:?} {devices:?}");
        }
        let told = |silent, processes, devices| exceeded(silent, processes, devices).unwrap();
        assert!(told(300, Some(90), Some(0)).starts_with("its devices are busy, "));
        assert!(told(300, Some(0), Some(0)).starts_with("its processes and devices are busy, "));
        assert!(told(300, Some(0), Some(0)).ends_with(" (100.0s, measured)"));
        assert!(told(90, Some(90), Some(61)).starts_with("its processes and devices have been idle for 61.0s"));
        assert!(told(90, None, Some(60)).starts_with("its devices have been idle for 60.0s"));
    }

    #[test]
    fn the_longer_estimate_counts_and_a_speed_is_assumed_only_without_any() {
        let of = |twin: Option<u64>, measured| StepEstimate::new(1000, twin.map(seconds), measured);
        let told = |estimate: StepEstimate| (estimate.duration.as_secs(), estimate.source.to_string());
        assert_eq!(told(of(Some(5), Some(500.0))), (5, "estimated by the twin".to_owned()));
        assert_eq!(told(of(Some(5), Some(100.0))), (10, "measured".to_owned()));
        assert_eq!(told(of(Some(1), None)), (1, "estimated by the twin".to_owned()));
        assert_eq!(told(of(None, Some(2000.0))), (0, "measured".to_owned()));
        assert_eq!(told(of(None, None)), (10, "assumed 100 tokens/s".to_owned()));
    }

    #[test]
    fn the_assumed_longest_step_covers_the_slowest_recorded_one_and_ends_at_the_token_budget() {
        let assumed =
            |longest, at_once, budget| StepEstimate::new(largest_step(longest, at_once, budget), None, None).duration;
        assert!(assumed(128_000, 1, None) > seconds(734));
        assert_eq!(assumed(128_000, 8, Some(2000)), seconds(20));
        assert_eq!(assumed(50, 4, Some(2000)), seconds(2));
    }
}
