//! The results of a study on each of its workloads: whether one configuration for each would pay, and the loads at which
//! the best configuration changes.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::decision::{MeasuredNoise, launch_noise};
use crate::objective::{
    ConfigValue, Goal, LaunchResult, LaunchedTrial, Objective, Score, WeightedWorkload, WorkloadValues, rank,
};
use crate::stats::{student, to_f64};
use crate::store::{RankedConfiguration, Store, StoreError, Study};
use crate::trial::Origin;

/// The probability that noise alone makes some configuration look better than another one.
const FALSE_ALARM: f64 = 0.05;

/// The results on every workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WorkloadResults {
    /// In the order of the study file.
    pub workloads: Vec<WorkloadResult>,
    /// The gain of one configuration for each workload.
    pub split: Option<SplitGain>,
    pub crossovers: Vec<LoadCrossover>,
}

/// The results on one workload, in the unit of the objective's metric.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkloadResult {
    pub name: String,
    pub weight: f64,
    /// The value of the best configuration of the study: the geometric mean of its launches.
    pub value: f64,
    /// The value of the engine's defaults.
    pub baseline: Option<f64>,
    /// The gain over the defaults as a factor, above 1 for either goal.
    pub gain: Option<f64>,
    /// The first trial of the configuration that is best on this workload alone, and its value.
    pub best_trial: u32,
    pub best_value: f64,
}

/// The gain of the best configuration of each workload over the best configuration of the study, on the weighted mean. A
/// share of the value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SplitGain {
    pub gain: f64,
    /// The interval that noise allows: the best of many noisy values is partly lucky. `None` without repeated launches.
    pub range: Option<(f64, f64)>,
}

impl SplitGain {
    /// Returns whether the gain exceeds the noise; `None` if the noise is unknown.
    #[must_use]
    pub(crate) fn is_significant(&self) -> Option<bool> {
        self.range.map(|(low, _)| low > 0.0)
    }
}

/// Two loads of one workload between which the best configuration changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoadCrossover {
    /// The lower and the higher load, in users or in requests per second.
    pub between: [f64; 2],
    /// The names of the two workloads.
    pub workloads: [String; 2],
    /// The first trials of the configurations that are best at the lower and at the higher load.
    pub from: u32,
    pub to: u32,
}

/// The launches of a study on one workload.
struct WorkloadLaunches {
    launches: Vec<LaunchedTrial>,
    /// The configurations within the limits, best first.
    ranking: Vec<ConfigValue>,
    noise: MeasuredNoise,
}

impl WorkloadLaunches {
    fn new(launches: Vec<LaunchedTrial>, goal: Goal) -> Self {
        let (ranking, noise) = (rank(&launches, goal), launch_noise(&launches, goal));
        Self { launches, ranking, noise }
    }

    /// Returns the geometric mean of a configuration's launches and their number: of its confirmation, if it has one.
    fn value(&self, config_key: &str) -> Option<(f64, usize)> {
        let own = self.launches.iter().filter(|trial| trial.config_key == config_key && trial.origin.is_ranked());
        let measured = own.filter_map(|trial| match trial.result {
            LaunchResult::Measured(score) => Some((trial.origin == Origin::Confirmation, libm::log(score.value()?))),
            LaunchResult::Failed { .. } => None,
        });
        let measured: Vec<_> = measured.collect();
        let has_confirmation = measured.iter().any(|(is_confirmation, _)| *is_confirmation);
        let logs: Vec<_> = measured.iter().filter(|(own, _)| *own || !has_confirmation).map(|(_, log)| *log).collect();
        let mean = logs.iter().sum::<f64>() / to_f64(logs.len());
        (!logs.is_empty()).then(|| (libm::exp(mean), logs.len()))
    }

    fn config_key(&self, first: u32) -> Option<&str> {
        self.launches.iter().find(|trial| trial.number == first).map(|trial| trial.config_key.as_str())
    }

    /// Returns the largest difference of logarithms that noise explains, between the best configuration of all and one
    /// with `launches` launches. It is Student's, with the probability of a false alarm divided among all configurations.
    fn noise_of_difference(&self, best: usize, launches: usize) -> Option<f64> {
        let deviation = self.noise.between_launches?;
        let level = FALSE_ALARM / to_f64(self.ranking.len().max(1));
        let scale = (1.0 / to_f64(best.max(1)) + 1.0 / to_f64(launches.max(1))).sqrt();
        Some(student::two_sided_quantile(level, to_f64(self.noise.freedom)) * deviation * scale)
    }
}

