//! Runs a simulated study with many seeds, and compares its verdicts with the truth.
//!
//! ```text
//! cargo run --release --example decision_benchmark -- STUDY.toml [RUNS]
//! ```
//!
//! If the winner's flags were tested, the table also compares the reduced winner with the full one: the share of the gain
//! that it keeps, and the runs that have kept each flag with a true effect above 5 % and dropped each one without effect.
//!
//! The study's launches have noise (`--sim-launch-noise`, `--sim-drift`), drawn anew for each seed. The truth comes from
//! one study without noise that measures every configuration of the space. The runs are in virtual time, on all cores.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use setpoint::config::Config;
use setpoint::decision::{AblationResult, Decision, VerdictKind};
use setpoint::execution::detect;
use setpoint::job::Job;
use setpoint::sampler;
use setpoint::stats::percentile;
use setpoint::store::{ScoredTrial, Store};
use setpoint::tuner::{SimulatedStudy, Slots, StudyEnding};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The flags of the simulated engine that make launches differ. Each has a value.
const NOISE_FLAGS: [&str; 3] = ["--sim-launch-noise", "--sim-drift", "--sim-drift-hours"];

/// A flag with a larger effect, as a share of the value, must be kept. One with a smaller effect than the second must be
/// dropped.
const LARGE_EFFECT: f64 = 0.05;
const NO_EFFECT: f64 = 0.001;

/// One run against the truth.
struct JudgedRun {
    decision: Decision,
    /// The true gain of the winner over the defaults, and the shortfall of the winner from the best configuration, both
    /// as shares.
    true_gain: f64,
    regret: f64,
    launches: usize,
    ablation: Option<JudgedAblation>,
}

/// The reduced winner of a run against the truth.
struct JudgedAblation {
    /// Its true gain as a share of that of the full winner.
    kept_gain: f64,
    flags: usize,
    kept: usize,
    launches: u32,
    /// The flags whose finding the truth contradicts, with their true effects.
    wrong: Vec<String>,
}

/// True values of configurations, computed when they are first needed.
struct TrueValues<'a> {
    file: &'a Path,
    known: Mutex<BTreeMap<String, f64>>,
}

impl TrueValues<'_> {
    /// Returns the value of a configuration without noise.
    fn of(&self, config: &Config) -> Result<f64, AnyError> {
        let key = config.key();
        let known = self.known.lock().map_err(|_| "a run has panicked")?.get(&key).copied();
        if let Some(value) = known {
            return Ok(value);
        }
        let mut job = Job::read(self.file)?;
        job.engine.args = without_noise(&job.engine.args);
        job.space.space.fixed = config.clone();
        (job.budget.trials, job.budget.time) = (Some(1), None);
        let (_, trials, _) = run(&job)?;
        let value = trials.first().and_then(|row| row.score.value()).ok_or(format!("{key} has no value"))?;
        self.known.lock().map_err(|_| "a run has panicked")?.insert(key, value);
        Ok(value)
    }
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

