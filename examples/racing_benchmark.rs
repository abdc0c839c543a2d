//! Benchmark of racing: simulated studies with and without it, against the known truth.
//!
//! ```text
//! cargo run --release --example racing_benchmark -- [SEEDS] [STUDY.toml ...]
//! ```
//!
//! Each study runs twice per seed in virtual time, on a machine whose launches differ and drift: once with whole loads,
//! once with `load.race`. The truth of each configuration is its value on the undisturbed machine, by brute force over the
//! space. A winner is right if it is feasible in truth, and at most 1 % behind the best configuration.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use setpoint::execution::detect;
use setpoint::job::Job;
use setpoint::objective::Goal;
use setpoint::sampler;
use setpoint::stats::to_f64;
use setpoint::store::{ScoredTrial, Store};
use setpoint::trial::Origin;
use setpoint::tuner::{SimulatedStudy, Slots};

type Failure = Box<dyn std::error::Error>;

/// The largest distance of a right winner from the best configuration.
const MAX_REGRET: f64 = 0.01;

const STUDIES: [&str; 3] =
    ["examples/racing/throughput.toml", "examples/racing/latency.toml", "examples/racing/limit.toml"];

/// A finished study.
struct FinishedStudy {
    trials: Vec<ScoredTrial>,
    /// The key of the configuration that `best` reports.
    winner: Option<String>,
}

/// Sums over the seeds of one study file.
#[derive(Default)]
struct Sums {
    right: u32,
    regret: f64,
    /// The seeds of wrong winners, with their distance from the best as a share; 1 for an infeasible one.
    wrong: Vec<(u64, f64)>,
    search_s: f64,
    all_s: f64,
    clock_s: f64,
    raced: u32,
    search: u32,
    /// Relative differences of a lost race's value from the value of the same launch under the whole load.
    errors: Vec<f64>,
    lost_truths: Vec<f64>,
    unsteady: u32,
}

