//! What is read on this machine, on a thread of its own: the driver may hang, and nothing may wait for it then.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::gpu::{Gpus, Rows};
use super::host::{self, Tree};
use super::series::Row;
use super::{DeviceProcesses, Devices, ForeignProcess, Scope};
use crate::facts::GpuError;

/// The longest that anybody waits for a reading.
const LIMIT: Duration = Duration::from_secs(2);

/// Everything at one instant.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) at: Instant,
    pub(super) process: Option<Row>,
    pub(super) host: Option<Row>,
    pub(super) gpus: Vec<Row>,
    pub(super) foreign: Vec<ForeignProcess>,
    /// With the first reading of the devices.
    pub(super) known: Vec<DeviceProcesses>,
    /// Why values of the GPUs are absent.
    pub(super) notes: Vec<String>,
}

/// A question: whether it is the last, and where the answer goes.
type Question = (bool, oneshot::Sender<Reading>);

#[derive(Debug)]
pub(super) struct Reader {
    questions: mpsc::Sender<Question>,
    /// A question whose answer has not come in time.
    late: Option<oneshot::Receiver<Reading>>,
}

impl Reader {
    /// The thread ends when the reader is dropped, and is never waited for.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn start(scope: &Scope) -> std::io::Result<Self> {
        let (questions, asked) = mpsc::channel::<Question>();
        let mut source = Source::new(scope);
        std::thread::Builder::new().name("telemetry".to_owned()).spawn(move || {
            for (last, answer) in asked {
                // Who asked may have gone.
                drop(answer.send(source.read(last)));
            }
        })?;
        Ok(Self { questions, late: None })
    }

    /// A reading, or nothing when it takes too long.
    pub(super) async fn ask(&mut self, last: bool) -> Option<Reading> {
        let mut answer = if let Some(late) = self.late.take() {
            late
        } else {
            let (sender, answer) = oneshot::channel();
            self.questions.send((last, sender)).ok()?;
            answer
        };
        if let Ok(reading) = tokio::time::timeout(LIMIT, &mut answer).await {
            return reading.ok();
        }
        self.late = Some(answer);
        None
    }
}

/// The same text for as long as a call hangs.
fn without_time(error: &GpuError) -> String {
    match error {
        GpuError::Hangs { call, .. } => format!("the driver hangs: {call} does not return"),
        other => other.to_string(),
    }
}

/// Where the values come from.
struct Source {
    tree: Option<Tree>,
    host: bool,
    /// Opened with the first reading, when the server's processes are at work on their devices.
    unopened: Option<Devices>,
    gpus: Option<Gpus>,
}

impl Source {
    fn new(scope: &Scope) -> Self {
        Self {
            tree: scope.processes.clone().map(Tree::new),
            host: scope.host,
            unopened: scope.gpus.clone(),
            gpus: None,
        }
    }

    fn read(&mut self, last: bool) -> Reading {
        let (mut notes, mut known) = (Vec::new(), Vec::new());
        if let Some(devices) = self.unopened.take() {
            let pids = self.tree.as_mut().map(Tree::pids).unwrap_or_default();
            match Gpus::open(&devices, pids) {
                Ok(gpus) => self.gpus = gpus,
                Err(error) => notes.push(format!("the GPUs are not read: {error}")),
            }
            notes.extend(self.gpus.as_ref().and_then(Gpus::doubt));
            known = self.gpus.as_ref().map(Gpus::known).unwrap_or_default();
        }
        let at = Instant::now();
        let Self { tree, gpus, .. } = self;
        let mut searched = || tree.as_mut().map(Tree::searched_pids).unwrap_or_default();
        let Rows { devices: rows, foreign, notes: absent } = match gpus.as_mut().map(|gpus| gpus.read(&mut searched)) {
            Some(Ok(rows)) => rows,
            None => Rows::default(),
            Some(Err(error)) => {
                notes.push(format!("some readings of the GPUs are missing: {}", without_time(&error)));
                Rows::default()
            }
        };
        notes.extend(absent);
        Reading {
            at,
            gpus: rows,
            foreign,
            known,
            notes,
            host: self.host.then(host::read),
            process: self.tree.as_mut().map(|tree| tree.read(last)),
        }
    }
}
