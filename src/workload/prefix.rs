//! Random prompts of drawn lengths. A share of them begins with one of some common prefixes.

use super::draw::{DrawPurpose, between, rng, unit};
use super::length::LengthSpan;
use super::writer::{TextPiece, TextWriter};
use super::{UserSession, Workload};

/// Prompts that share prefixes. Without groups, or with a prefix of no tokens, requests share nothing.
#[derive(Debug)]
pub(super) struct Prefix {
    pub(super) writer: TextWriter,
    /// Number of different prefixes. Each request with a prefix draws one of them.
    pub(super) groups: u32,
    pub(super) shared_len: u32,
    /// The share of requests that begin with a prefix, from 0 to 1.
    pub(super) share: f64,
    /// Tokens of a request's own after the prefix. A request without a prefix has `shared_len` more tokens of its own,
    /// so that `share` does not change the lengths of prompts.
    pub(super) suffix: LengthSpan,
    pub(super) output: LengthSpan,
}

impl Workload for Prefix {
    fn session(&self, index: u64) -> UserSession {
        let mut choice = rng(self.writer.seed(), DrawPurpose::Choice, index);
        let (suffix, output) = (self.suffix.draw(&mut choice), self.output.draw(&mut choice));
        let group = self.groups.checked_sub(1).map(|last| between(&mut choice, 0, last));
        let group = group.filter(|_| unit(&mut choice) < self.share && self.shared_len > 0);
        let prompt = match group {
            Some(group) => self.writer.prompt([
                TextPiece::new(DrawPurpose::Shared, u64::from(group), self.shared_len),
                TextPiece::new(DrawPurpose::Prompt, index, suffix),
            ]),
            None => self.writer.prompt([TextPiece::new(DrawPurpose::Prompt, index, self.shared_len + suffix)]),
        };
        UserSession::single(prompt, output)
    }

    fn longest(&self) -> u64 {
        u64::from(self.shared_len) + self.suffix.longest() + self.output.longest()
    }
}
