//! Conversations: each request contains the whole history of its session.

use std::time::Duration;

use super::draw::{DrawPurpose, rng, unit};
use super::length::LengthSpan;
use super::writer::{TextDraft, TextPiece, TextWriter};
use super::{ChatMessage, MessagePart, Prompt, Request, Role, SessionTurn, UserSession, Workload};

/// The time between a reply and the user's next message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Think {
    Fixed(Duration),
    /// Drawn from the exponential distribution with this mean.
    Exponential(Duration),
}

/// Sessions of several turns.
///
/// The history contains random tokens in the place of each reply, as many as the reply had, and not the server's
/// answer. With the answers, two configurations whose numerics differ would get different requests and could not be
/// compared. A request could also not be serialized before its turn. The price: a prefix cache finds earlier prompts,
/// but not the blocks of the server's own replies. The tokens in the place of a reply are found from the second request
/// that contains them.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) writer: TextWriter,
    /// Whether requests have messages with roles. Otherwise each is one prompt that contains the whole history.
    pub(super) chat: bool,
    pub(super) turns: LengthSpan,
    /// Tokens of a system prompt that all sessions share. 0 means none.
    pub(super) system_len: u32,
    pub(super) first: LengthSpan,
    pub(super) user: LengthSpan,
    pub(super) output: LengthSpan,
    pub(super) think: Think,
}

/// Number of random streams reserved for each session. Each message has its own stream, and those of one session are
/// adjacent.
const STREAMS_PER_SESSION: u64 = 1 << 16;

impl Conversation {
    pub(super) const MAX_TURNS: u32 = 10_000;

    fn message(&self, piece: TextPiece, role: Role, exact: bool) -> ChatMessage {
        let mut draft = self.writer.draft();
        draft.add(piece, exact);
        let text = if let Prompt::Text(text) = draft.prompt() { text } else { String::new() };
        ChatMessage { role, content: vec![MessagePart::Text(text)] }
    }
}

/// The messages so far.
enum History<'w> {
    Messages(Vec<ChatMessage>),
    Draft(TextDraft<'w>),
}

impl Workload for Conversation {
    fn session(&self, index: u64) -> UserSession {
        let mut choice = rng(self.writer.seed(), DrawPurpose::Choice, index);
        let count = self.turns.draw(&mut choice);
        let mut history = if self.chat { History::Messages(Vec::new()) } else { History::Draft(self.writer.draft()) };
        let mut say = |role, piece, exact| match &mut history {
            History::Messages(messages) => {
                messages.push(self.message(piece, role, true));
                Prompt::Messages(if exact { messages.clone() } else { Vec::new() })
            }
            History::Draft(draft) => {
                draft.add(piece, exact);
                if exact { draft.prompt() } else { Prompt::Tokens(Vec::new()) }
            }
        };
        if self.system_len > 0 {
            say(Role::System, TextPiece::new(DrawPurpose::Shared, 0, self.system_len), false);
        }
        let mut turns = Vec::with_capacity(count as usize);
        for turn in 0..count {
            let output_len = self.output.draw(&mut choice);
            let (piece, think) = if turn == 0 {
                (TextPiece::new(DrawPurpose::Prompt, index, self.first.draw(&mut choice)), Duration::ZERO)
            } else {
                let stream = index.wrapping_mul(STREAMS_PER_SESSION).wrapping_add(2 * u64::from(turn));
                let len = self.user.draw(&mut choice);
                let think = match self.think {
                    Think::Fixed(time) => time,
                    Think::Exponential(mean) => mean.mul_f64(-libm::log(1.0 - unit(&mut choice))),
                };
                (TextPiece::new(DrawPurpose::Message, stream, len), think)
            };
            let prompt = say(Role::User, piece, true);
            turns.push(SessionTurn { request: Request { prompt, output_len }, think });
            if turn + 1 < count {
                let stream = index.wrapping_mul(STREAMS_PER_SESSION).wrapping_add(2 * u64::from(turn) + 1);
                say(Role::Assistant, TextPiece::new(DrawPurpose::Message, stream, output_len), false);
            }
        }
        UserSession { turns }
    }

    fn longest(&self) -> u64 {
        let later = self.turns.longest() - 1;
        u64::from(self.system_len)
            + self.first.longest()
            + later * (self.user.longest() + self.output.longest())
            + self.output.longest()
    }
}
