//! Prediction of a configuration's metrics by running a study's load on the twin in virtual time.
//!
//! The rules of the engine resolve or reject a configuration. The load generator's schedule decides when requests are
//! sent, the twin answers them, and `metrics` reduces the replies like measured ones. Intervals come from further runs
//! with step times drawn from the calibration's uncertainty. Runs with higher or lower loads find the highest load
//! within the objective's limits. No process is started, and no result depends on the machine's clock.
//!
//! Not modelled: replies that end before they have the requested number of tokens, images, and chat templates. Only
//! simulated studies end a load early, by the watch of measured loads. A request that exceeds `load.request_timeout` counts as failed. The twin still computes
//! it to its end, and its user waits for that.

mod client;
mod early_end;
mod forecast;
mod highest_load;
mod knowledge;
mod learn;
mod limit;
mod longest_step;
mod noise;
mod preset;
mod run;
mod script;
mod series;
mod setup;
#[cfg(test)]
mod tests;
mod watch;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::config::{Config, ResolvedConfig};
use crate::facts::{Device, EngineVersion, HostLimits};
use crate::job::{Job, LoadJob};
use crate::load::LoadError;
use crate::objective::{Constraint, LoadGoal, Objective, Score};
use crate::stats::percentile;
use crate::trial::{Measurement, Outcome, Rejection};
use crate::twin::{AddError, DevicePreset, SettingsError, StartForecast, StartupModel, WarmState};

pub use forecast::{ForecastResult, ForecastSpan, JobForecaster};
pub use highest_load::{MIN_GOOD_SHARE, PredictedHighest};
pub use knowledge::Knowledge;
pub use learn::{LearnError, MAX_TRIALS, MeasuredTrial, calibrate_from_trials};
pub use limit::{LoadLimit, LoadLimits, wait_name, waits};
pub use longest_step::longest_step;
pub use noise::LaunchNoise;
pub use preset::preset_of;
use script::PromptScript;
pub use series::{BatchSeries, MAX_POINTS, SeriesPoint};
use setup::TwinSetup;
pub use watch::{StepShares, StepTerm};

/// The device that a configuration runs on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictedDevice {
    pub preset: &'static DevicePreset,
    /// The device in the form that rules use. It may contain the number of devices.
    pub facts: Device,
}

impl PredictedDevice {
    /// Creates a device from its preset alone.
    #[must_use]
    pub fn preset(preset: &'static DevicePreset) -> Self {
        Self { preset, facts: preset.device() }
    }
}

/// The input of a prediction.
#[derive(Clone, Debug)]
pub struct TwinQuestion<'a> {
    pub job: &'a Job,
    /// The study's own load, or another one.
    pub load: &'a LoadJob,
    /// Parameters of a trial. They include the study's fixed values, but not its engine arguments.
    pub config: Config,
    pub version: EngineVersion,
    pub device: PredictedDevice,
    pub host: HostLimits,
    pub knowledge: Knowledge<'a>,
    /// Share of the drafts, 0 to 1, that the model accepts. `None` takes the setting of the simulated engine, and means
    /// no speculation for other engines.
    pub acceptance: Option<f64>,
    /// Model of start-up times on this machine.
    pub startup_model: StartupModel,
    /// Caches that earlier starts have left.
    pub warm: WarmState,
}

/// The answer for one configuration.
#[derive(Clone, Debug)]
pub struct TwinPrediction {
    pub outcome: Outcome,
    pub score: Score,
    /// Details of the served load. `None` if the configuration is rejected.
    pub served: Option<ServedLoad>,
}

/// Details of a load that was served.
#[derive(Clone, Debug)]
pub struct ServedLoad {
    /// For each metric of the load, the range from 10 % to 90 % of the draws, widened by the noise between launches. It
    /// contains the predicted value.
    pub intervals: BTreeMap<&'static str, (f64, f64)>,
    /// The number of drawn runs behind the intervals.
    pub draws: u64,
    pub limits: LoadLimits,
    /// The highest load within the limits. `None` if the study has no limit on a metric that the twin predicts.
    pub highest: Option<PredictedHighest>,
    /// Metrics of the objective and of its limits that the twin does not predict. Limits on them are left out.
    pub unknown: Vec<String>,
    pub series: BatchSeries,
    /// The resolved values of one engine.
    pub resolved: ResolvedConfig,
    /// Number of KV cache blocks of one engine, its own reserve included.
    pub blocks: u32,
    /// Number of data-parallel engines.
    pub replicas: u64,
    /// The estimated start-up time. `None` for the simulated engine, whose start takes a configured time.
    pub startup: Option<StartForecast>,
}

