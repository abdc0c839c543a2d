//! A full factorial over few levels of each parameter, with more levels once all combinations are used up.
//!
//! Bools and choices have all their values from the first refinement on. A number has its two ends first, then 3
//! levels, then 5, 9, 17 and so on. The levels are evenly spread on its scale. The order within a refinement is
//! shuffled, so that a study that ends early has covered the whole space. The points are not stored: each is computed
//! from its index.

mod level;
mod shuffle;
mod tree;

use std::collections::HashSet;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Sampler, SamplerAsk, Suggestion};
use level::Levels;
use shuffle::Shuffle;
use tree::GridTree;

pub(super) struct GridSampler;

/// The last refinement. It contains all values of a range of at most 65,536 values, and `2^16 + 1` levels of a larger
/// range.
const LAST: u32 = 16;

/// Number of consecutive combinations without a find after which the space counts as used up. Smaller spaces are
/// searched completely.
const MAX_REFUSED: usize = 65_536;

impl Sampler for GridSampler {
    fn name(&self) -> &'static str {
        "grid"
    }

    fn summary(&self) -> &'static str {
        "all combinations of a few levels of each parameter, then of more levels"
    }

    fn ask(&self, ask: &SamplerAsk<'_>) -> Option<Suggestion> {
        let seen = ask.history_keys();
        let mut walk = Walk { ask, unmet_history: seen.clone(), seen, since_last_known: 0 };
        for refinement in 0..=LAST {
            let domains = ask.space.parameters.iter().map(|parameter| &parameter.domain);
            let levels: Vec<_> = domains.map(|domain| Levels::new(domain, refinement, LAST)).collect();
            let mut tree = GridTree::new(ask.space, &levels);
            let step = match tree.count() {
                Some(count) => walk.walk_refinement(refinement, &mut tree, count),
                None => walk.draw_combinations(&levels),
            };
            match step {
                Step::Found(suggestion) => return Some(suggestion),
                Step::GivenUp => return None,
                Step::UsedUp if levels.iter().all(|levels| levels.is_final) => return None,
                Step::UsedUp => {}
            }
        }
        None
    }
}

enum Step {
    Found(Suggestion),
    /// Every configuration of this refinement was tried or refused.
    UsedUp,
    /// More than `MAX_REFUSED` consecutive combinations were refused or known.
    GivenUp,
}

struct Walk<'a> {
    ask: &'a SamplerAsk<'a>,
    seen: HashSet<String>,
    /// Earlier proposals that the walk has not come across yet.
    unmet_history: HashSet<String>,
    /// Number of combinations since the walk last came across an earlier proposal for the first time.
    since_last_known: usize,
}

impl Walk<'_> {
    /// Walks through one refinement in its shuffled order and skips the combinations of the refinement before it.
    fn walk_refinement(&mut self, refinement: u32, tree: &mut GridTree<'_>, count: u64) -> Step {
        let shuffle = Shuffle::new(count, self.ask.seed, u64::from(refinement));
        for place in 0..count {
            let choice = tree.choice(shuffle.at(place));
            if refinement > 0 && tree.is_in_previous(&choice) {
                continue;
            }
            match self.look(tree.levels, &choice) {
                Step::UsedUp => {}
                step => return step,
            }
        }
        Step::UsedUp
    }

    /// Draws combinations at random, for refinements with too many combinations to be numbered. A combination may be
    /// drawn again, but it is proposed once.
    fn draw_combinations(&mut self, levels: &[Levels]) -> Step {
        for index in 0.. {
            let mut rng = ChaCha8Rng::seed_from_u64(self.ask.seed);
            rng.set_stream(index);
            let choice: Vec<_> = levels.iter().map(|levels| Some(rng.random_range(0..levels.values.len()))).collect();
            match self.look(levels, &choice) {
                Step::UsedUp => {}
                step => return step,
            }
        }
        Step::UsedUp
    }

    /// Takes the configuration of a choice of levels, if it is new and allowed.
    fn look(&mut self, levels: &[Levels], choice: &[Option<usize>]) -> Step {
        let config = self.ask.space.assemble(|index| Some(levels[index].values[choice[index]?].clone()));
        let key = config.key();
        self.since_last_known = if self.unmet_history.remove(&key) { 0 } else { self.since_last_known + 1 };
        if !self.seen.contains(&key) && (self.ask.allowed)(&config) {
            let most = levels.iter().map(|levels| levels.values.len()).max().unwrap_or(1);
            let why = format!("next combination of a grid with at most {most} levels of each parameter");
            return Step::Found(Suggestion::new(config, why));
        }
        if self.since_last_known > MAX_REFUSED { Step::GivenUp } else { Step::UsedUp }
    }
}

#[cfg(test)]
mod tests;
