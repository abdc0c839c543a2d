//! The division of trials into good ones and others.

use crate::objective::Goal;
use crate::sampler::{KnownOutcome, MeasuredNumbers, PastTrial, SearchAim};
use crate::surrogate;

/// Indices in the history, ascending.
#[derive(Debug, PartialEq)]
pub(super) struct HistoryParts {
    pub(super) good: Vec<usize>,
    /// All others. Failed and pending trials are included: with pending ones, parallel asks get different answers.
    pub(super) rest: Vec<usize>,
    /// Number of trials with an outcome.
    pub(super) trials_with_outcome: usize,
}

/// One in `ONE_GOOD_IN` trials is good, rounded up, but at most `MAX_GOOD` are.
const ONE_GOOD_IN: usize = 10;
const MAX_GOOD: usize = 25;

impl HistoryParts {
    /// Divides the history. Feasible trials are ranked by the objectives, then infeasible ones by the sum of the
    /// excesses. Trials without numbers are never good. Without good trials the result is `None`.
    pub(super) fn of(aim: &SearchAim, history: &[PastTrial]) -> Option<Self> {
        let known = history
            .iter()
            .filter(|past| !matches!(past.outcome, KnownOutcome::Pending | KnownOutcome::Inconclusive))
            .count();
        let (mut within, mut beyond) = (Vec::new(), Vec::new());
        for (place, past) in history.iter().enumerate() {
            if let Some((excess, gains)) = past.measured().and_then(|measured| excess_and_objectives(aim, measured)) {
                if excess > 0.0 { beyond.push((excess, place)) } else { within.push((gains, place)) }
            }
        }
        let most = known.div_ceil(ONE_GOOD_IN).min(MAX_GOOD);
        beyond.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut good = best(within, most);
        good.extend(beyond.into_iter().map(|(_, place)| place).take(most - good.len()));
        good.sort_unstable();
        let rest = (0..history.len()).filter(|place| good.binary_search(place).is_err()).collect();
        (!good.is_empty()).then_some(Self { good, rest, trials_with_outcome: known })
    }
}

/// Returns the total excess over the constraints, and the objectives with larger as better. `None` if an objective was
/// not measured. An excess that was not measured is infinite.
fn excess_and_objectives(aim: &SearchAim, measured: &MeasuredNumbers) -> Option<(f64, Vec<f64>)> {
    let gain = |(index, target): (usize, &crate::sampler::ObjectiveTarget)| {
        let value = measured.values.get(index)?.value;
        let gain = match target.goal {
            Goal::Maximize => value,
            Goal::Minimize => -value,
        };
        value.is_finite().then_some(gain)
    };
    let gains = aim.objectives.iter().enumerate().map(gain).collect::<Option<Vec<_>>>()?;
    let excess = |index: usize| match measured.excesses.get(index) {
        Some(excess) if excess.value.is_finite() => excess.value.max(0.0),
        Some(_) | None => f64::INFINITY,
    };
    Some(((0..aim.constraints.len()).map(excess).sum(), gains))
}

/// Returns the indices of the best points, at most `most`. One objective is ordered by its value, several front by
/// front. The last front contributes its least crowded points. Of equal points the earlier one is taken.
fn best(mut points: Vec<(Vec<f64>, usize)>, most: usize) -> Vec<usize> {
    let Some(objectives) = points.first().map(|(gains, _)| gains.len()) else { return Vec::new() };
    if objectives <= 1 {
        let gain = |gains: &[f64]| gains.first().copied().unwrap_or_default();
        points.sort_by(|a, b| gain(&b.0).total_cmp(&gain(&a.0)).then(a.1.cmp(&b.1)));
        return points.into_iter().take(most).map(|(_, place)| place).collect();
    }
    let (mut gains, mut places): (Vec<_>, Vec<_>) = points.into_iter().unzip();
    let mut chosen = Vec::new();
    while chosen.len() < most && !gains.is_empty() {
        let front = surrogate::front(&gains);
        let of_front: Vec<_> = front.iter().map(|&index| gains[index].clone()).collect();
        let room = crowding(&of_front);
        let mut order: Vec<_> = (0..front.len()).collect();
        order.sort_by(|&a, &b| room[b].total_cmp(&room[a]).then(a.cmp(&b)));
        chosen.extend(order.into_iter().take(most - chosen.len()).map(|index| places[front[index]]));
        let keep = |index: usize| front.binary_search(&index).is_err();
        gains = gains.into_iter().enumerate().filter(|(index, _)| keep(*index)).map(|(_, gains)| gains).collect();
        places = places.into_iter().enumerate().filter(|(index, _)| keep(*index)).map(|(_, place)| place).collect();
    }
    chosen
}

