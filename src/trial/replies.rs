//! Send and reply times of the requests of a measurement window.

use serde::{Deserialize, Serialize};

/// Columns with one value for each request, in the order of sending: the warm-up, then the first requests of the
/// window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replies {
    /// The number of users of a closed loop, each with one request at a time; `None` if the load schedules the
    /// requests.
    pub users: Option<u32>,
    /// The number of rows at the beginning that belong to the warm-up, which the server's cache contains. These rows
    /// have no times: `sent_us` is 0.
    pub warmup: u32,
    /// Whether the remaining rows are all requests of the window.
    pub complete: bool,
    /// Send times in microseconds since the window's start.
    pub sent_us: Vec<u64>,
    /// Microseconds from sending to the first and to the last token; `None` if the request failed.
    pub ttft_us: Vec<Option<u64>>,
    pub latency_us: Vec<Option<u64>>,
    /// Prompt tokens by the server's count, or else the number of tokens that were sent.
    pub prompt_tokens: Vec<u32>,
    /// Output tokens by the server's count; for a failed request, the requested number.
    pub output_tokens: Vec<u32>,
    /// The number of leading tokens that a prompt shares with an earlier one, and that prompt's index in these columns.
    pub shared_tokens: Vec<u32>,
    pub shared_with: Vec<u32>,
}

impl Replies {
    /// The largest number of stored requests of a window. More would add little information about the engine.
    pub const MAX_STORED: usize = 1000;

    #[must_use]
    pub fn len(&self) -> usize {
        self.sent_us.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent_us.is_empty()
    }

    /// Returns whether every column has a value for each request, and each shared prefix refers to an earlier prompt.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
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
