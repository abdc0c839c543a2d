//! What is asked of the engine, and why it may refuse.

use std::borrow::Cow;

use super::sequence::RequestId;

/// What is asked of the engine.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    pub id: RequestId,
    pub prompt: Tokens<'a>,
    /// Tokens that it will generate, at least one.
    pub output_len: u32,
    /// The request's `max_tokens` where the reply ends by itself before: the scheduler then does not know which token is
    /// the last. `None`: `output_len` is the limit.
    pub most_output: Option<u32>,
    /// Smaller is served earlier, where [`Order::Priority`](super::Order::Priority) decides.
    pub priority: i32,
}

/// A prompt, which the engine does not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tokens<'a> {
    /// Equal beginnings are found in the cache, where prefix caching is on.
    Ids(Cow<'a, [u32]>),
    /// As many tokens that no other request has.
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