/// A load that cannot be predicted.
#[derive(Debug, thiserror::Error)]
pub enum PredictError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Request(#[from] AddError),
}

impl PredictError {
    /// Returns a hint on what to do next, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Load(error) => error.hint(),
            Self::Settings(_) => None,
            Self::Request(_) => Some("raise max-model-len, or use shorter requests in [workload]"),
        }
    }
}

/// Limits on the computation of one prediction. The unit of cost is one sequence in one step, about 100 ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Effort {
    draws: u64,
    searches: usize,
    most_requests: u32,
}

/// The largest number of draws, and the smallest, which applies at any cost.
const DRAWS: (u64, u64) = (16, 4);
/// Highest cost of all draws together.
const MAX_DRAW_COST: u64 = 20_000_000;
/// Highest cost of one run of a search. The central search has about 20 runs. The searches of two or three draws
/// together have as many.
const MAX_SEARCH_COST: u64 = 200_000;
/// Smallest limit on the requests of one run of a search, so that its tail percentiles are meaningful.
const LEAST_REQUESTS: u64 = 200;

impl Effort {
    /// Derives the effort from the cost of one run. In a large batch a request costs little more than its number of
    /// output tokens.
    fn of(cost: u64, measurement: Option<&Measurement>) -> Self {
        let (most, least) = DRAWS;
        let tokens = measurement.map_or(cost, |run| run.total_output_tokens / run.completed.max(1));
        let each = tokens.max(1) + 4;
        let draws = (MAX_DRAW_COST / cost.max(1)).clamp(least, most);
        let most_requests = (MAX_SEARCH_COST / each).max(LEAST_REQUESTS);
        let searches = if each * LEAST_REQUESTS > MAX_SEARCH_COST { 4 } else { 8 };
        Self { draws, searches, most_requests: u32::try_from(most_requests).unwrap_or(u32::MAX) }
    }
}

/// Predicts one configuration, within a few seconds for usual loads. It runs the load once with the expected step times
/// and 4 to 16 times with drawn ones for the intervals. Runs with fewer requests find the highest load.
///
/// # Errors
/// If the load cannot be driven, or one of its requests is longer than the engine accepts. A configuration that is
/// rejected, or fails under its load, is no error but a [`TwinPrediction`].
pub fn predict(question: &TwinQuestion<'_>) -> Result<TwinPrediction, PredictError> {
    let (job, load) = (question.job, question.load);
    let setup = match TwinSetup::resolve(question) {
        Ok(setup) => setup,
        Err(rejection) => return Ok(rejected(rejection)),
    };
    let script = PromptScript::new(std::sync::Arc::clone(&job.workload.source));
    let central = question.knowledge.expected();
    let ran = run::run(&setup, &script, load, job.seed, &central)?;
    let effort = Effort::of(ran.cost, ran.outcome.measurement());
    let mut drawn: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for number in 1..=effort.draws {
        let drawn_run = run::run(&setup, &script, load, job.seed, &question.knowledge.draw(number))?;
        let Some(measurement) = drawn_run.outcome.measurement() else { continue };
        for name in Measurement::NAMES {
            if let Some(value) = measurement.metric(name) {
                drawn.entry(name).or_default().push(value);
            }
        }
    }
    let (objective, unknown) = without_unpredicted_limits(&job.objective, &ran.outcome);
    let limits: Vec<Constraint> = objective.limits().cloned().collect();
    let highest = if limits.is_empty() && load.goodput.is_empty() {
        None
    } else {
        let search = highest_load::TwinLoadSearch {
            setup: &setup,
            script: &script,
            load,
            seed: job.seed,
            limits: &limits,
            most_requests: effort.most_requests,
        };
        // Each draw represents another launch. The noise between launches scales all of its step times.
        Some(search.find(&central, (1..=effort.draws).map(|number| question.knowledge.launch(number)), &effort)?)
    };
    let outcome = match (ran.outcome, &highest) {
        (Outcome::Measured(measurement), Some(highest)) if objective.load_goal.is_some() => {
            Outcome::Measured(Measurement { load_curve: Some(highest.curve()), ..measurement })
        }
        (outcome, _) => outcome,
    };
    let score = objective.score(&outcome);
    let measured = outcome.measurement();
    let intervals = drawn.into_iter().filter_map(|(name, values)| {
        let drawn = interval(values)?;
        let range = measured.and_then(|measured| measured.metric(name)).map_or(drawn, |value| {
            let (low, high) = containing(drawn, value);
            question.knowledge.noise().map_or((low, high), |noise| noise.widen(name, value, (low, high)))
        });
        Some((name, range))
    });
    let mut intervals: BTreeMap<_, _> = intervals.collect();
    if let Some(range) = highest.as_ref().filter(|_| objective.load_goal.is_some()).and_then(|highest| highest.interval)
    {
        intervals.insert(Measurement::LOAD_UNDER_SLO, range);
    }
    let served = ServedLoad {
        intervals,
        draws: effort.draws,
        limits: LoadLimits::find(&ran.observations, &setup),
        highest,
        unknown,
        series: ran.series,
        resolved: setup.settings.resolved,
        blocks: setup.memory.blocks,
        replicas: setup.replicas as u64,
        startup: setup.start.as_ref().map(|start| question.startup_model.predict(start)),
    };
    Ok(TwinPrediction { outcome, score, served: Some(served) })
}