impl WorkloadResults {
    /// Reads the results; `None` for a study of one workload, and without a best configuration.
    pub(super) async fn read(
        store: &Store,
        study: &Study,
        objective: Option<&Objective>,
        winner: Option<&RankedConfiguration>,
    ) -> Result<Option<Self>, StoreError> {
        let Some((objective, winner)) = objective.zip(winner) else { return Ok(None) };
        let Some(joint) = &objective.joint else { return Ok(None) };
        let measured = store.present_trials(study).await?;
        let values: BTreeMap<u32, WorkloadValues> = measured
            .iter()
            .filter_map(|scored| {
                let (number, key) = (scored.trial.proposal.number, scored.trial.proposal.config.key());
                Some((number, objective.workload_values(number, &key, scored.trial.outcome.measurement()?)?))
            })
            .collect();
        let launched = store.launched_within(study, &[]).await?;
        let on = |index: usize| {
            let launches = launched.iter().map(|trial| on_workload(trial, values.get(&trial.number), index));
            WorkloadLaunches::new(launches.collect(), objective.goal)
        };
        let all: Vec<_> = (0..joint.workloads.len()).map(on).collect();
        let winner = winner.first.trial.proposal.config.key();
        let defaults = launched.iter().find(|trial| trial.origin == Origin::Baseline);
        let defaults = defaults.map(|trial| trial.config_key.as_str());
        let crossovers = crossovers(objective.goal, &study.definition, &joint.workloads, &all);
        let results = Self::of(objective, &joint.workloads, &all, &winner, defaults);
        Ok(results.map(|results| Self { crossovers, ..results }))
    }

    fn of(
        objective: &Objective,
        workloads: &[WeightedWorkload],
        all: &[WorkloadLaunches],
        winner: &str,
        defaults: Option<&str>,
    ) -> Option<Self> {
        let (mut results, mut gain, mut half) = (Vec::new(), 0.0, Some(0.0));
        let weights: f64 = workloads.iter().map(|workload| workload.weight).sum();
        for (workload, launches) in workloads.iter().zip(all) {
            let (value, count) = launches.value(winner)?;
            let baseline = defaults.and_then(|defaults| launches.value(defaults)).map(|(value, _)| value);
            let best = launches.ranking.first()?;
            let (best_value, best_count) = launches.value(launches.config_key(best.first)?)?;
            let share = workload.weight / weights;
            if launches.config_key(best.first) != Some(winner) {
                gain += share * libm::log(objective.gain(best_value, value));
                half = half.zip(launches.noise_of_difference(best_count, count)).map(|(half, own)| half + share * own);
            }
            results.push(WorkloadResult {
                name: workload.name.clone(),
                weight: workload.weight,
                value,
                baseline,
                gain: baseline.map(|baseline| objective.gain(value, baseline)),
                best_trial: best.first,
                best_value,
            });
        }
        let range = half.map(|half| (libm::expm1(gain - half), libm::expm1(gain + half)));
        let split = Some(SplitGain { gain: libm::expm1(gain), range });
        Some(Self { workloads: results, split, crossovers: Vec::new() })
    }
}

/// Returns a launch with its value on one workload. Its limits are those of all workloads.
fn on_workload(trial: &LaunchedTrial, values: Option<&WorkloadValues>, index: usize) -> LaunchedTrial {
    let result = match trial.result {
        failed @ LaunchResult::Failed { .. } => failed,
        LaunchResult::Measured(score) => {
            let value = values.and_then(|values| values.values.get(index).copied());
            LaunchResult::Measured(match (score, value) {
                (Score::Infeasible { violation, .. }, Some(value)) => Score::Infeasible { violation, value },
                (_, Some(value)) => Score::Feasible { value },
                (_, None) => Score::Failed,
            })
        }
    };
    LaunchedTrial { result, ..trial.clone() }
}

/// A workload with the level of its load, among those with the same requests.
struct LoadPoint<'a> {
    level: f64,
    name: &'a str,
    launches: &'a WorkloadLaunches,
}

