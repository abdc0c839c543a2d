//! Telemetry: the server's side of the story, sampled beside the load and never in its way.
//!
//! [`Watch::start`] samples three sources, each on its own clock, once an interval: the server's page `/metrics`, the
//! processes of its launch with the machine around them, and the GPUs. [`summarize`] says what they were in a window.
//!
//! It costs the server one page an interval (5 to 8 ms of the API server of vLLM 0.32 on a CPU), the machine some
//! milliseconds of `/proc`, and the load's thread nothing. A page that comes too late is left out and counted. What is not
//! there (a page, a GPU) is a note or nothing at all, never an error.
//!
//! # Definitions
//!
//! Over a window from `a` to `b`. Gauges: over the samples within it. Counters: the value at `b` less that at `a`, by
//! linear interpolation between samples, resets added up; samples must cover nine tenths of the window. A server's counters
//! are therefore good to about one interval at the window's start, where the warm-up has just ended. A share is from 0 to
//! 1. What cannot be known is absent, never 0.
//!
//! | name | definition |
//! |---|---|
//! | `requests_running_mean`, `_max`, `requests_waiting_mean`, `_max`, `requests_swapped_max` | of the scheduler, summed over engines |
//! | `kv_cache_usage_mean`, `_max` | share of the KV cache in use, averaged over engines |
//! | `preemptions` | requests that were put back for want of cache |
//! | `prefix_cache_hit_rate` | hits / queries in the window; for V0 the mean of its own rate since its start |
//! | `server_prompt_tokens`, `server_generation_tokens`, `server_requests_finished` | what the server says it has done |
//! | `engine_steps` | steps that generated or prefilled tokens, of vLLM's V1 |
//! | `server_cpu_s` | processor seconds of the launch's processes |
//! | `server_rss_gib_max` | sum of their resident memory, what they share counted in each |
//! | `server_pss_gib` | the same after the load, what they share divided among them |
//! | `host_cpu_share_mean` | share of all processors that was busy, the load generator included |
//! | `host_memory_available_gib_min` | the kernel's `MemAvailable` |
//! | `gpu_memory_gib_max`, `gpu_temperature_c_max` | of the device that has most, whoever uses it |
//! | `gpu_utilization_mean`, `gpu_sm_clock_mhz_mean`, `gpu_memory_clock_mhz_mean` | averaged over devices |
//! | `gpu_power_w_mean` | summed over devices |
//! | `gpu_throttled_share` | share of samples in which a device was slowed down, of the device with most |
//! | `energy_j` | summed over devices: the driver's counter, or else power integrated by the trapezoidal rule |
//! | `energy_per_output_token_j` | `energy_j` / output tokens that clients received |

mod activity;
mod engine;
mod disturbance;
mod exposition;
mod foreign;
mod gpu;
mod host;
mod reader;
mod scrape;
mod series;
mod summary;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

pub(crate) use crate::trial::SERVER_METRICS as NAMES;
pub(crate) use activity::DeviceActivity;
pub(crate) use series::Table;
pub(crate) use summary::summarize;

use crate::engine::MetricsPage;
use crate::facts::GpuId;
use crate::server::Processes;
use crate::trial::ServerTelemetry;
use reader::{Reader, Reading};
use scrape::{Answer, Scraper};

/// How often is sampled where nobody says otherwise.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// Samples of a series that are stored; a longer one is thinned. A trial of a minute without a GPU takes about 6 kB.
const MOST_STORED: usize = 120;

/// What to watch.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    /// Whose page of numbers is asked: as a load's target, a trailing `/v1` is accepted. `None`: no page.
    pub base_url: Option<String>,
    pub page: MetricsPage,
    /// The server's processes, where they are known.
    pub processes: Option<Processes>,
    /// Whether the server runs on this machine, so that its processors and memory are of interest.
    pub host: bool,
    /// `None`: no GPU is of interest.
    pub gpus: Option<Devices>,
    pub interval: Duration,
}

/// Which GPUs to watch: those that the server's processes compute on, or else the first visible ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Devices {
    /// The server's `CUDA_VISIBLE_DEVICES`; `None` where it is not set.
    pub visible: Option<String>,
    /// How many of them the server uses, as far as that is known.
    pub used: u64,
    /// Whether slots or the variable give them to the server alone.
    pub is_given: bool,
    /// The processes that an earlier observation of the same server has found first; without one those that this finds first
    /// are no disturbance unless they are at work.
    pub known: Vec<DeviceProcesses>,
}

