//! The configuration that comes nearest to limits that none keeps.

use std::collections::BTreeMap;

use crate::config::Config;
use crate::objective::{Constraint, LaunchResult, LaunchedTrial, MetricLimit};
use crate::store::{MetricValues, Store, StoreError, Study};

/// A limit that a configuration exceeds in at least one of its measurements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExceededLimit {
    pub limit: Constraint,
    /// The worst measured value; `None` if a measurement lacks the metric.
    pub worst: Option<f64>,
    /// The relative excess of the worst value; infinite if a measurement lacks the metric.
    pub excess: f64,
}

/// The measured configuration whose total excess over all limits is the smallest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NearestConfiguration {
    /// The trial of its first measurement.
    pub trial: u32,
    pub config: Config,
    pub measurements: usize,
    /// The limits that it exceeds, the worst first.
    pub exceeded: Vec<ExceededLimit>,
}

impl NearestConfiguration {
    /// Finds it among the trials of the study's present context. `None` if no trial was measured.
    pub(crate) async fn read(store: &Store, study: &Study, limits: &[Constraint]) -> Result<Option<Self>, StoreError> {
        let launched = store.launched_within(study, &[]).await?;
        let names: Vec<_> = limits.iter().map(|limit| limit.metric.as_str()).collect();
        let values = store.metric_values(study, &names)?;
        Ok(nearest(&launched, limits, &values))
    }
}

/// Returns the configuration with the smallest total of relative excesses. Equal ones are ordered by their first trial.
fn nearest(launched: &[LaunchedTrial], limits: &[Constraint], values: &MetricValues) -> Option<NearestConfiguration> {
    let mut configs: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for trial in launched.iter().filter(|trial| trial.origin.is_ranked()) {
        if matches!(trial.result, LaunchResult::Measured(_)) {
            configs.entry(&trial.config_key).or_default().push(trial.number);
        }
    }
    let distance = |exceeded: &[ExceededLimit]| exceeded.iter().map(|limit| limit.excess).sum::<f64>();
    let candidates = configs.into_iter().map(|(key, trials)| {
        let exceeded: Vec<_> =
            (0..).zip(limits).filter_map(|(index, limit)| exceed(index, limit, &trials, values)).collect();
        (distance(&exceeded), key, trials, exceeded)
    });
    let first = |trials: &[u32]| trials.iter().min().copied();
    let best = candidates.min_by(|a, b| a.0.total_cmp(&b.0).then(first(&a.2).cmp(&first(&b.2))));
    let (_, key, trials, mut exceeded) = best?;
    exceeded.sort_by(|a, b| b.excess.total_cmp(&a.excess));
    let config = serde_json::from_str(key).unwrap_or_default();
    Some(NearestConfiguration { trial: first(&trials)?, config, measurements: trials.len(), exceeded })
}

/// Returns the limit with its worst value, if one of the measurements exceeds it.
fn exceed(index: usize, limit: &Constraint, trials: &[u32], values: &MetricValues) -> Option<ExceededLimit> {
    let measured = trials.iter().map(|number| values.get(number).and_then(|row| row[index]));
    let worst = measured.reduce(|worst, next| match (worst, next) {
        (Some(worst), Some(next)) => Some(match limit.limit {
            MetricLimit::AtMost(_) => worst.max(next),
            MetricLimit::AtLeast(_) => worst.min(next),
        }),
        _ => None,
    })?;
    let excess = limit.violation_of(worst);
    (excess > 0.0).then(|| ExceededLimit { limit: limit.clone(), worst, excess })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::Score;
    use crate::trial::Origin;

    #[test]
    fn the_worst_measurement_of_each_configuration_decides() {
        let limit = |metric: &str, limit| Constraint { metric: metric.to_owned(), limit };
        let limits =
            [limit("p99_ttft_ms", MetricLimit::AtMost(100.0)), limit("output_throughput", MetricLimit::AtLeast(10.0))];
        let trial = |number, config: i64| LaunchedTrial {
            number,
            origin: Origin::from_name("auto"),
            config_key: Config::new().with("a", config).key(),
            result: LaunchResult::Measured(Score::Feasible { value: 1.0 }),
        };
        let launched = [trial(0, 1), trial(1, 1), trial(2, 2), trial(3, 3)];
        let values = MetricValues::from([
            (0, vec![Some(101.0), Some(20.0)]),
            (1, vec![Some(300.0), Some(20.0)]),
            (2, vec![Some(150.0), Some(9.0)]),
            (3, vec![None, Some(20.0)]),
        ]);
        let found = nearest(&launched, &limits, &values).unwrap();
        assert_eq!((found.trial, found.measurements), (2, 1), "trial 0 was measured again, at 300 ms");
        let shown: Vec<_> = found.exceeded.iter().map(|one| (one.worst, one.excess)).collect();
        assert_eq!(shown, [(Some(150.0), 0.5), (Some(9.0), 0.1)]);
        let absent = nearest(&launched[3..], &limits, &values).unwrap();
        assert_eq!((absent.exceeded[0].worst, absent.exceeded[0].excess), (None, f64::INFINITY));
        assert_eq!(nearest(&[], &limits, &values), None);
    }
}
