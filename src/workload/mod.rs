//! Requests for the server: a workload turns an index into a session, which is equal for every configuration.
//!
//! Every drawn value is a function of seed and index. Prompts are random tokens of exact lengths, unless they come from
//! a file. They are token ids if the server takes them, otherwise text that the model's tokenizer encodes to the same
//! number of tokens. Sessions share a prefix only if the workload specifies one.

mod access_log;
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

pub use access_log::{AccessLog, AccessLogError, LoggedRequest};
pub use conversation::Think;
pub use error::{LeftOut, WorkloadError};
pub use length::TokenLength;
pub use random::RandomWorkload;
pub use sharegpt::Pruning;
pub use spec::{WorkloadSpec, WorkloadSurroundings};

/// The prompt of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Token ids. Their number is exact with any tokenizer. Only `/v1/completions` takes them, and not every server
    /// does.
    Tokens(Vec<u32>),
    /// Text that is sent unchanged to `/v1/completions`, or as a user's only message to `/v1/chat/completions`.
    Text(String),
    /// Messages. Only `/v1/chat/completions` takes them.
    Messages(Vec<ChatMessage>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    pub role: Role,
    pub content: Vec<MessagePart>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessagePart {
    Text(String),
    /// The bytes of a PNG file.
    Image(Arc<[u8]>),
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub prompt: Prompt,
    /// Tokens to generate. Unless the load lets a reply end by itself, the request makes the server ignore the
    /// end-of-sequence token. A reply with another number of tokens is then a failure.
    pub output_len: u32,
}

/// One request of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTurn {
    pub request: Request,
    /// Time between the previous reply and this request. Zero for the first turn.
    pub think: Duration,
}

/// The requests of one user, one after the other. Most workloads have sessions of one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSession {
    /// At least one.
    pub turns: Vec<SessionTurn>,
}

impl UserSession {
    /// Returns a session of one request.
    #[must_use]
    pub fn single(prompt: Prompt, output_len: u32) -> Self {
        Self { turns: vec![SessionTurn { request: Request { prompt, output_len }, think: Duration::ZERO }] }
    }
}

/// A reproducible sequence of sessions.
#[expect(clippy::len_without_is_empty, reason = "none is empty")]
pub trait Workload: std::fmt::Debug + Send + Sync {
    /// Returns the session at this index. This is a pure function, so that every trial gets the same requests. A
    /// workload of finite length ([`len`](Self::len)) starts over after its end. A trace of lengths then has other
    /// tokens.
    fn session(&self, index: u64) -> UserSession;

    /// Returns the session that a warm-up sends instead of [`session`](Self::session), at an index that is not
    /// measured. A file may contain the same prompt at a measured index. Such prompts get another beginning here, so
    /// that the prefix cache holds none of them after the warm-up. Their lengths stay. Prefixes that sessions share by
    /// design stay shared.
    fn warmup_session(&self, index: u64) -> UserSession {
        self.session(index)
    }

    /// Returns the longest prompt plus output of any request, in tokens. The server's `max-model-len` must hold it.
    fn longest(&self) -> u64;

    /// Returns the number of sessions after which the workload starts over. `None` if it never does.
    fn len(&self) -> Option<u64> {
        None
    }

    /// Returns the time at which the session at this index is due by the workload's own time stamps, counted from the
    /// first. `None` without time stamps.
    fn due(&self, _index: u64) -> Option<Duration> {
        None
    }

    /// Returns the numbers of rows of its file that were left out, by reason. Empty if no row was left out.
    fn left_out(&self) -> Vec<LeftOut> {
        Vec::new()
    }
}

/// The sessions of a workload's warm-up. See [`Workload::warmup_session`].
#[derive(Clone, Debug)]
pub struct WarmupSessions(pub Arc<dyn Workload>);

impl Workload for WarmupSessions {
    fn session(&self, index: u64) -> UserSession {
        self.0.warmup_session(index)
    }

    fn longest(&self) -> u64 {
        self.0.longest()
    }

    fn len(&self) -> Option<u64> {
        self.0.len()
    }
}

/// Returns the problem of one line of JSON. serde's line number is dropped, because it is always 1.
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
