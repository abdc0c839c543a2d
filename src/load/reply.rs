//! One streamed response as its bytes arrive: arrival times, counts and, at the end, the verdict.

use super::Error;
use super::chunk::{Chunk, NotAChunk, Usage};
use super::sse::Parser;

/// What has arrived so far. It survives a timeout, so that a failed request still says how far it came.
#[derive(Debug, Default)]
pub(super) struct Reply {
    parser: Parser,
    /// Content chunks, in microseconds after the send.
    pub(super) chunks: Vec<u32>,
    pub(super) usage: Option<Usage>,
    /// Bytes of the response's body.
    bytes: usize,
    finished: bool,
    pub(super) done: bool,
    /// The first failure that the stream itself reported.
    error: Option<Error>,
}

impl Reply {
    /// Room for as many chunks as tokens were asked for, within reason.
    pub(super) fn expecting(output_len: u32) -> Self {
        Self { chunks: Vec::with_capacity(output_len.min(8192) as usize), ..Self::default() }
    }

    /// Takes bytes that arrived `at` microseconds after the send.
    pub(super) fn feed(&mut self, at: u32, bytes: &[u8]) {
        self.bytes += bytes.len();
        let Self { parser, chunks, usage, finished, done, error, .. } = self;
        parser.feed(bytes, |data| {
            if data == b"[DONE]" {
                *done = true;
                return;
            }
            match Chunk::parse(data) {
                Ok(chunk) => {
                    if chunk.content {
                        chunks.push(at);
                    }
                    *finished |= chunk.finished;
                    // With `continuous_usage_stats` every chunk has one; the last is the total.
                    *usage = chunk.usage.or(*usage);
                }
                Err(NotAChunk::Error(message)) => _ = error.get_or_insert(Error::Server(message)),
                Err(NotAChunk::Unparsable(seen)) => _ = error.get_or_insert(Error::Protocol(seen)),
            }
        });
    }

    /// The result of a response that ended, in order or with `lost`, when `asked` output tokens were wanted.
    ///
    /// What the stream reported goes before what it lacks: after an error event everything else is missing too.
    pub(super) fn verdict(&mut self, asked: u32, lost: Option<Error>) -> Result<(), Error> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let whole = self.finished && self.usage.is_some() && self.done;
        match (lost, self.usage) {
            // A connection that breaks after `[DONE]` has lost nothing.
            (Some(lost), _) if !whole => Err(lost),
            (_, Some(usage)) if whole && usage.completion_tokens == asked => Ok(()),
            (_, Some(usage)) if whole => Err(Error::WrongLength { asked, got: usage.completion_tokens }),
            _ => Err(self.missing()),
        }
    }

    fn missing(&self) -> Error {
        if self.chunks.is_empty() && self.usage.is_none() && !self.done && self.bytes > 0 {
            return Error::Protocol(format!("no event in a body of {} bytes", self.bytes));
        }
        let parts = [(self.finished, "finish_reason"), (self.usage.is_some(), "usage"), (self.done, "[DONE]")];
        let missing: Vec<&str> = parts.iter().filter(|(there, _)| !there).map(|(_, name)| *name).collect();
        Error::Truncated(format!("{} after {} chunks", missing.join(", "), self.chunks.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n";
    const LAST: &str = "data: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"length\"}]}\n\n";
    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\n";
    const ERROR: &str = "data: {\"error\":{\"message\":\"dead\",\"code\":500}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    fn verdict(events: &[&str], lost: Option<Error>) -> Result<(), Error> {
        let mut reply = Reply::expecting(4);
        for (at, event) in (0..).zip(events) {
            reply.feed(at, event.as_bytes());
        }
        reply.verdict(4, lost)
    }

    #[test]
    fn tokens_are_counted_by_usage_and_not_by_chunks() {
        let mut reply = Reply::expecting(4);
        reply.feed(7, TOKEN.as_bytes());
        reply.feed(9, [LAST, USAGE, DONE].concat().as_bytes());
        assert_eq!(reply.chunks, [7, 9]);
        assert_eq!(reply.usage, Some(Usage { prompt_tokens: 9, completion_tokens: 4 }));
        assert_eq!(reply.verdict(4, None), Ok(()));
        assert_eq!(reply.verdict(5, None), Err(Error::WrongLength { asked: 5, got: 4 }));
    }

    #[test]
    fn an_error_event_after_the_first_token_is_a_failure() {
        assert_eq!(verdict(&[TOKEN, ERROR, DONE], None), Err(Error::Server("dead".to_owned())));
    }

    #[test]
    fn each_missing_part_is_named() {
        let truncated = |text: &str| Err(Error::Truncated(text.to_owned()));
        assert_eq!(verdict(&[TOKEN, LAST, USAGE], None), truncated("[DONE] after 2 chunks"));
        assert_eq!(verdict(&[TOKEN, LAST, DONE], None), truncated("usage after 2 chunks"));
        assert_eq!(verdict(&[TOKEN, USAGE, DONE], None), truncated("finish_reason after 1 chunks"));
        assert_eq!(verdict(&[], None), truncated("finish_reason, usage, [DONE] after 0 chunks"));
    }

    #[test]
    fn a_lost_connection_matters_only_before_the_end() {
        let lost = Some(Error::Reset("gone".to_owned()));
        assert_eq!(verdict(&[TOKEN], lost.clone()), Err(Error::Reset("gone".to_owned())));
        assert_eq!(verdict(&[TOKEN, LAST, USAGE, DONE], lost), Ok(()));
    }

    #[test]
    fn a_body_that_is_no_event_stream_is_not_understood() {
        assert_eq!(verdict(&["{\"ok\":1}"], None), Err(Error::Protocol("no event in a body of 8 bytes".to_owned())));
    }
}