/// A device and the ids of the processes that compute on it.
pub(crate) type DeviceProcesses = (GpuId, Vec<u32>);

impl Scope {
    /// A server of which only the address is known. If that is one of this machine, its processors, memory and visible
    /// GPUs are watched as well.
    #[must_use]
    pub(crate) fn of_url(base_url: impl Into<String>) -> Self {
        let base_url = base_url.into();
        let host = base_url.split("://").nth(1).unwrap_or(&base_url);
        let local = ["127.", "localhost", "[::1]"].iter().any(|local| host.starts_with(local));
        let gpus = local.then(|| {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
            Devices { visible, used: u64::MAX, is_given: false, known: Vec::new() }
        });
        Self {
            base_url: Some(base_url),
            page: MetricsPage::usual(),
            processes: None,
            host: local,
            gpus,
            interval: INTERVAL,
        }
    }
}

/// What was seen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Telemetry {
    pub began: Instant,
    pub ended: Instant,
    pub interval: Duration,
    /// Of the server's page.
    pub server: Table,
    /// Of its processes.
    pub process: Table,
    pub host: Table,
    /// One for each device that was watched.
    pub gpus: Vec<Table>,
    /// Samples of any source that were too slow or failed.
    pub missed: u64,
    /// Why a source is absent.
    pub notes: Vec<String>,
    /// The processes that computed on the devices at first.
    pub known: Vec<DeviceProcesses>,
    /// When processes of others were seen on the engine's devices.
    pub foreign: Vec<(Instant, ForeignProcess)>,
}

/// A process of others that computes on one of the engine's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForeignProcess {
    pub device: String,
    /// In the driver's own namespace.
    pub pid: u32,
    /// Bytes on the device, if the driver reports them.
    pub memory: Option<u64>,
    /// Whether it has appeared during the measurement.
    pub is_new: bool,
}

impl Telemetry {
    fn empty(began: Instant, interval: Duration) -> Self {
        let (server, process, host) = (Table::default(), Table::default(), Table::default());
        Self {
            began,
            ended: began,
            interval,
            server,
            process,
            host,
            gpus: Vec::new(),
            missed: 0,
            notes: Vec::new(),
            known: Vec::new(),
            foreign: Vec::new(),
        }
    }

    /// Summary and series of a trial.
    #[must_use]
    pub(crate) fn record(&self, window: Option<Range<Instant>>, output_tokens: u64) -> ServerTelemetry {
        let window = window.unwrap_or(self.began..self.ended);
        let summary = summarize(self, &window, output_tokens);
        ServerTelemetry { summary, series: self.to_json(&window), disturbed: disturbance::found(self, &window) }
    }

    /// `interval_s`, `window_s` (the window's length), `missed`, `notes`, and for each source an object of columns of the
    /// same length: `at_s` is in seconds from the window's start, negative before it; counters begin at 0 with the first
    /// sample; what is missing is null, and so is a reason for slowness (`slowed_by_...`) that does not hold. `gpus` is a list, the others (`server`, `process`, `host`) are absent where there was
    /// nothing.
    #[must_use]
    pub(crate) fn to_json(&self, window: &Range<Instant>) -> Json {
        let mut json = json!({
            "interval_s": self.interval.as_secs_f64(),
            "window_s": window.end.saturating_duration_since(window.start).as_secs_f64(),
            "missed": self.missed,
            "notes": self.notes,
        });
        for (name, table) in [("server", &self.server), ("process", &self.process), ("host", &self.host)] {
            if !table.is_empty() {
                json[name] = table.to_json(window.start, MOST_STORED);
            }
        }
        if !self.gpus.is_empty() {
            json["gpus"] = self.gpus.iter().map(|gpu| gpu.to_json(window.start, MOST_STORED)).collect();
        }
        json
    }

