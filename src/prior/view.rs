//! Configurations as the twin sees them, in the words of samplers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::explore::Seen;
use crate::config::Config;
use crate::job::{Job, LoadJob};
use crate::objective::{Constraint, Limit};
use crate::predict::{Outlook, Question, Span};
use crate::sampler::{Known, Measured, Reading};
use crate::stats::{f64_to_u64, to_f64};
use crate::trial::{Measurement, Outcome};

/// What one run may cost by its requests, in tokens of replies.
const TOKENS: u64 = 400_000;
/// Requests of a run at least, so that its tails mean something.
const LEAST_REQUESTS: u64 = 100;
/// What a configuration costs at least, in the units of [`explore`](super::explore), and for how many tokens of prompts one
/// unit is.
const LEAST_COST: u64 = 1000;
const PROMPT_TOKENS: u64 = 8;
const MOST_THREADS: usize = 8;
/// Draws for the deviation.
const DRAWS: u64 = 6;
/// Deviation of what a speculating configuration gives, as a share: drafts are accepted by 0.2 to 0.8 of models and texts.
const SPECULATING: f64 = 0.3;

/// Metrics of the objectives and limits of the constraints, in the order of the aim; `None` is nothing that the twin knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wanted {
    pub(super) objectives: Vec<Option<String>>,
    pub(super) constraints: Vec<Option<Constraint>>,
}

/// What the caller's configuration is to the engine, and whether it speculates at a rate that nobody has measured.
type Read<'a> = Box<dyn Fn(&Config) -> (Config, bool) + 'a>;

/// The twin under one load.
pub(super) struct View<'a> {
    twin: Twin<'a>,
    read: Read<'a>,
    /// By what the engine sees: parameters without effect lead to the same again.
    seen: HashMap<String, Option<Known>>,
    problems: BTreeMap<String, usize>,
}

/// What runs in several threads.
struct Twin<'a> {
    question: Question<'a>,
    span: Span,
    wanted: Wanted,
    outlook: Outlook,
    /// What share of the drafts of a configuration is accepted, where the question does not say it.
    acceptance: Option<fn(&Config) -> Option<f64>>,
}

/// What came of one run.
#[derive(Clone)]
struct Ran {
    known: Option<Known>,
    cost: u64,
    /// Why nothing was measured.
    problem: Option<String>,
}

impl<'a> View<'a> {
    pub(super) fn new(
        question: Question<'a>,
        span: Span,
        wanted: Wanted,
        read: impl Fn(&Config) -> (Config, bool) + 'a,
    ) -> Self {
        let twin = Twin { outlook: Outlook::new(question.job), question, span, wanted, acceptance: None };
        Self { twin, read: Box::new(read), seen: HashMap::new(), problems: BTreeMap::new() }
    }

    /// The same with drafts that are accepted at these rates.
    pub(super) fn accepting(mut self, acceptance: fn(&Config) -> Option<f64>) -> Self {
        self.twin.acceptance = Some(acceptance);
        self
    }

    /// Looks at each. What is equal to the engine is run once.
    pub(super) fn look(&mut self, configs: &[Config]) -> Vec<Seen> {
        let flags: Vec<Config> = configs.iter().map(|config| (self.read)(config).0).collect();
        let mut new: Vec<(String, &Config)> = flags.iter().map(|flags| (flags.key(), flags)).collect();
        let keys: Vec<String> = new.iter().map(|(key, _)| key.clone()).collect();
        let mut met = HashSet::new();
        new.retain(|(key, _)| !self.seen.contains_key(key) && met.insert(key.clone()));
        let asked: Vec<(&Config, Option<u64>)> = new.iter().map(|(_, flags)| (*flags, None)).collect();
        let mut costs: HashMap<String, u64> = HashMap::new();
        for ((key, _), ran) in new.iter().zip(self.twin.run_all(&asked)) {
            ran.problem.into_iter().for_each(|problem| *self.problems.entry(problem).or_default() += 1);
            self.seen.insert(key.clone(), ran.known);
            costs.insert(key.clone(), ran.cost);
        }
        let seen = |key: &String| Seen {
            known: self.seen.get(key).cloned().flatten(),
            cost: costs.remove(key).unwrap_or_default(),
        };
        keys.iter().map(seen).collect()
    }

