//! The twin's predictions for configurations, in the types of samplers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::explore::ExploredOutcome;
use crate::config::Config;
use crate::job::{LoadJob, WorkloadJob};
use crate::objective::{Constraint, MetricLimit, WorkloadValues};
use crate::predict::{ForecastSpan, JobForecaster, TwinQuestion};
use crate::sampler::{KnownOutcome, MeasuredNumbers, NumberReading};
use crate::stats::{f64_to_u64, to_f64};
use crate::trial::{Measurement, Outcome};

/// Maximum number of output tokens of one run of a study's load. Each request counts 4 more.
const TOKENS: u64 = 400_000;
/// Least number of requests of a run, so that its tails are meaningful.
const LEAST_REQUESTS: u64 = 100;
/// Least cost of a configuration, in the units of [`explore`](super::explore), and number of prompt tokens per unit.
const LEAST_COST: u64 = 1000;
const PROMPT_TOKENS: u64 = 8;
const MAX_THREADS: usize = 8;
/// Number of runs for the deviation. Each samples its step times from the calibration's uncertainty.
const DRAWS: u64 = 6;
/// Deviation of a speculating configuration's results, as a share. The acceptance rate of drafts is 0.2 to 0.8,
/// depending on model and text.
const SPECULATION_DEVIATION: f64 = 0.3;

/// Metrics of the objectives and limits of the constraints, in the order of the aim. `None` if the twin does not model
/// the metric, or if a constraint has no limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WantedMetrics {
    pub(super) objectives: Vec<Option<String>>,
    pub(super) constraints: Vec<Option<Constraint>>,
}

/// Converts a configuration of the space to the engine's flags. The bool is true if it speculates at an acceptance rate
/// that was never measured.
type Read<'a> = Box<dyn Fn(&Config) -> (Config, bool) + 'a>;

/// The twin under one load.
pub(super) struct TwinPredictor<'a> {
    twin: TwinRunner<'a>,
    read: Read<'a>,
    /// Results by the engine's flags. Configurations that differ only in parameters without effect share a result.
    results: HashMap<String, Option<KnownOutcome>>,
    /// The values of measured results on several workloads, by the same keys, in the order of the runs.
    workload_values: Vec<(String, WorkloadValues)>,
    /// Reasons for runs without a measurement, with their counts.
    problems: BTreeMap<String, usize>,
}

/// The part that runs in several threads.
struct TwinRunner<'a> {
    question: TwinQuestion<'a>,
    span: ForecastSpan,
    wanted: WantedMetrics,
    forecaster: JobForecaster,
    /// Acceptance rate of a configuration's drafts, if the question does not contain one.
    acceptance: Option<fn(&Config) -> Option<f64>>,
}

/// The result of one run.
#[derive(Clone)]
struct TwinRunResult {
    outcome: Option<KnownOutcome>,
    /// The values on several workloads.
    workload_values: Option<WorkloadValues>,
    /// In the units of `explore`.
    cost: u64,
    /// The reason for a run without a measurement.
    problem: Option<String>,
}

impl<'a> TwinPredictor<'a> {
    pub(super) fn new(
        question: TwinQuestion<'a>,
        span: ForecastSpan,
        wanted: WantedMetrics,
        read: impl Fn(&Config) -> (Config, bool) + 'a,
    ) -> Self {
        let forecaster = JobForecaster::with_loads(question.job, |part| {
            shortened(part.load, part.workload, question.job.parts().len())
        });
        let twin = TwinRunner { forecaster, question, span, wanted, acceptance: None };
        let (results, workload_values, problems) = (HashMap::new(), Vec::new(), BTreeMap::new());
        Self { twin, read: Box::new(read), results, workload_values, problems }
    }

    /// Sets the acceptance rates of drafts.
    pub(super) fn with_acceptance(mut self, acceptance: fn(&Config) -> Option<f64>) -> Self {
        self.twin.acceptance = Some(acceptance);
        self
    }

    /// Predicts each configuration. Configurations with equal flags are run once, and the repeated ones cost 0.
    pub(super) fn predict_batch(&mut self, configs: &[Config]) -> Vec<ExploredOutcome> {
        let flags: Vec<Config> = configs.iter().map(|config| (self.read)(config).0).collect();
        let mut new: Vec<(String, &Config)> = flags.iter().map(|flags| (flags.key(), flags)).collect();
        let keys: Vec<String> = new.iter().map(|(key, _)| key.clone()).collect();
        let mut met = HashSet::new();
        new.retain(|(key, _)| !self.results.contains_key(key) && met.insert(key.clone()));
        let asked: Vec<(&Config, Option<u64>)> = new.iter().map(|(_, flags)| (*flags, None)).collect();
        let mut costs: HashMap<String, u64> = HashMap::new();
        for ((key, _), ran) in new.iter().zip(self.twin.run_all(&asked)) {
            ran.problem.into_iter().for_each(|problem| *self.problems.entry(problem).or_default() += 1);
            self.workload_values.extend(ran.workload_values.map(|values| (key.clone(), values)));
            self.results.insert(key.clone(), ran.outcome);
            costs.insert(key.clone(), ran.cost);
        }
        self.join_workloads();
        let seen = |key: &String| ExploredOutcome {
            known: self.results.get(key).cloned().flatten(),
            cost: costs.remove(key).unwrap_or_default(),
        };
        keys.iter().map(seen).collect()
    }

