//! One request in flight, from its first sent byte to its record.

use std::time::Duration;

use super::clock::{Nanos, micros};
use super::feed::{PreparedRequest, UserProgress};
use super::protocol::{ReplyState, ServerProtocol, message_of};
use super::{RequestError, RequestRecord};

/// Bytes of an error response's body that are kept.
const MAX_ERROR_BODY_BYTES: usize = 64 << 10;

/// The kind of connection over which a request was sent, and whether it was sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendAttempt {
    /// A connection that was already open. The server may have closed it meanwhile.
    Kept,
    /// A connection that was opened for this request. Its loss counts as a failure of the server.
    Fresh,
    /// A new connection, after a kept one was found closed.
    Resent,
}

/// One request with the received part of its reply.
#[derive(Debug)]
pub(super) struct HttpExchange {
    /// The rest of the session, without the turn of this exchange.
    pub(super) remaining_session: UserProgress,
    turn: u32,
    /// Number of requested output tokens.
    requested_tokens: u32,
    /// HTTP head and body.
    pub(super) request: Vec<u8>,
    /// Bytes of the request that the socket has taken.
    pub(super) written: usize,
    due: Nanos,
    /// Time of the last send.
    sent: Nanos,
    /// Time of the first send. A resend does not change it.
    pub(super) first_sent: Nanos,
    pub(super) deadline: Nanos,
    /// Like [`ExchangeTiming::queued`].
    queued: bool,
    reply: ReplyState,
    /// The beginning of an error response's body.
    error_body: Vec<u8>,
    streamed: bool,
    /// Arrival of `[DONE]`.
    done: Option<Nanos>,
    /// Whether the reactor already waits for the rest of the body.
    draining: bool,
    /// The arrival of the last bytes.
    pub(super) last: Nanos,
    pub(super) attempt: SendAttempt,
}

/// Due time, send time and time limit of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExchangeTiming {
    /// `None` if the request is due as soon as it can be sent.
    pub(super) due: Option<Nanos>,
    /// Whether the request was due but had to wait, because the largest number of requests was in flight.
    pub(super) queued: bool,
    /// Send time.
    pub(super) sent: Nanos,
    /// Time limit of the request.
    pub(super) limit: Duration,
}

impl HttpExchange {
    pub(super) fn new(
        turn: PreparedRequest,
        rest: UserProgress,
        timing: ExchangeTiming,
        protocol: &ServerProtocol,
    ) -> Self {
        let sent = timing.sent;
        Self {
            turn: rest.turn.saturating_sub(1),
            remaining_session: rest,
            requested_tokens: turn.requested_tokens,
            reply: protocol.reply(turn.requested_tokens),
            request: turn.request,
            written: 0,
            due: timing.due.unwrap_or(sent),
            sent,
            first_sent: sent,
            deadline: sent.saturating_add(super::clock::nanos(timing.limit)),
            queued: timing.queued,
            error_body: Vec::new(),
            streamed: protocol.streams(),
            done: None,
            draining: false,
            last: sent,
            attempt: SendAttempt::Fresh,
        }
    }

    /// Reads bytes of the body that arrived at `last`. Returns the number of content chunks that they completed.
    pub(super) fn feed(&mut self, status: u16, bytes: &[u8]) -> usize {
        if status != 200 {
            let room = MAX_ERROR_BODY_BYTES.saturating_sub(self.error_body.len());
            self.error_body.extend_from_slice(&bytes[..bytes.len().min(room)]);
            return 0;
        }
        let before = self.reply.chunks.len();
        self.reply.feed(micros(self.last.saturating_sub(self.sent)), bytes);
        if self.done.is_none() && self.reply.is_done() {
            self.done = Some(self.last);
        }
        self.reply.chunks.len() - before
    }

    /// Returns true on the first call after `[DONE]` has arrived, and false otherwise. Only the end of the body is then
    /// missing.
    pub(super) fn starts_draining(&mut self) -> bool {
        self.done.is_some() && !std::mem::replace(&mut self.draining, self.done.is_some())
    }

    /// Resets the exchange for a resend.
    pub(super) fn prepare_resend(&mut self, now: Nanos) {
        (self.sent, self.last, self.written, self.attempt) = (now, now, 0, SendAttempt::Resent);
    }

    /// Returns the error of a request that has not ended within `limit`.
    pub(super) fn timeout(&self, limit: Duration) -> RequestError {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        RequestError::Timeout { limit_ms, chunks: self.reply.chunks.len() }
    }

    /// Returns the record, with instants relative to `zero`, and the rest of the session.
    pub(super) fn end(
        mut self,
        status: u16,
        lost: Option<RequestError>,
        now: Nanos,
        zero: Nanos,
    ) -> (RequestRecord, UserProgress) {
        let result = match (status, lost) {
            (200, lost) => self.reply.finish(lost),
            (_, Some(lost @ RequestError::Timeout { .. })) | (0, Some(lost)) => Err(lost),
            (0, None) => Err(RequestError::Reset("connection closed without a response".to_owned())),
            (status, _) => Err(RequestError::Http { status, seen: message_of(&self.error_body) }),
        };
        let end = match (self.done, &result) {
            (Some(done), _) => done,
            (None, Ok(())) => self.last,
            (None, Err(_)) => now,
        };
        let since = |at: Nanos| Duration::from_nanos(at.saturating_sub(zero));
        let record = RequestRecord {
            session: self.remaining_session.session,
            turn: self.turn,
            due: since(self.due),
            sent: since(self.sent),
            chunk_count: u32::try_from(self.reply.chunks.len()).unwrap_or(u32::MAX),
            thinned: false,
            queued: self.queued,
            end: since(end),
            streamed: self.streamed,
            requested_tokens: self.requested_tokens,
            prompt_tokens: self.reply.prompt_tokens(),
            cached_tokens: self.reply.cached_tokens(),
            output_tokens: self.reply.output_tokens(),
            chunks: std::mem::take(&mut self.reply.chunks),
            result,
        };
        (record, self.remaining_session)
    }
}
