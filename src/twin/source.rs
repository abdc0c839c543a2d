//! Where a load's requests come from: users who ask again once they are answered, or arrivals at given times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::ask::Tokens;
use crate::workload::{Part, Prompt, Turn, Workload};

/// One request of an open loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Since the start of the load.
    pub at: Duration,
    pub prompt: Tokens<'static>,
    /// Tokens to generate, at least one.
    pub output_len: u32,
    /// Smaller is served earlier, where priorities decide.
    pub priority: i32,
}

/// A request that is asked now.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) arrival: Arrival,
    pub(super) index: u64,
    pub(super) turn: u32,
    pub(super) user: Option<User>,
}

impl Asked {
    pub(super) fn prompt_len(&self) -> u32 {
        u32::try_from(self.arrival.prompt.len()).unwrap_or(u32::MAX)
    }
}

pub(super) trait Source {
    /// When the next request is asked; `None` while that waits for a reply, and when there are no more.
    fn due(&mut self) -> Option<Duration>;

    /// The next request.
    fn ask(&mut self) -> Option<Asked>;

    /// The one who asked has the whole reply.
    fn answered(&mut self, user: Option<User>, now: Duration);
}

/// An iterator of arrivals, looked at one ahead.
pub(super) struct Arrivals<I: Iterator<Item = Arrival>> {
    rest: std::iter::Peekable<I>,
    index: u64,
}

impl<I: Iterator<Item = Arrival>> Arrivals<I> {
    pub(super) fn new(arrivals: I) -> Self {
        Self { rest: arrivals.peekable(), index: 0 }
    }
}

impl<I: Iterator<Item = Arrival>> Source for Arrivals<I> {
    fn due(&mut self) -> Option<Duration> {
        self.rest.peek().map(|arrival| arrival.at)
    }

    fn ask(&mut self) -> Option<Asked> {
        let arrival = self.rest.next()?;
        self.index += 1;
        Some(Asked { arrival, index: self.index - 1, turn: 0, user: None })
    }

    fn answered(&mut self, _: Option<User>, _: Duration) {}
}

/// Requests in a given order, each asked as soon as one of the users has been answered.
pub(super) struct Listed<I: Iterator<Item = Arrival>> {
    rest: std::iter::Peekable<I>,
    /// When each of the users who wait for nothing was answered.
    free: BinaryHeap<Reverse<Duration>>,
    index: u64,
}

impl<I: Iterator<Item = Arrival>> Listed<I> {
    pub(super) fn new(requests: I, users: u32) -> Self {
        let free = (0..users.max(1)).map(|_| Reverse(Duration::ZERO)).collect();
        Self { rest: requests.peekable(), free, index: 0 }
    }
}

impl<I: Iterator<Item = Arrival>> Source for Listed<I> {
    fn due(&mut self) -> Option<Duration> {
        self.rest.peek()?;
        self.free.peek().map(|free| free.0)
    }

    fn ask(&mut self) -> Option<Asked> {
        let request = self.rest.next()?;
        let Reverse(at) = self.free.pop()?;
        self.index += 1;
        Some(Asked { arrival: Arrival { at, ..request }, index: self.index - 1, turn: 0, user: None })
    }

    fn answered(&mut self, _: Option<User>, now: Duration) {
        self.free.push(Reverse(now));
    }
}

/// Someone in the middle of a session.
#[derive(Debug)]
pub(super) struct User {
    session: u64,
    turn: u32,
    /// What is still to be asked.
    turns: std::vec::IntoIter<Turn>,
}

/// Who asks next, when; in the order in which they came to it where that is at the same time.
#[derive(Debug)]
struct Due {
    at: Duration,
    number: u64,
    /// `None` begins the next session.
    user: Option<User>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A fixed number of users, each of whom asks the turns of a session one after the other and then begins the next.
#[derive(Debug)]
pub(super) struct Users<'a> {
    workload: &'a dyn Workload,
    requests: u64,
    sent: u64,
    next_session: u64,
    due: BinaryHeap<Reverse<Due>>,
    number: u64,
}

impl<'a> Users<'a> {
    pub(super) fn new(workload: &'a dyn Workload, requests: u64, concurrency: u64) -> Self {
        let mut users = Self { workload, requests, sent: 0, next_session: 0, due: BinaryHeap::new(), number: 0 };
        (0..concurrency.max(1).min(requests)).for_each(|_| users.wait(Duration::ZERO, None));
        users
    }

    fn wait(&mut self, at: Duration, user: Option<User>) {
        self.number += 1;
        self.due.push(Reverse(Due { at, number: self.number, user }));
    }
}

impl Source for Users<'_> {
    fn due(&mut self) -> Option<Duration> {
        if self.sent == self.requests {
            return None;
        }
        self.due.peek().map(|due| due.0.at)
    }

    fn ask(&mut self) -> Option<Asked> {
        let Reverse(Due { at, user, .. }) = self.due.pop()?;
        let mut user = user.unwrap_or_else(|| {
            let turns = self.workload.session(self.next_session).turns.into_iter();
            self.next_session += 1;
            User { session: self.next_session - 1, turn: 0, turns }
        });
        let request = user.turns.next()?.request;
        self.sent += 1;
        let (index, turn) = (user.session, user.turn);
        user.turn += 1;
        let prompt = Tokens::Ids(tokens(request.prompt).into());
        let arrival = Arrival { at, prompt, output_len: request.output_len, priority: 0 };
        Some(Asked { arrival, index, turn, user: Some(user) })
    }

    fn answered(&mut self, user: Option<User>, now: Duration) {
        let user = user.filter(|user| !user.turns.as_slice().is_empty());
        let think =
            user.as_ref().and_then(|user| user.turns.as_slice().first()).map_or(Duration::ZERO, |turn| turn.think);
        self.wait(now + think, user);
    }
}

/// A prompt's tokens. There is no tokenizer: of a text, every four bytes are a token, equal bytes the same one. Images are
/// none.
#[must_use]
pub fn tokens(prompt: Prompt) -> Vec<u32> {
    let of = |text: &str, tokens: &mut Vec<u32>| {
        let token = |bytes: &[u8]| bytes.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
        tokens.extend(text.as_bytes().chunks(4).map(token));
    };
    let mut tokens = Vec::new();
    match prompt {
        Prompt::Tokens(tokens) => return tokens,
        Prompt::Text(text) => of(&text, &mut tokens),
        Prompt::Messages(messages) => {
            for part in messages.iter().flat_map(|message| &message.content) {
                if let Part::Text(text) = part {
                    of(text, &mut tokens);
                }
            }
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_equal_tokens() {
        assert_eq!(tokens(Prompt::Text("abcdefgh!".to_owned())).len(), 3);
        let begin = tokens(Prompt::Text("abcdefgh".to_owned()));
        assert!(tokens(Prompt::Text("abcdefgh and more".to_owned())).starts_with(&begin));
    }
}
