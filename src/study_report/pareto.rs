//! The Pareto front of a study: the configurations that no other one equals in all metrics and exceeds in one.

use super::{ConfigurationResults, MetricGoal};
use crate::objective::{ConfigValue, Constraint, Goal, rank};
use crate::stats::to_f64;
use crate::store::{MetricValues, Store, StoreError, Study};

/// The front over the means of several metrics.
#[derive(Clone, Debug)]
pub(crate) struct ParetoFront {
    pub goals: Vec<MetricGoal>,
    /// The configurations of the front, ordered by the first metric, the best first.
    pub members: Vec<ConfigurationResults>,
    /// The number of configurations that keep all limits and have all metrics.
    pub candidates: usize,
    /// The number of configurations that lack a metric, and are not compared.
    pub incomplete: usize,
}

impl ParetoFront {
    /// Computes the front of the configurations that keep the study's limits and `limits`.
    pub(crate) async fn read(
        store: &Store,
        study: &Study,
        goals: Vec<MetricGoal>,
        limits: &[Constraint],
    ) -> Result<Self, StoreError> {
        let ranked = rank(&store.launched_within(study, limits).await?, Goal::Maximize);
        let names: Vec<_> = goals.iter().map(|goal| goal.metric).collect();
        let values = store.metric_values(study, &names)?;
        let all = ranked.len();
        let points: Vec<_> =
            ranked.into_iter().filter_map(|config| Some((costs(&config, &goals, &values)?, config))).collect();
        let (candidates, incomplete) = (points.len(), all - points.len());
        let mut members = Vec::new();
        for config in front(points) {
            if let Some(ranked) = store.load_ranked(study, config).await? {
                members.push(ConfigurationResults::read(store, study, ranked).await?);
            }
        }
        Ok(Self { goals, members, candidates, incomplete })
    }
}

/// Returns the first trials of the configurations on the front, ordered by the first metric, the best first.
pub(super) fn first_trials(ranked: &[ConfigValue], goals: &[MetricGoal], values: &MetricValues) -> Vec<u32> {
    let points = ranked.iter().filter_map(|config| Some((costs(config, goals, values)?, config.first)));
    front(points.collect())
}

/// Returns the mean of each metric over the measurements of a configuration, with the sign that makes smaller better.
fn costs(config: &ConfigValue, goals: &[MetricGoal], values: &MetricValues) -> Option<Vec<f64>> {
    let mean = |(index, goal): (usize, &MetricGoal)| {
        let measured = config.trials.iter().filter_map(|number| values.get(number)?[index]);
        let (sum, count) = measured.fold((0.0, 0_usize), |(sum, count), value| (sum + value, count + 1));
        let mean = sum / to_f64(count);
        let cost = if goal.goal == Goal::Minimize { mean } else { -mean };
        cost.is_finite().then_some(cost)
    };
    goals.iter().enumerate().map(mean).collect()
}

/// Returns the points that no other one dominates, ordered by their first cost. Equal points stay together.
fn front<T>(mut points: Vec<(Vec<f64>, T)>) -> Vec<T> {
    // A point is dominated only by points before it in the lexicographic order, so one pass suffices.
    points.sort_by(|(a, _), (b, _)| {
        let orders = a.iter().zip(b).map(|(a, b)| a.total_cmp(b));
        orders.into_iter().find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    });
    let mut members: Vec<(Vec<f64>, T)> = Vec::new();
    for (costs, point) in points {
        let dominates = |other: &[f64]| other != costs && other.iter().zip(&costs).all(|(other, own)| other <= own);
        if !members.iter().any(|(other, _)| dominates(other)) {
            members.push((costs, point));
        }
    }
    members.into_iter().map(|(_, point)| point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_point_is_on_the_front_if_and_only_if_no_other_dominates_it(
            points in prop::collection::vec(prop::collection::vec(0..6_i32, 3), 0..40)
        ) {
            let dominates = |a: &[i32], b: &[i32]| a != b && a.iter().zip(b).all(|(a, b)| a <= b);
            let free = |index: &usize| !points.iter().any(|other| dominates(other, &points[*index]));
            let expected: Vec<_> = (0..points.len()).filter(free).collect();
            let costs = points.iter().enumerate().map(|(index, point)| {
                (point.iter().copied().map(f64::from).collect(), index)
            });
            let mut found = front(costs.collect());
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_front_is_ordered_by_its_first_metric() {
        let points = vec![(vec![3.0, 1.0], "c"), (vec![1.0, 3.0], "a"), (vec![2.0, 2.0], "b"), (vec![3.0, 2.0], "x")];
        assert_eq!(front(points), ["a", "b", "c"]);
    }
}
