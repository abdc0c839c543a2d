//! Estimate of a study's duration, from earlier trials with this model or else from rough figures.

use super::Slots;
use crate::config::Config;
use crate::cost::typical_start_s;
use crate::execution::ExecutionEnvironment;
use crate::facts::{Device, HostLimits};
use crate::job::{Job, LoadJob, WorkloadPart};
use crate::load::ArrivalPattern;
use crate::predict::{ForecastSpan, JobForecaster, Knowledge, PredictedDevice, TwinQuestion};
use crate::stats::median;
use crate::store::{ScoredTrial, Store, StoreError};
use crate::trial::{Origin, Outcome};
use crate::twin::{Calibration, StartConditions, StartupModel, WarmState};

/// The estimated cost of a study.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StudyEstimate {
    /// Launches still to come, if the budget or the space limits them.
    pub launches: Option<u32>,
    /// The number of successive rounds of concurrent launches. It is below `launches` if several launches run at a
    /// time.
    pub rounds: Option<u32>,
    /// Seconds of one launch until the engine is ready.
    pub startup_s: f64,
    /// Seconds of one launch from then on: warm-up, measured requests and stop.
    pub load_s: f64,
    /// The budget's time, in seconds.
    pub limit_s: Option<f64>,
    pub source: FigureSource,
    /// The study's launches so far.
    pub finished: FinishedLaunches,
}

/// The number of finished launches, and their total duration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FinishedLaunches {
    pub launches: u32,
    pub total_s: f64,
}

/// The source of an estimate's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FigureSource {
    /// The median of the study's measured trials, with their number.
    Study(usize),
    /// The median of the measured trials of other studies with this model and engine, with their number. The time under
    /// load is scaled by the number of requests.
    Model(usize),
    /// The twin's preset of the device, without calibration.
    Twin(&'static str),
    /// Rough figures of the engine and the device.
    Guess,
}

impl StudyEstimate {
    /// Returns the total seconds, if the launches or the time are limited.
    #[must_use]
    pub fn total_s(&self) -> Option<f64> {
        let launches = self.rounds.map(|rounds| f64::from(rounds) * (self.startup_s + self.load_s));
        match (launches, self.limit_s) {
            (Some(launches), Some(limit)) => Some(launches.min(limit)),
            (launches, limit) => launches.or(limit),
        }
    }

    /// Returns the share of start-up in a launch, from 0 to 1.
    #[must_use]
    pub fn startup_share(&self) -> f64 {
        self.startup_s / (self.startup_s + self.load_s).max(f64::MIN_POSITIVE)
    }
}

/// Seconds of start-up, and seconds under load.
type Cost = (f64, f64);

