//! One streamed chunk of a completion: what a measurement needs of its JSON, borrowed and without the text.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess, Visitor};

/// What one event said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Whether it carried at least one choice; this, and not its text, makes it a content chunk.
    pub(super) content: bool,
    /// Whether a choice gave its `finish_reason`.
    pub(super) finished: bool,
    pub(super) usage: Option<Usage>,
}

/// Tokens as the server counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Usage {
    #[serde(default)]
    pub(super) prompt_tokens: u32,
    #[serde(default)]
    pub(super) completion_tokens: u32,
}

/// An event that is no chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotAChunk {
    /// The server reported an error; its message.
    Error(String),
    /// The event is not the JSON of a chunk; why.
    Unparsable(String),
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(default)]
    choices: Option<Choices>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default, borrow)]
    error: Option<ErrorBody<'a>>,
    /// vLLM up to 0.10 has no `error` object: the event itself is one, `{"object": "error", "message": ...}`.
    #[serde(default, borrow)]
    message: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
#[serde(untagged)]
enum ErrorBody<'a> {
    Text(#[serde(borrow)] Text<'a>),
    Object {
        #[serde(borrow)]
        message: Text<'a>,
    },
    Other(IgnoredAny),
}

/// The choices of a chunk, read without an allocation.
#[derive(Default)]
struct Choices {
    any: bool,
    finished: bool,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    finish_reason: Option<IgnoredAny>,
}

impl<'de> Deserialize<'de> for Choices {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;
        impl<'de> Visitor<'de> for Each {
            type Value = Choices;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of choices")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Choices, A::Error> {
                let mut choices = Choices::default();
                while let Some(choice) = seq.next_element::<Choice>()? {
                    choices.any = true;
                    choices.finished |= choice.finish_reason.is_some();
                }
                Ok(choices)
            }
        }
        deserializer.deserialize_seq(Each)
    }
}

impl Chunk {
    /// Reads the data of one event. An event that has neither choices nor usage nor an error is an empty chunk.
    ///
    /// # Errors
    /// When the event reports an error or cannot be parsed.
    pub(super) fn parse(data: &[u8]) -> Result<Self, NotAChunk> {
        let wire: Wire<'_> = serde_json::from_slice(data)
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
        let choices = wire.choices.unwrap_or_default();
        Ok(Self { content: choices.any, finished: choices.finished, usage: wire.usage })
    }
}

/// The message of an HTTP error's body: the server's own words where it is JSON, otherwise the body's beginning.
#[must_use]
pub(super) fn message_of(body: &[u8]) -> String {
    match Chunk::parse(body) {
        Err(NotAChunk::Error(message)) => message,
        _ => excerpt(body),
    }
}

/// Enough of a text to recognise it by.
pub(super) fn excerpt(text: &[u8]) -> String {
    const CHARS: usize = 200;
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * CHARS)]);
    let text = text.trim();
    text.char_indices().nth(CHARS).map_or_else(|| text.to_owned(), |(end, _)| format!("{}...", &text[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_chunk_counts_whatever_its_text() {
        let chunk = Chunk::parse(br#"{"id":"c","choices":[{"index":0,"text":"","finish_reason":null}]}"#);
        assert_eq!(chunk, Ok(Chunk { content: true, finished: false, usage: None }));
        let chunk = Chunk::parse(br#"{"choices":[{"text":"\ud83d\ude00","finish_reason":"length"}],"usage":null}"#);
        assert_eq!(chunk, Ok(Chunk { content: true, finished: true, usage: None }));
    }

    #[test]
    fn the_usage_chunk_has_no_content() {
        let chunk =
            Chunk::parse(br#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}"#);
        let usage = Usage { prompt_tokens: 3, completion_tokens: 2 };
        assert_eq!(chunk, Ok(Chunk { content: false, finished: false, usage: Some(usage) }));
    }

    #[test]
    fn an_error_is_found_in_every_form_that_servers_use() {
        for text in [
            r#"{"error":{"message":"engine \"dead\"","type":"x","param":null,"code":500}}"#,
            r#"{"error":"engine \"dead\""}"#,
            r#"{"object":"error","message":"engine \"dead\"","code":400}"#,
        ] {
            assert_eq!(Chunk::parse(text.as_bytes()), Err(NotAChunk::Error("engine \"dead\"".to_owned())), "{text}");
        }
        assert_eq!(Chunk::parse(br#"{"error":5}"#), Err(NotAChunk::Error(r#"{"error":5}"#.to_owned())));
        assert_eq!(Chunk::parse(br#"{"error":null,"choices":[]}"#), Ok(Chunk::default()));
    }

    #[test]
    fn what_is_not_a_chunk_says_what_was_seen() {
        let Err(NotAChunk::Unparsable(seen)) = Chunk::parse(b"<html>") else { panic!("parsed") };
        assert!(seen.contains("<html>"), "{seen}");
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        assert_eq!(excerpt("é".repeat(300).as_bytes()), format!("{}...", "é".repeat(200)));
        assert_eq!(message_of(b" plain "), "plain");
    }
}
