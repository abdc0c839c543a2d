//! Benchmark of the search for the first configuration that keeps tight limits.
//!
//! ```text
//! cargo run --release --example tight_limits_benchmark -- [SEEDS] [SAMPLER] [STUDY.toml ...]
//! ```
//!
//! Each study has limits that few configurations keep, and no prior. It runs in virtual time with the sampler (default:
//! `auto`). The table has the median trial of the first configuration within the limits, the share of runs without one,
//! and the mean regret: the distance of the best configuration within the limits from the best of all runs, as a share.
//! A run without such a configuration counts as one trial more than it had, with a regret of 1.

use std::path::Path;
use std::sync::Arc;

use setpoint::execution::detect;
use setpoint::job::Job;
use setpoint::objective::Score;
use setpoint::sampler;
use setpoint::stats::to_f64;
use setpoint::store::Store;
use setpoint::tuner::{SimulatedStudy, Slots};

type Failure = Box<dyn std::error::Error>;

const STUDIES: [&str; 3] =
    ["examples/tight_limits/offline.toml", "examples/tight_limits/chat.toml", "examples/tight_limits/rate.toml"];

/// The trials of one run.
struct SearchedLimits {
    /// The trial of the first configuration within the limits, counted from 1.
    first: usize,
    /// The best value within the limits.
    best: Option<f64>,
}

async fn run(job: &Job) -> Result<SearchedLimits, Failure> {
    let store = Store::in_memory().await?;
    let mut installed = detect(job).await;
    let slots = Slots::resolve(job, &mut installed)?;
    let study = SimulatedStudy { job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
    let study = study.run().await?.summary.study;
    let trials = store.trials(&study).await?;
    let feasible = trials.iter().enumerate().filter_map(|(index, scored)| match scored.score {
        Score::Feasible { value } => Some((index + 1, value)),
        _ => None,
    });
    let feasible: Vec<_> = feasible.collect();
    let first = feasible.first().map_or(trials.len() + 1, |(first, _)| *first);
    Ok(SearchedLimits { first, best: feasible.iter().map(|(_, value)| *value).reduce(f64::max) })
}

#[expect(clippy::print_stdout, reason = "the output of the benchmark")]
fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seeds: u64 = arguments.next().map_or(Ok(10), |seeds| seeds.parse())?;
    let name = arguments.next().unwrap_or_else(|| "auto".to_owned());
    let sampler = sampler::find(&name).ok_or_else(|| format!("no sampler named {name}"))?;
    let mut studies: Vec<String> = arguments.collect();
    if studies.is_empty() {
        studies = STUDIES.map(str::to_owned).to_vec();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("{name}, {seeds} seeds           first trial, median and mean  none    regret");
    for file in &studies {
        let mut runs = Vec::new();
        for seed in 0..seeds {
            let mut job = Job::read(Path::new(file))?;
            job.reseed(seed)?;
            job.sampler = sampler;
            runs.push(runtime.block_on(run(&job))?);
        }
        let optimum = runs.iter().filter_map(|run| run.best).reduce(f64::max).unwrap_or(f64::INFINITY);
        let mut firsts: Vec<usize> = runs.iter().map(|run| run.first).collect();
        firsts.sort_unstable();
        let mean = to_f64(firsts.iter().sum::<usize>()) / to_f64(runs.len());
        let none = runs.iter().filter(|run| run.best.is_none()).count();
        let regret: f64 = runs.iter().map(|run| run.best.map_or(1.0, |best| 1.0 - best / optimum)).sum();
        let (none, regret) = (to_f64(none) / to_f64(runs.len()), regret / to_f64(runs.len()));
        println!(
            "{file:<40} {:>6} {mean:>8.1} {:>7.0} % {:>6.2} %",
            firsts[firsts.len() / 2],
            100.0 * none,
            100.0 * regret
        );
    }
    Ok(())
}