/// Groups the workloads that differ in the level of their load only, in the order of the levels. The level is the number
/// of users of a closed loop, or the rate.
fn load_curves<'a>(
    definition: &Json,
    workloads: &'a [WeightedWorkload],
    all: &'a [WorkloadLaunches],
) -> Vec<Vec<LoadPoint<'a>>> {
    let mut curves: Vec<(Json, bool, Vec<LoadPoint<'a>>)> = Vec::new();
    let entries = definition["workloads"].as_array().into_iter().flatten();
    for ((entry, workload), launches) in entries.zip(workloads).zip(all) {
        let load = &entry["load"];
        let is_other = ["ramp", "trace_factor"].iter().any(|key| !load[key].is_null());
        let is_open = !load["rate_per_s"].is_null();
        let level = if is_open { load["rate_per_s"].as_f64() } else { load["concurrency"].as_f64() };
        let Some(level) = level.filter(|_| !is_other) else { continue };
        let mut requests = entry.clone();
        if let Some(object) = requests.as_object_mut() {
            object.remove("name");
            object.remove("load");
        }
        let point = LoadPoint { level, name: &workload.name, launches };
        match curves.iter_mut().find(|(known, open, _)| *known == requests && *open == is_open) {
            Some((.., points)) => points.push(point),
            None => curves.push((requests, is_open, vec![point])),
        }
    }
    let mut curves: Vec<_> = curves.into_iter().map(|(.., points)| points).collect();
    for points in &mut curves {
        points.sort_by(|a, b| a.level.total_cmp(&b.level));
    }
    curves
}

/// Returns the loads between which the best configuration changes. Both configurations must be better than the other one
/// by more than the noise, each at its own load.
fn crossovers(
    goal: Goal,
    definition: &Json,
    workloads: &[WeightedWorkload],
    all: &[WorkloadLaunches],
) -> Vec<LoadCrossover> {
    let curves = load_curves(definition, workloads, all);
    curves.iter().flat_map(|points| crossovers_of(goal, points)).collect()
}

