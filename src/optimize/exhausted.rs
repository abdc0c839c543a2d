//! The reason for a run without further suggestions.

use std::collections::HashSet;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::problem::OptimizeProblem;
use crate::config::Config;
use crate::sampler::PastTrial;

/// Maximum number of configurations in a space that is enumerated, and number of configurations drawn from a larger
/// one.
const MAX_LISTED: usize = 65_536;
const SAMPLE_SIZE: usize = 10_000;

/// Returns the reason: either every allowed configuration was proposed, or the known constraints refuse nearly all of
/// the space. In the latter case it names the constraint that refuses most.
pub(super) fn exhaustion_reason(problem: &OptimizeProblem, history: &[PastTrial], seed: u64) -> String {
    let seen: HashSet<_> = history.iter().map(|past| past.config.key()).collect();
    let listed = problem.space.enumerate(MAX_LISTED);
    let whole = listed.is_some();
    let configs = listed.unwrap_or_else(|| draw_sample(problem, seed));
    let allowed: Vec<_> = configs.iter().filter(|config| problem.allows(config)).collect();
    let new = allowed.iter().filter(|config| !seen.contains(&config.key())).count();
    let (total, left) = (configs.len(), allowed.len());
    if left > 0 && new == 0 {
        return if whole {
            format!("no configuration is left: all {left} allowed ones of the {total} in the space were proposed")
        } else {
            format!(
                "no new configuration was found: all {left} allowed ones of {total} drawn from the space were proposed \
                 before; widen the ranges"
            )
        };
    }
    let kept = |index: &usize| configs.iter().filter(|config| problem.known_constraints[*index].holds(config)).count();
    let tightest = (0..problem.known_constraints.len()).min_by_key(kept);
    let of = if whole { "configurations of the space" } else { "configurations drawn from the space" };
    let advice = tightest.map_or_else(
        || "widen the ranges".to_owned(),
        |index| {
            format!(
                "the strictest is {:?}, which {} of them keep; widen the ranges, or choose parameters with more \
                 configurations that keep it",
                problem.known_constraints[index].text,
                kept(&index)
            )
        },
    );
    format!(
        "no new configuration was found: {left} of {total} {of} keep the known constraints, and {new} of these were \
         not proposed yet; {advice}"
    )
}

fn draw_sample(problem: &OptimizeProblem, seed: u64) -> Vec<Config> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut point = || -> Vec<f64> { (0..problem.space.dimensions()).map(|_| rng.random()).collect() };
    (0..SAMPLE_SIZE).map(|_| problem.space.decode(&point())).collect()
}
