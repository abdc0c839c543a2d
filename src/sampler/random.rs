//! Independent uniform points: the reference that every other sampler has to beat.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Ask, Sampler, Suggestion, sequence};

pub(super) struct Random;

impl Sampler for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn summary(&self) -> &'static str {
        "independent uniform points"
    }

    fn ask(&self, ask: &Ask<'_>) -> Option<Suggestion> {
        let dimensions = ask.space.dimensions();
        let config = sequence::first_unseen(ask, self.name(), |index| {
            // A stream for each point makes the sequence a function of its index.
            let mut rng = ChaCha8Rng::seed_from_u64(ask.seed);
            rng.set_stream(index as u64);
            (0..dimensions).map(|_| rng.random()).collect()
        })?;
        Some(Suggestion { config, why: "a uniform point".to_owned() })
    }
}
