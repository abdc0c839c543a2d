//! An Owen-scrambled Sobol sequence: fills the space evenly from the first points on.
//!
//! Source: B. Burley, "Practical Hash-based Owen Scrambling", JCGT 9(4), 2020, by the crate `sobol_burley`.

use super::{Sampler, SamplerAsk, Suggestion, sequence};
use crate::stats::low_u32;

pub(super) struct Sobol;

/// Length and dimensions of the crate's sequence. Beyond them the points repeat under another scrambling.
const LENGTH: usize = 1 << 16;
const DIMENSIONS: usize = 256;

impl Sampler for Sobol {
    fn name(&self) -> &'static str {
        "sobol"
    }

    fn summary(&self) -> &'static str {
        "low-discrepancy sequence, evenly spread from the first points on"
    }

    fn ask(&self, ask: &SamplerAsk<'_>) -> Option<Suggestion> {
        let dimensions = ask.space.dimensions();
        let config = sequence::first_unseen(ask, self.name(), |index| point(index, dimensions, ask.seed))?;
        Some(Suggestion::new(config, "next point of the Sobol sequence"))
    }
}

/// Returns a point in `[0, 1)^dimensions` of the sequence that is scrambled by `seed`.
#[must_use]
pub fn point(index: usize, dimensions: usize, seed: u64) -> Vec<f64> {
    let coordinate = |dimension: usize| {
        let scrambling = low_u32(seed ^ (seed >> 32));
        let beyond = low_u32((index / LENGTH + dimension / DIMENSIONS * 7919) as u64);
        let seed = scrambling.wrapping_add(beyond.wrapping_mul(0x9E37_79B9));
        f64::from(sobol_burley::sample(
            low_u32((index % LENGTH) as u64),
            low_u32((dimension % DIMENSIONS) as u64),
            seed,
        ))
    };
    (0..dimensions).map(coordinate).collect()
}
