//! Random prompts of drawn lengths, of which a share begins with one of some common prefixes.

use super::draw::{Purpose, between, rng, unit};
use super::length::Span;
use super::writer::{Piece, Writer};
use super::{Session, Workload};

/// With no groups, or a prefix of no tokens, requests share nothing.
#[derive(Debug)]
pub(super) struct Prefix {
    pub(super) writer: Writer,
    /// Different prefixes; each request that has one draws which.
    pub(super) groups: u32,
    pub(super) shared_len: u32,
    /// The share of requests that begin with a prefix, from 0 to 1.
    pub(super) share: f64,
    /// What a request has for itself. Requests without a prefix have that and `shared_len` more tokens of their own, so
    /// that the share changes what is shared and not how long prompts are.
    pub(super) suffix: Span,
    pub(super) output: Span,
}

impl Workload for Prefix {
    fn session(&self, index: u64) -> Session {
        let mut choice = rng(self.writer.seed(), Purpose::Choice, index);
        let (suffix, output) = (self.suffix.draw(&mut choice), self.output.draw(&mut choice));
        let group = self.groups.checked_sub(1).map(|last| between(&mut choice, 0, last));
        let group = group.filter(|_| unit(&mut choice) < self.share && self.shared_len > 0);
        let prompt = match group {
            Some(group) => self.writer.prompt([
                Piece::new(Purpose::Shared, u64::from(group), self.shared_len),
                Piece::new(Purpose::Prompt, index, suffix),
            ]),
            None => self.writer.prompt([Piece::new(Purpose::Prompt, index, self.shared_len + suffix)]),
        };
        Session::single(prompt, output)
    }

    fn longest(&self) -> u64 {
        u64::from(self.shared_len) + self.suffix.longest() + self.output.longest()
    }
}
