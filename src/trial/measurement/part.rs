//! The parts of a measurement: distributions, intervals, the window, and the load generator's report on itself.

use serde::{Deserialize, Serialize};

/// A latency over requests (for ITL: over gaps between chunks), in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distribution {
    pub mean: f64,
    /// Also known as `p50`.
    pub median: f64,
    /// Population standard deviation.
    pub std: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
}

/// A speed over requests, in tokens per second. Low values are bad, so the percentiles are those of the lower end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speeds {
    pub mean: f64,
    /// Also known as `p50`.
    pub median: f64,
    /// Population standard deviation.
    pub std: f64,
    /// One request in ten was slower.
    pub p10: f64,
    pub p5: f64,
    pub p1: f64,
}

/// A 95 % confidence interval of the true value; `[low, high]` in JSON. A bound is `None` if the sample is too small
/// for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "(Option<f64>, Option<f64>)", into = "(Option<f64>, Option<f64>)")]
pub struct Interval {
    pub low: Option<f64>,
    pub high: Option<f64>,
}

impl From<(Option<f64>, Option<f64>)> for Interval {
    fn from((low, high): (Option<f64>, Option<f64>)) -> Self {
        Self { low, high }
    }
}

impl From<Interval> for (Option<f64>, Option<f64>) {
    fn from(interval: Interval) -> Self {
        (interval.low, interval.high)
    }
}

/// The part of a run that was measured, in seconds since the run's first instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredWindow {
    pub from_s: f64,
    pub to_s: f64,
    /// Whether warm-up and drain were cut off.
    pub steady: bool,
    /// The reason for this part.
    pub reason: String,
    /// Seconds of the planned load that an early end saved, by the rate of the requests until then. `None` for a load
    /// that went to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_s: Option<f64>,
    /// Whether the load ended early because the server fell behind the offered load.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overloaded: bool,
}

impl MeasuredWindow {
    /// Returns whether this instant, in seconds since the run's first, is within the window; both ends are.
    #[must_use]
    pub fn contains(&self, at_s: f64) -> bool {
        (self.from_s..=self.to_s).contains(&at_s)
    }
}

/// The load generator's measurements of itself, and whether it was the bottleneck.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientReport {
    /// Processor time of the load's thread, in seconds.
    pub cpu_s: f64,
    /// `cpu_s` divided by the window's length: 1 is a whole core, the most that one thread can use.
    pub cpu_share: f64,
    /// Time that the thread was ready to run while other threads held the processors, in seconds; absent if the kernel
    /// does not count it.
    #[serde(default)]
    pub processor_wait_s: Option<f64>,
    /// Whether it ran with a real-time priority, ahead of all threads without one.
    #[serde(default)]
    pub realtime: bool,
    /// Delay in milliseconds from the arrival of bytes to their reading. If the kernel gives no time stamps, the delay
    /// of timers instead. Absent without a sample.
    pub p50_lag_ms: Option<f64>,
    pub p99_lag_ms: Option<f64>,
    pub max_lag_ms: Option<f64>,
    /// Mean delay from the arrival of a reply's last bytes to their reading; absent without a reply.
    #[serde(default)]
    pub mean_turnaround_ms: Option<f64>,
    /// Lateness in milliseconds of requests that did not wait for the concurrency limit; absent in a closed loop.
    pub p99_lateness_ms: Option<f64>,
    /// Sessions started per second; absent with fewer than two sessions.
    pub achieved_rate: Option<f64>,
    /// Sessions due per second by the schedule; absent in a closed loop.
    pub offered_rate: Option<f64>,
    /// The largest number of requests in flight at once.
    pub peak_in_flight: u64,
    /// The number of times that a session was due before its requests were generated.
    pub starved: u64,
    /// Whether the kernel gave the arrival times of most bytes. Otherwise latencies include the load generator's lag.
    pub kernel_stamps: bool,
    /// Whether the measurement reflects the server and not the load generator. If not, the sample is void.
    pub valid: bool,
    /// The reasons for a void sample, a sentence each.
    pub reasons: Vec<String>,
}

impl Distribution {
    /// Returns the statistic of this name: `mean`, `median`, `std`, `p50`, `p90`, `p95` or `p99`.
    #[must_use]
    pub fn statistic(&self, name: &str) -> Option<f64> {
        Some(match name {
            "mean" => self.mean,
            "median" | "p50" => self.median,
            "std" => self.std,
            "p90" => self.p90,
            "p95" => self.p95,
            "p99" => self.p99,
            _ => return None,
        })
    }

    /// Creates a distribution from the six statistics that `get` returns; `None` if one is missing.
    pub(super) fn from_statistics(get: impl Fn(&str) -> Option<f64>) -> Option<Self> {
        let (mean, median, std) = (get("mean")?, get("median").or_else(|| get("p50"))?, get("std")?);
        Some(Self { mean, median, std, p90: get("p90")?, p95: get("p95")?, p99: get("p99")? })
    }
}

impl Speeds {
    /// Returns the statistic of this name: `mean`, `median`, `std`, `p50`, `p10`, `p5` or `p1`.
    #[must_use]
    pub fn statistic(&self, name: &str) -> Option<f64> {
        Some(match name {
            "mean" => self.mean,
            "median" | "p50" => self.median,
            "std" => self.std,
            "p10" => self.p10,
            "p5" => self.p5,
            "p1" => self.p1,
            _ => return None,
        })
    }

    /// Creates speeds from the six statistics that `get` returns; `None` if one is missing.
    pub(super) fn from_statistics(get: impl Fn(&str) -> Option<f64>) -> Option<Self> {
        let (mean, median, std) = (get("mean")?, get("median").or_else(|| get("p50"))?, get("std")?);
        Some(Self { mean, median, std, p10: get("p10")?, p5: get("p5")?, p1: get("p1")? })
    }
}
