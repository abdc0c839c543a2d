//! Benchmark of the search against an exhaustive sweep, on the real `llama-server`.
//!
//! ```text
//! examples/setup-llama-cpp.sh .llama-cpp
//! cargo run --release --example llama_cpp_sweep_benchmark [-- SWEEP.csv]
//! ```
//!
//! The sweep launches all 72 configurations of `examples/llama-cpp/sweep.toml` once. The search has 15 launches in the
//! same space. Then the five best configurations of the sweep and the winner of the search are launched in turn, in
//! rounds whose order moves by one place. Their medians are compared, because the best of 72 single measurements is
//! better than its configuration.
//!
//! With a path, the sweep is written as a table for `examples/optimizer_benchmark`.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use setpoint::config::Config;
use setpoint::execution::detect;
use setpoint::job::Job;
use setpoint::objective::Score;
use setpoint::sampler;
use setpoint::store::{ScoredTrial, Store};
use setpoint::trial::{Origin, Outcome};
use setpoint::tuner::{Slots, StopRequest, Tuner, preflight_setup};
use tokio::sync::watch;

type Failure = Box<dyn std::error::Error>;

const STUDY: &str = "examples/llama-cpp/sweep.toml";

/// The launches of the search, the defaults included.
const SEARCH: u32 = 15;

/// The configurations of the sweep that are launched again, and the rounds.
const BEST: usize = 5;
const ROUNDS: usize = 5;

const METRICS: [&str; 3] = ["output_throughput", "p99_ttft_ms", "p99_tpot_ms"];

/// Runs or resumes a study, and returns its trials.
async fn run(job: &Job, store: &Store) -> Result<Vec<ScoredTrial>, Failure> {
    let mut installed = detect(job).await;
    let slots = Slots::resolve(job, &mut installed)?;
    job.check_release(installed.version)?;
    let preflight = preflight_setup(job, &installed, store.path())?;
    let (_running, stop) = watch::channel(StopRequest::No);
    let observer = Arc::new(|_| {});
    let tuner = Tuner { job, store, installed, slots, accepts_change: false, preflight, observer, stop };
    let study = tuner.run().await?.study;
    Ok(store.trials(&study).await?)
}

fn value(scored: &ScoredTrial) -> Option<f64> {
    match scored.score {
        Score::Feasible { value } => Some(value),
        _ => None,
    }
}

/// Returns the measured configurations without the defaults, the best first.
fn ranked(trials: &[ScoredTrial]) -> Vec<(f64, Config)> {
    let of_space = trials.iter().filter(|scored| matches!(scored.trial.proposal.origin, Origin::Sampler(_)));
    let mut ranked: Vec<_> =
        of_space.filter_map(|scored| Some((value(scored)?, scored.trial.proposal.config.clone()))).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    ranked
}

/// Returns the sweep as CSV: the parameters and the metrics of each measured cell.
fn table(job: &Job, trials: &[ScoredTrial]) -> Result<String, Failure> {
    let names: Vec<_> = job.search_space().parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    let mut text = format!("{},{}\n", names.join(","), METRICS.join(","));
    for scored in trials.iter().filter(|scored| matches!(scored.trial.proposal.origin, Origin::Sampler(_))) {
        let Outcome::Measured(measurement) = &scored.trial.outcome else { continue };
        let config = &scored.trial.proposal.config;
        let levels = names.iter().map(|name| config.get(name).map_or_else(String::new, ToString::to_string));
        let values =
            METRICS.map(|name| measurement.metric(name).map_or_else(String::new, |value| format!("{value:.4}")));
        writeln!(text, "{}", levels.chain(values).collect::<Vec<_>>().join(","))?;
    }
    Ok(text)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the output of the benchmark")]
async fn main() -> Result<(), Failure> {
    let directory = std::env::temp_dir().join(format!("setpoint-sweep-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let path = directory.join("sweep.db");
    println!("database: {}", path.display());
    let store = Store::open(path.to_str().ok_or("a path in UTF-8")?, true).await?;
    let mut sweep = Job::read(Path::new(STUDY))?;
    let trials = run(&sweep, &store).await?;
    let cells = ranked(&trials);
    println!("sweep: {} cells, {:.1} to {:.1} tokens/s", cells.len(), cells[cells.len() - 1].0, cells[0].0);
    if let Some(file) = std::env::args().nth(1) {
        std::fs::write(&file, table(&sweep, &trials)?)?;
    }

    let mut search = Job::read(Path::new(STUDY))?;
    "llama-cpp-search".clone_into(&mut search.name);
    search.sampler = sampler::find("auto").ok_or("the default sampler")?;
    search.budget.trials = Some(SEARCH);
    let found = ranked(&run(&search, &store).await?);
    let winner = found.first().ok_or("the search has measured nothing")?.1.clone();
    println!("search: {SEARCH} launches, {winner}");

    let mut compared: Vec<Config> = cells.iter().take(BEST).map(|(_, config)| config.clone()).collect();
    compared.push(winner);
    let mut values = vec![Vec::new(); compared.len()];
    sweep.budget.trials = None;
    for round in 0..ROUNDS {
        for place in 0..compared.len() {
            let index = (place + round) % compared.len();
            sweep.repeat = Some(compared[index].clone());
            let last = run(&sweep, &store).await?.pop().ok_or("no trial")?;
            values[index].extend(value(&last));
        }
    }
    let medians: Vec<f64> = values.iter().map(|values| median(values.clone())).collect();
    for (index, config) in compared.iter().enumerate() {
        let name = if index < BEST { format!("sweep {}", index + 1) } else { "search".to_owned() };
        let row: Vec<_> = values[index].iter().map(|value| format!("{value:>6.1}")).collect();
        println!("  {name:<8} {}   median {:.1}   {config}", row.join(" "), medians[index]);
    }
    let best = medians[..BEST].iter().copied().fold(f64::MIN, f64::max);
    println!("search / best of the sweep: {:.3}", medians[BEST] / best);
    store.close().await;
    Ok(())
}