    fn add(&mut self, reading: &Reading) {
        for (table, row) in [(&mut self.process, &reading.process), (&mut self.host, &reading.host)] {
            if let Some(row) = row {
                table.push(reading.at, row);
            }
        }
        self.gpus.resize(self.gpus.len().max(reading.gpus.len()), Table::default());
        for (table, row) in self.gpus.iter_mut().zip(&reading.gpus) {
            table.push(reading.at, row);
        }
        if self.known.is_empty() {
            self.known.clone_from(&reading.known);
        }
        self.foreign.extend(reading.foreign.iter().map(|process| (reading.at, process.clone())));
        for note in &reading.notes {
            if !self.notes.contains(note) {
                self.notes.push(note.clone());
            }
        }
    }
}

/// A running observation. Dropping it ends it without a result.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Option<oneshot::Sender<()>>,
    mark: Mark,
    task: JoinHandle<Telemetry>,
}

/// Asks for a sample at an instant of interest. Quick, and of any thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mark(Arc<Notify>);

impl Mark {
    /// A sample is taken soon, but not of the server's page: that would delay the very requests that begin now.
    pub(crate) fn now(&self) {
        self.0.notify_one();
    }
}

impl Watch {
    /// Begins to sample, on the runtime of the caller: the first sample is taken at once.
    #[must_use]
    pub(crate) fn start(scope: Scope) -> Self {
        let (stop, stopped) = oneshot::channel();
        let mark = Mark::default();
        let task = tokio::spawn(sample(scope, mark.clone(), stopped));
        Self { stop: Some(stop), mark, task }
    }

    /// To ask for samples with.
    #[must_use]
    pub(crate) fn mark(&self) -> Mark {
        self.mark.clone()
    }

    /// Takes a last sample and ends; a few seconds at most, whatever hangs. To be called before the server is stopped.
    pub(crate) async fn stop(mut self) -> Telemetry {
        if let Some(stop) = self.stop.take() {
            // The task waits for it.
            let _ = stop.send(());
        }
        match (&mut self.task).await {
            Ok(telemetry) => telemetry,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Telemetry::empty(Instant::now(), Duration::ZERO),
            },
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The series that a server's page has at this moment, by name; `None` when it does not answer in time or has none.
pub(crate) async fn ask(base_url: &str, page: &MetricsPage) -> Option<Vec<(&'static str, f64)>> {
    match Scraper::new(base_url, page).ok()?.ask().await {
        Answer::Values(row) => Some(row),
        Answer::Missed | Answer::Nothing(_) => None,
    }
}

/// Why a sample is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Interval,
    Mark,
    Last,
}

async fn sample(scope: Scope, mark: Mark, mut stopped: oneshot::Receiver<()>) -> Telemetry {
    let mut telemetry = Telemetry::empty(Instant::now(), scope.interval);
    let mut scraper = None;
    match scope.base_url.as_deref().map(|url| Scraper::new(url, &scope.page)).transpose() {
        Ok(built) => scraper = built,
        Err(error) => telemetry.notes.push(format!("no http client: {error}")),
    }
    let mut reader = match Reader::start(&scope) {
        Ok(reader) => Some(reader),
        Err(error) => {
            telemetry.notes.push(format!("no thread to read this machine with: {error}"));
            None
        }
    };
    let mut ticks = tokio::time::interval(scope.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let why = tokio::select! {
            biased;
            // Before the end: who asks for both gets both.
            () = mark.0.notified() => Why::Mark,
            _ = &mut stopped => Why::Last,
            _ = ticks.tick() => Why::Interval,
        };
        let page = async {
            match &scraper {
                Some(scraper) if why != Why::Mark => Some((scraper.ask().await, Instant::now())),
                _ => None,
            }
        };
        let here = async {
            match &mut reader {
                Some(reader) => Some(reader.ask(why == Why::Last).await),
                None => None,
            }
        };
        let (page, here) = tokio::join!(page, here);
        match page {
            Some((Answer::Values(row), at)) => telemetry.server.push(at, &row),
            Some((Answer::Missed, _)) => telemetry.missed += 1,
            Some((Answer::Nothing(note), _)) => {
                telemetry.notes.push(note);
                scraper = None;
            }
            None => {}
        }
        match here {
            Some(Some(reading)) => telemetry.add(&reading),
            Some(None) => telemetry.missed += 1,
            None => {}
        }
        if why == Why::Last {
            telemetry.ended = Instant::now();
            return telemetry;
        }
    }
}
