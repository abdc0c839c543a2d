//! Records and runs for the tests of this module.

use std::time::{Duration, Instant};

use crate::load::{ClientUse, LoadRun, RequestRecord, RunEnd, WarmupSummary};

/// Returns a request sent at `sent` ms. Its chunks arrive at the given milliseconds after it, one token each.
pub(super) fn record(sent: u64, chunks: &[u32]) -> RequestRecord {
    let sent = Duration::from_millis(sent);
    let chunks: Vec<u32> = chunks.iter().map(|at| at * 1000).collect();
    let end = sent + Duration::from_micros(chunks.last().copied().unwrap_or_default().into());
    let output_tokens = u32::try_from(chunks.len()).unwrap();
    RequestRecord {
        session: 0,
        turn: 0,
        due: sent,
        sent,
        chunk_count: output_tokens,
        thinned: false,
        queued: false,
        chunks,
        end,
        streamed: true,
        requested_tokens: output_tokens,
        prompt_tokens: 10,
        cached_tokens: None,
        output_tokens,
        result: Ok(()),
    }
}

/// Returns a run that ended by itself, with its last record.
pub(super) fn run(records: Vec<RequestRecord>) -> LoadRun {
    let began = Instant::now();
    let ended = began + records.iter().map(|record| record.end).max().unwrap_or_default();
    LoadRun {
        records,
        warmup: WarmupSummary::default(),
        began,
        ended,
        unfinished: 0,
        unsent: 0,
        end: RunEnd::Complete,
        client: ClientUse::default(),
    }
}