fn crossovers_of(goal: Goal, points: &[LoadPoint<'_>]) -> Vec<LoadCrossover> {
    let mut found = Vec::new();
    let Some(mut best) = points.first().and_then(|point| point.launches.ranking.first()).map(|best| best.first) else {
        return found;
    };
    for (index, point) in points.iter().enumerate().skip(1) {
        let Some(next) = point.launches.ranking.first().map(|next| next.first).filter(|next| *next != best) else {
            continue;
        };
        let before = points[..index].iter().rev().find(|point| is_better(goal, point.launches, best, next));
        if let Some(before) = before.filter(|_| is_better(goal, point.launches, next, best)) {
            let workloads = [before.name, point.name].map(str::to_owned);
            found.push(LoadCrossover { between: [before.level, point.level], workloads, from: best, to: next });
            best = next;
        }
    }
    found
}

/// Returns whether a configuration is better than another one by more than the noise. Both are given by their first
/// trials.
fn is_better(goal: Goal, launches: &WorkloadLaunches, first: u32, other: u32) -> bool {
    let value = |number: u32| launches.config_key(number).and_then(|key| launches.value(key));
    let Some(((own, count), (other, other_count))) = value(first).zip(value(other)) else { return false };
    let difference = match goal {
        Goal::Maximize => libm::log(own / other),
        Goal::Minimize => libm::log(other / own),
    };
    launches.noise_of_difference(count, other_count).is_some_and(|noise| difference > noise)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objective::{JointObjective, WorkloadAggregate};

    /// Launches of configurations on one workload: the value of each. The defaults are launched twice, 2 % apart.
    fn launches(values: &[(&str, f64)]) -> WorkloadLaunches {
        let defaults = values[0].1;
        let again = [("baseline", values[0].0, defaults * 1.02)];
        let first = [("baseline", values[0].0, defaults)];
        let others = values[1..].iter().map(|(key, value)| ("auto", *key, *value));
        let trial = |(number, (origin, key, value)): (u32, (&'static str, &str, f64))| LaunchedTrial {
            number,
            origin: origin.into(),
            config_key: key.to_owned(),
            result: LaunchResult::Measured(Score::Feasible { value }),
        };
        let all: Vec<_> = (0..).zip(first.into_iter().chain(again).chain(others)).map(trial).collect();
        WorkloadLaunches::new(all, Goal::Maximize)
    }

    fn workloads() -> Vec<WeightedWorkload> {
        [("low", 3.0), ("high", 1.0)].map(|(name, weight)| WeightedWorkload { name: name.to_owned(), weight }).to_vec()
    }

    fn results(all: &[WorkloadLaunches], winner: &str) -> WorkloadResults {
        let joint = Some(JointObjective { over: WorkloadAggregate::Mean, workloads: workloads() });
        let metric = "output_throughput".to_owned();
        let objective = Objective {
            metric,
            goal: Goal::Maximize,
            constraints: Vec::new(),
            joint,
            price_per_hour: None,
            load_goal: None,
        };
        WorkloadResults::of(&objective, &workloads(), all, winner, Some("d")).unwrap()
    }

    #[test]
    fn the_gain_of_a_split_is_the_weighted_mean_over_the_workloads() {
        let all = [
            launches(&[("d", 100.0), ("a", 900.0), ("b", 700.0), ("c", 200.0)]),
            launches(&[("d", 10.0), ("a", 20.0), ("b", 40.0), ("c", 80.0)]),
        ];
        let found = results(&all, "b");
        let of = |index: usize| {
            let WorkloadResult { value, baseline, best_trial, best_value, .. } = &found.workloads[index];
            (value.round(), baseline.unwrap().round(), *best_trial, best_value.round())
        };
        assert_eq!((of(0), of(1)), ((700.0, 101.0, 2, 900.0), (40.0, 10.0, 4, 80.0)));
        let split = found.split.unwrap();
        let expected = ((900.0_f64 / 700.0).ln() * 0.75 + 2.0_f64.ln() * 0.25).exp() - 1.0;
        assert!((split.gain - expected).abs() < 1e-9 && split.range.unwrap().0 < split.gain, "{split:?}");
    }

    #[test]
    fn a_split_without_a_better_configuration_gains_nothing() {
        let all = [launches(&[("d", 100.0), ("a", 900.0)]), launches(&[("d", 10.0), ("a", 20.0)])];
        let split = results(&all, "a").split.unwrap();
        assert_eq!((split.gain, split.is_significant()), (0.0, Some(false)));
    }

    #[test]
    fn the_best_configuration_changes_between_two_loads_if_the_difference_exceeds_the_noise() {
        let load = |concurrency: u32| json!({"kind": "random", "input_len": 9, "load": {"concurrency": concurrency}});
        let definition = json!({"workloads": [load(16), load(64)]});
        let found = |low: f64, high: f64| {
            let all =
                [launches(&[("d", 1.0), ("a", 100.0), ("b", low)]), launches(&[("d", 1.0), ("a", 100.0), ("b", high)])];
            crossovers(Goal::Maximize, &definition, &workloads(), &all)
        };
        let workloads = ["low", "high"].map(str::to_owned);
        let expected = LoadCrossover { between: [16.0, 64.0], workloads, from: 2, to: 3 };
        assert_eq!(found(10.0, 1000.0), [expected]);
        assert_eq!(found(99.0, 1000.0), [], "at the lower load the two are equal within the noise");
        assert_eq!(found(10.0, 101.0), []);
        assert_eq!(found(10.0, 50.0), []);
    }

    #[test]
    fn loads_of_other_requests_or_of_another_kind_are_no_curve() {
        let entry = |input_len: u32, load: Json| json!({"kind": "random", "input_len": input_len, "load": load});
        let all = [launches(&[("d", 1.0), ("a", 2.0)]), launches(&[("d", 1.0), ("a", 2.0)])];
        let curves = |first: Json, second: Json| {
            load_curves(&json!({"workloads": [first, second]}), &workloads(), &all)
                .iter()
                .map(Vec::len)
                .collect::<Vec<_>>()
        };
        let closed = |concurrency: u32| json!({"concurrency": concurrency});
        assert_eq!(curves(entry(9, closed(16)), entry(9, closed(4))), [2]);
        assert_eq!(curves(entry(9, closed(16)), entry(8, closed(4))), [1, 1]);
        assert_eq!(curves(entry(9, closed(16)), entry(9, json!({"rate_per_s": 4.0}))), [1, 1]);
        assert_eq!(curves(entry(9, closed(16)), entry(9, json!({"rate_per_s": "inf"}))), [1]);
    }
}
