//! Telemetry of the server, its processes, the host and its GPUs, sampled during a load without delaying it.
//!
//! [`ServerWatch::start`] samples once per interval. The sources are the server's page `/metrics`, the processes of its
//! launch, the host and the GPUs. The page has its own time stamps, and the other sources share theirs. [`summarize`]
//! reduces the samples of a window to numbers.
//!
//! Each sample costs the server one page: 5 to 8 ms of the API server of vLLM 0.32 on a CPU. It costs the host some
//! milliseconds to read `/proc`, and the load's thread nothing. A page that arrives too late is left out and counted.
//! An absent source (a page, a GPU) causes a note or nothing, never an error.
//!
//! # Definitions
//!
//! All numbers are for a window from `a` to `b`. Gauges use the samples within it. A counter's number is its value at
//! `b` minus its value at `a`, interpolated linearly between samples. If the counter was reset, the growth before and
//! after the reset is added up. Samples must cover nine tenths of the window. A server's counters are therefore
//! accurate to about one interval at the window's start, when the warm-up has just ended. A share lies between 0 and 1.
//! Unknown numbers are absent, never 0.
//!
//! | name | definition |
//! |---|---|
//! | `requests_running_mean`, `_max`, `requests_waiting_mean`, `_max`, `requests_swapped_max` | summed over engines |
//! | `kv_cache_usage_mean`, `_max` | share of the KV cache in use, averaged over engines |
//! | `preemptions` | requests that were preempted for lack of KV cache blocks |
//! | `prefix_cache_hit_rate` | hits / queries in the window; for V0 the mean of its own rate since its start |
//! | `server_prompt_tokens`, `server_generation_tokens`, `server_requests_finished` | totals that the server reports |
//! | `engine_steps` | steps that generated or prefilled tokens, of vLLM's V1 |
//! | `server_cpu_s` | processor seconds of the launch's processes |
//! | `server_rss_gib_max` | sum of their resident memory; shared memory counts in each |
//! | `server_pss_gib` | like `server_rss_gib_max`, but read after the load and with shared memory divided among users |
//! | `host_cpu_share_mean` | share of all processors that was busy, the load generator included |
//! | `host_memory_available_gib_min` | the kernel's `MemAvailable` |
//! | `gpu_memory_gib_max`, `gpu_temperature_c_max` | of the device with the highest value, other programs included |
//! | `gpu_utilization_mean`, `gpu_sm_clock_mhz_mean`, `gpu_memory_clock_mhz_mean` | averaged over devices |
//! | `gpu_power_w_mean` | summed over devices |
//! | `gpu_throttled_share` | share of samples that found a device slowed down, of the device with the highest share |
//! | `energy_j` | summed over devices: the driver's counter, or else power integrated by the trapezoidal rule |
//! | `energy_per_output_token_j` | `energy_j` / output tokens that clients received |

mod activity;
mod engine_series;
mod disturbance;
mod exposition;
mod foreign_process;
mod gpu;
mod host;
mod host_reader;
mod scrape;
mod series;
mod span;
mod summary;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use url::{Host, Url};

pub(crate) use crate::trial::SERVER_METRICS as NAMES;
pub(crate) use activity::DeviceActivity;
pub(crate) use series::SeriesTable;
pub(crate) use span::LoadSpan;
pub(crate) use summary::summarize;

use crate::engine::MetricsPage;
use crate::facts::GpuId;
use crate::server::LaunchProcesses;
use crate::trial::ServerTelemetry;
use host_reader::{HostReader, HostReading};
use scrape::{ScrapeAnswer, Scraper};

/// Default interval between samples.
pub(crate) const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of stored samples of a series, apart from the last one. A longer series is thinned. A trial of a
/// minute without a GPU takes about 6 kB.
const MAX_STORED_SAMPLES: usize = 120;

/// The sources to watch.
#[derive(Clone, Debug)]
pub(crate) struct TelemetryScope {
    /// Address of the server whose metrics page is read. A trailing `/v1` is accepted, as for a load's target. `None`:
    /// no page.
    pub base_url: Option<String>,
    /// Path of the metrics page, and the server's own names of series.
    pub page: MetricsPage,
    /// The server's processes, if known.
    pub processes: Option<LaunchProcesses>,
    /// Whether the server runs on this machine. The host's processors and memory are then read.
    pub host: bool,
    /// `None`: no GPU is read.
    pub gpus: Option<WatchedDevices>,
    pub interval: Duration,
}

