//! Several workloads at once, by weight.

use std::sync::Arc;

use super::draw::{DrawPurpose, rng, unit};
use super::{LeftOut, UserSession, Workload};

/// Each index draws one of the workloads and takes its session at the same index.
#[derive(Debug)]
pub(super) struct Mixture {
    pub(super) seed: u64,
    /// The workloads, with weights that add up to 1.
    pub(super) parts: Vec<(f64, Arc<dyn Workload>)>,
}

impl Mixture {
    /// Draws the workload of a session.
    fn part(&self, index: u64) -> &dyn Workload {
        let mut drawn = unit(&mut rng(self.seed, DrawPurpose::Mixture, index));
        let mut parts = self.parts.iter().filter(|(weight, _)| *weight > 0.0).peekable();
        while let Some((weight, part)) = parts.next() {
            // Rounding may leave a small remainder after the last weight: the last part takes it.
            if drawn < *weight || parts.peek().is_none() {
                return &**part;
            }
            drawn -= weight;
        }
        unreachable!("a mixture has a part with a weight")
    }
}

impl Workload for Mixture {
    fn session(&self, index: u64) -> UserSession {
        self.part(index).session(index)
    }

    fn warmup_session(&self, index: u64) -> UserSession {
        self.part(index).warmup_session(index)
    }

    fn longest(&self) -> u64 {
        self.parts.iter().map(|(_, part)| part.longest()).max().unwrap_or(0)
    }

    fn left_out(&self) -> Vec<LeftOut> {
        self.parts.iter().flat_map(|(_, part)| part.left_out()).collect()
    }
}
