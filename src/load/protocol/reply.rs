//! Incremental reader of one reply: arrival times, counts and, at the end, the verdict.

use super::chunk::{ChoiceFinish, ChunkContent, NotAChunk, ReplyChunk, TokenUsage, excerpt, message_of};
use super::sse::{SseField, SseParser};
use super::{Dialect, fast_token};
use crate::load::{RequestApi, RequestError};

/// Maximum bytes of a collected event. An event with 20 candidates and their probabilities has some KiB. Thousands of
/// streams are open at once, so their sum matters.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// Maximum bytes of a reply that is not streamed.
const MAX_DOCUMENT_BYTES: usize = 8 << 20;

/// Maximum initial capacity for chunk times. It is small, because thousands of replies are open at once.
const MAX_INITIAL_CHUNKS: u32 = 256;

/// Rules for the reading and checking of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::load) struct ReplyRules {
    pub(in crate::load) api: RequestApi,
    pub(in crate::load) dialect: Dialect,
    pub(in crate::load) stream: bool,
    pub(in crate::load) length: ReplyLength,
}

/// Required number of tokens of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::load) enum ReplyLength {
    /// The requested number.
    Exact,
    /// The requested number or fewer.
    AtMost,
}

/// The received part of a reply. It survives a timeout, so that the record of a failed request contains its progress.
#[derive(Debug)]
pub(in crate::load) struct ReplyState {
    rules: ReplyRules,
    /// Number of requested output tokens.
    asked: u32,
    parser: SseParser,
    /// Received bytes of a reply that is not streamed.
    document: Vec<u8>,
    /// Arrival times of content chunks, in microseconds after the send.
    pub(in crate::load) chunks: Vec<u32>,
    usage: Option<TokenUsage>,
    /// Bytes of the response's body.
    bytes: usize,
    /// Arrival of the last bytes, in microseconds after the send.
    last: u32,
    finish: ChoiceFinish,
    /// Whether any event has arrived.
    begun: bool,
    /// Whether `[DONE]` has arrived.
    done: bool,
    /// The first failure that the stream itself reported.
    error: Option<RequestError>,
}

impl ReplyState {
    pub(in crate::load) fn new(rules: ReplyRules, asked: u32) -> Self {
        let room = if rules.stream { asked.min(MAX_INITIAL_CHUNKS) } else { 1 };
        Self {
            rules,
            asked,
            parser: SseParser::default(),
            document: Vec::new(),
            chunks: Vec::with_capacity(room as usize),
            usage: None,
            bytes: 0,
            last: 0,
            finish: ChoiceFinish::NotFinished,
            begun: false,
            done: false,
            error: None,
        }
    }

    /// Takes bytes of the body that arrived `at_us` microseconds after the send.
    pub(in crate::load) fn feed(&mut self, at_us: u32, bytes: &[u8]) {
        self.bytes += bytes.len();
        self.last = at_us;
        let Self { rules, parser, document, chunks, usage, finish, begun, done, error, .. } = self;
        let (what, held, longest) = if rules.stream {
            ("an event", parser.held(), MAX_EVENT_BYTES)
        } else {
            ("a reply", document.len(), MAX_DOCUMENT_BYTES)
        };
        if held + bytes.len() > longest && held > 0 {
            error.get_or_insert_with(|| RequestError::Protocol(format!("{what} of more than {longest} bytes")));
            // Further bytes are not collected.
            return;
        }
        if !rules.stream {
            document.extend_from_slice(bytes);
            return;
        }
        parser.feed(bytes, |field, data| {
            *begun = true;
            if *done {
                return;
            }
            if field == SseField::Error {
                error.get_or_insert_with(|| RequestError::Server(message_of(data)));
                return;
            }
            if fast_token::is_token(data) {
                chunks.push(at_us);
                return;
            }
            if data == b"[DONE]" {
                *done = true;
                return;
            }
            // The standard has no event without data, but some proxies send one to keep a connection alive.
            if data.is_empty() {
                return;
            }
            match ReplyChunk::parse(data) {
                Ok(chunk) => {
                    if chunk.has_token(rules.dialect) {
                        chunks.push(at_us);
                    }
                    *finish = chunk.finish.max(*finish);
                    // If every chunk has a usage, the last one is the total.
                    *usage = chunk.usage.or(*usage);
                }
                Err(failure) => _ = error.get_or_insert_with(|| failure.into()),
            }
        });
    }

    /// Returns whether `[DONE]` has arrived. Later bytes are only drained.
    pub(in crate::load) fn is_done(&self) -> bool {
        self.done
    }