    /// Replaces the values of results on several workloads by their joint values. They depend on all results so far.
    fn join_workloads(&mut self) {
        let launches: Vec<_> = self.workload_values.iter().map(|(_, values)| values.clone()).collect();
        let joint = self.twin.question.job.objective.joint_values(&launches, &launches);
        for ((key, _), value) in self.workload_values.iter().zip(joint) {
            if let Some(Some(KnownOutcome::Measured(numbers))) = self.results.get_mut(key)
                && let Some(reading) = numbers.values.first_mut()
            {
                reading.value = round(value);
            }
        }
    }

    /// Reads the final joint values of points that were predicted earlier.
    pub(super) fn update(&self, points: &mut [(Config, KnownOutcome)]) {
        for (config, known) in points {
            let key = (self.read)(config).0.key();
            if let Some(Some(latest)) = self.results.get(&key) {
                known.clone_from(latest);
            }
        }
    }

    /// Adds the deviations caused by the uncertainty of the device, in quadrature to each point's own deviation. They
    /// are computed for the first point with the least excess that does not speculate, and used for all points.
    pub(super) fn add_deviations(&self, points: &mut [(Config, KnownOutcome)]) {
        let total =
            |measured: &MeasuredNumbers| measured.excesses.iter().map(|excess| excess.value.max(0.0)).sum::<f64>();
        let best = points.iter().filter_map(|(config, known)| match known {
            KnownOutcome::Measured(measured) if !(self.read)(config).1 => Some((config, total(measured))),
            _ => None,
        });
        let Some((config, _)) = best.min_by(|(_, a), (_, b)| a.total_cmp(b)) else { return };
        let (flags, _) = (self.read)(config);
        let asked: Vec<(&Config, Option<u64>)> = (1..=DRAWS).map(|draw| (&flags, Some(draw))).collect();
        let draws = self.twin.run_all(&asked).into_iter().filter_map(|ran| match ran.outcome {
            Some(KnownOutcome::Measured(measured)) => Some(measured),
            _ => None,
        });
        let draws: Vec<MeasuredNumbers> = draws.collect();
        let spread = |of: &dyn Fn(&MeasuredNumbers) -> Option<f64>| {
            let values: Vec<f64> = draws.iter().filter_map(of).filter(|value| value.is_finite()).collect();
            deviation(&values)
        };
        for (config, known) in points {
            let KnownOutcome::Measured(measured) = known else { continue };
            let more = if (self.read)(config).1 { SPECULATION_DEVIATION } else { 0.0 };
            let set = |reading: &mut NumberReading, deviation: Option<f64>| {
                let own = reading.deviation.unwrap_or(0.0);
                reading.deviation =
                    deviation.map_or(reading.deviation, |all| Some(round(libm::hypot(libm::hypot(all, more), own))));
            };
            for (index, reading) in measured.values.iter_mut().enumerate() {
                set(reading, spread(&|draw| draw.values.get(index).map(|reading| libm::log(reading.value))));
            }
            for (index, reading) in measured.excesses.iter_mut().enumerate() {
                set(reading, spread(&|draw| draw.excesses.get(index).map(|reading| reading.value)));
            }
        }
    }

    /// Returns the reasons for missing measurements, with their counts.
    pub(super) fn notes(&self) -> Vec<String> {
        let note =
            |(problem, count): (&String, &usize)| format!("according to the twin, {count} configurations {problem}");
        self.problems.iter().map(note).collect()
    }
}

