//! What is asked of the server: a workload turns an index into a session, the same one for every configuration.

//!
//! Everything that is drawn is a function of seed and index. Prompts are random tokens of exact lengths unless a file
//! brings its own: token ids where the server takes them, otherwise text that the model's tokenizer encodes to as many
//! tokens. Sessions share a prefix only where a workload says so.

mod conversation;
mod draw;
mod error;
mod image;
mod jsonl;
mod length;
mod mixture;
mod prefix;
mod random;
mod recorded;
mod sharegpt;
mod spec;
#[cfg(test)]
mod tests;
mod tokenizer;
mod trace;
mod writer;

use std::sync::Arc;
use std::time::Duration;

pub use conversation::Think;
pub use error::{LeftOut, WorkloadError};
pub use length::Length;
pub use random::Random;
pub use sharegpt::Pruning;
pub use spec::{Spec, Surroundings};

/// The prompt of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Token ids: the length is exact, whatever the tokenizer. Only `/v1/completions` takes them, and not every server.
    Tokens(Vec<u32>),
    /// Sent as it is to `/v1/completions`, as the only message of a user to `/v1/chat/completions`.
    Text(String),
    /// Only `/v1/chat/completions` takes them.
    Messages(Vec<Message>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Text(String),
    /// The bytes of a PNG file.
    Image(Arc<[u8]>),
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub prompt: Prompt,
    /// Tokens to generate. Unless the load lets a reply end by itself, the server is told to ignore the end-of-sequence
    /// token, and another number is a failure.
    pub output_len: u32,
}

/// One request of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    pub request: Request,
    /// How long the user thinks after the reply before; zero for the first turn.
    pub think: Duration,
}

/// What one user asks, one request after the other. Most workloads have sessions of one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// At least one.
    pub turns: Vec<Turn>,
}

impl Session {
    /// A session of one request.
    #[must_use]
    pub fn single(prompt: Prompt, output_len: u32) -> Self {
        Self { turns: vec![Turn { request: Request { prompt, output_len }, think: Duration::ZERO }] }
    }
}

/// A reproducible sequence of sessions.
#[expect(clippy::len_without_is_empty, reason = "none is empty")]
pub trait Workload: std::fmt::Debug + Send + Sync {
    /// The session at this index: a pure function, so that every trial is asked the same. A workload of finite length
    /// ([`len`](Self::len)) starts over behind its end, a trace of lengths with other tokens.
    fn session(&self, index: u64) -> Session;

    /// The session that a warm-up asks instead of [`session`](Self::session), at an index that is not measured. Prompts that
    /// come from a file may be the same at another index: they get another beginning here, so that a prefix cache that the
    /// warm-up has filled holds none of them. The lengths stay. Prefixes that sessions share by design are shared.
    fn warmup_session(&self, index: u64) -> Session {
        self.session(index)
    }

    /// The longest prompt plus output of any request, in tokens; the server's `max-model-len` must hold it.
    fn longest(&self) -> u64;

    /// How many different sessions there are; `None` where they never repeat.
    fn len(&self) -> Option<u64> {
        None
    }

    /// When the session at this index is due by the workload's own time stamps, counted from the first; `None` where it
    /// has none.
    fn due(&self, _index: u64) -> Option<Duration> {
        None
    }

    /// Rows of its file that a rule has left out, by rule; nothing was left out otherwise.
    fn left_out(&self) -> Vec<LeftOut> {
        Vec::new()
    }
}

/// The sessions of a workload's warm-up; see [`Workload::warmup_session`].
#[derive(Clone, Debug)]
pub struct WarmupSessions(pub Arc<dyn Workload>);

impl Workload for WarmupSessions {
    fn session(&self, index: u64) -> Session {
        self.0.warmup_session(index)
    }

    fn longest(&self) -> u64 {
        self.0.longest()
    }

    fn len(&self) -> Option<u64> {
        self.0.len()
    }
}

/// The problem of one line of JSON. The line within the line is always the first.
fn json_problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((problem, place)) => {
            let column = place.split_once(" column ").map_or(place, |(_, column)| column);
            format!("{problem} (column {column})")
        }
        None => text,
    }
}
