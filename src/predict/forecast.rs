//! Forecast by a single run of a load, without intervals and searches. It is cheap enough for hundreds of
//! configurations.

use std::time::Duration;

use super::run::{MeasuredSpan, RunResult};
use super::script::PromptScript;
use super::setup::TwinSetup;
use super::{PredictError, TwinQuestion, run};
use crate::job::{Job, LoadJob, WorkloadPart};
use crate::load::LoadRun;
use crate::load_search::{LoadSearch, LoadSearchStep};
use crate::metrics::RaceTarget;
use crate::objective::LoadGoal;
use crate::stats::to_f64;
use crate::trial::{Failure, MeasuredWindow, Measurement, Outcome, Replies, WorkloadMeasurement};
use crate::twin::Factors;

/// The measured part of a virtual run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForecastSpan {
    /// The load's own measurement window.
    Own,
    /// For a closed load with this number of users: from the end of the first `users` sessions to the last send. The
    /// start-up transient is over then, because each user has begun a second session. If fewer than `users / 2`
    /// requests are sent in this window, it is too short and the load's own window applies.
    Settled { users: u64 },
}

impl ForecastSpan {
    /// Returns the window of this span. `None` if the load's own window applies.
    pub(super) fn window(self, run: &LoadRun) -> Option<MeasuredWindow> {
        let Self::Settled { users } = self else { return None };
        let first = run.records.iter().filter(|record| record.session < users);
        let from: Duration = first.map(|record| record.end).max()?;
        let to: Duration = run.records.iter().map(|record| record.sent).max()?;
        let sent = run.records.iter().filter(|record| record.sent >= from).count();
        let is_long = from < to && (sent as u64).saturating_mul(2) >= users;
        let reason = format!("from the end of the first {users} sessions to the last send");
        let (from_s, to_s) = (from.as_secs_f64(), to.as_secs_f64());
        is_long.then_some(MeasuredWindow { from_s, to_s, steady: true, reason, saved_s: None, overloaded: false })
    }
}

/// The result of one run.
#[derive(Clone, Debug)]
pub struct ForecastResult {
    pub outcome: Outcome,
    /// The cost of the computation, in units of about 100 ns. 0 for a rejection.
    pub cost: u64,
    /// The duration of the load with its warm-up, in seconds. 0 for a rejection.
    pub load_s: f64,
    /// The times of the requests of a launch on one workload at one load.
    pub replies: Option<Replies>,
}

/// Runs forecasts of one job. Its prompts are generated once for all runs.
#[derive(Debug)]
pub struct JobForecaster {
    parts: Vec<ForecastPart>,
}

/// One workload of a forecast.
#[derive(Debug)]
struct ForecastPart {
    /// `None` for the only workload of a job.
    name: Option<String>,
    script: PromptScript,
    /// The load of one of several workloads. `None`: that of the question.
    load: Option<LoadJob>,
}

impl JobForecaster {
    #[must_use]
    pub fn new(job: &Job) -> Self {
        Self::with_loads(job, |part| part.load.clone())
    }

    /// Like [`new`](Self::new), but with other loads of several workloads.
    #[must_use]
    pub fn with_loads(job: &Job, load: impl Fn(&WorkloadPart<'_>) -> LoadJob) -> Self {
        let part = |part: WorkloadPart<'_>| ForecastPart {
            name: part.name.map(str::to_owned),
            script: PromptScript::new(std::sync::Arc::clone(&part.workload.source)),
            load: part.name.map(|_| load(&part)),
        };
        Self { parts: job.parts().into_iter().map(part).collect() }
    }

    /// Creates a forecaster of one workload under the question's load.
    #[must_use]
    pub fn of_part(part: WorkloadPart<'_>) -> Self {
        let script = PromptScript::new(std::sync::Arc::clone(&part.workload.source));
        Self { parts: vec![ForecastPart { name: None, script, load: None }] }
    }

    /// Returns the outcome of one run of the question's load, or of the loads of all workloads. Each workload finds a new
    /// engine. A number in `draw` selects step times from the calibration's uncertainty, `None` the expected ones. The
    /// question must contain the job that this forecaster was created with.
    ///
    /// # Errors
    /// If a load cannot be driven, or one of its requests is longer than the engine accepts.
    pub fn forecast(
        &self,
        question: &TwinQuestion<'_>,
        span: ForecastSpan,
        draw: Option<u64>,
    ) -> Result<ForecastResult, PredictError> {
        let factors = draw.map_or_else(|| question.knowledge.expected(), |number| question.knowledge.draw(number));
        self.run(question, |_| MeasuredSpan::Forecast(span), &factors, 1.0, SearchHints::default())
    }

