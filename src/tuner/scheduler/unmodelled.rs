//! Measured first points that the sampler's model cannot place, because they lie outside of the space. They are ranked
//! beside the model's expectations by their own measurements.

use super::Scheduler;
use crate::config::Config;
use crate::job::SamplerQuestion;
use crate::objective::Goal;
use crate::sampler::{MeasuredNumbers, NumberReading, PastTrial};
use crate::stats::to_f64;
use crate::store::{ExpectedConfiguration, StoredJudgement};

impl Scheduler<'_> {
    /// Adds the first points outside of the space to a judgement's ranking. Each follows all configurations that the model
    /// expects to be better, so that it comes first only if the model expects none to be. The estimated remaining gain is
    /// then absent, because the model compares with its own best configuration.
    pub(super) fn add_unmodelled(&self, judgement: &mut StoredJudgement, question: &SamplerQuestion) {
        let goal = self.run.job.objective.goal;
        let mut known: Vec<&Config> = Vec::new();
        for (number, past) in self.history.iter().enumerate() {
            let is_new = past.origin.is_ranked() && past.measured().is_some() && !known.contains(&&past.config);
            if !is_new || !question.is_unmodelled(&past.config) {
                continue;
            }
            known.push(&past.config);
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            // The model's deviation of a measured configuration stands in for one that was measured once.
            let usual = judgement.ranking.iter().map(|expected| expected.deviation).reduce(f64::max);
            let expected = measured_expectation(number, &self.measurements_of(&past.config), usual.unwrap_or(0.0));
            if let Some(expected) = expected {
                insert_by_value(&mut judgement.ranking, expected, goal);
            }
        }
        let first = judgement.ranking.first().map(|expected| expected.trial as usize);
        if first.and_then(|first| self.history.get(first)).is_some_and(|past| question.is_unmodelled(&past.config)) {
            judgement.remaining = None;
        }
    }

    fn measurements_of(&self, config: &Config) -> Vec<&MeasuredNumbers> {
        let own = self.history.iter().filter(|past| past.config == *config && past.origin.is_ranked());
        own.filter_map(PastTrial::measured).collect()
    }
}

/// Returns the mean of a configuration's measurements and its deviation, as a share. `None` if one of them exceeds a
/// limit, or none has a value. The deviation of one measurement is its own or `usual`.
fn measured_expectation(trial: u32, measured: &[&MeasuredNumbers], usual: f64) -> Option<ExpectedConfiguration> {
    if !measured.iter().all(|numbers| numbers.is_feasible()) {
        return None;
    }
    let readings = measured.iter().filter_map(|numbers| numbers.values.first());
    let readings: Vec<&NumberReading> = readings.filter(|reading| reading.value.is_finite()).collect();
    let count = to_f64(readings.len());
    let value = readings.iter().map(|reading| reading.value).sum::<f64>() / count;
    let deviation = match readings[..] {
        [] => return None,
        [only] => only.deviation.unwrap_or(usual),
        _ => {
            let squares: f64 = readings.iter().map(|reading| (reading.value - value).powi(2)).sum();
            (squares / (count - 1.0) / count).sqrt() / value.abs().max(f64::MIN_POSITIVE)
        }
    };
    Some(ExpectedConfiguration { trial, value, deviation, feasible: 1.0 })
}

/// Inserts a configuration behind the last one that is better.
fn insert_by_value(ranking: &mut Vec<ExpectedConfiguration>, new: ExpectedConfiguration, goal: Goal) {
    let is_better = |known: &ExpectedConfiguration| match goal {
        Goal::Maximize => known.value >= new.value,
        Goal::Minimize => known.value <= new.value,
    };
    let place = ranking.iter().rposition(is_better).map_or(0, |last| last + 1);
    ranking.insert(place, new);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(value: f64, excess: f64) -> MeasuredNumbers {
        MeasuredNumbers { values: vec![NumberReading::exact(value)], excesses: vec![NumberReading::exact(excess)] }
    }

    #[test]
    fn a_configuration_outside_of_the_space_is_first_only_if_nothing_is_expected_to_be_better() {
        let expected = |trial, value| ExpectedConfiguration { trial, value, deviation: 0.01, feasible: 1.0 };
        let order = |value, goal| {
            // A confirmed configuration may precede a better expectation.
            let mut ranking = vec![expected(7, 4606.0), expected(5, 4690.0), expected(6, 4640.0)];
            insert_by_value(&mut ranking, expected(1, value), goal);
            ranking.iter().map(|expected| expected.trial).collect::<Vec<_>>()
        };
        assert_eq!(order(4700.0, Goal::Maximize), [1, 7, 5, 6]);
        assert_eq!(order(4650.0, Goal::Maximize), [7, 5, 1, 6]);
        assert_eq!(order(4000.0, Goal::Maximize), [7, 5, 6, 1]);
        assert_eq!(order(4000.0, Goal::Minimize), [1, 7, 5, 6]);
    }

    #[test]
    fn its_expectation_is_the_mean_of_its_measurements_within_the_limits() {
        let (a, b, over) = (measured(90.0, -0.1), measured(110.0, 0.0), measured(999.0, 0.2));
        let pair = measured_expectation(1, &[&a, &b], 0.5).unwrap();
        assert!((pair.value - 100.0).abs() < 1e-9 && (pair.deviation - 0.1).abs() < 1e-9, "{pair:?}");
        assert!((measured_expectation(1, &[&a], 0.5).unwrap().deviation - 0.5).abs() < 1e-12);
        assert_eq!(measured_expectation(1, &[&a, &over], 0.5), None);
        assert_eq!(measured_expectation(1, &[&measured(f64::NAN, 0.0)], 0.5), None);
        assert_eq!(measured_expectation(1, &[], 0.5), None);
    }
}
