//! One streamed chunk of a completion, reduced to the parts of its JSON that a measurement needs.

use super::Dialect;
use super::wire::{ErrorBody, WireChoices, WireChunk};
use crate::load::RequestError;

/// The content of one event, without its texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplyChunk {
    /// The largest content of any of its choices.
    pub(super) content: ChunkContent,
    /// Whether a choice has a role, like the first chunk of a chat, which precedes the first token.
    pub(super) role: bool,
    pub(super) finish: ChoiceFinish,
    pub(super) usage: Option<TokenUsage>,
}

/// Content of a field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChunkContent {
    /// Absent or null.
    #[default]
    Nothing,
    /// An empty string or list.
    Empty,
    /// Any other value.
    Something,
}

/// Finish reason of a choice, reduced to three cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChoiceFinish {
    /// No reason. TGI sends an empty one in every chunk of a completion but the last (its `router/src/server.rs`).
    #[default]
    NotFinished,
    /// A regular end, such as `stop` or `length`.
    Finished,
    /// The server aborted the reply: `abort` and `error` of vLLM (`FinishReason` in `vllm/v1/engine/__init__.py`) and
    /// `abort` of SGLang.
    Aborted,
}

/// Token counts of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenUsage {
    pub(super) prompt: u32,
    pub(super) output: u32,
    /// Prompt tokens that were in the server's prefix cache.
    pub(super) cached: Option<u32>,
}

/// An event that is no chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotAChunk {
    /// The message of an error that the server reported.
    Error(String),
    /// The reason that the event is not the JSON of a chunk.
    Unparsable(String),
}

impl From<NotAChunk> for RequestError {
    fn from(failure: NotAChunk) -> Self {
        match failure {
            NotAChunk::Error(message) => Self::Server(message),
            NotAChunk::Unparsable(seen) => Self::Protocol(seen),
        }
    }
}

impl ReplyChunk {
    /// Reads the data of one event. An event that has neither choices nor usage nor an error is an empty chunk.
    ///
    /// # Errors
    /// If the event reports an error or cannot be parsed.
    pub(super) fn parse(data: &[u8]) -> Result<Self, NotAChunk> {
        let wire: WireChunk<'_> = serde_json::from_slice(data)
            .map_err(|error| NotAChunk::Unparsable(format!("{error} in {:?}", excerpt(data))))?;
        match wire.error {
            Some(ErrorBody::Text(text) | ErrorBody::Object { message: text }) => {
                return Err(NotAChunk::Error(excerpt(text.0.as_bytes())));
            }
            Some(ErrorBody::Other(_)) => return Err(NotAChunk::Error(excerpt(data))),
            None => {}
        }
        if let (Some(message), None, None) = (&wire.message, &wire.choices, &wire.usage) {
            return Err(NotAChunk::Error(excerpt(message.0.as_bytes())));
        }
        let WireChoices { content: said, role, finish } = wire.choices.unwrap_or_default();
        // llama.cpp can send its timings with every token. Only those of the last chunk count.
        let timings = wire.timings.map(TokenUsage::from);
        let cached = timings.and_then(|timings| timings.cached);
        let timings = timings.filter(|_| finish != ChoiceFinish::NotFinished);
        let usage = match wire.usage.map(TokenUsage::from) {
            // llama.cpp reports cached tokens only in its timings.
            Some(usage) => Some(TokenUsage { cached: usage.cached.or(cached), ..usage }),
            None => timings,
        };
        Ok(Self { content: said, role, finish, usage })
    }

    /// Returns whether the chunk has at least one token. A token may have no text: special tokens, and tokens whose
    /// text the server holds back. A chunk that only opens a chat has no token, and neither has a chunk that contains
    /// only the finish reason.
    pub(super) fn has_token(&self, dialect: Dialect) -> bool {
        match self.content {
            ChunkContent::Something => true,
            ChunkContent::Empty => {
                !self.role && (self.finish == ChoiceFinish::NotFinished || !dialect.sends_separate_finish())
            }
            ChunkContent::Nothing => false,
        }
    }
}

/// Returns the message of an HTTP error's body: the server's own message if the body is JSON, otherwise its beginning.
#[must_use]
pub(in crate::load) fn message_of(body: &[u8]) -> String {
    match ReplyChunk::parse(body) {
        Err(NotAChunk::Error(message)) => message,
        _ => excerpt(body),
    }
}