/// The GPUs to watch: those that the server's processes compute on, or else the first visible ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchedDevices {
    /// The server's `CUDA_VISIBLE_DEVICES`, or `None` if it is not set.
    pub visible: Option<String>,
    /// Number of visible GPUs that the server uses; `u64::MAX` if unknown.
    pub used: u64,
    /// Whether slots or `CUDA_VISIBLE_DEVICES` assign them to the server alone.
    pub is_exclusive: bool,
    /// Processes that computed on each device when an earlier observation of this server began. For a device that is
    /// not listed, the processes at the start of this observation count. They are no disturbance unless they are at
    /// work.
    pub known: Vec<DeviceProcesses>,
}

/// A device and the ids of the processes that compute on it.
pub(crate) type DeviceProcesses = (GpuId, Vec<u32>);

/// Returns whether the URL's host is a loopback address, `localhost` or `0.0.0.0`. Other addresses of this machine are
/// not recognized.
#[must_use]
pub(crate) fn is_local(url: &str) -> bool {
    match Url::parse(url).ok().as_ref().and_then(Url::host) {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback() || address.is_unspecified(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

impl TelemetryScope {
    /// Creates the scope of a server with only a known address. If the address is on this machine, the host's
    /// processors and memory and the visible GPUs are watched as well.
    #[must_use]
    pub(crate) fn of_url(base_url: impl Into<String>) -> Self {
        let base_url = base_url.into();
        let local = is_local(&base_url);
        let gpus = local.then(|| {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
            WatchedDevices { visible, used: u64::MAX, is_exclusive: false, known: Vec::new() }
        });
        Self {
            base_url: Some(base_url),
            page: MetricsPage::usual(),
            processes: None,
            host: local,
            gpus,
            interval: DEFAULT_INTERVAL,
        }
    }
}

/// The samples of an observation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Telemetry {
    pub began: Instant,
    pub ended: Instant,
    pub interval: Duration,
    /// Samples of the server's page.
    pub server: SeriesTable,
    /// Samples of the server's processes.
    pub process: SeriesTable,
    pub host: SeriesTable,
    /// Samples of each watched device.
    pub gpus: Vec<SeriesTable>,
    /// Number of samples of any source that were too slow or failed.
    pub missed: u64,
    /// Reasons for absent sources.
    pub notes: Vec<String>,
    /// The processes that initially computed on the devices.
    pub known: Vec<DeviceProcesses>,
    /// Foreign processes on the engine's devices, with the instant of each observation.
    pub foreign: Vec<(Instant, ForeignProcess)>,
}

/// A process that computes on one of the engine's devices without being the engine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForeignProcess {
    pub device: String,
    /// Process id in the driver's own namespace.
    pub pid: u32,
    /// Bytes on the device, if the driver reports them.
    pub memory: Option<u64>,
    /// Whether it was absent when the observation began.
    pub is_new: bool,
}

impl Telemetry {
    fn empty(began: Instant, interval: Duration) -> Self {
        let (server, process, host) = (SeriesTable::default(), SeriesTable::default(), SeriesTable::default());
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

    fn whole(&self) -> LoadSpan {
        LoadSpan { range: self.began..self.ended, ends_load: true }
    }

    /// Returns the summary, the series and the disturbances of a trial. `None` as window means the whole observation.
    /// `output_tokens` is the number that clients received in the window.
    #[must_use]
    pub(crate) fn record(&self, window: Option<LoadSpan>, output_tokens: u64) -> ServerTelemetry {
        let window = window.unwrap_or_else(|| self.whole());
        let summary = summarize(self, &window, output_tokens);
        ServerTelemetry {
            summary,
            series: self.to_json(&window),
            disturbed: disturbance::find_disturbances(self, &window),
        }
    }

    /// Returns the samples as JSON: `interval_s`, `window_s` (the window's length), `missed`, `notes`, and for each
    /// source an object of columns of equal length. `at_s` is in seconds from the window's start, negative before it.
    /// Counters begin at 0 with the first sample. Missing values are null, and so is a reason for slowness
    /// (`slowed_by_...`) that does not hold. `gpus` is a list. Sources without samples are absent, among `server`,
    /// `process`, `host` and `gpus`.
    #[must_use]
    pub(crate) fn to_json(&self, window: &LoadSpan) -> Json {
        let window = &window.range;
        let mut json = json!({
            "interval_s": self.interval.as_secs_f64(),
            "window_s": window.end.saturating_duration_since(window.start).as_secs_f64(),
            "missed": self.missed,
            "notes": self.notes,
        });
        for (name, table) in [("server", &self.server), ("process", &self.process), ("host", &self.host)] {
            if !table.is_empty() {
                json[name] = table.to_json(window.start, MAX_STORED_SAMPLES);
            }
        }
        if !self.gpus.is_empty() {
            json["gpus"] = self.gpus.iter().map(|gpu| gpu.to_json(window.start, MAX_STORED_SAMPLES)).collect();
        }
        json
    }

    fn add(&mut self, reading: &HostReading) {
        for (table, row) in [(&mut self.process, &reading.process), (&mut self.host, &reading.host)] {
            if let Some(row) = row {
                table.push(reading.at, row);
            }
        }
        self.gpus.resize(self.gpus.len().max(reading.gpus.len()), SeriesTable::default());
        for (table, row) in self.gpus.iter_mut().zip(&reading.gpus) {
            table.push(reading.at, row);
        }
        if self.known.is_empty() {
            self.known.clone_from(&reading.initial_processes);
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
pub(crate) struct ServerWatch {
    stop: Option<oneshot::Sender<()>>,
    mark: WindowMark,
    task: JoinHandle<Telemetry>,
}

/// Handle that requests a sample at an instant of interest. Quick, and usable on any thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct WindowMark(Arc<Notify>);

impl WindowMark {
    /// Requests a sample. It leaves out the server's page, because reading it would delay the requests that begin now.
    pub(crate) fn request_sample(&self) {
        self.0.notify_one();
    }
}

impl ServerWatch {
    /// Starts sampling on the caller's runtime. The first sample is taken at once.
    #[must_use]
    pub(crate) fn start(scope: TelemetryScope) -> Self {
        let (stop, stopped) = oneshot::channel();
        let mark = WindowMark::default();
        let task = tokio::spawn(sample(scope, mark.clone(), stopped));
        Self { stop: Some(stop), mark, task }
    }

    /// Returns a handle that requests samples.
    #[must_use]
    pub(crate) fn mark(&self) -> WindowMark {
        self.mark.clone()
    }

    /// Takes a last sample and ends. This takes a few seconds at most, even if a source hangs. Call it before the
    /// server is stopped.
    pub(crate) async fn stop(mut self) -> Telemetry {
        if let Some(stop) = self.stop.take() {
            // The task holds the receiver until it ends.
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

impl Drop for ServerWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads the current series of a server's page, by name. Returns `None` if it does not answer in time or has none.
pub(crate) async fn read_page(base_url: &str, page: &MetricsPage) -> Option<Vec<(&'static str, f64)>> {
    match Scraper::new(base_url, page).ok()?.ask().await {
        ScrapeAnswer::Values(row) => Some(row),
        ScrapeAnswer::Missed | ScrapeAnswer::NoPage(_) => None,
    }
}

/// The reason for a sample.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SampleCause {
    Interval,
    /// A request of `WindowMark::now`.
    Mark,
    /// The end of the observation.
    Last,
}

/// Takes the samples of an observation until `stopped` fires.
async fn sample(scope: TelemetryScope, mark: WindowMark, mut stopped: oneshot::Receiver<()>) -> Telemetry {
    let mut telemetry = Telemetry::empty(Instant::now(), scope.interval);
    let mut scraper = None;
    match scope.base_url.as_deref().map(|url| Scraper::new(url, &scope.page)).transpose() {
        Ok(built) => scraper = built,
        Err(error) => telemetry.notes.push(format!("cannot create an HTTP client: {error}")),
    }
    let mut reader = match HostReader::start(&scope) {
        Ok(reader) => Some(reader),
        Err(error) => {
            telemetry.notes.push(format!("cannot start the thread that reads this machine: {error}"));
            None
        }
    };
    let mut ticks = tokio::time::interval(scope.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let why = tokio::select! {
            biased;
            // Polled before the end, so that a mark just before the stop still gets its sample.
            () = mark.0.notified() => SampleCause::Mark,
            _ = &mut stopped => SampleCause::Last,
            _ = ticks.tick() => SampleCause::Interval,
        };
        let page = async {
            match &scraper {
                Some(scraper) if why != SampleCause::Mark => Some((scraper.ask().await, Instant::now())),
                _ => None,
            }
        };
        let here = async {
            match &mut reader {
                Some(reader) => Some(reader.ask(why == SampleCause::Last).await),
                None => None,
            }
        };
        let (page, here) = tokio::join!(page, here);
        match page {
            Some((ScrapeAnswer::Values(row), at)) => telemetry.server.push(at, &row),
            Some((ScrapeAnswer::Missed, _)) => telemetry.missed += 1,
            Some((ScrapeAnswer::NoPage(note), _)) => {
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
        if why == SampleCause::Last {
            telemetry.ended = Instant::now();
            return telemetry;
        }
    }
}