/// Returns the distance between the neighbours of each point, summed over the objectives, each as a share of its range.
/// It is infinite at an end (K. Deb et al., NSGA-II, 2002).
fn crowding(points: &[Vec<f64>]) -> Vec<f64> {
    let mut room = vec![0.0; points.len()];
    let objectives = points.first().map_or(0, Vec::len);
    for objective in 0..objectives {
        // Large numbers are scaled down first, so that no difference overflows.
        let largest = points.iter().fold(f64::MIN_POSITIVE, |most, point| most.max(point[objective].abs()));
        let of = |index: usize| points[index][objective] / largest;
        let mut order: Vec<_> = (0..points.len()).collect();
        order.sort_by(|&a, &b| of(a).total_cmp(&of(b)).then(a.cmp(&b)));
        let (Some(&first), Some(&last)) = (order.first(), order.last()) else { continue };
        let range = of(last) - of(first);
        if range <= 0.0 {
            continue;
        }
        room[first] = f64::INFINITY;
        room[last] = f64::INFINITY;
        for neighbours in order.windows(3) {
            room[neighbours[1]] += (of(neighbours[2]) - of(neighbours[0])) / range;
        }
    }
    room
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::Config;
    use crate::sampler::{NumberReading, ObjectiveTarget};

    fn aim(goals: &[Goal], constraints: usize) -> SearchAim {
        let target = |goal: &Goal| ObjectiveTarget { name: "m".to_owned(), goal: *goal };
        SearchAim {
            objectives: goals.iter().map(target).collect(),
            constraints: (0..constraints).map(|index| format!("c{index}")).collect(),
        }
    }

    fn past(known: KnownOutcome) -> PastTrial {
        PastTrial::new("tpe", Config::new(), known)
    }

    fn measured(values: &[f64], excesses: &[f64]) -> PastTrial {
        let readings = |numbers: &[f64]| numbers.iter().copied().map(NumberReading::exact).collect();
        past(KnownOutcome::Measured(MeasuredNumbers { values: readings(values), excesses: readings(excesses) }))
    }

    #[test]
    fn feasible_trials_rank_before_infeasible_ones_and_both_before_unmeasured_ones() {
        let aim = aim(&[Goal::Minimize], 2);
        let mut history = vec![
            past(KnownOutcome::Failed),
            measured(&[1.0], &[0.5, 0.1]),
            measured(&[9.0], &[-0.5, 0.0]),
            measured(&[1.0], &[0.2, -9.0]),
            measured(&[1.0], &[0.2]),
            measured(&[f64::NAN], &[-1.0, -1.0]),
            measured(&[2.0], &[f64::NAN, -1.0]),
            measured(&[8.0], &[-0.5, 0.0]),
            past(KnownOutcome::Pending),
            past(KnownOutcome::Rejected),
        ];
        // Collects the indices as they become good: each round adds one good trial.
        let mut order = Vec::new();
        for _ in 0..9 {
            let parts = HistoryParts::of(&aim, &history).unwrap();
            order.extend(parts.good.into_iter().filter(|place| !order.contains(place)).collect::<Vec<_>>());
            history.extend(vec![past(KnownOutcome::Failed); 10]);
        }
        assert_eq!(order, [7, 2, 3, 1, 4, 6]);
        assert_eq!(HistoryParts::of(&aim, &[past(KnownOutcome::Failed), past(KnownOutcome::Pending)]), None);
    }

    #[test]
    fn pending_trials_are_never_among_the_good_ones() {
        let aim = aim(&[Goal::Maximize], 0);
        let history = [past(KnownOutcome::Pending), measured(&[1.0], &[]), past(KnownOutcome::Inconclusive)];
        assert_eq!(
            HistoryParts::of(&aim, &history),
            Some(HistoryParts { good: vec![1], rest: vec![0, 2], trials_with_outcome: 1 })
        );
    }

    #[test]
    fn the_ends_and_the_least_crowded_points_of_a_front_are_good() {
        let aim = aim(&[Goal::Maximize, Goal::Minimize], 0);
        let mut history: Vec<_> = [0.0, 0.48, 0.5, 0.52, 1.0].map(|x| measured(&[x, x], &[])).into();
        history.extend((0..20).map(|index| measured(&[-1.0, 2.0 + f64::from(index)], &[])));
        let parts = HistoryParts::of(&aim, &history).unwrap();
        assert_eq!(parts.good, [0, 1, 4]);
        assert_eq!((parts.trials_with_outcome, parts.rest.len()), (25, 22));
    }

    proptest! {
        #[test]
        fn no_trial_of_the_rest_beats_a_good_one(
            values in proptest::collection::vec([-3..3_i32, -3..3_i32], 1..60), one: bool, huge: bool,
        ) {
            let goals = [Goal::Maximize, Goal::Minimize];
            let aim = aim(if one { &goals[..1] } else { &goals }, 0);
            let scale = if huge { 5e307 } else { 1e-300 };
            let numbers: Vec<_> = values.iter().map(|pair| pair.map(|value| f64::from(value) * scale)).collect();
            let history: Vec<_> = numbers.iter().map(|pair| measured(pair, &[])).collect();
            let parts = HistoryParts::of(&aim, &history).unwrap();
            prop_assert_eq!(parts.good.len(), values.len().div_ceil(10));
            for (&good, &other) in parts.good.iter().flat_map(|good| parts.rest.iter().map(move |rest| (good, rest))) {
                let (good, other) = (numbers[good], numbers[other]);
                let beaten = if one {
                    other[0] > good[0]
                } else {
                    (other[0] > good[0] && other[1] <= good[1]) || (other[0] >= good[0] && other[1] < good[1])
                };
                prop_assert!(!beaten, "{good:?} by {other:?}");
            }
        }
    }
}