/// Returns the beginning of a text, enough to recognise it.
pub(super) fn excerpt(text: &[u8]) -> String {
    const CHARS: usize = 200;
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * CHARS)]);
    let text = text.trim();
    text.char_indices().nth(CHARS).map_or_else(|| text.to_owned(), |(end, _)| format!("{}...", &text[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ReplyChunk {
        ReplyChunk::parse(text.as_bytes()).unwrap()
    }

    /// Returns whether each dialect counts the chunk as a token, in the order of `Dialect::ALL`.
    fn tokens(text: &str) -> [bool; 5] {
        Dialect::ALL.map(|dialect| parse(text).has_token(dialect))
    }

    #[test]
    fn a_chunk_with_text_is_a_token_in_every_form() {
        for choice in [
            r#"{"index":0,"text":" a","finish_reason":null}"#,
            r#"{"text":"\ud83d\ude00","finish_reason":"length"}"#,
            r#"{"text":"\ud83d","finish_reason":null}"#,
            r#"{"delta":{"content":"a"},"finish_reason":null}"#,
            r#"{"delta":{"role":"assistant","content":"a"},"finish_reason":null}"#,
            r#"{"delta":{"role":null,"content":null,"reasoning_content":"a","tool_calls":null},"finish_reason":null}"#,
            r#"{"delta":{"reasoning":"a"}}"#,
            r#"{"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0}]}}"#,
        ] {
            assert_eq!(tokens(&format!(r#"{{"choices":[{choice}],"usage":null}}"#)), [true; 5], "{choice}");
        }
    }

    #[test]
    fn a_chunk_that_only_opens_or_ends_a_reply_is_no_token() {
        for choice in [
            r#"{"delta":{"role":"assistant","content":""},"finish_reason":null}"#,
            r#"{"delta":{"role":"assistant","content":null},"finish_reason":null}"#,
            r#"{"delta":{"role":"assistant","content":"","tool_calls":[]},"finish_reason":null}"#,
            r#"{"delta":{},"finish_reason":"stop"}"#,
            r#"{"delta":{"role":null,"content":null},"finish_reason":"length"}"#,
            r#"{"finish_reason":null}"#,
        ] {
            assert_eq!(tokens(&format!(r#"{{"choices":[{choice}]}}"#)), [false; 5], "{choice}");
        }
        assert_eq!(tokens(r#"{"choices":[]}"#), [false; 5]);
    }

    #[test]
    fn a_token_without_text_counts_unless_the_server_ends_its_replies_with_an_empty_chunk() {
        assert_eq!(tokens(r#"{"choices":[{"text":"","finish_reason":null}]}"#), [true; 5]);
        assert_eq!(tokens(r#"{"choices":[{"delta":{"content":""},"finish_reason":null}]}"#), [true; 5]);
        let last = tokens(r#"{"choices":[{"text":"","finish_reason":"length"}]}"#);
        assert_eq!(last, [true, true, true, false, false]);
    }

    #[test]
    fn an_empty_finish_reason_is_none_and_an_abort_is_no_end() {
        let finish =
            |reason: &str| parse(&format!(r#"{{"choices":[{{"text":"a","finish_reason":{reason}}}]}}"#)).finish;
        assert_eq!([finish("null"), finish("\"\"")], [ChoiceFinish::NotFinished; 2]);
        assert_eq!(
            [finish("\"stop\""), finish("\"eos_token\""), finish(r#"{"type":"length"}"#)],
            [ChoiceFinish::Finished; 3]
        );
        assert_eq!([finish("\"abort\""), finish("\"error\"")], [ChoiceFinish::Aborted; 2]);
    }

    #[test]
    fn counts_are_read_in_every_form() {
        let usage = |prompt, output, cached| Some(TokenUsage { prompt, output, cached });
        let chunk = parse(r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#);
        assert_eq!(chunk, ReplyChunk { usage: usage(3, 2, None), ..ReplyChunk::default() });
        let detailed =
            r#"{"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":8}}}"#;
        assert_eq!(parse(detailed).usage, usage(9, 1, Some(8)));
        let none = r#"{"usage":{"prompt_tokens":9,"completion_tokens":null,"prompt_tokens_details":null}}"#;
        assert_eq!(parse(none).usage, usage(9, 0, None));
        let timings = |reason: &str| {
            let timings = r#"{"cache_n":5,"prompt_n":4,"prompt_ms":1.5,"predicted_n":7}"#;
            parse(&format!(r#"{{"choices":[{{"text":"","finish_reason":{reason}}}],"timings":{timings}}}"#)).usage
        };
        assert_eq!((timings("\"length\""), timings("null")), (usage(9, 7, Some(5)), None));
        let both = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7},"timings":{"cache_n":5}}"#;
        assert_eq!(parse(both).usage, usage(9, 7, Some(5)));
    }

    #[test]
    fn an_error_is_found_in_every_form_that_servers_use() {
        for text in [
            r#"{"error":{"message":"engine \"dead\"","type":"x","param":null,"code":500}}"#,
            r#"{"error":"engine \"dead\""}"#,
            r#"{"object":"error","message":"engine \"dead\"","code":400}"#,
        ] {
            assert_eq!(
                ReplyChunk::parse(text.as_bytes()),
                Err(NotAChunk::Error("engine \"dead\"".to_owned())),
                "{text}"
            );
        }
        assert_eq!(ReplyChunk::parse(br#"{"error":5}"#), Err(NotAChunk::Error(r#"{"error":5}"#.to_owned())));
        assert_eq!(ReplyChunk::parse(br#"{"error":null,"choices":[]}"#), Ok(ReplyChunk::default()));
    }

    #[test]
    fn an_invalid_chunk_is_reported_with_the_observed_text() {
        let Err(NotAChunk::Unparsable(seen)) = ReplyChunk::parse(b"<html>") else { panic!("parsed") };
        assert!(seen.contains("<html>"), "{seen}");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(excerpt("é".repeat(300).as_bytes()), format!("{}...", "é".repeat(200)));
        assert_eq!(message_of(b" plain "), "plain");
    }
}
