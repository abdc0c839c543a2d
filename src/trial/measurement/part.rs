//! The parts of a measurement: distributions, intervals, the window and the load generator's account of itself.

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

/// A speed over requests, in tokens per second. Slow is bad here, so that the percentiles are those of the lower end.
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

/// Holds the true value with 95 % confidence; `[low, high]` in JSON. A bound that the sample is too small for is `None`.
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
pub struct Window {
    pub from_s: f64,
    pub to_s: f64,
    /// Whether warm-up and drain were cut off.
    pub steady: bool,
    /// Why it is this part.
    pub reason: String,
}

impl Window {
    /// Whether this instant, in seconds since the run's first, lies within; both ends do.
    #[must_use]
    pub fn holds(&self, at_s: f64) -> bool {
        (self.from_s..=self.to_s).contains(&at_s)
    }
}

/// What the load generator measured of itself, and whether it was the bottleneck.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientReport {
    /// Processor time of the load's thread, in seconds.
    pub cpu_s: f64,
    /// That time by the window's length: 1 is a whole core, the most that one thread can have.
    pub cpu_share: f64,
    /// How long that thread was ready to run while other threads held the processors, in seconds; absent where the kernel
    /// does not count it.
    #[serde(default)]
    pub processor_wait_s: Option<f64>,
    /// Whether it ran ahead of all threads without a real-time priority.
    #[serde(default)]
    pub realtime: bool,
    /// How long bytes had been here before the load saw them, in milliseconds; where the kernel gives no time stamps, how
    /// much later than asked for timers fired. Absent without a sample.
    pub p50_lag_ms: Option<f64>,
    pub p99_lag_ms: Option<f64>,
    pub max_lag_ms: Option<f64>,
    /// How long the last bytes of a reply had been here before the load saw them, on average; absent without a reply.
    #[serde(default)]
    pub mean_turnaround_ms: Option<f64>,
    /// Lateness in milliseconds of requests that did not have to wait for a place; absent in a closed loop.
    pub p99_lateness_ms: Option<f64>,
    /// Sessions per second, as sent; absent with fewer than two.
    pub achieved_rate: Option<f64>,
    /// Sessions per second, as due; absent in a closed loop.
    pub offered_rate: Option<f64>,
    pub peak_in_flight: u64,
    /// How often a session was due and its requests were not yet generated.
    pub starved: u64,
    pub kernel_stamps: bool,
    /// Whether the numbers are the server's. Otherwise the sample is void.
    pub valid: bool,
    /// Why it is void, a sentence each.
    pub reasons: Vec<String>,
}

impl Distribution {
    /// The statistic of this name: `mean`, `median`, `std`, `p50`, `p90`, `p95` or `p99`.
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

    /// The distribution whose six statistics `get` knows; `None` unless it knows them all.
    pub(super) fn from_statistics(get: impl Fn(&str) -> Option<f64>) -> Option<Self> {
        let (mean, median, std) = (get("mean")?, get("median").or_else(|| get("p50"))?, get("std")?);
        Some(Self { mean, median, std, p90: get("p90")?, p95: get("p95")?, p99: get("p99")? })
    }
}

impl Speeds {
    /// The statistic of this name: `mean`, `median`, `std`, `p50`, `p10`, `p5` or `p1`.
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

    /// The speeds whose six statistics `get` knows; `None` unless it knows them all.
    pub(super) fn from_statistics(get: impl Fn(&str) -> Option<f64>) -> Option<Self> {
        let (mean, median, std) = (get("mean")?, get("median").or_else(|| get("p50"))?, get("std")?);
        Some(Self { mean, median, std, p10: get("p10")?, p5: get("p5")?, p1: get("p1")? })
    }
}
