//! Benchmark of the search for the highest load within limits, against the truth by brute force.
//!
//! ```text
//! cargo run --release --example load_search_benchmark -- [SEEDS] [CASE]
//! ```
//!
//! `CASE` is a part of the name of the only case.
//!
//! Each seed has requests, arrivals and a launch of its own: the machine is slower or faster by 3 % (one standard
//! deviation). The truth is found by bisection on the same launch: the highest load at which the limited metric keeps its
//! limit in the mean over four loads with other requests. The search begins at the truth, moved by a random factor of up
//! to 1.5 in either direction. It runs on the twin in virtual time, with the code of measured loads.

use std::path::Path;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use setpoint::config::Config;
use setpoint::execution::{ExecutionEnvironment, detect};
use setpoint::job::Job;
use setpoint::load::ArrivalPattern;
use setpoint::objective::{Constraint, MetricLimit};
use setpoint::predict::{JobForecaster, Knowledge, PredictedDevice, TwinQuestion};
use setpoint::stats::to_f64;
use setpoint::trial::{LoadCurve, Measurement};
use setpoint::twin::{Calibration, DevicePreset, StartupModel, WarmState};

type Failure = Box<dyn std::error::Error>;

const STUDY: &str = "examples/load-under-slo.toml";

/// The largest error of a right answer, as a share of the truth.
const MAX_ERROR: f64 = 0.05;

/// The largest factor between the truth and the begin of a search.
const MAX_FACTOR: f64 = 1.5;

/// The longest time of a load at a rate: 1200 s of the simulated engine's time.
const OPEN_LENGTH: Duration = Duration::from_mins(1);

/// Standard deviation of a launch's speed.
const LAUNCH_NOISE: f64 = 0.03;

/// Loads at each level of the truth, and the precision of the bisection.
const TRUTH_LOADS: u64 = 4;
const TRUTH_PRECISION: f64 = 0.005;

/// One kind of search.
struct Case {
    name: &'static str,
    max_num_seqs: i64,
    /// Sessions per second; `None`: users.
    rate: Option<f64>,
    metric: &'static str,
    at_most: f64,
}

const CASES: [Case; 4] = [
    Case { name: "users, smooth", max_num_seqs: 256, rate: None, metric: "p95_tpot_ms", at_most: 4.5 },
    Case { name: "users, cliff", max_num_seqs: 32, rate: None, metric: "p95_ttft_ms", at_most: 300.0 },
    Case { name: "rate, smooth", max_num_seqs: 256, rate: Some(60.0), metric: "mean_tpot_ms", at_most: 4.5 },
    Case { name: "rate, cliff", max_num_seqs: 16, rate: Some(60.0), metric: "p95_ttft_ms", at_most: 100.0 },
];

/// The result of one search.
struct SearchResult {
    truth: f64,
    curve: LoadCurve,
    load_s: f64,
}

/// Returns the study of a case with these requests. `is_search`: with a search, else with one load and its limit.
fn job(case: &Case, seed: u64, is_search: bool) -> Result<Job, Failure> {
    let mut job = Job::read(Path::new(STUDY))?;
    job.reseed(seed)?;
    if let Some(per_s) = case.rate {
        job.load.arrival = ArrivalPattern::Rate { per_s, burstiness: 1.0 };
        (job.load.concurrency, job.load.warmup) = (None, 1);
        // The queue of an open loop needs many requests.
        job.load.duration = Some(OPEN_LENGTH);
    }
    let limit = Constraint { metric: case.metric.to_owned(), limit: MetricLimit::AtMost(case.at_most) };
    if is_search {
        let goal = job.objective.load_goal.as_mut().ok_or("the study has no search")?;
        goal.limits = vec![limit];
    } else {
        job.objective.load_goal = None;
        job.load.race = false;
    }
    Ok(job)
}

fn question<'a>(
    job: &'a Job,
    case: &Case,
    installed: &ExecutionEnvironment,
    calibration: &'a Calibration,
) -> Result<TwinQuestion<'a>, Failure> {
    let fixed: Config = job.search_space().fixed.clone();
    Ok(TwinQuestion {
        job,
        load: &job.load,
        config: fixed.with("max-num-seqs", case.max_num_seqs),
        version: installed.version,
        device: PredictedDevice { preset: DevicePreset::find("l4").ok_or("no preset")?, facts: installed.device },
        host: installed.host,
        knowledge: Knowledge::for_same_device(calibration),
        acceptance: None,
        startup_model: StartupModel::default(),
        warm: WarmState::default(),
    })
}