    /// How far off the predictions may be by what is not known of the device, that of the best point for all of them, beside what
    /// each is unsure of by itself.
    pub(super) fn add_deviations(&self, points: &mut [(Config, Known)]) {
        let total = |measured: &Measured| measured.excesses.iter().map(|excess| excess.value.max(0.0)).sum::<f64>();
        let best = points.iter().filter_map(|(config, known)| match known {
            Known::Measured(measured) if !(self.read)(config).1 => Some((config, total(measured))),
            _ => None,
        });
        let Some((config, _)) = best.min_by(|(_, a), (_, b)| a.total_cmp(b)) else { return };
        let (flags, _) = (self.read)(config);
        let asked: Vec<(&Config, Option<u64>)> = (1..=DRAWS).map(|draw| (&flags, Some(draw))).collect();
        let draws = self.twin.run_all(&asked).into_iter().filter_map(|ran| match ran.known {
            Some(Known::Measured(measured)) => Some(measured),
            _ => None,
        });
        let draws: Vec<Measured> = draws.collect();
        let spread = |of: &dyn Fn(&Measured) -> Option<f64>| {
            let values: Vec<f64> = draws.iter().filter_map(of).filter(|value| value.is_finite()).collect();
            deviation(&values)
        };
        for (config, known) in points {
            let Known::Measured(measured) = known else { continue };
            let more = if (self.read)(config).1 { SPECULATING } else { 0.0 };
            let set = |reading: &mut Reading, deviation: Option<f64>| {
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

    /// What is not measured, and why.
    pub(super) fn notes(&self) -> Vec<String> {
        let note = |(problem, count): (&String, &usize)| format!("by the twin, {count} configurations {problem}");
        self.problems.iter().map(note).collect()
    }
}

impl Twin<'_> {
    /// Runs each, in as many threads as there are processors; the answers do not depend on how many.
    fn run_all(&self, asked: &[(&Config, Option<u64>)]) -> Vec<Ran> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(asked.len());
        if threads < 2 {
            return asked.iter().map(|(flags, draw)| self.run(flags, *draw)).collect();
        }
        let next = AtomicUsize::new(0);
        let work = || -> Vec<(usize, Ran)> {
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

    /// One run. What the load itself does not allow is not known.
    fn run(&self, flags: &Config, draw: Option<u64>) -> Ran {
        let acceptance = self.question.acceptance.or_else(|| self.acceptance.and_then(|acceptance| acceptance(flags)));
        let question = Question { config: flags.clone(), acceptance, ..self.question.clone() };
        let forecast = match self.outlook.forecast(&question, self.span, draw) {
            Ok(forecast) => forecast,
            Err(error) => {
                let problem = format!("are left out: {}", unnumbered(&error.to_string()));
                return Ran { known: None, cost: LEAST_COST, problem: Some(problem) };
            }
        };
        // What is not simulated is not for nothing either, and neither are prompts.
        let cost = forecast.cost + LEAST_COST;
        let failed = |problem| Ran { known: Some(Known::Failed), cost, problem: Some(problem) };
        match &forecast.outcome {
            Outcome::Measured(measurement) => {
                let cost = cost + measurement.total_input_tokens / PROMPT_TOKENS;
                Ran { known: Some(Known::Measured(self.measured(measurement))), cost, problem: None }
            }
            Outcome::Rejected(rejection) => {
                failed(format!("would not start ({}): {}", rejection.rule, unnumbered(&rejection.message)))
            }
            Outcome::Failed(failure) => failed(format!("would fail: {}", unnumbered(&failure.message))),
        }
    }

    fn measured(&self, measurement: &Measurement) -> Measured {
        let value = |name: &Option<String>| name.as_ref().and_then(|name| measurement.metric(name));
        let exact = |value: Option<f64>| Reading::exact(value.map_or(f64::NAN, round));
        let excess = |constraint: &Option<Constraint>| Reading {
            deviation: constraint.as_ref().and_then(|constraint| unevenness(constraint, measurement)).map(round),
            ..exact(constraint.as_ref().and_then(|constraint| excess(constraint, measurement)))
        };
        Measured {
            values: self.wanted.objectives.iter().map(value).map(exact).collect(),
            excesses: self.wanted.constraints.iter().map(excess).collect(),
        }
    }
}

/// How far a time per output token may be off, as a logarithm; `None` of all other metrics.
///
/// That time is a mean over the steps of a reply. Where steps take different times, because some of them process prompts as
/// well, it depends on how many slow ones a reply meets, which is what a simulation of other arrivals and other lengths says
/// worst. It is at most the time of a slow step.
fn unevenness(constraint: &Constraint, measurement: &Measurement) -> Option<f64> {
    let value = measurement.metric(&constraint.metric).filter(|_| constraint.metric.ends_with("_tpot_ms"))?;
    let slow = measurement.metric("p99_itl_ms")?;
    Some(libm::log(slow / value).max(0.0)).filter(|ratio| ratio.is_finite())
}

/// The logarithm of how far a limit is exceeded; the plain difference as a share of the limit where there is no logarithm.
fn excess(constraint: &Constraint, measurement: &Measurement) -> Option<f64> {
    let value = measurement.metric(&constraint.metric)?;
    let (limit, sign) = match constraint.limit {
        Limit::AtMost(limit) => (limit, 1.0),
        Limit::AtLeast(limit) => (limit, -1.0),
    };
    let ratio = if value > 0.0 && limit > 0.0 {
        libm::log(value / limit)
    } else {
        (value - limit) / limit.abs().max(f64::MIN_POSITIVE)
    };
    Some(sign * ratio).filter(|excess| excess.is_finite())
}

/// Of some logarithms; `None` of fewer than three.
fn deviation(values: &[f64]) -> Option<f64> {
    let count = to_f64(values.len());
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>();
    (values.len() > 2).then(|| (squares / (count - 1.0)).sqrt())
}

/// A message without its numbers, by which equal reasons are counted.
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

/// Five significant digits.
pub(super) fn round(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// The load with at most so many requests that a run of it is computed quickly.
pub(super) fn shortened(load: &LoadJob, job: &Job) -> LoadJob {
    let each = f64_to_u64(job.workload.mean_output()).max(1) + 4;
    let most = (TOKENS / each).max(LEAST_REQUESTS);
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    LoadJob { requests: Some(load.requests.map_or(most, |requests| requests.min(most))), ..load.clone() }
}
