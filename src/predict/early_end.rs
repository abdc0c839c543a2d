//! Early end of a virtual run: the watch of measured loads over the forecast's records, in the order of virtual time.

use std::time::Duration;

use crate::load::{LoadEvent, LoadPhase, LoadRun, ObserverTick, RequestRecord, RunEnd};
use crate::metrics::{LoadWatch, StopReason, WatchOptions, WindowRecorder};
use crate::stats::f64_to_usize;

/// Time between two ticks of an observer.
const TICK: Duration = Duration::from_millis(100);

/// The instant at which a watch ends a run, with its reason.
#[derive(Clone, Debug)]
pub(super) struct EarlyEnd {
    pub(super) at: Duration,
    pub(super) reason: StopReason,
}

/// Changes of the load's state within one tick.
#[derive(Clone, Copy, Debug, Default)]
struct TickChange {
    due: usize,
    sent: usize,
    ended: usize,
    chunks: u64,
}

/// Passes the events of a whole run to a watch. Returns the instant at which it ends the run; `None` if it does not.
/// `records` are in the order of their ends.
pub(super) fn find_early_end(records: &[RequestRecord], options: WatchOptions) -> Option<EarlyEnd> {
    let mut watch = LoadWatch::new(options);
    let (mut due, mut sent, mut over, mut chunks) = (0, 0, 0, 0);
    let mut records_left = records.iter().peekable();
    for (tick, change) in (1_u32..).zip(changes(records)) {
        let at = TICK * tick;
        while let Some(record) = records_left.next_if(|record| record.end <= at) {
            if let Some(reason) = watch.on(&LoadEvent::Ended { phase: LoadPhase::Measure, record }) {
                return Some(EarlyEnd { at: record.end, reason });
            }
        }
        due += change.due;
        sent += change.sent;
        over += change.ended;
        chunks += change.chunks;
        let state = ObserverTick { at, sent: sent as u64, in_flight: sent - over, waiting: due - sent, chunks };
        if let Some(reason) = watch.on(&LoadEvent::Tick(state)) {
            return Some(EarlyEnd { at, reason });
        }
    }
    None
}

/// Cuts a run off at its early end. Requests in flight are abandoned, as by the load generator.
pub(super) fn cut_off(run: &mut LoadRun, end: &EarlyEnd) -> WindowRecorder {
    run.unfinished = run.records.iter().filter(|record| record.sent <= end.at && record.end > end.at).count();
    run.records.retain(|record| record.end <= end.at);
    run.ended = run.began + end.at;
    run.end = RunEnd::Observer;
    let mut recorder = WindowRecorder::new();
    for record in &run.records {
        recorder.on(&LoadEvent::Ended { phase: LoadPhase::Measure, record });
    }
    recorder
}

/// Returns the changes in each tick of a run.
fn changes(records: &[RequestRecord]) -> Vec<TickChange> {
    let length = records.iter().map(|record| record.end).max().unwrap_or_default();
    let place = |at: Duration| f64_to_usize((at.as_secs_f64() / TICK.as_secs_f64()).ceil()).saturating_sub(1);
    let mut changes = vec![TickChange::default(); place(length) + 1];
    let last = changes.len() - 1;
    for record in records {
        changes[place(record.due).min(last)].due += 1;
        changes[place(record.sent).min(last)].sent += 1;
        changes[place(record.end).min(last)].ended += 1;
        for at in chunk_times(record) {
            changes[place(record.sent + at).min(last)].chunks += 1;
        }
    }
    changes
}

/// Returns the times of a reply's chunks after its send. Those that a thinned record lacks are spread evenly.
fn chunk_times(record: &RequestRecord) -> Box<dyn Iterator<Item = Duration> + '_> {
    let micros = |at: u32| Duration::from_micros(at.into());
    match (record.chunks.first(), record.chunks.last()) {
        (Some(first), Some(last)) if record.thinned => {
            let (first, gaps) = (micros(*first), record.chunk_count.saturating_sub(1).max(1));
            let between = micros(*last).saturating_sub(first);
            Box::new((0..record.chunk_count).map(move |nth| first + between.mul_f64(f64::from(nth) / f64::from(gaps))))
        }
        _ => Box::new(record.chunks.iter().map(move |at| micros(*at))),
    }
}
