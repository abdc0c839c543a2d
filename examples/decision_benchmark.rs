//! Runs a simulated study with many seeds, and compares its verdicts with the truth.
//!
//! ```text
//! cargo run --release --example decision_benchmark -- STUDY.toml [RUNS]
//! ```
//!
//! The study's launches have noise (`--sim-launch-noise`, `--sim-drift`), drawn anew for each seed. The truth comes from
//! one study without noise that measures every configuration of the space. The runs are in virtual time, on all cores.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use setpoint::decision::{Decision, VerdictKind};
use setpoint::execution::detect;
use setpoint::job::Job;
use setpoint::sampler;
use setpoint::stats::percentile;
use setpoint::store::{ScoredTrial, Store};
use setpoint::tuner::{SimulatedStudy, Slots, StudyEnding};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The flags of the simulated engine that make launches differ. Each has a value.
const NOISE_FLAGS: [&str; 3] = ["--sim-launch-noise", "--sim-drift", "--sim-drift-hours"];

/// One run against the truth.
struct JudgedRun {
    decision: Decision,
    /// The true gain of the winner over the defaults, and the shortfall of the winner from the best configuration, both
    /// as shares.
    true_gain: f64,
    regret: f64,
    launches: usize,
}

/// Runs a study in virtual time and returns its database.
fn run(job: &Job) -> Result<(StudyEnding, Vec<ScoredTrial>, Option<Decision>), AnyError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut installed = detect(job).await;
        let slots = Slots::resolve(job, &mut installed)?;
        let store = Store::in_memory().await?;
        let study = SimulatedStudy { job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
        let run = study.run().await?;
        let study = run.summary.study;
        Ok((run.summary.ending, store.trials(&study).await?, store.decision(&study).await?))
    })
}

/// Returns the true value of each configuration of the space, by its key, and that of the defaults.
fn truth(file: &Path) -> Result<(BTreeMap<String, f64>, f64), AnyError> {
    let mut job = Job::read(file)?;
    job.engine.args = without_noise(&job.engine.args);
    job.sampler = sampler::find("grid").ok_or("no sampler named grid")?;
    (job.budget.trials, job.budget.time) = (Some(100_000), None);
    (job.budget.confirm, job.budget.repeat_baseline) = (Some(0), 0);
    let (_, trials, _) = run(&job)?;
    let value = |row: &ScoredTrial| Some((row.trial.proposal.config.key(), row.score.value()?));
    let defaults = trials.first().and_then(value).ok_or("the defaults have no value")?.1;
    Ok((trials.iter().filter_map(value).collect(), defaults))
}

fn without_noise(args: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = args.iter();
    while let Some(word) = words.next() {
        if NOISE_FLAGS.contains(&word.as_str()) {
            words.next();
        } else {
            kept.push(word.clone());
        }
    }
    kept
}

fn judge(file: &Path, seed: u64, truths: &BTreeMap<String, f64>, defaults: f64) -> Result<JudgedRun, AnyError> {
    let mut job = Job::read(file)?;
    job.reseed(seed)?;
    let (_, trials, decision) = run(&job)?;
    let decision = decision.ok_or("the study has no decision")?;
    let winner = truths.get(&decision.winner).copied().ok_or("the winner has no true value")?;
    let best = truths.values().copied().fold(defaults, f64::max);
    let launches = trials.iter().filter(|row| row.trial.elapsed_s > 0.0).count();
    Ok(JudgedRun { decision, true_gain: winner / defaults - 1.0, regret: 1.0 - winner / best, launches })
}

#[expect(clippy::print_stdout, reason = "it is what the program is for")]
fn main() -> Result<(), AnyError> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("usage: decision_benchmark STUDY.toml [RUNS]")?;
    let runs: u64 = arguments.next().map_or(Ok(100), |text| text.parse())?;
    let begin = Instant::now();
    let (truths, defaults) = truth(Path::new(&file))?;
    let best = truths.values().copied().fold(defaults, f64::max);
    println!(
        "truth of {} configurations: the best has {:+.2} % against the defaults",
        truths.len(),
        100.0 * (best / defaults - 1.0)
    );
    let next = AtomicU64::new(1);
    let workers = std::thread::available_parallelism()?.get();
    let judged: Result<Vec<Vec<JudgedRun>>, AnyError> = std::thread::scope(|scope| {
        let work = || {
            let mut judged = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed > runs {
                    return Ok(judged);
                }
                judged.push(judge(Path::new(&file), seed, &truths, defaults)?);
            }
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a run has panicked")?).collect()
    });
    let judged: Vec<JudgedRun> = judged?.into_iter().flatten().collect();
    let count = |is: &dyn Fn(&JudgedRun) -> bool| judged.iter().filter(|run| is(run)).count();
    println!("{runs} runs in {:.0?}", begin.elapsed());
    for kind in [VerdictKind::Better, VerdictKind::EqualWithinNoise, VerdictKind::NoClearWinner] {
        println!("  {:<20} {}", kind.name(), count(&|run| run.decision.verdict.over_defaults.kind == kind));
    }
    println!("  winner within 1 % of the best in truth: {}", count(&|run| run.regret <= 0.01));
    let is_right =
        |run: &JudgedRun| run.decision.verdict.over_defaults.kind == VerdictKind::Better && run.regret <= 0.01;
    println!("  better, with such a winner: {}", count(&is_right));
    let is_covered = |run: &JudgedRun| {
        let over = run.decision.verdict.over_defaults;
        over.low.zip(over.high).is_some_and(|(low, high)| low <= run.true_gain && run.true_gain <= high)
    };
    println!("  the true gain lies inside the interval: {}", count(&is_covered));
    let mut launches: Vec<f64> = judged.iter().map(|run| f64::from(run.decision.launches)).collect();
    let mut all: Vec<f64> = judged.iter().map(|run| setpoint::stats::to_f64(run.launches)).collect();
    for (name, values) in [("launches of the confirmation", &mut launches), ("launches in all", &mut all)] {
        values.sort_by(f64::total_cmp);
        let at = |share| percentile(values, share).unwrap_or(f64::NAN);
        println!("  {name}: median {:.0}, from {:.0} to {:.0}", at(50.0), at(0.0), at(100.0));
    }
    Ok(())
}