    /// Returns the outcome of one launch under the question's load, or those of all workloads, on a machine that takes
    /// `slowness` times as long as expected, for prompts, tokens and the front end alike. The watch of a load may end it
    /// early. `race` is the value that the load must be able to reach. `expected_load` is the highest load at which a
    /// search begins.
    ///
    /// # Errors
    /// If a load cannot be driven, or one of its requests is longer than the engine accepts.
    pub(crate) fn forecast_launch(
        &self,
        question: &TwinQuestion<'_>,
        slowness: f64,
        race: Option<&RaceTarget>,
        expected_load: Option<f64>,
    ) -> Result<ForecastResult, PredictError> {
        let watched = |load: &LoadJob| MeasuredSpan::Watched {
            watch: Box::new(load.watch_options(&question.job.objective, race.cloned())),
            keeps_replies: question.job.calibrate_prior,
        };
        let search = SearchHints { expected_load, floor: race.and_then(RaceTarget::floor) };
        self.run(question, watched, &question.knowledge.expected(), slowness, search)
    }

    /// Like [`forecast`](Self::forecast), on a machine that takes `slowness` times as long as expected, and with the watch
    /// of measured loads. A search for the highest load begins at `expected_load`, if it is given.
    ///
    /// # Errors
    /// If a load cannot be driven, or one of its requests is longer than the engine accepts.
    pub fn forecast_slowed(
        &self,
        question: &TwinQuestion<'_>,
        slowness: f64,
        expected_load: Option<f64>,
    ) -> Result<ForecastResult, PredictError> {
        self.forecast_launch(question, slowness, None, expected_load)
    }

    fn run(
        &self,
        question: &TwinQuestion<'_>,
        span: impl Fn(&LoadJob) -> MeasuredSpan,
        factors: &Factors,
        slowness: f64,
        hints: SearchHints,
    ) -> Result<ForecastResult, PredictError> {
        let setup = match TwinSetup::resolve(question) {
            Ok(setup) => TwinSetup { prior: setup.prior.clone().slowed(slowness), ..setup },
            Err(rejection) => {
                let outcome = Outcome::Rejected(rejection);
                return Ok(ForecastResult { outcome, cost: 0, load_s: 0.0, replies: None });
            }
        };
        if let (Some(goal), [part]) = (&question.job.objective.load_goal, &self.parts[..]) {
            let run = |load: &LoadJob, seed| run::run_over(span(load), &setup, &part.script, load, seed, factors);
            return search_load(question, goal, hints, run);
        }
        let (mut cost, mut load_s, mut workloads) = (0, 0.0, Vec::new());
        for part in &self.parts {
            let load = part.load.as_ref().unwrap_or(question.load);
            let ran = run::run_over(span(load), &setup, &part.script, load, question.job.seed, factors)?;
            cost += ran.cost;
            load_s += whole_length_s(load, &ran);
            match (&part.name, ran.outcome) {
                (Some(name), Outcome::Measured(measurement)) => {
                    workloads.push(WorkloadMeasurement { name: name.clone(), measurement });
                }
                (Some(name), Outcome::Failed(Failure { kind, message })) => {
                    let failure = Failure { kind, message: format!("workload {name}: {message}") };
                    return Ok(ForecastResult { outcome: Outcome::Failed(failure), cost, load_s, replies: None });
                }
                (_, outcome) => return Ok(ForecastResult { outcome, cost, load_s, replies: ran.replies }),
            }
        }
        let outcome = Outcome::Measured(Measurement::joint(workloads));
        Ok(ForecastResult { outcome, cost, load_s, replies: None })
    }
}

/// The first load of a search for the highest one, and the value that the result must be able to reach.
#[derive(Clone, Copy, Debug, Default)]
struct SearchHints {
    expected_load: Option<f64>,
    floor: Option<f64>,
}

/// Runs loads until the highest one within the limits is known, each on a new engine.
fn search_load(
    question: &TwinQuestion<'_>,
    goal: &LoadGoal,
    hints: SearchHints,
    run: impl Fn(&LoadJob, u64) -> Result<RunResult, PredictError>,
) -> Result<ForecastResult, PredictError> {
    let (own, mut cost, mut load_s) = (question.load, 0, 0.0);
    let mut search = LoadSearch::new(goal, own.search_range(goal, hints.expected_load), hints.floor);
    while let LoadSearchStep::Probe(level) = search.step() {
        let seed = question.job.seed.wrapping_add(search.measured());
        let load = own.at_level(level, u32::MAX);
        let ran = run(&load, seed)?;
        let seconds = whole_length_s(&load, &ran);
        cost += ran.cost;
        load_s += seconds;
        search.record(level, seconds, ran.outcome);
    }
    Ok(ForecastResult { outcome: search.finish(), cost, load_s, replies: None })
}

/// Returns the length of a load with its warm-up, whose requests take as long as the measured ones.
fn whole_length_s(load: &LoadJob, ran: &RunResult) -> f64 {
    ran.length.as_secs_f64() * (1.0 + f64::from(load.warmup) / to_f64(ran.ended.max(1)))
}
