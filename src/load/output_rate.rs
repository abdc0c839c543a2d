//! The recent output of a server in tokens per second, for displays.

use std::time::Duration;

use super::{LoadEvent, ObserverTick};
use crate::stats::to_f64;

/// The rate of a running load, from the events of its observer.
///
/// A tick counts content chunks, and a chunk may hold several tokens, for instance with speculative decoding. The
/// requests that have ended give the number of tokens in a chunk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutputRate {
    /// Time and number of chunks at the last update.
    since: (Duration, u64),
    /// Over about one second.
    chunks_per_s: f64,
    /// Output tokens and content chunks of the requests that have ended.
    ended: (u64, u64),
}

impl OutputRate {
    /// Learns from an event. Returns whether the rate has changed. A phase begins with a rate of zero.
    pub(crate) fn follow(&mut self, event: &LoadEvent<'_>) -> bool {
        match event {
            LoadEvent::Phase { .. } => *self = Self::default(),
            LoadEvent::Ended { record, .. } if record.result.is_ok() => {
                self.ended.0 += u64::from(record.output_tokens);
                self.ended.1 += u64::from(record.chunk_count);
            }
            LoadEvent::Ended { .. } => {}
            LoadEvent::Tick(tick) | LoadEvent::WarmupTick(tick) => return self.update(*tick),
        }
        false
    }

    fn update(&mut self, tick: ObserverTick) -> bool {
        let passed = tick.at.saturating_sub(self.since.0).as_secs_f64();
        let is_due = passed >= 1.0;
        if is_due {
            let gained = to_f64(tick.chunks.saturating_sub(self.since.1));
            (self.chunks_per_s, self.since) = (gained / passed, (tick.at, tick.chunks));
        }
        is_due
    }

    pub(crate) fn chunks_per_s(&self) -> f64 {
        self.chunks_per_s
    }

    /// Returns the rate in tokens. `None` before a request with output has ended, and before the first second.
    pub(crate) fn tokens_per_s(&self) -> Option<f64> {
        let (tokens, chunks) = self.ended;
        let is_known = tokens > 0 && chunks > 0 && self.chunks_per_s > 0.0;
        is_known.then(|| self.chunks_per_s * to_f64(tokens) / to_f64(chunks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{LoadPhase, RequestError, RequestRecord};

    fn record(tokens: u32, chunks: u32, result: Result<(), RequestError>) -> RequestRecord {
        RequestRecord {
            session: 0,
            turn: 0,
            due: Duration::ZERO,
            sent: Duration::ZERO,
            chunks: Vec::new(),
            chunk_count: chunks,
            thinned: true,
            queued: false,
            end: Duration::from_secs(1),
            streamed: true,
            requested_tokens: tokens,
            prompt_tokens: 1,
            cached_tokens: None,
            output_tokens: tokens,
            result,
        }
    }

    fn tick(s: u64, chunks: u64) -> LoadEvent<'static> {
        LoadEvent::Tick(ObserverTick { at: Duration::from_secs(s), chunks, ..ObserverTick::default() })
    }

    #[test]
    fn a_chunk_counts_as_many_tokens_as_the_ended_requests_had_in_theirs() {
        let mut rate = OutputRate::default();
        assert!(rate.follow(&tick(2, 100)));
        assert_eq!((rate.chunks_per_s(), rate.tokens_per_s()), (50.0, None));
        let ended = record(40, 10, Ok(()));
        rate.follow(&LoadEvent::Ended { phase: LoadPhase::Measure, record: &ended });
        let failed = record(0, 90, Err(RequestError::Timeout { limit_ms: 1, chunks: 90 }));
        rate.follow(&LoadEvent::Ended { phase: LoadPhase::Measure, record: &failed });
        assert_eq!(rate.tokens_per_s(), Some(200.0));
        rate.follow(&LoadEvent::Phase { phase: LoadPhase::Measure, total: None });
        assert_eq!((rate.chunks_per_s(), rate.tokens_per_s()), (0.0, None));
    }
}