fn rejected(rejection: Rejection) -> TwinPrediction {
    TwinPrediction { outcome: Outcome::Rejected(rejection), score: Score::Failed, served: None }
}

/// Returns the objective without limits on metrics that the twin does not predict, and the names of those metrics.
fn without_unpredicted_limits(objective: &Objective, outcome: &Outcome) -> (Objective, Vec<String>) {
    let Some(measurement) = outcome.measurement() else { return (objective.clone(), Vec::new()) };
    let is_known = |name: &str| measurement.metric(name).is_some() || Measurement::NAMES.contains(&name);
    let load_goal = objective.load_goal.clone().map(|goal| {
        let limits = goal.limits.iter().filter(|limit| is_known(&limit.metric)).cloned().collect();
        Box::new(LoadGoal { limits, ..*goal })
    });
    let of_load = objective.load_goal.iter().flat_map(|goal| &goal.limits).map(|limit| &limit.metric);
    let unknown_load: Vec<String> = of_load.filter(|name| !is_known(name)).cloned().collect();
    let (constraints, unknown): (Vec<Constraint>, Vec<Constraint>) =
        objective.constraints.iter().cloned().partition(|constraint| is_known(&constraint.metric));
    let unknown = unknown.into_iter().map(|constraint| constraint.metric);
    let own = Some(objective.metric.clone()).filter(|metric| !is_known(metric));
    (Objective { constraints, load_goal, ..objective.clone() }, unknown.chain(unknown_load).chain(own).collect())
}

/// Returns the 10th and the 90th percentile, `None` for fewer than three values.
fn interval(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let of = |percent| percentile(&values, percent);
    (values.len() >= 3).then(|| Some((of(10.0)?, of(90.0)?))).flatten()
}

/// Widens a range so that it contains a value. The predicted value belongs to the range, even if all of the few draws
/// are on one side of it.
fn containing((low, high): (f64, f64), value: f64) -> (f64, f64) {
    (low.min(value), high.max(value))
}

/// Compares two predictions by an objective; the better one is less. Feasible ones come first, then infeasible ones by
/// their violation, then failed ones.
#[must_use]
pub fn compare(objective: &Objective, a: &TwinPrediction, b: &TwinPrediction) -> Ordering {
    let key = |prediction: &TwinPrediction| match prediction.score {
        Score::Feasible { value } => (0, -objective.gain(value, 1.0)),
        Score::Infeasible { violation, .. } => (1, violation),
        Score::Failed => (2, 0.0),
    };
    let (a, b) = (key(a), key(b));
    a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
}