/// Estimates the remaining cost of a study. `configurations` is the size of the space, if it can be counted. `store` is
/// the database, if there is one.
///
/// # Errors
/// If the database cannot be read.
pub async fn estimate(
    job: &Job,
    installed: &ExecutionEnvironment,
    slots: &Slots,
    configurations: Option<usize>,
    store: Option<&Store>,
) -> Result<StudyEstimate, StoreError> {
    let (mut own, mut others, mut done) = (Vec::new(), Vec::new(), FinishedCounts::default());
    let mut taken = FinishedLaunches::default();
    if let Some(store) = store {
        let definition = job.definition();
        for (study, _) in store.studies().await? {
            let same = |key: &str| study.definition.pointer(key) == definition.pointer(key);
            if study.definition == definition && study.name == job.name {
                let trials = store.trials(&study).await?;
                done = FinishedCounts::of(&trials);
                taken = FinishedLaunches::of(&trials);
                own = costs(&trials, 1.0);
            } else if same("/model") && same("/engine/kind") {
                let count = |key: &str| study.definition.pointer(key).and_then(serde_json::Value::as_f64);
                let requests = count("/load/requests").zip(count("/load/warmup")).map(|(a, b)| a + b);
                let scale = requests.map_or(1.0, |then| f64::from(requests_of(job)) / then.max(1.0));
                others.append(&mut costs(&store.trials(&study).await?, scale));
            }
        }
    }
    let (source, (startup_s, load_s)) = match (median_cost(&own), median_cost(&others)) {
        (Some(cost), _) => (FigureSource::Study(own.len()), cost),
        (None, Some(cost)) => (FigureSource::Model(others.len()), cost),
        (None, None) => match simulate(job, installed) {
            Some((preset, cost)) => (FigureSource::Twin(preset), cost),
            None => (FigureSource::Guess, guess(job, installed.device)),
        },
    };
    // The defaults, the deployment and the start points come on top of the space. A confirmation measures the winner and
    // the baselines again.
    let search = job.search(installed.version, installed.device, installed.host);
    let first_points = search.first_points();
    let confirmation = job.budget.confirmation_launches(job.budget.trials, search.launches_per_round())
        + job.budget.ablation_launches(job.budget.trials);
    let repeats = job.budget.baseline_launches(job.budget.trials, 0) - 1;
    let most = configurations.map(|count| u32::try_from(count + 1 + first_points.len()).unwrap_or(u32::MAX));
    let most = most.map(|count| count.saturating_add(confirmation + repeats));
    let launches = match (job.budget.trials, most) {
        (Some(trials), Some(most)) => Some(trials.min(most)),
        (trials, most) => trials.or(most),
    };
    let launches = launches.map(|launches| launches.saturating_sub(done.budgeted));
    let limit_s = job.budget.time.map(|time| time.as_secs_f64());
    let at_a_time = u32::try_from(slots.parallel()).unwrap_or(u32::MAX);
    let has_deployment = first_points.first().is_some_and(|(origin, _)| *origin == Origin::Deployment);
    let alone = u32::from(done.budgeted == 0) + u32::from(has_deployment && done.budgeted < 2) + repeats + confirmation;
    let rounds = launches.map(|launches| rounds(launches, alone, at_a_time, done.interference < at_a_time));
    Ok(StudyEstimate { launches, rounds, startup_s, load_s, limit_s, source, finished: taken })
}

/// The numbers of finished launches of a study.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FinishedCounts {
    /// Launches that count for its budget.
    budgeted: u32,
    /// Interference trials.
    interference: u32,
}

impl FinishedCounts {
    fn of(trials: &[ScoredTrial]) -> Self {
        let launched = trials.iter().map(|scored| &scored.trial);
        let launched = launched.filter(|trial| !matches!(trial.outcome, Outcome::Rejected(_)));
        launched.fold(Self::default(), |done, trial| match trial.proposal.origin {
            Origin::Probe | Origin::LiveLook => done,
            Origin::Interference => Self { interference: done.interference + 1, ..done },
            _ => Self { budgeted: done.budgeted + 1, ..done },
        })
    }
}

impl FinishedLaunches {
    fn of(trials: &[ScoredTrial]) -> Self {
        let launched = trials.iter().map(|scored| &scored.trial);
        let launched = launched.filter(|trial| !matches!(trial.outcome, Outcome::Rejected(_)));
        launched.fold(Self::default(), |taken, trial| Self {
            launches: taken.launches + u32::from(trial.proposal.server_of.is_none()),
            total_s: taken.total_s + trial.elapsed_s,
        })
    }
}

/// Returns the number of rounds of `launches`. `alone` launches have the host to themselves. `crowd` adds one round for
/// the interference trials.
fn rounds(launches: u32, alone: u32, at_a_time: u32, crowd: bool) -> u32 {
    let alone = alone.min(launches);
    let together = (launches - alone).div_ceil(at_a_time.max(1));
    alone + together + u32::from(crowd && at_a_time > 1 && together > 0)
}

fn requests_of(job: &Job) -> u32 {
    job.parts().iter().map(|part| requests_under(part.load)).sum()
}

