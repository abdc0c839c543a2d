//! Reader of this machine's values on its own thread: the driver may hang, and nothing may then wait for it.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::gpu::{GpuRows, WatchedGpus};
use super::host::{self, ProcessTree};
use super::series::SeriesRow;
use super::{DeviceProcesses, ForeignProcess, TelemetryScope, WatchedDevices};
use crate::facts::GpuError;

/// Time limit of a reading.
const READING_LIMIT: Duration = Duration::from_secs(2);

/// All values of one instant.
#[derive(Debug)]
pub(super) struct HostReading {
    pub(super) at: Instant,
    pub(super) process: Option<SeriesRow>,
    pub(super) host: Option<SeriesRow>,
    pub(super) gpus: Vec<SeriesRow>,
    pub(super) foreign: Vec<ForeignProcess>,
    /// Initial processes of the devices. Only the first reading contains them.
    pub(super) initial_processes: Vec<DeviceProcesses>,
    /// Reasons for absent values of the GPUs.
    pub(super) notes: Vec<String>,
}

/// A request for a reading: whether it is the last, and the channel for the answer.
type ReadingRequest = (bool, oneshot::Sender<HostReading>);

/// Handle of the thread that reads this machine.
#[derive(Debug)]
pub(super) struct HostReader {
    questions: mpsc::Sender<ReadingRequest>,
    /// The answer that has not come in time. The next call waits for it instead of requesting another reading.
    late: Option<oneshot::Receiver<HostReading>>,
}

impl HostReader {
    /// Starts the thread. It ends when the reader is dropped, and is never waited for.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(scope: &TelemetryScope) -> std::io::Result<Self> {
        let (questions, asked) = mpsc::channel::<ReadingRequest>();
        let mut source = ReadingSources::new(scope);
        std::thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
            for (last, answer) in asked {
                // The caller may have stopped waiting.
                drop(answer.send(source.read(last)));
            }
        })?;
        Ok(Self { questions, late: None })
    }

    /// Requests a reading. Returns `None` if it takes too long.
    pub(super) async fn ask(&mut self, last: bool) -> Option<HostReading> {
        let mut answer = if let Some(late) = self.late.take() {
            late
        } else {
            let (sender, answer) = oneshot::channel();
            self.questions.send((last, sender)).ok()?;
            answer
        };
        if let Ok(reading) = tokio::time::timeout(READING_LIMIT, &mut answer).await {
            return reading.ok();
        }
        self.late = Some(answer);
        None
    }
}

/// Returns an error's text without its duration, so that the text does not change while a call hangs.
fn without_time(error: &GpuError) -> String {
    match error {
        GpuError::Hangs { call, .. } => format!("the driver hangs: {call} does not return"),
        other => other.to_string(),
    }
}

/// The sources of the values.
struct ReadingSources {
    tree: Option<ProcessTree>,
    host: bool,
    /// Devices to open with the first reading, when the server's processes already compute on them.
    unopened: Option<WatchedDevices>,
    gpus: Option<WatchedGpus>,
}

impl ReadingSources {
    fn new(scope: &TelemetryScope) -> Self {
        Self {
            tree: scope.processes.clone().map(ProcessTree::new),
            host: scope.host,
            unopened: scope.gpus.clone(),
            gpus: None,
        }
    }

    fn read(&mut self, last: bool) -> HostReading {
        let (mut notes, mut known) = (Vec::new(), Vec::new());
        if let Some(devices) = self.unopened.take() {
            let pids = self.tree.as_mut().map(ProcessTree::pids).unwrap_or_default();
            match WatchedGpus::open(&devices, pids) {
                Ok(gpus) => self.gpus = gpus,
                Err(error) => notes.push(format!("the GPUs cannot be read: {error}")),
            }
            notes.extend(self.gpus.as_ref().and_then(WatchedGpus::absence_note));
            known = self.gpus.as_ref().map(WatchedGpus::initial_processes).unwrap_or_default();
        }
        let at = Instant::now();
        let Self { tree, gpus, .. } = self;
        let mut searched = || tree.as_mut().map(ProcessTree::searched_pids).unwrap_or_default();
        let GpuRows { devices: rows, foreign, notes: absent } = match gpus.as_mut().map(|gpus| gpus.read(&mut searched))
        {
            Some(Ok(rows)) => rows,
            None => GpuRows::default(),
            Some(Err(error)) => {
                notes.push(format!("some readings of the GPUs are missing: {}", without_time(&error)));
                GpuRows::default()
            }
        };
        notes.extend(absent);
        HostReading {
            at,
            gpus: rows,
            foreign,
            initial_processes: known,
            notes,
            host: self.host.then(host::read),
            process: self.tree.as_mut().map(|tree| tree.read(last)),
        }
    }
}
