//! Benchmark of live looks: the cost of a search until a launched configuration is within 5 % of the optimum.
//!
//! ```text
//! cargo run --release --example live_looks_benchmark -- [SEEDS] [STUDY.toml ...] [--trials]
//! ```
//!
//! Each study runs in virtual time with the default sampler: with launches alone, and with live looks that have a planted
//! bias (`--sim-live-bias`). A look costs a tenth of a launch. The cost is the time of launches and looks until a launched,
//! feasible configuration is within 5 % of the best one that any run of the seed has found; the whole time if there is
//! none. A seed decides prompts and arrivals, too, so that each has an optimum of its own. `--trials` prints every trial.

use std::path::Path;
use std::sync::Arc;

use setpoint::execution::detect;
use setpoint::job::Job;
use setpoint::objective::{Goal, Score};
use setpoint::stats::to_f64;
use setpoint::store::{ScoredTrial, Store};
use setpoint::tuner::{SimulatedStudy, Slots};

type Failure = Box<dyn std::error::Error>;

const STUDIES: [&str; 3] =
    ["examples/live_looks/offline.toml", "examples/live_looks/chat.toml", "examples/live_looks/rate.toml"];

/// The planted biases. All times of a look are longer by this share.
const BIASES: [f64; 6] = [0.0, 0.05, -0.05, 0.1, -0.1, 0.3];

/// Distance from the optimum, as a share.
const CLOSE: f64 = 0.05;

/// The trials of one run.
struct Run {
    /// The time until the end of each trial, and the feasible value of launches; larger is better.
    trials: Vec<(f64, Option<f64>)>,
    /// A line for each trial.
    lines: Vec<String>,
    looks: usize,
}

impl Run {
    fn best(&self) -> Option<f64> {
        self.trials.iter().filter_map(|(_, value)| *value).reduce(f64::max)
    }

    /// Returns the time until a value close to the optimum.
    fn cost(&self, optimum: f64) -> f64 {
        let is_close = |value: &f64| *value >= optimum - CLOSE * optimum.abs();
        let first = self.trials.iter().find(|(_, value)| value.as_ref().is_some_and(is_close));
        first.or(self.trials.last()).map_or(0.0, |(time, _)| *time)
    }
}

/// Runs a study with looks of this bias; `None` is a search by launches alone.
async fn run(file: &Path, seed: u64, bias: Option<f64>) -> Result<Run, Failure> {
    let mut job = Job::read(file)?;
    job.reseed(seed)?;
    if let Some(bias) = bias {
        job.engine.args.extend(["--sim-live-looks", "yes", "--sim-live-bias"].map(str::to_owned));
        job.engine.args.push(bias.to_string());
    }
    let store = Store::in_memory().await?;
    let mut installed = detect(&job).await;
    let slots = Slots::resolve(&job, &mut installed)?;
    let study = SimulatedStudy { job: &job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
    let study = study.run().await?.summary.study;
    let sign = if job.objective.goal == Goal::Maximize { 1.0 } else { -1.0 };
    let mut time = 0.0;
    let mut looks = 0;
    let mut row = |scored: ScoredTrial| {
        time += scored.trial.elapsed_s;
        let is_look = scored.trial.proposal.server_of.is_some();
        looks += usize::from(is_look);
        let value = match scored.score {
            Score::Feasible { value } if !is_look => Some(sign * value),
            _ => None,
        };
        (time, value)
    };
    let mut lines = Vec::new();
    let mut trials = Vec::new();
    for scored in store.trials(&study).await? {
        let proposal = &scored.trial.proposal;
        let (number, origin, value) = (proposal.number, &proposal.origin, scored.score.value().unwrap_or(f64::NAN));
        let line = format!("{number:>4} {origin:<11} {value:>10.1} {}", proposal.config);
        trials.push(row(scored));
        lines.push(line);
    }
    Ok(Run { trials, lines, looks })
}

#[expect(clippy::print_stdout, reason = "the output of the benchmark")]
fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seeds: u64 = arguments.next().map_or(Ok(20), |seeds| seeds.parse())?;
    let mut studies: Vec<String> = arguments.collect();
    let shows_trials = studies.iter().any(|word| word == "--trials");
    studies.retain(|word| word != "--trials");
    if studies.is_empty() {
        studies = STUDIES.map(str::to_owned).to_vec();
    }
    let modes: Vec<Option<f64>> = std::iter::once(None).chain(BIASES.map(Some)).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for file in &studies {
        let mut runs: Vec<Vec<Run>> = Vec::new();
        for seed in 0..seeds {
            let of_seed = modes.iter().map(|mode| runtime.block_on(run(Path::new(file), seed, *mode)));
            runs.push(of_seed.collect::<Result<_, _>>()?);
        }
        let optima: Vec<f64> = runs
            .iter()
            .map(|of_seed| of_seed.iter().filter_map(Run::best).reduce(f64::max).ok_or("nothing is feasible"))
            .collect::<Result<_, _>>()?;
        println!("{file}: mean seconds until within 5 % of the optimum, {seeds} seeds");
        let per_seed = |mode: usize| {
            let costs =
                runs.iter().zip(&optima).map(|(of_seed, optimum)| format!("{:.0}", of_seed[mode].cost(*optimum)));
            costs.collect::<Vec<_>>().join(" ")
        };
        let mean = |mode: usize, of: &dyn Fn(&Run, f64) -> f64| {
            runs.iter().zip(&optima).map(|(of_seed, optimum)| of(&of_seed[mode], *optimum)).sum::<f64>() / to_f64(seeds)
        };
        let plain = mean(0, &Run::cost);
        for (index, mode) in modes.iter().enumerate() {
            let name = mode.map_or("launches alone".to_owned(), |bias| format!("looks, bias {:+.0} %", 100.0 * bias));
            let cost = mean(index, &Run::cost);
            let (looks, regret) = (
                mean(index, &|run, _| to_f64(run.looks)),
                mean(index, &|run, optimum| run.best().map_or(1.0, |best| (optimum - best) / optimum.abs())),
            );
            println!(
                "  {name:<20}{cost:>9.0} s  {:>5.2} of launches alone, {looks:>5.1} looks, final regret {:.2} %",
                cost / plain,
                100.0 * regret
            );
            println!("      by seed: {}", per_seed(index));
            if shows_trials {
                for (seed, of_seed) in runs.iter().enumerate() {
                    println!("      seed {seed}\n{}", of_seed[index].lines.join("\n"));
                }
            }
        }
    }
    Ok(())
}
