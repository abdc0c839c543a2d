//! What is asked of the server: a workload turns an index into a request, the same one for every configuration.

mod random;

pub use random::Random;

/// One request. Prompts are token ids, so that their length is exact whatever the tokenizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub index: u64,
    pub prompt: Vec<u32>,
    /// Tokens to generate; the server is told to ignore the end-of-sequence token.
    pub output_len: u32,
}

/// A reproducible sequence of requests.
pub trait Workload: Send + Sync {
    /// The request at this index: a pure function, so that every trial is asked the same.
    fn request(&self, index: u64) -> Request;

    /// The longest prompt plus output of any request, in tokens; the server's `max-model-len` must hold it.
    fn longest(&self) -> u64;
}