    /// Returns the prompt tokens by the server's count, or 0 without a count.
    pub(in crate::load) fn prompt_tokens(&self) -> u32 {
        self.usage.map_or(0, |usage| usage.prompt)
    }

    /// Returns the output tokens by the server's count. Without a count, returns the number of content chunks for
    /// streamed replies of servers that do not always count, otherwise 0.
    pub(in crate::load) fn output_tokens(&self) -> u32 {
        match self.usage {
            Some(usage) => usage.output,
            None if self.rules.stream && !self.rules.dialect.always_counts() => {
                u32::try_from(self.chunks.len()).unwrap_or(u32::MAX)
            }
            None => 0,
        }
    }

    /// Returns the prompt tokens in the server's prefix cache, if the server reports them.
    pub(in crate::load) fn cached_tokens(&self) -> Option<u32> {
        self.usage.and_then(|usage| usage.cached)
    }

    /// Returns the result of a response. `lost` is the error that ended it early, if any. Called once.
    ///
    /// An error reported by the reply takes precedence over missing parts: after an error event, everything else is
    /// missing too.
    pub(in crate::load) fn finish(&mut self, lost: Option<RequestError>) -> Result<(), RequestError> {
        if lost.is_none() {
            if self.rules.stream {
                // llama.cpp's stream may end without an empty line after `[DONE]`.
                self.done |= self.parser.partial_event() == Some(b"[DONE]");
            } else {
                self.read_document();
            }
        }
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.finish == ChoiceFinish::Aborted {
            return Err(RequestError::Server("the reply ended with finish_reason \"abort\" or \"error\"".to_owned()));
        }
        // A connection that breaks after `[DONE]` has lost nothing.
        if let Some(lost) = lost.filter(|_| !(self.done && self.is_whole())) {
            return Err(lost);
        }
        if !self.is_whole() {
            return Err(self.missing());
        }
        let (asked, got) = (self.asked, self.output_tokens());
        let fits = match self.rules.length {
            // The number of chunks is not exactly the number of tokens.
            _ if self.usage.is_none() => true,
            ReplyLength::Exact => got == asked,
            ReplyLength::AtMost => got <= asked,
        };
        if fits { Ok(()) } else { Err(RequestError::WrongLength { asked, got }) }
    }

