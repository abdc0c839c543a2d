//! The remaining gain beyond the pick: in total, and by one more trial.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::acquisition::gain;
use super::cost::ExpectedCost;
use super::models::{Models, PointOutlook};
use super::search::PointSearch;
use super::search_starts;
use super::table::HistoryTable;
use crate::sampler::SamplerAsk;
use crate::stats::to_f64;
use crate::surrogate::Encoding;

/// Number of candidates for the best configuration of the space, and number of posterior samples over all
/// hyper-parameter sets.
const CANDIDATES: usize = 60;
const DRAWS: usize = 300;

/// Gains as shares of the pick's expected value. `None` if they are not finite.
pub(super) struct RemainingGain {
    /// The 5th, 50th and 95th percentile of the gain of the best configuration of the space.
    pub(super) remaining: Option<[f64; 3]>,
    /// Expected gain of the best next trial.
    pub(super) next_gain: Option<f64>,
}

/// Estimates the gain of the only objective over the point of the pick.
pub(super) fn of(
    ask: &SamplerAsk<'_>,
    encoding: &Encoding<'_>,
    table: &HistoryTable,
    models: &[Models<'_>],
    pick: &[f64],
    rng: &mut ChaCha8Rng,
) -> RemainingGain {
    let likely = &models[0];
    // Without costs: the search is over when no trial is worthwhile, not when only the cheap ones are not.
    let search = PointSearch::new(ask, encoding, ExpectedCost::Equal);
    let hopes = |outlook: &PointOutlook| {
        let belief = outlook.objectives[0];
        belief.mean + 2.0 * belief.deviation + libm::log(outlook.feasible().max(1e-6))
    };
    let points = search.points(rng, &search_starts(ask, encoding, table, likely));
    let mut rivals: Vec<_> = points.into_iter().map(|point| (hopes(&likely.at(&point)), point)).collect();
    let expected: Vec<_> = models.iter().map(|models| models.at(pick).objectives[0].mean).collect();
    let gains = |count: usize, point: &[f64]| {
        let gains = models.iter().zip(&expected).take(count).map(|(models, over)| gain(models, point, *over));
        gains.sum::<f64>() / to_f64(count)
    };
    let quick = |point: &[f64]| libm::log(gains(1, point).max(1e-300));
    let whole = |point: &[f64]| libm::log(gains(models.len(), point).max(1e-300));
    let next = search.best(rng, &[pick.to_vec()], &quick, &whole);
    rivals.sort_by(|a, b| b.0.total_cmp(&a.0));
    rivals.truncate(CANDIDATES);
    rivals.extend(next.iter().map(|(point, _)| (0.0, point.clone())));
    let points: Vec<_> = std::iter::once(pick.to_vec()).chain(rivals.into_iter().map(|(_, point)| point)).collect();
    let share = |gain: f64| table.units.objectives[likely.objectives[0].index].share(gain, expected[0]);
    let remaining = remaining(rng, models, &points).map(|gains| gains.map(share));
    RemainingGain {
        remaining: remaining.filter(|shares| shares.iter().all(|share| share.is_finite())),
        next_gain: next.map(|(point, _)| share(gains(models.len(), &point))).filter(|share| share.is_finite()),
    }
}

/// Estimates the gain of the best point over the first one: the 5th, 50th and 95th percentile over joint samples of all
/// points. Each set of hyper-parameters contributes samples. A point takes part in a sample with its probability of
/// being feasible.
fn remaining(rng: &mut ChaCha8Rng, models: &[Models<'_>], points: &[Vec<f64>]) -> Option<[f64; 3]> {
    let draws = DRAWS / models.len();
    let mut gains = Vec::with_capacity(DRAWS);
    for models in models {
        let drawn = models.objectives.first()?.draws(points, draws, rng.random());
        let feasible: Vec<_> = points.iter().map(|point| models.at(point).feasible()).collect();
        for (draw, own) in drawn[0].iter().enumerate() {
            let others = (1..points.len()).filter(|at| rng.random::<f64>() < feasible[*at]);
            gains.push(others.map(|at| drawn[at][draw] - own).fold(0.0, f64::max));
        }
    }
    gains.sort_by(f64::total_cmp);
    let at = |share: usize| gains.get((gains.len() * share / 100).min(gains.len() - 1)).copied();
    Some([at(5)?, at(50)?, at(95)?])
}