/// Returns the true value of each configuration of the space, and that of the defaults.
fn truth(file: &Path) -> Result<(Vec<f64>, f64), AnyError> {
    let mut job = Job::read(file)?;
    job.engine.args = without_noise(&job.engine.args);
    job.sampler = sampler::find("grid").ok_or("no sampler named grid")?;
    (job.budget.trials, job.budget.time) = (Some(100_000), None);
    (job.budget.confirm, job.budget.repeat_baseline) = (Some(0), 0);
    let (_, trials, _) = run(&job)?;
    let value = |row: &ScoredTrial| row.score.value();
    let defaults = trials.first().and_then(value).ok_or("the defaults have no value")?;
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

fn judge(truth: &TrueValues<'_>, seed: u64, best: f64, defaults: f64) -> Result<JudgedRun, AnyError> {
    let mut job = Job::read(truth.file)?;
    job.reseed(seed)?;
    let (_, trials, decision) = run(&job)?;
    let decision = decision.ok_or("the study has no decision")?;
    let config = |key: &str| {
        let mut configs = trials.iter().map(|row| &row.trial.proposal.config);
        configs.find(|config| config.key() == key).cloned().ok_or("the winner was not launched")
    };
    let winner = truth.of(&config(&decision.winner)?)?;
    let ablation = decision.ablation.as_ref().filter(|result| result.flags.len() > 1);
    let ablation = ablation
        .map(|result| {
            judge_ablation(truth, result, &config(&result.full_winner)?, &job.space.space.fixed, winner, defaults)
        })
        .transpose()?;
    let launches = trials.iter().filter(|row| row.trial.elapsed_s > 0.0).count();
    Ok(JudgedRun { decision, true_gain: winner / defaults - 1.0, regret: 1.0 - winner / best, launches, ablation })
}

/// Compares the findings about the flags of `full` with the truth. `winner` is the true value of the reduced winner.
fn judge_ablation(
    truth: &TrueValues<'_>,
    result: &AblationResult,
    full: &Config,
    fixed: &Config,
    winner: f64,
    defaults: f64,
) -> Result<JudgedAblation, AnyError> {
    let full_value = truth.of(full)?;
    let mut wrong = Vec::new();
    for flag in &result.flags {
        let effect = full_value / truth.of(&full.with_flag_of(fixed, &flag.name))? - 1.0;
        if flag.is_kept() && effect.abs() < NO_EFFECT || !flag.is_kept() && effect > LARGE_EFFECT {
            let measured = flag.effect.map_or(f64::NAN, |effect| 100.0 * effect);
            let (effect, pairs) = (100.0 * effect, flag.pairs);
            wrong.push(format!("{} {:?}, {effect:.1} %, {measured:.1} % in {pairs} pairs", flag.name, flag.finding));
        }
    }
    let kept = result.flags.iter().filter(|flag| flag.is_kept()).count();
    let kept_gain = (winner / defaults - 1.0) / (full_value / defaults - 1.0);
    Ok(JudgedAblation { kept_gain, flags: result.flags.len(), kept, launches: result.launches, wrong })
}

#[expect(clippy::print_stdout, reason = "it is what the program is for")]
fn main() -> Result<(), AnyError> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("usage: decision_benchmark STUDY.toml [RUNS]")?;
    let runs: u64 = arguments.next().map_or(Ok(100), |text| text.parse())?;
    let begin = Instant::now();
    let (truths, defaults) = truth(Path::new(&file))?;
    let best = truths.iter().copied().fold(defaults, f64::max);
    let truth = TrueValues { file: Path::new(&file), known: Mutex::default() };
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
                judged.push(judge(&truth, seed, best, defaults)?);
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
    print_spread("launches of the confirmation", &mut launches);
    print_spread("launches in all", &mut all);
    let ablations: Vec<&JudgedAblation> = judged.iter().filter_map(|run| run.ablation.as_ref()).collect();
    if !ablations.is_empty() {
        println!("  winners with several flags: {}", ablations.len());
        let right = ablations.iter().filter(|ablation| ablation.wrong.is_empty()).count();
        println!("  flags above 5 % kept, flags without effect dropped: {right} of {}", ablations.len());
        for ablation in ablations.iter().filter(|ablation| !ablation.wrong.is_empty()) {
            println!("    after {} launches: {}", ablation.launches, ablation.wrong.join(", "));
        }
        let spread = |name: &str, value: &dyn Fn(&JudgedAblation) -> f64| {
            print_spread(name, &mut ablations.iter().map(|ablation| value(ablation)).collect::<Vec<_>>());
        };
        spread("gain of the reduced winner, percent of the full one's", &|ablation| 100.0 * ablation.kept_gain);
        spread("flags of the full winner", &|ablation| setpoint::stats::to_f64(ablation.flags));
        spread("flags of the reduced winner", &|ablation| setpoint::stats::to_f64(ablation.kept));
        spread("launches of the ablation", &|ablation| f64::from(ablation.launches));
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "it is what the program is for")]
fn print_spread(name: &str, values: &mut [f64]) {
    values.sort_by(f64::total_cmp);
    let at = |share| percentile(values, share).unwrap_or(f64::NAN);
    println!("  {name}: median {:.0}, from {:.0} to {:.0}", at(50.0), at(0.0), at(100.0));
}