    /// Returns the required parts, each with whether it is present.
    fn parts(&self) -> [(bool, &'static str); 3] {
        let ReplyRules { dialect, stream, .. } = self.rules;
        let counted = self.usage.is_some() || stream && !dialect.always_counts();
        let done = self.done || !(stream && dialect.always_sends_done());
        [(self.finish == ChoiceFinish::Finished, "finish_reason"), (counted, "usage"), (done, "[DONE]")]
    }

    fn is_whole(&self) -> bool {
        self.parts().iter().all(|(there, _)| *there)
    }

    fn missing(&self) -> RequestError {
        if self.rules.stream && self.bytes > 0 && !self.begun {
            return self.no_stream();
        }
        let missing: Vec<&str> = self.parts().iter().filter(|(there, _)| !there).map(|(_, name)| *name).collect();
        RequestError::Truncated(format!("{} after {} chunks", missing.join(", "), self.chunks.len()))
    }

    /// Returns the error for a body without any event. The body may be an error document.
    fn no_stream(&self) -> RequestError {
        let seen = self.parser.line();
        match ReplyChunk::parse(seen) {
            Err(NotAChunk::Error(message)) => RequestError::Server(message),
            _ => RequestError::Protocol(format!("no event in a body of {} bytes: {:?}", self.bytes, excerpt(seen))),
        }
    }

    /// Reads a reply that is not streamed. The whole reply is its only chunk.
    fn read_document(&mut self) {
        if self.document.is_empty() {
            return;
        }
        match ReplyChunk::parse(&self.document) {
            Ok(chunk) => {
                if chunk.content > ChunkContent::Nothing {
                    self.chunks.push(self.last);
                }
                (self.finish, self.usage) = (chunk.finish, chunk.usage);
            }
            Err(failure) => _ = self.error.get_or_insert_with(|| failure.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOKEN: &str = "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n";
    const LAST: &str = "data: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"length\"}]}\n\n";
    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\n";
    const ERROR: &str = "data: {\"error\":{\"message\":\"dead\",\"code\":500}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    const RULES: ReplyRules =
        ReplyRules { api: RequestApi::Completions, dialect: Dialect::Vllm, stream: true, length: ReplyLength::Exact };

    fn read(rules: ReplyRules, asked: u32, events: &[&str]) -> ReplyState {
        let mut reply = ReplyState::new(rules, asked);
        for (at, event) in (0..).zip(events) {
            reply.feed(at, event.as_bytes());
        }
        reply
    }

    fn verdict(events: &[&str], lost: Option<RequestError>) -> Result<(), RequestError> {
        read(RULES, 4, events).finish(lost)
    }

    #[test]
    fn the_collected_bytes_of_a_reply_are_bounded() {
        let whole = ReplyRules { stream: false, ..RULES };
        for (rules, what, longest) in [(RULES, "an event", MAX_EVENT_BYTES), (whole, "a reply", MAX_DOCUMENT_BYTES)] {
            let mut reply = ReplyState::new(rules, 4);
            let piece = format!("data: {}", "x".repeat(1 << 16));
            for at in 0..300 {
                reply.feed(at, piece.as_bytes());
            }
            assert!(reply.parser.held().max(reply.document.len()) <= longest, "{what}");
            let error = reply.finish(None).unwrap_err().to_string();
            assert!(error.contains(&format!("{what} of more than {longest} bytes")), "{error}");
        }
    }

    #[test]
    fn tokens_are_counted_by_usage_and_not_by_chunks() {
        let mut reply = ReplyState::new(RULES, 4);
        reply.feed(7, TOKEN.as_bytes());
        reply.feed(9, [LAST, USAGE, DONE].concat().as_bytes());
        assert_eq!(reply.chunks, [7, 9]);
        assert_eq!((reply.prompt_tokens(), reply.output_tokens(), reply.cached_tokens()), (9, 4, None));
        assert!(reply.is_done());
        assert_eq!(reply.finish(None), Ok(()));
    }

    #[test]
    fn the_output_length_must_match_as_far_as_the_server_can_be_forced() {
        let whole = [TOKEN, LAST, USAGE, DONE];
        let wrong = |asked| Err(RequestError::WrongLength { asked, got: 4 });
        assert_eq!(read(RULES, 5, &whole).finish(None), wrong(5));
        let most = ReplyRules { length: ReplyLength::AtMost, ..RULES };
        assert_eq!(read(most, 5, &whole).finish(None), Ok(()));
        assert_eq!(read(most, 3, &whole).finish(None), wrong(3));
    }

    #[test]
    fn an_error_event_after_the_first_token_is_a_failure() {
        assert_eq!(verdict(&[TOKEN, ERROR, DONE], None), Err(RequestError::Server("dead".to_owned())));
        let line = "error: {\"code\":500,\"message\":\"dead\",\"type\":\"server_error\"}\n\n";
        assert_eq!(verdict(&[TOKEN, line], None), Err(RequestError::Server("dead".to_owned())));
    }

    #[test]
    fn an_aborted_reply_is_no_short_one() {
        let aborted = LAST.replace("length", "abort");
        let most = ReplyRules { length: ReplyLength::AtMost, ..RULES };
        let mut reply = read(most, 4, &[TOKEN, &aborted, USAGE, DONE]);
        assert!(matches!(reply.finish(None), Err(RequestError::Server(text)) if text.contains("abort")));
    }

    #[test]
    fn each_missing_part_is_named() {
        let truncated = |text: &str| Err(RequestError::Truncated(text.to_owned()));
        assert_eq!(verdict(&[TOKEN, LAST, USAGE], None), truncated("[DONE] after 2 chunks"));
        assert_eq!(verdict(&[TOKEN, LAST, DONE], None), truncated("usage after 2 chunks"));
        assert_eq!(verdict(&[TOKEN, USAGE, DONE], None), truncated("finish_reason after 1 chunks"));
        assert_eq!(verdict(&[], None), truncated("finish_reason, usage, [DONE] after 0 chunks"));
    }

    #[test]
    fn a_lost_connection_matters_only_before_the_end() {
        let lost = Some(RequestError::Reset("gone".to_owned()));
        assert_eq!(verdict(&[TOKEN], lost.clone()), Err(RequestError::Reset("gone".to_owned())));
        assert_eq!(verdict(&[TOKEN, LAST, USAGE, DONE], lost.clone()), Ok(()));
        // If `[DONE]` may be missing, only the end of the body proves that nothing was lost.
        let tgi = ReplyRules { dialect: Dialect::Tgi, length: ReplyLength::AtMost, ..RULES };
        assert_eq!(read(tgi, 4, &[TOKEN, LAST]).finish(lost), Err(RequestError::Reset("gone".to_owned())));
        assert_eq!(read(tgi, 4, &[TOKEN, LAST]).finish(None), Ok(()));
    }

    #[test]
    fn without_counts_of_the_server_chunks_are_counted() {
        for dialect in Dialect::ALL {
            let mut reply = read(ReplyRules { dialect, ..RULES }, 4, &[TOKEN, TOKEN, LAST, DONE]);
            let counted = if dialect.always_counts() { 0 } else { 3 };
            assert_eq!(reply.output_tokens(), counted, "{dialect:?}");
            assert_eq!(reply.finish(None).is_ok(), counted == 3, "{dialect:?}");
        }
    }

    #[test]
    fn the_end_counts_without_its_empty_line_once_the_body_has_ended() {
        for end in ["data: [DONE]", "data: [DONE]\n", "data:[DONE]\r\n"] {
            assert_eq!(verdict(&[TOKEN, LAST, USAGE, end], None), Ok(()), "{end:?}");
            let lost = RequestError::Reset("gone".to_owned());
            assert_eq!(verdict(&[TOKEN, LAST, USAGE, end], Some(lost.clone())), Err(lost), "{end:?}");
        }
        assert!(verdict(&[TOKEN, LAST, USAGE, "data: [DO"], None).is_err());
    }

    #[test]
    fn empty_events_and_comments_are_nothing() {
        assert_eq!(verdict(&[": ping\n\n", TOKEN, "data:\n\n", LAST, USAGE, ":\n\n", DONE], None), Ok(()));
    }

    #[test]
    fn events_after_the_end_do_not_count() {
        let mut reply = read(RULES, 4, &[TOKEN, LAST, USAGE, DONE, TOKEN, ERROR]);
        assert_eq!((reply.chunks.len(), reply.finish(None)), (2, Ok(())));
    }

    #[test]
    fn a_body_that_is_no_event_stream_is_not_understood_unless_it_is_an_error() {
        let Err(RequestError::Protocol(seen)) = verdict(&["{\"ok\":1}"], None) else { panic!("understood") };
        assert_eq!(seen, r#"no event in a body of 8 bytes: "{\"ok\":1}""#);
        let error = verdict(&["{\"object\":\"error\",\"message\":\"dead\"}"], None);
        assert_eq!(error, Err(RequestError::Server("dead".to_owned())));
    }

    #[test]
    fn a_document_has_one_chunk_at_its_last_byte() {
        let rules = ReplyRules { stream: false, ..RULES };
        let document = r#"{"choices":[{"text":"a b c d","finish_reason":"length"}],
            "usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8}}}"#;
        let mut reply = read(rules, 4, &[&document[..30], &document[30..50], &document[50..]]);
        assert!(!reply.is_done());
        assert_eq!(reply.finish(None), Ok(()));
        assert_eq!((&reply.chunks[..], reply.output_tokens(), reply.cached_tokens()), (&[2][..], 4, Some(8)));
        let chat = r#"{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"length"}],
            "usage":{"prompt_tokens":9,"completion_tokens":4}}"#;
        assert_eq!(read(rules, 4, &[chat]).finish(None), Ok(()));
    }

    #[test]
    fn a_bad_document_is_reported_with_its_error() {
        let bad = |text: &str| read(ReplyRules { stream: false, ..RULES }, 4, &[text]).finish(None).unwrap_err();
        assert_eq!(bad(r#"{"error":{"message":"dead"}}"#), RequestError::Server("dead".to_owned()));
        assert!(matches!(bad(r#"{"choices":[{"text""#), RequestError::Protocol(seen) if seen.contains("EOF")));
        assert!(matches!(bad(&[TOKEN, DONE].concat()), RequestError::Protocol(seen) if seen.contains("data: ")));
        let partial = r#"{"choices":[{"text":"a","finish_reason":"length"}]}"#;
        assert_eq!(bad(partial), RequestError::Truncated("usage after 1 chunks".to_owned()));
        assert_eq!(bad(""), RequestError::Truncated("finish_reason, usage after 0 chunks".to_owned()));
    }

    proptest! {
        #[test]
        fn packets_split_anywhere_are_the_same_reply(
            picks in prop::collection::vec(0_usize..8, 0..8),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
            stream in any::<bool>(),
        ) {
            let pieces = [TOKEN, LAST, USAGE, ERROR, DONE, ": ping\n\n", "data: {\"choices\":[\n\n", "data: [DONE]"];
            let body: String = picks.iter().map(|pick| pieces[*pick]).collect();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
            cuts.extend([0, body.len()]);
            cuts.sort_unstable();
            let packets: Vec<&str> = cuts.windows(2).map(|pair| &body[pair[0]..pair[1]]).collect();
            let rules = ReplyRules { stream, ..RULES };
            let (mut split, mut whole) = (read(rules, 4, &packets), read(rules, 4, &[&body]));
            prop_assert_eq!(split.finish(None), whole.finish(None));
            prop_assert_eq!(split.chunks.len(), whole.chunks.len());
            prop_assert_eq!((split.usage, split.is_done()), (whole.usage, whole.is_done()));
        }
    }
}
