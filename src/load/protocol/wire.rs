//! The JSON of a chunk as servers send it, borrowed and without the texts.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::chunk::{ChoiceFinish, ChunkContent, TokenUsage};

/// A chunk, a whole reply or an error. Unknown fields are ignored.
#[derive(Deserialize)]
pub(super) struct WireChunk<'a> {
    #[serde(default)]
    pub(super) choices: Option<WireChoices>,
    #[serde(default)]
    pub(super) usage: Option<WireUsage>,
    /// llama.cpp's own counts, in the chunk that finishes.
    #[serde(default)]
    pub(super) timings: Option<WireTimings>,
    #[serde(default, borrow)]
    pub(super) error: Option<ErrorBody<'a>>,
    /// vLLM up to 0.10 has no `error` object: the event itself is one, `{"object": "error", "message": ...}`.
    #[serde(default, borrow)]
    pub(super) message: Option<WireText<'a>>,
}

/// A text, borrowed if it has no escapes.
#[derive(Deserialize)]
pub(super) struct WireText<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// Value of the field `error`, in the forms of the various servers.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum ErrorBody<'a> {
    Text(#[serde(borrow)] WireText<'a>),
    Object {
        #[serde(borrow)]
        message: WireText<'a>,
    },
    Other(IgnoredAny),
}

#[derive(Deserialize)]
pub(super) struct WireUsage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<PromptTokenDetails>,
}

#[derive(Deserialize)]
struct PromptTokenDetails {
    cached_tokens: Option<u32>,
}

/// `result_timings` in llama.cpp's `tools/server/server-task.cpp`: `prompt_n` are the tokens that were computed,
/// `cache_n` those that were in the cache. Unset counts are negative.
#[derive(Deserialize)]
pub(super) struct WireTimings {
    #[serde(default, rename = "cache_n")]
    cached: Option<i64>,
    #[serde(default, rename = "prompt_n")]
    prompt: i64,
    #[serde(default, rename = "predicted_n")]
    predicted: i64,
}

impl From<WireUsage> for TokenUsage {
    fn from(wire: WireUsage) -> Self {
        Self {
            prompt: wire.prompt_tokens.unwrap_or(0),
            output: wire.completion_tokens.unwrap_or(0),
            cached: wire.prompt_tokens_details.and_then(|details| details.cached_tokens),
        }
    }
}

impl From<WireTimings> for TokenUsage {
    fn from(timings: WireTimings) -> Self {
        let count = |count: i64| u32::try_from(count).unwrap_or(0);
        let cached = timings.cached.map(count);
        Self {
            prompt: count(timings.prompt).saturating_add(cached.unwrap_or(0)),
            output: count(timings.predicted),
            cached,
        }
    }
}

/// The choices of a chunk, read without an allocation.
#[derive(Default)]
pub(super) struct WireChoices {
    /// The largest content of any choice.
    pub(super) content: ChunkContent,
    /// Whether a choice has a role.
    pub(super) role: bool,
    pub(super) finish: ChoiceFinish,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    finish_reason: Option<ChoiceFinish>,
    #[serde(default)]
    text: Option<ChunkContent>,
    /// Part of the message of a streamed chat.
    #[serde(default)]
    delta: Option<Delta>,
    /// Whole message of a chat that is not streamed.
    #[serde(default)]
    message: Option<Delta>,
}

#[derive(Default, Deserialize)]
struct Delta {
    #[serde(default)]
    role: Option<ChunkContent>,
    #[serde(default)]
    content: Option<ChunkContent>,
    /// vLLM up to 0.11, SGLang, llama.cpp.
    #[serde(default)]
    reasoning_content: Option<ChunkContent>,
    /// vLLM from 0.12 on.
    #[serde(default)]
    reasoning: Option<ChunkContent>,
    #[serde(default)]
    tool_calls: Option<ChunkContent>,
}

impl Choice {
    fn content(&self) -> ChunkContent {
        let delta = self.delta.as_ref().or(self.message.as_ref());
        let of = |delta: &Delta| [delta.content, delta.reasoning_content, delta.reasoning, delta.tool_calls];
        let parts = delta.map(of).unwrap_or_default();
        parts.into_iter().chain([self.text]).flatten().max().unwrap_or_default()
    }

    fn role(&self) -> bool {
        self.delta.as_ref().is_some_and(|delta| delta.role.is_some())
    }
}

impl<'de> Deserialize<'de> for WireChoices {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChoicesVisitor;
        impl<'de> Visitor<'de> for ChoicesVisitor {
            type Value = WireChoices;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of choices")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<WireChoices, A::Error> {
                let mut choices = WireChoices::default();
                while let Some(choice) = seq.next_element::<Choice>()? {
                    choices.content = choices.content.max(choice.content());
                    choices.role |= choice.role();
                    choices.finish = choices.finish.max(choice.finish_reason.unwrap_or_default());
                }
                Ok(choices)
            }
        }
        deserializer.deserialize_seq(ChoicesVisitor)
    }
}

impl<'de> Deserialize<'de> for ChunkContent {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = ChunkContent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list")
            }

            fn visit_bytes<E: Error>(self, text: &[u8]) -> Result<ChunkContent, E> {
                Ok(if text.is_empty() { ChunkContent::Empty } else { ChunkContent::Something })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ChunkContent, A::Error> {
                let mut said = ChunkContent::Empty;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    said = ChunkContent::Something;
                }
                Ok(said)
            }
        }
        // Read as bytes, so that a text that is not Unicode (half of a surrogate pair) is accepted.
        deserializer.deserialize_bytes(ContentVisitor)
    }
}

impl<'de> Deserialize<'de> for ChoiceFinish {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FinishVisitor;
        impl<'de> Visitor<'de> for FinishVisitor {
            type Value = ChoiceFinish;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a finish reason")
            }

            fn visit_str<E: Error>(self, reason: &str) -> Result<ChoiceFinish, E> {
                Ok(match reason {
                    "" => ChoiceFinish::NotFinished,
                    "abort" | "error" => ChoiceFinish::Aborted,
                    _ => ChoiceFinish::Finished,
                })
            }

            /// Accepts an object, which SGLang's own interface sends here.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ChoiceFinish, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(ChoiceFinish::Finished)
            }
        }
        deserializer.deserialize_any(FinishVisitor)
    }
}
