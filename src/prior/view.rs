//! Configurations as the twin sees them, in the words of samplers.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use super::explore::Seen;
use crate::config::Config;
use crate::job::{Job, LoadJob};
use crate::objective::{Constraint, Limit};
use crate::predict::{Outlook, Question, Span};
use crate::sampler::{Known, Measured, Reading};
use crate::trial::{Measurement, Outcome};

/// What one run may cost by its requests, in tokens of replies.
const TOKENS: u64 = 400_000;
/// Requests of a run at least, so that its tails mean something.
const LEAST_REQUESTS: u64 = 100;
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
    question: Question<'a>,
    span: Span,
    wanted: Wanted,
    read: Read<'a>,
    outlook: Outlook,
    /// By what the engine sees: parameters without effect lead to the same again.
    seen: HashMap<String, Option<Known>>,
    problems: RefCell<BTreeMap<String, usize>>,
}

impl<'a> View<'a> {
    pub(super) fn new(
        question: Question<'a>,
        span: Span,
        wanted: Wanted,
        read: impl Fn(&Config) -> (Config, bool) + 'a,
    ) -> Self {
        let outlook = Outlook::new(question.job);
        Self {
            question,
            span,
            wanted,
            read: Box::new(read),
            outlook,
            seen: HashMap::new(),
            problems: RefCell::default(),
        }
    }

    /// Looks at each.
    pub(super) fn look(&mut self, configs: &[Config]) -> Vec<Seen> {
        let mut all = Vec::with_capacity(configs.len());
        for config in configs {
            let (flags, _) = (self.read)(config);
            let key = flags.key();
            if let Some(known) = self.seen.get(&key) {
                all.push(Seen { known: known.clone(), cost: 0 });
                continue;
            }
            let (known, cost) = self.run(flags, None);
            self.seen.insert(key, known.clone());
            all.push(Seen { known, cost });
        }
        all
    }

    /// One run. What the load itself does not allow is not known.
    fn run(&self, flags: Config, draw: Option<u64>) -> (Option<Known>, u64) {
        let acceptance = self.question.acceptance.or_else(|| super::reading::acceptance(&flags));
        let question = Question { config: flags, acceptance, ..self.question.clone() };
        match self.outlook.forecast(&question, self.span, draw) {
            Ok(forecast) => {
                let known = match &forecast.outcome {
                    Outcome::Measured(measurement) => Known::Measured(self.measured(measurement)),
                    _ => Known::Failed,
                };
                // What is not simulated is not for nothing either.
                (Some(known), forecast.cost.max(1000))
            }
            Err(error) => {
                *self.problems.borrow_mut().entry(error.to_string()).or_default() += 1;
                (None, 1000)
            }
        }
    }

    fn measured(&self, measurement: &Measurement) -> Measured {
        let value = |name: &Option<String>| name.as_ref().and_then(|name| measurement.metric(name));
        let excess = |constraint: &Option<Constraint>| excess(constraint.as_ref()?, measurement);
        let reading = |value: Option<f64>| Reading::exact(value.map_or(f64::NAN, round));
        Measured {
            values: self.wanted.objectives.iter().map(value).map(reading).collect(),
            excesses: self.wanted.constraints.iter().map(excess).map(reading).collect(),
        }
    }

    /// How far off the predictions may be by what is not known of the device: that of the best point, for all of them.
    pub(super) fn add_deviations(&self, points: &mut [(Config, Known)]) {
        let total = |measured: &Measured| measured.excesses.iter().map(|excess| excess.value.max(0.0)).sum::<f64>();
        let best = points.iter().filter_map(|(config, known)| match known {
            Known::Measured(measured) if !(self.read)(config).1 => Some((config, total(measured))),
            _ => None,
        });
        let Some((config, _)) = best.min_by(|(_, a), (_, b)| a.total_cmp(b)) else { return };
        let (flags, _) = (self.read)(config);
        let draws = (1..=DRAWS).filter_map(|draw| match self.run(flags.clone(), Some(draw)).0 {
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
                reading.deviation = deviation.map(|deviation| round(deviation.hypot(more)));
            };
            for (index, reading) in measured.values.iter_mut().enumerate() {
                set(reading, spread(&|draw| draw.values.get(index).map(|reading| reading.value.ln())));
            }
            for (index, reading) in measured.excesses.iter_mut().enumerate() {
                set(reading, spread(&|draw| draw.excesses.get(index).map(|reading| reading.value)));
            }
        }
    }

    /// Why something could not be looked at.
    pub(super) fn notes(&self) -> Vec<String> {
        let note =
            |(problem, count): (&String, &usize)| format!("the twin leaves out {count} configurations: {problem}");
        self.problems.borrow().iter().map(note).collect()
    }
}

/// The logarithm of how far a limit is exceeded; the plain difference as a share of the limit where there is no logarithm.
fn excess(constraint: &Constraint, measurement: &Measurement) -> Option<f64> {
    let value = measurement.metric(&constraint.metric)?;
    let (limit, sign) = match constraint.limit {
        Limit::AtMost(limit) => (limit, 1.0),
        Limit::AtLeast(limit) => (limit, -1.0),
    };
    let ratio = if value > 0.0 && limit > 0.0 {
        (value / limit).ln()
    } else {
        (value - limit) / limit.abs().max(f64::MIN_POSITIVE)
    };
    Some(sign * ratio).filter(|excess| excess.is_finite())
}

/// Of some logarithms; `None` of fewer than three.
fn deviation(values: &[f64]) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "some draws")]
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (values.len() > 2).then(|| (squares / (count - 1.0)).sqrt())
}

/// Five significant digits.
pub(super) fn round(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// The load with at most so many requests that a run of it is computed quickly.
pub(super) fn shortened(load: &LoadJob, job: &Job) -> LoadJob {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of tokens")]
    let each = (job.workload.mean_output() as u64).max(1) + 4;
    let most = (TOKENS / each).max(LEAST_REQUESTS);
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    LoadJob { requests: Some(load.requests.map_or(most, |requests| requests.min(most))), ..load.clone() }
}