fn requests_under(load: &LoadJob) -> u32 {
    // A ramp, or a trace over a time, has no fixed number of requests. This number fills the concurrency many times.
    load.total().unwrap_or(1000)
}

fn costs(trials: &[ScoredTrial], scale: f64) -> Vec<Cost> {
    let measured = trials.iter().map(|scored| &scored.trial).filter(|trial| trial.outcome.measurement().is_some());
    measured
        .filter_map(|trial| trial.startup_s.map(|startup| (startup, (trial.elapsed_s - startup).max(0.0) * scale)))
        .collect()
}

fn median_cost(costs: &[Cost]) -> Option<Cost> {
    Some((median(costs.iter().map(|cost| cost.0))?, median(costs.iter().map(|cost| cost.1))?))
}

/// The most requests of a simulated load. The duration of longer loads is scaled from it.
const MAX_SIMULATED_REQUESTS: u32 = 400;

/// Simulates a launch of the engine's defaults: seconds of its start and of its load, with the name of the device's
/// preset.
///
/// Returns `None` for the simulated engine, because its options are more exact. Also returns `None` for loads without a
/// number of requests, and if the twin does not know the device or the model.
fn simulate(job: &Job, installed: &ExecutionEnvironment) -> Option<(&'static str, Cost)> {
    if !job.engine.engine.runs_model() || job.engine.engine.twin().is_none() {
        return None;
    }
    let version = job.engine.version.unwrap_or_else(|| job.engine.engine.newest_release());
    let host = HostLimits::detect();
    let device = installed.device;
    let preset = installed.preset(job).ok()?;
    let fixed = &job.search_space().fixed;
    let unknown = Calibration::none();
    let mut load_s = 0.0;
    for part in job.parts() {
        let whole = part.load.requests?;
        let requests = whole.min(MAX_SIMULATED_REQUESTS);
        let load = LoadJob { requests: Some(requests), ..part.load.clone() };
        let question = TwinQuestion {
            job,
            load: &load,
            config: fixed.clone(),
            version,
            device: PredictedDevice { preset, facts: device },
            host,
            knowledge: Knowledge::for_same_device(&unknown),
            acceptance: None,
            startup_model: StartupModel::default(),
            warm: WarmState::default(),
        };
        let outcome = JobForecaster::of_part(part).forecast(&question, ForecastSpan::Own, None).ok()?.outcome;
        let measured_s = outcome.measurement()?.duration_s;
        load_s += measured_s * f64::from(whole.saturating_add(load.warmup)) / f64::from(requests.max(1));
    }
    let at = ExecutionEnvironment { version, host, ..installed.clone() };
    Some((preset.name, (startup_s(job, &at, fixed), load_s)))
}

/// Predicts the seconds of a cold start by the twin's preset of the device. Without a preset or the size of the model's
/// weights the result is a rough figure. For the simulated engine it is the start-up time that the study sets.
pub(super) fn startup_s(job: &Job, installed: &ExecutionEnvironment, config: &Config) -> f64 {
    let preset = installed.preset(job).ok().filter(|_| job.engine.engine.runs_model());
    let start = preset.and_then(|preset| {
        let config = job.with_arguments(config, installed.version);
        let facts = job.facts(installed.version, installed.device, installed.host);
        StartConditions::new(&job.model.shape, &facts.memory_launch(&config)?, preset, WarmState::default()).ok()
    });
    start.map_or_else(|| guess(job, installed.device).0, |start| typical_start_s(&StartupModel::default(), &start))
}

/// Seconds until an engine is ready, and seconds per token of a stream. These are rough figures for a model of some
/// billion weights on a present GPU, and for a small one on a CPU.
const ROUGH_GPU: (f64, f64) = (90.0, 0.025);
const ROUGH_CPU: (f64, f64) = (45.0, 0.1);
/// The simulated engine starts at once. The time per token is that of its smallest device, busy with a model that fits.
const ROUGH_SIM: (f64, f64) = (0.5, 0.1);

