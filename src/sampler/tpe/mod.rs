//! Tree-structured Parzen estimator: proposes points of a high density of good trials and a low density of others.
//!
//! The trials are divided into a few good ones and all others, and each part gets a density over the whole space.
//! Several points are drawn from the density of the good ones. The one with the largest ratio of the two densities is
//! proposed. That is also the point of the largest expected improvement (J. Bergstra et al., "Algorithms for
//! hyper-parameter optimization", 2011). The densities are of all parameters together (S. Falkner et al., "BOHB",
//! 2018). Their widths, weights and numbers are those of Optuna. S. Watanabe, "Tree-structured Parzen estimator:
//! understanding its algorithm components", 2023, explains the purpose of each. Priors and costs are not used. The time
//! is linear in the number of trials.

mod axis;
mod good_trials;
mod parzen;

use std::collections::HashSet;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{Sampler, SamplerAsk, Suggestion, random, sequence};
use axis::ParzenAxis;
use good_trials::HistoryParts;
use parzen::Parzen;

pub(super) struct Tpe;

/// Number of trials with an outcome before the densities are used.
const STARTUP: usize = 10;
/// Number of usable draws that are compared.
const CANDIDATES: usize = 24;
/// Maximum number of draws: most of them may be refused or known.
const MAX_DRAWS: usize = 40 * CANDIDATES;

impl Sampler for Tpe {
    fn name(&self) -> &'static str {
        "tpe"
    }

    fn summary(&self) -> &'static str {
        "tree-structured Parzen estimator: points near good trials and far from others; fast with any number of trials"
    }

    fn ask(&self, ask: &SamplerAsk<'_>) -> Option<Suggestion> {
        model(ask).or_else(|| {
            let config = sequence::first_unseen(ask, self.name(), |index| random::point(ask, index))?;
            let why = "uniform random point: too few trials for a model, or it found no new allowed configuration";
            Some(Suggestion::new(config, why))
        })
    }
}

/// Returns the suggestion of the two densities. `None` if there are too few trials, or if no draw is new and allowed.
fn model(ask: &SamplerAsk<'_>) -> Option<Suggestion> {
    let parts = HistoryParts::of(ask.aim, ask.history)?;
    if parts.trials_with_outcome < STARTUP {
        return None;
    }
    let axes: Vec<_> = ask.space.parameters.iter().map(|parameter| ParzenAxis::new(&parameter.domain)).collect();
    let position = |place: &usize| axis::position(ask, &axes, &ask.history[*place].config);
    let good = Parzen::even(&axes, &parts.good.iter().map(position).collect::<Vec<_>>());
    let rest = Parzen::fading(&axes, &parts.rest.iter().map(position).collect::<Vec<_>>());

    let mut best: Option<(f64, Suggestion)> = None;
    for config in candidates(ask, &good) {
        let at = axis::position(ask, &axes, &config);
        let gain = good.log_density(&at) - rest.log_density(&at);
        if best.as_ref().is_none_or(|(most, _)| gain > *most) {
            let why = format!(
                "similar trials are {} among the best {} of {} as among the others",
                format_ratio(gain),
                parts.good.len(),
                parts.trials_with_outcome
            );
            best = Some((gain, Suggestion::new(config, why)));
        }
    }
    best.map(|(_, suggestion)| suggestion)
}

/// Draws distinct configurations from a density that are new and allowed.
fn candidates(ask: &SamplerAsk<'_>, density: &Parzen<'_>) -> Vec<crate::config::Config> {
    let mut looked_at: HashSet<_> = ask.history_keys();
    let mut rng = ChaCha8Rng::seed_from_u64(ask.seed);
    // A stream for each length of the history makes the answer depend on the history alone.
    rng.set_stream(ask.history.len() as u64);
    let mut candidates = Vec::with_capacity(CANDIDATES);
    for _ in 0..MAX_DRAWS {
        let config = ask.space.decode(&density.draw(&mut rng));
        if looked_at.insert(config.key()) && (ask.allowed)(&config) {
            candidates.push(config);
        }
        if candidates.len() == CANDIDATES {
            break;
        }
    }
    candidates
}

/// Formats a ratio for the user.
fn format_ratio(log_ratio: f64) -> String {
    match libm::exp(log_ratio) {
        ratio if ratio >= 1000.0 => "more than 1000 times as common".to_owned(),
        ratio => format!("{ratio:.1} times as common"),
    }
}

#[cfg(test)]
mod tests;
