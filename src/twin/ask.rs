//! A request to the engine, and the reasons why the engine may refuse it.

use std::borrow::Cow;

use super::sequence::RequestId;

/// A request to the engine.
#[derive(Clone, Debug)]
pub struct TwinRequest<'a> {
    pub id: RequestId,
    pub prompt: Tokens<'a>,
    /// Number of tokens that it will generate. 0 counts as 1.
    pub output_len: u32,
    /// The request's `max_tokens`, if the reply ends before that limit (an end-of-sequence token). The scheduler then
    /// does not know which token is the last. `None` means that `output_len` is the limit.
    pub most_output: Option<u32>,
    /// Smaller values are served earlier under [`QueueOrder::Priority`](super::QueueOrder::Priority).
    pub priority: i32,
}

/// A prompt. The engine does not keep it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tokens<'a> {
    /// Token ids. With prefix caching, equal beginnings of prompts are found in the cache.
    Ids(Cow<'a, [u32]>),
    /// Number of tokens, if no prompt shares its beginning with another one.
    Count(u32),
}

impl Tokens<'_> {
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Ids(ids) => ids.len(),
            Self::Count(count) => *count as usize,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A request that this engine can never serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    #[error("a prompt needs at least one token")]
    Empty,
    #[error("{prompt} prompt and {output} output tokens exceed max_model_len {max_model_len}")]
    TooLong { prompt: usize, output: u32, max_model_len: u32 },
    #[error("request {} is still in the engine", .0.0)]
    Duplicate(RequestId),
}
