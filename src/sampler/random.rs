//! Independent uniform points: the reference that every other sampler has to beat.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Sampler, SamplerAsk, Suggestion, sequence};

pub(super) struct RandomSampler;

impl Sampler for RandomSampler {
    fn name(&self) -> &'static str {
        "random"
    }

    fn summary(&self) -> &'static str {
        "independent uniform random points"
    }

    fn ask(&self, ask: &SamplerAsk<'_>) -> Option<Suggestion> {
        let config = sequence::first_unseen(ask, self.name(), |index| point(ask, index))?;
        Some(Suggestion::new(config, "uniform random point"))
    }
}

/// Returns the point of this index. Each index has its own random stream, so that no earlier point has to be drawn.
pub(super) fn point(ask: &SamplerAsk<'_>, index: usize) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(ask.seed);
    rng.set_stream(index as u64);
    (0..ask.space.dimensions()).map(|_| rng.random()).collect()
}