impl TwinRunner<'_> {
    /// Runs each configuration with its draw, in one thread per processor but at most `MAX_THREADS`. The results do
    /// not depend on the number of threads.
    fn run_all(&self, asked: &[(&Config, Option<u64>)]) -> Vec<TwinRunResult> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS).min(asked.len());
        if threads < 2 {
            return asked.iter().map(|(flags, draw)| self.run(flags, *draw)).collect();
        }
        let next = AtomicUsize::new(0);
        let work = || -> Vec<(usize, TwinRunResult)> {
            let mine = std::iter::from_fn(|| {
                let index = next.fetch_add(1, Relaxed);
                let (flags, draw) = asked.get(index)?;
                Some((index, self.run(flags, *draw)))
            });
            mine.collect()
        };
        let mut all = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let done = workers.into_iter().map(|worker| match worker.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            done.flatten().collect::<Vec<_>>()
        });
        all.sort_by_key(|(index, _)| *index);
        all.into_iter().map(|(_, ran)| ran).collect()
    }

    /// Runs one configuration. If the load itself is not possible with it, the outcome is unknown.
    fn run(&self, flags: &Config, draw: Option<u64>) -> TwinRunResult {
        let acceptance = self.question.acceptance.or_else(|| self.acceptance.and_then(|acceptance| acceptance(flags)));
        let question = TwinQuestion { config: flags.clone(), acceptance, ..self.question.clone() };
        let forecast = match self.forecaster.forecast(&question, self.span, draw) {
            Ok(forecast) => forecast,
            Err(error) => {
                let problem = format!("are left out: {}", unnumbered(&error.to_string()));
                return TwinRunResult {
                    outcome: None,
                    workload_values: None,
                    cost: LEAST_COST,
                    problem: Some(problem),
                };
            }
        };
        // A configuration that is not simulated takes time as well, and so do prompts.
        let cost = forecast.cost + LEAST_COST;
        let failed = |problem| TwinRunResult {
            outcome: Some(KnownOutcome::Failed),
            workload_values: None,
            cost,
            problem: Some(problem),
        };
        match &forecast.outcome {
            Outcome::Measured(measurement) => {
                let cost = cost + measurement.total_input_tokens / PROMPT_TOKENS;
                TwinRunResult {
                    outcome: Some(KnownOutcome::Measured(self.measured(measurement))),
                    workload_values: self.question.job.objective.workload_values(0, &flags.key(), measurement),
                    cost,
                    problem: None,
                }
            }
            Outcome::Rejected(rejection) => {
                failed(format!("would not start ({}): {}", rejection.rule, unnumbered(&rejection.message)))
            }
            Outcome::Failed(failure) => failed(format!("would fail: {}", unnumbered(&failure.message))),
        }
    }

    fn measured(&self, measurement: &Measurement) -> MeasuredNumbers {
        let value = |name: &Option<String>| name.as_ref().and_then(|name| measurement.metric(name));
        let exact = |value: Option<f64>| NumberReading::exact(value.map_or(f64::NAN, round));
        let excess = |constraint: &Option<Constraint>| NumberReading {
            deviation: constraint.as_ref().and_then(|constraint| tpot_error(constraint, measurement)).map(round),
            ..exact(constraint.as_ref().and_then(|constraint| excess(constraint, measurement)))
        };
        MeasuredNumbers {
            values: self.wanted.objectives.iter().map(value).map(exact).collect(),
            excesses: self.wanted.constraints.iter().map(excess).collect(),
        }
    }
}

/// Returns the possible error of a time per output token, as a logarithm. `None` for all other metrics.
///
/// The time per output token is a mean over the steps of a reply. Steps that also process prompts take longer. The mean
/// depends on the number of slow steps that a reply meets. A simulation with other arrivals and lengths predicts that
/// number worst. The time is at most that of a slow step.
fn tpot_error(constraint: &Constraint, measurement: &Measurement) -> Option<f64> {
    let value = measurement.metric(&constraint.metric).filter(|_| constraint.metric.ends_with("_tpot_ms"))?;
    let slow = measurement.metric("p99_itl_ms")?;
    Some(libm::log(slow / value).max(0.0)).filter(|ratio| ratio.is_finite())
}

/// Returns the logarithm of the excess over a limit, or the difference as a share of the limit if there is no
/// logarithm.
fn excess(constraint: &Constraint, measurement: &Measurement) -> Option<f64> {
    let value = measurement.metric(&constraint.metric)?;
    let (limit, sign) = match constraint.limit {
        MetricLimit::AtMost(limit) => (limit, 1.0),
        MetricLimit::AtLeast(limit) => (limit, -1.0),
    };
    let ratio = if value > 0.0 && limit > 0.0 {
        libm::log(value / limit)
    } else {
        (value - limit) / limit.abs().max(f64::MIN_POSITIVE)
    };
    Some(sign * ratio).filter(|excess| excess.is_finite())
}

/// Returns the standard deviation of some logarithms, or `None` for fewer than three.
fn deviation(values: &[f64]) -> Option<f64> {
    let count = to_f64(values.len());
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>();
    (values.len() > 2).then(|| (squares / (count - 1.0)).sqrt())
}

/// Returns a message without its numbers, so that equal reasons can be counted.
fn unnumbered(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for c in message.chars() {
        match (c.is_ascii_digit(), text.ends_with('N')) {
            (true, true) => {}
            (true, false) => text.push('N'),
            (false, _) => text.push(c),
        }
    }
    text.replace("N.N", "N")
}

/// Rounds to five significant digits.
pub(super) fn round(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// Returns the load with few enough requests for a quick run of as many loads as there are `workloads`.
pub(super) fn shortened(load: &LoadJob, workload: &WorkloadJob, workloads: usize) -> LoadJob {
    let each = f64_to_u64(workload.mean_output()).max(1) + 4;
    let most = (TOKENS / each / workloads.max(1) as u64).max(LEAST_REQUESTS);
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    LoadJob { requests: Some(load.requests.map_or(most, |requests| requests.min(most))), ..load.clone() }
}
