//! The schedule as it was kept, for whoever wants to hold a client against it (`--sim-schedule FILE`).
//!
//! One line of JSON for each step, in the order in which they ended. Times are nanoseconds of `CLOCK_MONOTONIC`, which all
//! processes of a machine have in common. A thread of its own writes them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use serde::Serialize;

use crate::twin::{Seen, Work};

/// One step.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    /// The data-parallel replica.
    pub(super) engine: usize,
    /// When its tokens were due, and when the engine's thread came to them.
    pub(super) due_ns: u64,
    pub(super) ended_ns: u64,
    /// Its length by the schedule, from its start on the device.
    pub(super) length_ns: u64,
    /// When it was scheduled.
    pub(super) running: usize,
    pub(super) waiting: usize,
    pub(super) tokens: u32,
    pub(super) prompt_tokens: u32,
    pub(super) sequences: u32,
    /// Those who get something: number of the request, tokens sent, when that was due, and when it was written to the
    /// socket; null where the web server writes it.
    pub(super) chunks: Vec<(u64, u32, u64, Option<u64>)>,
}

impl Record {
    /// `times` are those of the end: due, ended, length.
    pub(super) fn new(seen: &Seen, [due_ns, ended_ns, length_ns]: [u64; 3], chunks: usize) -> Self {
        let Seen { replica: engine, running, waiting, work, .. } = *seen;
        let Work { tokens, prompt_tokens, sequences, .. } = work;
        let chunks = Vec::with_capacity(chunks);
        Self { engine, due_ns, ended_ns, length_ns, running, waiting, tokens, prompt_tokens, sequences, chunks }
    }
}

/// The thread that writes. Dropping it waits until all is written.
#[derive(Debug)]
pub(super) struct Schedule {
    records: Option<Sender<Record>>,
    writer: Option<JoinHandle<()>>,
}

impl Schedule {
    /// # Errors
    /// When the file cannot be made.
    pub(super) fn create(path: &Path) -> std::io::Result<Self> {
        let file = BufWriter::new(File::create(path)?);
        let (records, inbox) = channel();
        let writer = std::thread::Builder::new().name("schedule".to_owned()).spawn(move || write(file, &inbox))?;
        Ok(Self { records: Some(records), writer: Some(writer) })
    }

    pub(super) fn write(&self, record: Record) {
        if let Some(records) = &self.records {
            // A disk that is full ends the writing, not the server.
            let _ = records.send(record);
        }
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        drop(self.records.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Ends with the last sender, or with the disk.
fn write(mut file: BufWriter<File>, inbox: &Receiver<Record>) {
    loop {
        let record = match inbox.try_recv() {
            Ok(record) => record,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                // Who reads along sees whole lines.
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
