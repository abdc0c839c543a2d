//! Benchmark of the twin's prior on machines that differ from its presets.
//!
//! ```text
//! cargo run --release --example calibrated_prior_benchmark -- [SEEDS] [STUDY.toml ...]
//! ```
//!
//! Each seed is a machine: every term of its step time is longer or shorter by a factor of up to 4/3, drawn evenly on a
//! logarithmic scale (`--sim-physics`). Each study runs on it in virtual time with the default sampler: without a prior,
//! with the twin's prior as it is, and with the prior that the trials calibrate. The regret after a trial is the distance
//! of the best feasible configuration so far from the best of all runs on this machine, as a share. One of these runs is
//! a Sobol sequence of 200 trials. The regret without a feasible configuration is 1.

use std::path::Path;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use setpoint::execution::detect;
use setpoint::job::Job;
use setpoint::objective::Score;
use setpoint::sampler;
use setpoint::stats::to_f64;
use setpoint::store::{ScoredTrial, Store};
use setpoint::tuner::{SimulatedStudy, Slots};
use setpoint::twin::TermFactor;

type Failure = Box<dyn std::error::Error>;

const STUDIES: [&str; 2] = ["examples/calibrated_prior/offline.toml", "examples/calibrated_prior/chat.toml"];

/// The largest factor on a term, in either direction.
const MAX_FACTOR: f64 = 4.0 / 3.0;

/// Trials after which the table shows the regret.
const SHOWN: [usize; 4] = [3, 5, 10, 30];

/// Trials of the Sobol sequence.
const REFERENCE_TRIALS: u32 = 200;

/// A kind of prior.
#[derive(Clone, Copy)]
enum PriorMode {
    Absent,
    Fixed,
    Calibrated,
}

impl PriorMode {
    const ALL: [Self; 3] = [Self::Absent, Self::Fixed, Self::Calibrated];

    fn name(self) -> &'static str {
        match self {
            Self::Absent => "no prior",
            Self::Fixed => "prior of the preset",
            Self::Calibrated => "calibrated prior",
        }
    }

    fn apply(self, job: &mut Job) {
        match self {
            Self::Absent => job.priors.clear(),
            Self::Fixed => job.calibrate_prior = false,
            Self::Calibrated => {}
        }
    }
}

/// Returns the value `TERM=FACTOR,...` of a machine.
fn machine(seed: u64) -> String {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut term =
        |term: TermFactor| format!("{}={:.4}", term.name(), libm::exp(rng.random_range(-1.0..1.0) * MAX_FACTOR.ln()));
    TermFactor::ALL.map(&mut term).join(",")
}

/// Runs a study and returns the feasible value of each trial; larger is better.
async fn run(job: &Job) -> Result<Vec<Option<f64>>, Failure> {
    let store = Store::in_memory().await?;
    let mut installed = detect(job).await;
    let slots = Slots::resolve(job, &mut installed)?;
    let study = SimulatedStudy { job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
    let study = study.run().await?.summary.study;
    let trials = store.trials(&study).await?;
    let feasible = |scored: &ScoredTrial| match scored.score {
        Score::Feasible { value } => Some(value),
        _ => None,
    };
    Ok(trials.iter().map(feasible).collect())
}

/// Returns the best value of the first `count` trials.
fn best(values: &[Option<f64>], count: usize) -> Option<f64> {
    values.iter().take(count).flatten().copied().reduce(f64::max)
}

/// Returns the regrets of the three modes on the machine of a seed, at the shown trials.
async fn regrets(file: &Path, seed: u64) -> Result<[[f64; SHOWN.len()]; 3], Failure> {
    let study = || -> Result<Job, Failure> {
        let mut job = Job::read(file)?;
        job.reseed(seed)?;
        job.engine.args.extend(["--sim-physics".to_owned(), machine(seed)]);
        Ok(job)
    };
    let mut reference = study()?;
    reference.priors.clear();
    reference.sampler = sampler::find("sobol").ok_or("no sampler named sobol")?;
    reference.budget.trials = Some(REFERENCE_TRIALS);
    let reference = run(&reference).await?;
    let mut runs = Vec::new();
    for mode in PriorMode::ALL {
        let mut job = study()?;
        mode.apply(&mut job);
        runs.push(run(&job).await?);
    }
    let optimum = runs.iter().chain([&reference]).filter_map(|values| best(values, values.len())).reduce(f64::max);
    let optimum = optimum.ok_or("no run has a feasible configuration")?;
    let regret = |values: &[Option<f64>], count| best(values, count).map_or(1.0, |best| 1.0 - best / optimum);
    Ok(std::array::from_fn(|mode| SHOWN.map(|count| regret(&runs[mode], count))))
}

#[expect(clippy::print_stdout, reason = "the output of the benchmark")]
fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seeds: u64 = arguments.next().map_or(Ok(20), |seeds| seeds.parse())?;
    let mut studies: Vec<String> = arguments.collect();
    if studies.is_empty() {
        studies = STUDIES.map(str::to_owned).to_vec();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for file in &studies {
        println!("{file}: mean regret in percent after {SHOWN:?} trials, {seeds} machines");
        let mut sums = [[0.0; SHOWN.len()]; 3];
        for seed in 0..seeds {
            let found = runtime.block_on(regrets(Path::new(file), seed))?;
            for (sums, found) in sums.iter_mut().zip(found) {
                sums.iter_mut().zip(found).for_each(|(sum, regret)| *sum += regret);
            }
        }
        for (mode, sums) in PriorMode::ALL.into_iter().zip(sums) {
            let figures = sums.map(|sum| format!("{:>8.2}", 100.0 * sum / to_f64(seeds))).concat();
            println!("  {:<20}{figures}", mode.name());
        }
    }
    Ok(())
}
