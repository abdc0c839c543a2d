//! The JSON of a chunk as servers send it, borrowed and without the texts.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::chunk::{Finish, Said, Usage};

#[derive(Deserialize)]
pub(super) struct Wire<'a> {
    #[serde(default)]
    pub(super) choices: Option<Choices>,
    #[serde(default)]
    pub(super) usage: Option<WireUsage>,
    /// llama.cpp's own counts, in the chunk that finishes.
    #[serde(default)]
    pub(super) timings: Option<Timings>,
    #[serde(default, borrow)]
    pub(super) error: Option<ErrorBody<'a>>,
    /// vLLM up to 0.10 has no `error` object: the event itself is one, `{"object": "error", "message": ...}`.
    #[serde(default, borrow)]
    pub(super) message: Option<Text<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum ErrorBody<'a> {
    Text(#[serde(borrow)] Text<'a>),
    Object {
        #[serde(borrow)]
        message: Text<'a>,
    },
    Other(IgnoredAny),
}

#[derive(Deserialize)]
pub(super) struct WireUsage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

/// `result_timings` in llama.cpp's `tools/server/server-task.cpp`: `prompt_n` are the tokens that were computed,
/// `cache_n` those that were in the cache. Unset counts are negative.
#[derive(Deserialize)]
pub(super) struct Timings {
    #[serde(default, rename = "cache_n")]
    cached: Option<i64>,
    #[serde(default, rename = "prompt_n")]
    prompt: i64,
    #[serde(default, rename = "predicted_n")]
    predicted: i64,
}

impl From<WireUsage> for Usage {
    fn from(wire: WireUsage) -> Self {
        Self {
            prompt: wire.prompt_tokens.unwrap_or(0),
            output: wire.completion_tokens.unwrap_or(0),
            cached: wire.prompt_tokens_details.and_then(|details| details.cached_tokens),
        }
    }
}

impl From<Timings> for Usage {
    fn from(timings: Timings) -> Self {
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
pub(super) struct Choices {
    pub(super) said: Said,
    pub(super) role: bool,
    pub(super) finish: Finish,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    finish_reason: Option<Finish>,
    #[serde(default)]
    text: Option<Said>,
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
    role: Option<Said>,
    #[serde(default)]
    content: Option<Said>,
    /// vLLM up to 0.11, SGLang, llama.cpp.
    #[serde(default)]
    reasoning_content: Option<Said>,
    /// vLLM from 0.12 on.
    #[serde(default)]
    reasoning: Option<Said>,
    #[serde(default)]
    tool_calls: Option<Said>,
}

impl Choice {
    fn said(&self) -> Said {
        let delta = self.delta.as_ref().or(self.message.as_ref());
        let of = |delta: &Delta| [delta.content, delta.reasoning_content, delta.reasoning, delta.tool_calls];
        let parts = delta.map(of).unwrap_or_default();
        parts.into_iter().chain([self.text]).flatten().max().unwrap_or_default()
    }

    fn role(&self) -> bool {
        self.delta.as_ref().is_some_and(|delta| delta.role.is_some())
    }
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
                    choices.said = choices.said.max(choice.said());
                    choices.role |= choice.role();
                    choices.finish = choices.finish.max(choice.finish_reason.unwrap_or_default());
                }
                Ok(choices)
            }
        }
        deserializer.deserialize_seq(Each)
    }
}

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Amount;
        impl<'de> Visitor<'de> for Amount {
            type Value = Said;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list")
            }

            fn visit_bytes<E: Error>(self, text: &[u8]) -> Result<Said, E> {
                Ok(if text.is_empty() { Said::Empty } else { Said::Something })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Said, A::Error> {
                let mut said = Said::Empty;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    said = Said::Something;
                }
                Ok(said)
            }
        }
        // Read as bytes, so that a text that is not Unicode (half of a surrogate pair) is accepted.
        deserializer.deserialize_bytes(Amount)
    }
}

impl<'de> Deserialize<'de> for Finish {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reason;
        impl<'de> Visitor<'de> for Reason {
            type Value = Finish;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a finish reason")
            }

            fn visit_str<E: Error>(self, reason: &str) -> Result<Finish, E> {
                Ok(match reason {
                    "" => Finish::No,
                    "abort" | "error" => Finish::Aborted,
                    _ => Finish::Yes,
                })
            }

            /// Accepts an object, which SGLang's own interface sends here.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Finish, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Finish::Yes)
            }
        }
        deserializer.deserialize_any(Reason)
    }
}