async fn run(job: &Job) -> Result<FinishedStudy, Failure> {
    let store = Store::in_memory().await?;
    let mut installed = detect(job).await;
    let slots = Slots::resolve(job, &mut installed)?;
    let study = SimulatedStudy { job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
    let study = study.run().await?.summary.study;
    let judgement = store.judgement(&study).await?;
    let leaders = store.leading_configurations(&study, job.objective.goal, judgement.as_ref(), 1).await?;
    let decision = store.decision(&study).await?;
    let winner = decision.map(|decision| decision.winner);
    let winner = winner.or_else(|| leaders.first().map(|best| best.first.trial.proposal.config.key()));
    Ok(FinishedStudy { trials: store.trials(&study).await?, winner })
}

/// Returns the value of every feasible configuration on the undisturbed machine.
async fn truth(file: &str) -> Result<BTreeMap<String, f64>, Failure> {
    let mut job = Job::read(Path::new(file))?;
    let noise = ["--sim-launch-noise", "--sim-drift"];
    let mut words = std::mem::take(&mut job.engine.args).into_iter();
    while let Some(word) = words.next() {
        if noise.contains(&word.as_str()) {
            words.next();
        } else {
            job.engine.args.push(word);
        }
    }
    job.sampler = sampler::find("grid").ok_or("no grid")?;
    job.load.race = false;
    job.priors.clear();
    job.budget.trials = Some(10_000);
    job.budget.confirm = Some(0);
    job.budget.repeat_baseline = 0;
    let found = run(&job).await?;
    let value = |scored: &ScoredTrial| Some((scored.trial.proposal.config.key(), scored.score.value()?));
    Ok(found.trials.iter().filter(|scored| scored.score.is_feasible()).filter_map(value).collect())
}

/// Returns the distance of a value from the best one, as a share.
fn regret(value: f64, best: f64, goal: Goal) -> f64 {
    if goal == Goal::Maximize { 1.0 - value / best } else { value / best - 1.0 }
}

fn load_s(scored: &ScoredTrial) -> f64 {
    scored.trial.startup_s.map_or(0.0, |startup| scored.trial.elapsed_s - startup)
}

fn is_lost(scored: &ScoredTrial) -> bool {
    let window = scored.trial.outcome.measurement().and_then(|found| found.window.as_ref());
    window.is_some_and(|window| window.reason.contains("the best so far"))
}

fn add(sums: &mut Sums, study: &FinishedStudy, truth: &BTreeMap<String, f64>, goal: Goal, seed: u64) {
    let best = truth.values().copied().reduce(if goal == Goal::Maximize { f64::max } else { f64::min });
    let found = study.winner.as_ref().and_then(|key| truth.get(key)).zip(best);
    let off = found.map_or(1.0, |(value, best)| regret(*value, best, goal));
    sums.right += u32::from(off <= MAX_REGRET);
    sums.regret += off;
    if off > MAX_REGRET {
        sums.wrong.push((seed, off));
    }
    for scored in &study.trials {
        sums.all_s += load_s(scored);
        sums.clock_s += scored.trial.elapsed_s;
        if matches!(scored.trial.proposal.origin, Origin::Sampler(_)) {
            sums.search_s += load_s(scored);
            sums.search += 1;
            if is_lost(scored) {
                sums.raced += 1;
                let window = scored.trial.outcome.measurement().and_then(|found| found.window.as_ref());
                sums.unsteady += u32::from(window.is_some_and(|window| !window.steady));
                let key = scored.trial.proposal.config.key();
                if let Some((value, best)) = truth.get(&key).zip(best) {
                    sums.lost_truths.push(regret(*value, best, goal));
                }
                if let (Some(value), Some(truth)) = (scored.score.value(), truth.get(&key)) {
                    sums.errors.push(value / truth - 1.0);
                }
            }
        }
    }
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = to_f64(values.len().max(1));
    let mean = values.iter().sum::<f64>() / n;
    (mean, (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n).sqrt())
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it is what the program is for")]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1).peekable();
    let seeds: u64 = arguments.next_if(|word| word.parse::<u64>().is_ok()).map_or(Ok(100), |text| text.parse())?;
    let files: Vec<String> = arguments.collect();
    let files = if files.is_empty() { STUDIES.map(str::to_owned).to_vec() } else { files };
    for file in files {
        let truth = truth(&file).await?;
        let (mut whole, mut raced) = (Sums::default(), Sums::default());
        let goal = Job::read(Path::new(&file))?.objective.goal;
        for seed in 1..=seeds {
            for (race, sums) in [(false, &mut whole), (true, &mut raced)] {
                let mut job = Job::read(Path::new(&file))?;
                job.reseed(seed)?;
                job.load.race = race;
                add(sums, &run(&job).await?, &truth, goal, seed);
            }
        }
        let percent = |part: u32, all: u32| 100.0 * f64::from(part) / f64::from(all.max(1));
        println!("{file}: {seeds} seeds, {} feasible configurations", truth.len());
        for (name, sums) in [("whole loads", &whole), ("racing", &raced)] {
            println!(
                "  {name:<11}  winner within 1 %: {:>3} of {seeds}   mean regret {:.2} %",
                sums.right,
                100.0 * sums.regret / to_f64(seeds)
            );
            for (seed, off) in &sums.wrong {
                println!("    seed {seed}: {:.1} % behind the best", 100.0 * off);
            }
        }
        println!(
            "  measuring time with racing: {:.0} % in the search, {:.0} % with baselines and confirmation; whole clock {:.0} %",
            100.0 * raced.search_s / whole.search_s,
            100.0 * raced.all_s / whole.all_s,
            100.0 * raced.clock_s / whole.clock_s
        );
        let (bias, spread) = mean_and_deviation(&raced.errors);
        let good = raced.lost_truths.iter().filter(|regret| **regret <= MAX_REGRET).count();
        println!(
            "  lost races: {} of {} search trials ({:.0} %), {good} of them within 1 % of the best in truth, {} without a \
             steady part; their value is off the truth by {:+.2} % in the mean, deviation {:.2} %",
            raced.raced,
            raced.search,
            percent(raced.raced, raced.search),
            raced.unsteady,
            100.0 * bias,
            100.0 * spread
        );
    }
    Ok(())
}
