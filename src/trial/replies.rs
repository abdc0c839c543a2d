//! When the requests of a measured window were asked and answered.

use serde::{Deserialize, Serialize};

/// One value for each request and column, in the order of asking: those of the warm-up, and the first of the window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replies {
    /// Users of a closed loop, each of whom asks one request after the other; `None` where the load says when.
    pub users: Option<u32>,
    /// How many of the first rows belong to the warm-up, which has left its prompts in the server's cache; they have no times.
    pub warmup: u32,
    /// Whether the others are all requests of the window.
    pub complete: bool,
    /// When each was sent, in microseconds since the window's start.
    pub sent_us: Vec<u64>,
    /// Microseconds from sending to the first and to the last token; `None` where it failed.
    pub ttft_us: Vec<Option<u64>>,
    pub latency_us: Vec<Option<u64>>,
    /// Prompt tokens by the server's count, or else those that were sent.
    pub prompt_tokens: Vec<u32>,
    /// Output tokens by the server's count; of a failed request, those that were asked for.
    pub output_tokens: Vec<u32>,
    /// With how many tokens each prompt begins like an earlier one, and which one that is: its place in these columns.
    pub shared_tokens: Vec<u32>,
    pub shared_with: Vec<u32>,
}

impl Replies {
    /// More requests of a window than these are not kept: they say little more of the engine.
    pub const MOST: usize = 1000;

    #[must_use]
    pub fn len(&self) -> usize {
        self.sent_us.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent_us.is_empty()
    }

    /// Whether every column has a value for each request, and no prompt is like a later one.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let lengths = [
            self.ttft_us.len(),
            self.latency_us.len(),
            self.prompt_tokens.len(),
            self.output_tokens.len(),
            self.shared_tokens.len(),
            self.shared_with.len(),
        ];
        let mut shared = self.shared_tokens.iter().zip(&self.shared_with).enumerate();
        lengths.iter().all(|len| *len == self.len())
            && self.warmup as usize <= self.len()
            && shared.all(|(place, (tokens, with))| *tokens == 0 || (*with as usize) < place)
    }
}