/// Returns the highest load within the limit by bisection.
fn truth(case: &Case, installed: &ExecutionEnvironment, slowness: f64, seed: u64) -> Result<f64, Failure> {
    let jobs: Vec<Job> = (0..TRUTH_LOADS).map(|load| job(case, seed + load, false)).collect::<Result<_, _>>()?;
    let calibration = Calibration::none();
    let forecasters: Vec<JobForecaster> = jobs.iter().map(JobForecaster::new).collect();
    let holds = |level: f64| -> Result<bool, Failure> {
        let mut sum = 0.0;
        for (job, forecaster) in jobs.iter().zip(&forecasters) {
            let load = job.load.at_level(level, u32::MAX);
            let question = TwinQuestion { load: &load, ..question(job, case, installed, &calibration)? };
            let outcome = forecaster.forecast_slowed(&question, slowness, None)?.outcome;
            let ended =
                |measurement: &&Measurement| measurement.window.as_ref().is_none_or(|window| !window.overloaded);
            let value = outcome.measurement().filter(ended).and_then(|measurement| measurement.metric(case.metric));
            sum += value.map_or(f64::INFINITY, libm::log);
        }
        Ok(sum / to_f64(TRUTH_LOADS) <= libm::log(case.at_most))
    };
    let (mut low, mut high) = (1.0, 2.0);
    while holds(high)? {
        (low, high) = (high, high * 2.0);
    }
    let is_whole = case.rate.is_none();
    while if is_whole { high - low > 1.0 } else { high / low > 1.0 + TRUTH_PRECISION } {
        let middle: f64 = f64::midpoint(low, high);
        let middle = if is_whole { middle.floor() } else { middle };
        *(if holds(middle)? { &mut low } else { &mut high }) = middle;
    }
    Ok(f64::midpoint(low, high))
}

fn search(case: &Case, installed: &ExecutionEnvironment, seed: u64) -> Result<SearchResult, Failure> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = || rng.random_range(-1.0..1.0_f64);
    // A sum of twelve uniform numbers is nearly normal, with a variance of 4.
    let noise = (0..12).map(|_| uniform()).sum::<f64>() / 2.0;
    let (slowness, factor) = (libm::exp(LAUNCH_NOISE * noise), libm::exp(uniform() * libm::log(MAX_FACTOR)));
    let truth = truth(case, installed, slowness, seed + 1_000_000)?;
    let job = job(case, seed, true)?;
    let calibration = Calibration::none();
    let question = question(&job, case, installed, &calibration)?;
    let found = JobForecaster::new(&job).forecast_slowed(&question, slowness, Some(truth * factor))?;
    let measurement = found.outcome.measurement().ok_or_else(|| format!("{:?}", found.outcome))?;
    let curve = measurement.load_curve.clone().ok_or("the measurement has no curve")?;
    Ok(SearchResult { truth, curve, load_s: found.load_s })
}

/// The results of the seeds of one case.
#[derive(Default)]
struct Tally {
    errors: Vec<f64>,
    covered: u32,
    cliffs: u32,
    probes: Vec<usize>,
    load_s: f64,
}

impl Tally {
    /// Adds a result. Returns its error if it is not right.
    fn add(&mut self, result: &SearchResult) -> Option<f64> {
        let (truth, found) = (result.truth, result.curve.highest);
        let error = found.value / truth - 1.0;
        self.errors.push(error.abs());
        let is_covered = found.low.is_some_and(|low| low <= truth) && found.high.is_some_and(|high| truth <= high);
        self.covered += u32::from(is_covered);
        self.cliffs += u32::from(found.cliff);
        self.probes.push(result.curve.probes.len());
        self.load_s += result.load_s;
        Some(error).filter(|error| error.abs() > MAX_ERROR)
    }

    fn row(&mut self, name: &str) -> String {
        self.errors.sort_by(f64::total_cmp);
        let (seeds, errors) = (to_f64(self.errors.len()), &self.errors);
        let within = errors.iter().filter(|error| **error <= MAX_ERROR).count();
        let (all, most): (usize, _) = (self.probes.iter().sum(), self.probes.iter().max().copied().unwrap_or(0));
        let at = |place: usize| errors.get(place).map_or(0.0, |error| error * 100.0);
        format!(
            "{name:<14} {within:>8} {:>8} {:>7.2} {most:>7} {:>7.1} % {:>7.1} % {:>8} {:>8.1}",
            self.covered,
            to_f64(all) / seeds,
            at(errors.len() / 2),
            at(errors.len().saturating_sub(1)),
            self.cliffs,
            self.load_s / seeds,
        )
    }
}

#[expect(clippy::print_stdout, reason = "the output of the benchmark")]
fn main() -> Result<(), Failure> {
    let seeds: u64 = std::env::args().nth(1).map_or(Ok(20), |seeds| seeds.parse())?;
    let chosen = std::env::args().nth(2).unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("case             within  covered  probes    most    median     worst   cliffs  seconds");
    for case in CASES.iter().filter(|case| case.name.contains(&chosen)) {
        let installed = runtime.block_on(detect(&job(case, 0, true)?));
        let mut tally = Tally::default();
        for seed in 0..seeds {
            let result = search(case, &installed, seed)?;
            let (found, truth) = (result.curve.highest.value, result.truth);
            if let Some(error) = tally.add(&result) {
                println!("{} seed {seed}: {found:.2} instead of {truth:.2} ({:+.1} %)", case.name, error * 100.0);
            }
        }
        println!("{}", tally.row(case.name));
    }
    Ok(())
}
