//! Prompts that were recorded, with the lengths of their replies.

use super::{LeftOut, Session, Workload};

/// Sessions in the order in which they are asked; behind the last they start over.
#[derive(Debug)]
pub(super) struct Recorded {
    /// At least one.
    pub(super) sessions: Vec<Session>,
    pub(super) longest: u64,
    pub(super) left_out: Vec<LeftOut>,
}

impl Workload for Recorded {
    fn session(&self, index: u64) -> Session {
        let index = usize::try_from(index % self.sessions.len() as u64).unwrap_or(0);
        self.sessions[index].clone()
    }

    fn longest(&self) -> u64 {
        self.longest
    }

    fn len(&self) -> Option<u64> {
        Some(self.sessions.len() as u64)
    }

    fn left_out(&self) -> Vec<LeftOut> {
        self.left_out.clone()
    }
}
