//! A record of the actual schedule, for comparison with the measurements of a client (`--sim-schedule FILE`).
//!
//! The file has one line of JSON for each step, ordered by the steps' ends. Times are nanoseconds of `CLOCK_MONOTONIC`,
//! a clock that all processes of a machine share. A separate thread writes the file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use serde::Serialize;

use crate::twin::{BatchWork, ScheduledStep};

/// One step.
#[derive(Debug, Serialize)]
pub(super) struct StepRecord {
    /// The data-parallel replica.
    pub(super) engine: usize,
    /// The instant at which its tokens were due, and the instant at which the engine's thread processed its end.
    pub(super) due_ns: u64,
    pub(super) ended_ns: u64,
    /// Its length according to the schedule, from its start on the device.
    pub(super) length_ns: u64,
    /// The number of requests in each state when the step was scheduled.
    pub(super) running: usize,
    pub(super) waiting: usize,
    /// The step's own tokens, those of prompts among them, and its number of sequences.
    pub(super) tokens: u32,
    pub(super) prompt_tokens: u32,
    pub(super) sequences: u32,
    /// The output of the step for each request: number of the request, tokens sent, due time, and time of writing to
    /// the socket. The last one is null if the web server writes.
    pub(super) chunks: Vec<(u64, u32, u64, Option<u64>)>,
}

impl StepRecord {
    /// Creates a record. `times` are due time and actual time of the end, and the length.
    pub(super) fn new(seen: &ScheduledStep, [due_ns, ended_ns, length_ns]: [u64; 3], chunks: usize) -> Self {
        let ScheduledStep { replica: engine, running, waiting, work, .. } = *seen;
        let BatchWork { tokens, prompt_tokens, sequences, .. } = work;
        let chunks = Vec::with_capacity(chunks);
        Self { engine, due_ns, ended_ns, length_ns, running, waiting, tokens, prompt_tokens, sequences, chunks }
    }
}

/// The thread that writes the file. Dropping this waits until all records are written.
#[derive(Debug)]
pub(super) struct ScheduleWriter {
    records: Option<Sender<StepRecord>>,
    writer: Option<JoinHandle<()>>,
}

impl ScheduleWriter {
    /// Creates the file and starts the thread.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub(super) fn create(path: &Path) -> std::io::Result<Self> {
        let file = BufWriter::new(File::create(path)?);
        let (records, inbox) = channel();
        let writer = std::thread::Builder::new().name("schedule".to_owned()).spawn(move || write(file, &inbox))?;
        Ok(Self { records: Some(records), writer: Some(writer) })
    }

    pub(super) fn write(&self, record: StepRecord) {
        if let Some(records) = &self.records {
            // A full disk ends the record, not the server.
            let _ = records.send(record);
        }
    }
}

impl Drop for ScheduleWriter {
    fn drop(&mut self) {
        drop(self.records.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Writes records until the last sender is dropped or the disk fails.
fn write(mut file: BufWriter<File>, inbox: &Receiver<StepRecord>) {
    loop {
        let record = match inbox.try_recv() {
            Ok(record) => record,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                // Flushed while idle, so that a reader sees whole lines.
                if file.flush().is_err() {
                    return;
                }
                let Ok(record) = inbox.recv() else { break };
                record
            }
        };
        if serde_json::to_writer(&mut file, &record).is_err() || file.write_all(b"\n").is_err() {
            return;
        }
    }
    let _ = file.flush();
}
