//! Sources of a load's requests: users who send the next request after each reply, or arrivals at given times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::ask::Tokens;
use super::drive::VirtualReply;
use crate::workload::{MessagePart, Prompt, SessionTurn, Workload};

/// One request and the time of its arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwinArrival {
    /// When it reaches the front end, since the start of the load.
    pub at: Duration,
    pub prompt: Tokens<'static>,
    /// Number of tokens to generate, at least one.
    pub output_len: u32,
    /// Smaller values are served earlier under `QueueOrder::Priority`.
    pub priority: i32,
}

/// A request that its sender sends now.
#[derive(Debug)]
pub struct SentRequest<U> {
    pub arrival: TwinArrival,
    /// Session or number of the request, copied into the [`VirtualReply`] like `turn`.
    pub index: u64,
    pub turn: u32,
    /// Data of the source that it receives again with the reply.
    pub user: U,
}

impl<U> SentRequest<U> {
    pub(super) fn prompt_len(&self) -> u32 {
        u32::try_from(self.arrival.prompt.len()).unwrap_or(u32::MAX)
    }
}

/// The next event of a source.
#[derive(Debug)]
pub enum NextArrival<U> {
    /// A request that is sent by `now`. Its `at` is later if the source models network latency.
    Request(SentRequest<U>),
    /// No request is due before this later instant, unless a reply ends.
    NotBefore(Duration),
    /// No request is due until a reply ends, or the source is exhausted.
    AwaitReply,
}

/// A source of a load's requests.
pub trait RequestSource {
    /// Data of the source about the sender of a request.
    type SourceUser;

    /// Returns a request that is due by `now`. It is called until it returns no request.
    fn next(&mut self, now: Duration) -> NextArrival<Self::SourceUser>;

    /// Delivers the complete reply to its sender. `now` is when the client has the last token. It is later than the end
    /// of the step by the work of the front end.
    fn answered(&mut self, user: Self::SourceUser, reply: &VirtualReply, now: Duration);
}

/// Arrivals at given times.
pub(super) struct Arrivals<I: Iterator<Item = TwinArrival>> {
    rest: std::iter::Peekable<I>,
    index: u64,
}

impl<I: Iterator<Item = TwinArrival>> Arrivals<I> {
    pub(super) fn new(arrivals: I) -> Self {
        Self { rest: arrivals.peekable(), index: 0 }
    }
}

impl<I: Iterator<Item = TwinArrival>> RequestSource for Arrivals<I> {
    type SourceUser = ();

    fn next(&mut self, now: Duration) -> NextArrival<()> {
        if let Some(arrival) = self.rest.next_if(|arrival| arrival.at <= now) {
            self.index += 1;
            return NextArrival::Request(SentRequest { arrival, index: self.index - 1, turn: 0, user: () });
        }
        self.rest.peek().map_or(NextArrival::AwaitReply, |arrival| NextArrival::NotBefore(arrival.at))
    }

    fn answered(&mut self, (): (), _: &VirtualReply, _: Duration) {}
}

/// Requests in a given order. Each is sent as soon as one of the users is free.
pub(super) struct ListedArrivals<I: Iterator<Item = TwinArrival>> {
    rest: std::iter::Peekable<I>,
    /// For each free user, the time of the last reply.
    free: BinaryHeap<Reverse<Duration>>,
    index: u64,
}

impl<I: Iterator<Item = TwinArrival>> ListedArrivals<I> {
    pub(super) fn new(requests: I, users: u32) -> Self {
        let free = (0..users.max(1)).map(|_| Reverse(Duration::ZERO)).collect();
        Self { rest: requests.peekable(), free, index: 0 }
    }
}

impl<I: Iterator<Item = TwinArrival>> RequestSource for ListedArrivals<I> {
    type SourceUser = ();

    fn next(&mut self, now: Duration) -> NextArrival<()> {
        if self.rest.peek().is_none() {
            return NextArrival::AwaitReply;
        }
        let Some(at) = self.free.peek().map(|free| free.0) else { return NextArrival::AwaitReply };
        if at > now {
            return NextArrival::NotBefore(at);
        }
        self.free.pop();
        let Some(request) = self.rest.next() else { return NextArrival::AwaitReply };
        self.index += 1;
        NextArrival::Request(SentRequest {
            arrival: TwinArrival { at, ..request },
            index: self.index - 1,
            turn: 0,
            user: (),
        })
    }

    fn answered(&mut self, (): (), _: &VirtualReply, now: Duration) {
        self.free.push(Reverse(now));
    }
}

/// A user in the middle of a session.
#[derive(Debug)]
pub(super) struct User {
    session: u64,
    turn: u32,
    /// The remaining turns.
    turns: std::vec::IntoIter<SessionTurn>,
}

/// The time of a user's next request. Equal times keep the order of insertion.
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

/// A fixed number of users. Each sends the turns of a session one after the other and then begins the next session.
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

impl RequestSource for Users<'_> {
    type SourceUser = User;

    fn next(&mut self, now: Duration) -> NextArrival<User> {
        if self.sent == self.requests {
            return NextArrival::AwaitReply;
        }
        let Some(due) = self.due.peek().map(|due| due.0.at) else { return NextArrival::AwaitReply };
        if due > now {
            return NextArrival::NotBefore(due);
        }
        let Some(Reverse(Due { at, user, .. })) = self.due.pop() else { return NextArrival::AwaitReply };
        let mut user = user.unwrap_or_else(|| {
            let turns = self.workload.session(self.next_session).turns.into_iter();
            self.next_session += 1;
            User { session: self.next_session - 1, turn: 0, turns }
        });
        let Some(request) = user.turns.next().map(|turn| turn.request) else { return NextArrival::AwaitReply };
        self.sent += 1;
        let (index, turn) = (user.session, user.turn);
        user.turn += 1;
        let prompt = Tokens::Ids(tokens(request.prompt).into());
        let arrival = TwinArrival { at, prompt, output_len: request.output_len, priority: 0 };
        NextArrival::Request(SentRequest { arrival, index, turn, user })
    }

    fn answered(&mut self, user: User, _: &VirtualReply, now: Duration) {
        let user = Some(user).filter(|user| !user.turns.as_slice().is_empty());
        let think =
            user.as_ref().and_then(|user| user.turns.as_slice().first()).map_or(Duration::ZERO, |turn| turn.think);
        self.wait(now + think, user);
    }
}

/// Converts a prompt to tokens. There is no tokenizer. Every four bytes of a text are a token, and equal bytes give
/// equal tokens. Images have no tokens.
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
                if let MessagePart::Text(text) = part {
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