fn guess(job: &Job, device: Device) -> Cost {
    let simulated = !job.engine.engine.runs_model();
    let (startup, token) = match device {
        _ if simulated => ROUGH_SIM,
        Device::Cpu => ROUGH_CPU,
        Device::Cuda(_) => ROUGH_GPU,
    };
    // The study's arguments of the simulated engine are exact.
    let given = job.engine.engine.simulated(&job.engine.args);
    let startup = given.map_or(startup, |given| given.startup_s);
    let token = token / given.map_or(1.0, |given| given.time_scale);
    (startup, job.parts().into_iter().map(|part| guess_load_s(part, token)).sum())
}

/// Returns rough seconds of one workload's load, with these seconds per token.
fn guess_load_s(WorkloadPart { workload, load, .. }: WorkloadPart<'_>, token: f64) -> f64 {
    let requests = requests_under(load);
    let rounds = requests.div_ceil(load.concurrency.unwrap_or(requests).max(1));
    let arrivals = match load.arrival {
        ArrivalPattern::Rate { per_s, .. } => f64::from(requests) / per_s,
        _ => 0.0,
    };
    let taken = (f64::from(rounds) * workload.mean_output() * token).max(arrivals);
    load.duration.map_or(taken, |limit| taken.min(limit.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::Score;
    use crate::trial::{Failure, FailureKind, Measurement, Rejection, Trial};

    #[test]
    fn the_total_is_the_smaller_of_both_limits() {
        let estimate = |launches, limit_s| {
            let (source, taken) = (FigureSource::Guess, FinishedLaunches::default());
            StudyEstimate {
                launches,
                rounds: launches,
                startup_s: 30.0,
                load_s: 10.0,
                limit_s,
                source,
                finished: taken,
            }
            .total_s()
        };
        assert_eq!(estimate(Some(10), None), Some(400.0));
        assert_eq!(estimate(Some(10), Some(100.0)), Some(100.0));
        assert_eq!(estimate(Some(10), Some(1000.0)), Some(400.0));
        assert_eq!(estimate(None, Some(1000.0)), Some(1000.0));
    }

    #[test]
    fn several_launches_at_a_time_take_a_round_and_those_alone_one_each() {
        assert_eq!(rounds(40, 3, 1, true), 40);
        assert_eq!(rounds(40, 3, 8, true), 3 + 1 + 5);
        assert_eq!(rounds(37, 2, 8, false), 2 + 5, "it is known what neighbours cost");
        assert_eq!((rounds(1, 1, 8, true), rounds(0, 1, 8, true), rounds(2, 1, 8, true)), (1, 0, 3));
    }

    #[test]
    fn launches_outside_of_the_budget_do_not_reduce_it() {
        let scored = |origin: &'static str, outcome| ScoredTrial {
            trial: Trial::example(0, origin, outcome),
            score: Score::Failed,
        };
        let measured = || Outcome::Measured(Measurement::default());
        let failed = Outcome::Failed(Failure { kind: FailureKind::Crash, message: String::new() });
        let rejected = Outcome::Rejected(Rejection { rule: "R1".to_owned(), message: String::new() });
        let trials = [
            scored("baseline", measured()),
            scored("interference", measured()),
            scored("interference", failed.clone()),
            scored("sobol", rejected),
            scored("sobol", failed),
        ];
        assert_eq!(FinishedCounts::of(&trials), FinishedCounts { budgeted: 2, interference: 2 });
        // Every launch took its time.
        assert_eq!(FinishedLaunches::of(&trials), FinishedLaunches { launches: 4, total_s: 4.0 });
    }

    #[test]
    fn the_usual_cost_is_a_median() {
        assert_eq!(median_cost(&[(1.0, 9.0), (2.0, 8.0), (60.0, 7.0)]), Some((2.0, 8.0)));
        assert_eq!(median_cost(&[]), None);
    }
}
