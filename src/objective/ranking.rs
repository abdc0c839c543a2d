//! Ranking of configurations by all their trials.

use std::collections::HashMap;

use super::{Goal, Score};
use crate::stats::to_f64;
use crate::trial::Origin;

/// A launched trial, as input of the ranking.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchedTrial {
    pub number: u32,
    pub origin: Origin,
    /// The identifier of the configuration ([`Config::key`](crate::config::Config::key)).
    pub config_key: String,
    pub result: LaunchResult,
}

/// The result of a launched trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LaunchResult {
    Measured(Score),
    /// The engine did not serve. The cause is the configuration (`is_own`) or the environment.
    Failed {
        is_own: bool,
    },
}

/// A configuration by all its measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigValue {
    /// Number of its first measured trial.
    pub first: u32,
    /// Numbers of its trials that have a value, ascending.
    pub trials: Vec<u32>,
    /// Mean of the objective over `trials`.
    pub mean: f64,
    pub lowest: f64,
    pub highest: f64,
}

/// Trials of one configuration.
#[derive(Default)]
struct Group {
    first: Option<u32>,
    trials: Vec<u32>,
    values: Vec<f64>,
    /// Whether each measurement kept the limits, and no failure was the configuration's own.
    is_feasible: bool,
}

/// Returns the feasible configurations, best first. A configuration is feasible if each of its measurements kept every
/// limit and none of its failures was its own. Equal means are ordered by the first trial.
#[must_use]
pub fn rank(trials: &[LaunchedTrial], goal: Goal) -> Vec<ConfigValue> {
    let mut groups: HashMap<&str, Group> = HashMap::with_capacity(trials.len());
    for trial in trials.iter().filter(|trial| trial.origin.is_ranked()) {
        let new = || Group { is_feasible: true, ..Group::default() };
        let group = groups.entry(&trial.config_key).or_insert_with(new);
        match trial.result {
            LaunchResult::Failed { is_own } => group.is_feasible &= !(is_own && trial.origin.blames_configuration()),
            LaunchResult::Measured(score) => {
                group.first = Some(group.first.map_or(trial.number, |first| first.min(trial.number)));
                if let Some(value) = score.value() {
                    group.trials.push(trial.number);
                    group.values.push(value);
                }
                group.is_feasible &= !matches!(score, Score::Infeasible { .. });
            }
        }
    }
    let feasible = groups.into_values().filter(|group| group.is_feasible);
    let mut ranked: Vec<_> = feasible.filter_map(|group| value_of(group.first?, group.trials, &group.values)).collect();
    ranked.sort_by(|a, b| {
        let by_mean = match goal {
            Goal::Maximize => b.mean.total_cmp(&a.mean),
            Goal::Minimize => a.mean.total_cmp(&b.mean),
        };
        by_mean.then(a.first.cmp(&b.first))
    });
    ranked
}

/// Returns the value of a configuration over all its measurements, feasible or not. `None` if no trial has a value.
#[must_use]
pub fn config_value(trials: &[LaunchedTrial], config_key: &str) -> Option<ConfigValue> {
    let of = |trial: &&LaunchedTrial| trial.origin.is_ranked() && trial.config_key == config_key;
    let measured = trials.iter().filter(of).filter_map(|trial| match trial.result {
        LaunchResult::Measured(score) => Some((trial.number, score.value()?)),
        LaunchResult::Failed { .. } => None,
    });
    let (numbers, values): (Vec<_>, Vec<_>) = measured.unzip();
    value_of(*numbers.iter().min()?, numbers, &values)
}

fn value_of(first: u32, trials: Vec<u32>, values: &[f64]) -> Option<ConfigValue> {
    let lowest = values.iter().copied().min_by(f64::total_cmp)?;
    let highest = values.iter().copied().max_by(f64::total_cmp)?;
    Some(ConfigValue { first, trials, mean: compensated_sum(values) / to_f64(values.len()), lowest, highest })
}

/// Returns the sum by Neumaier's method, so that means do not depend on the order of trials.
fn compensated_sum(values: &[f64]) -> f64 {
    let (mut sum, mut lost) = (0.0_f64, 0.0_f64);
    for value in values {
        let next = sum + value;
        lost += if sum.abs() >= value.abs() { (sum - next) + value } else { (value - next) + sum };
        sum = next;
    }
    sum + lost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(number: u32, origin: &'static str, key: &str, result: LaunchResult) -> LaunchedTrial {
        LaunchedTrial { number, origin: origin.into(), config_key: key.to_owned(), result }
    }

    fn feasible(number: u32, key: &str, value: f64) -> LaunchedTrial {
        trial(number, "auto", key, LaunchResult::Measured(Score::Feasible { value }))
    }

    fn firsts(trials: &[LaunchedTrial], goal: Goal) -> Vec<(u32, usize)> {
        rank(trials, goal).iter().map(|config| (config.first, config.trials.len())).collect()
    }

    #[test]
    fn configurations_are_ordered_by_their_means_and_then_by_their_first_trials() {
        let trials = [feasible(1, "a", 9.0), feasible(2, "b", 8.0), feasible(3, "a", 5.0), feasible(4, "c", 8.0)];
        assert_eq!(firsts(&trials, Goal::Maximize), [(2, 1), (4, 1), (1, 2)]);
        assert_eq!(firsts(&trials, Goal::Minimize), [(1, 2), (2, 1), (4, 1)]);
        let a = config_value(&trials, "a").unwrap();
        assert_eq!((a.mean, a.lowest, a.highest), (7.0, 5.0, 9.0));
        assert_eq!(config_value(&trials, "z"), None);
    }

    #[test]
    fn one_violation_or_one_own_failure_removes_a_configuration() {
        let over = LaunchResult::Measured(Score::Infeasible { violation: 0.1, value: 99.0 });
        let failed = |is_own| LaunchResult::Failed { is_own };
        for (origin, result, is_ranked) in [
            ("auto", over, false),
            ("auto", failed(true), false),
            ("auto", failed(false), true),
            ("confirmation", failed(true), false),
            ("rule_test", failed(true), true),
            ("probe", failed(true), true),
            ("interference", failed(true), true),
            ("interference", over, true),
        ] {
            let trials = [feasible(0, "a", 1.0), trial(1, origin, "a", result)];
            assert_eq!(rank(&trials, Goal::Maximize).len(), usize::from(is_ranked), "{origin} {result:?}");
        }
        let trials = [trial(1, "auto", "a", over)];
        assert_eq!(config_value(&trials, "a").map(|config| config.mean), Some(99.0), "its value is known all the same");
    }

    #[test]
    fn a_measurement_without_a_value_does_not_count() {
        let none = LaunchResult::Measured(Score::Failed);
        assert_eq!(rank(&[trial(0, "auto", "a", none)], Goal::Maximize), []);
        let trials = [trial(0, "auto", "a", none), feasible(1, "a", 2.0)];
        assert_eq!(firsts(&trials, Goal::Maximize), [(0, 1)]);
        assert_eq!(config_value(&trials, "a").map(|config| config.first), Some(1));
    }

    #[test]
    fn a_mean_does_not_depend_on_the_order_of_its_values() {
        let mut values: Vec<f64> = (0..50).map(|i| 0.1 + f64::from(i) * 1e-9).collect();
        values.push(1e16);
        let forwards = compensated_sum(&values);
        values.reverse();
        assert_eq!(forwards.to_bits(), compensated_sum(&values).to_bits());
    }
}
