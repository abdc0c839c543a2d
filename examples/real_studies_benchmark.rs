//! Benchmark of whole studies on the real engine: the time to a confirmed winner with plain launches, with fast starts, and
//! with fast starts and live looks.
//!
//! ```text
//! cargo run --release --example real_studies_benchmark -- [STUDY.toml[:SEED] ...]
//! ```
//!
//! Each study runs three times with the same seed. The searches by launches alone have the budget of the file. The search
//! with looks has a time limit: the shorter one of a third of the time with plain launches and two thirds of the time with
//! fast starts. The limit includes the confirmation. It fixes the time, so that the questions are whether the study has
//! confirmed a winner within it, and how good this winner is. The three winners are therefore launched in turn, with fast
//! starts. The values of a round are compared with each other, so that the drift of the machine does not matter.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use setpoint::config::Config;
use setpoint::execution::detect;
use setpoint::job::{FirstPoint, Job};
use setpoint::objective::Score;
use setpoint::store::{ScoredTrial, Store};
use setpoint::trial::Origin;
use setpoint::tuner::{Slots, StopRequest, Tuner, preflight_setup};
use tokio::sync::watch;

type Failure = Box<dyn std::error::Error>;

const STUDIES: [&str; 3] =
    ["examples/real_studies/throughput.toml", "examples/real_studies/chat.toml", "examples/real_studies/rate.toml"];
const MODES: [&str; 3] = ["plain launches", "fast starts", "live looks"];

/// Number of launches of each winner in the comparison.
const ROUNDS: usize = 5;

/// A flag without an effect on the load. Its value makes the launches of a winner different configurations.
const LAUNCH_FLAG: &str = "seed";

/// A study that has ended.
struct Ended {
    seconds: f64,
    trials: Vec<ScoredTrial>,
    /// The confirmed winner, or the best configuration of a study that ended without a confirmation.
    winner: Config,
    is_confirmed: bool,
}

/// Runs a study, and stores it in a database of its own.
async fn run(job: &Job, database: &Path) -> Result<Ended, Failure> {
    let path = database.to_str().ok_or("a path in UTF-8")?;
    let store = Store::open(path, true).await?;
    let begin = Instant::now();
    let mut installed = detect(job).await;
    let slots = Slots::resolve(job, &mut installed)?;
    job.check_release(installed.version)?;
    let preflight = preflight_setup(job, &installed, store.path())?;
    let (_running, stop) = watch::channel(StopRequest::No);
    let observer = Arc::new(|_| {});
    let tuner = Tuner { job, store: &store, installed, slots, accepts_change: false, preflight, observer, stop };
    let study = tuner.run().await?.study;
    let seconds = begin.elapsed().as_secs_f64();
    let trials = store.trials(&study).await?;
    let of_key =
        |key: &str| trials.iter().map(|scored| &scored.trial.proposal.config).find(|config| config.key() == key);
    let decided = store.decision(&study).await?.and_then(|decision| of_key(&decision.winner).cloned());
    let best = store.best(&study, job.objective.goal, 1).await?;
    let best = best.first().map(|best| best.first.trial.proposal.config.clone());
    let is_confirmed = decided.is_some();
    let winner = decided.or(best).ok_or_else(|| format!("{}: nothing is feasible", job.name))?;
    store.close().await;
    Ok(Ended { seconds, trials, winner, is_confirmed })
}

/// Launches the winners in turn. Returns the feasible values of each winner by round.
async fn compare(job: &Job, winners: &[Config], database: &Path) -> Result<Vec<Vec<Option<f64>>>, Failure> {
    let mut job = Job::read(&job.file)?;
    "comparison".clone_into(&mut job.name);
    job.live_looks = false;
    job.budget.confirm = Some(0);
    job.budget.repeat_baseline = 0;
    job.budget.time = None;
    for round in 0..ROUNDS {
        for place in 0..winners.len() {
            // Each winner has each place of a round.
            let index = (place + round) % winners.len();
            // Equal winners are launched as often as others.
            let launch = i64::try_from(job.starts.len())? + 1;
            let flags = winners[index].clone().with(LAUNCH_FLAG, launch);
            job.starts.push(FirstPoint::start(format!("{index} {round}"), flags));
        }
    }
    job.budget.trials = Some(u32::try_from(job.starts.len())? + 1);
    let ended = run(&job, database).await?;
    let mut values = vec![vec![None; ROUNDS]; winners.len()];
    for scored in ended.trials.iter().filter(|scored| scored.trial.proposal.origin == Origin::Start) {
        let launch =
            scored.trial.proposal.config.get_i64(LAUNCH_FLAG).ok_or("a launch of a winner without its number")?;
        let (round, place) =
            (usize::try_from(launch - 1)? / winners.len(), usize::try_from(launch - 1)? % winners.len());
        if let Score::Feasible { value } = scored.score {
            values[(place + round) % winners.len()][round] = Some(value);
        }
    }
    Ok(values)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// Returns a line with the time and the trials of a study.
fn line(name: &str, ended: &Ended) -> String {
    let is_look = |scored: &&ScoredTrial| scored.trial.proposal.server_of.is_some();
    let looks = ended.trials.iter().filter(is_look).count();
    let launches = ended.trials.len() - looks;
    let state = if ended.is_confirmed { "confirmed" } else { "NOT CONFIRMED" };
    format!("  {name:<16}{:>7.0} s {launches:>4} launches {looks:>4} looks   {state} {}", ended.seconds, ended.winner)
}

#[expect(clippy::print_stdout, reason = "the output of the benchmark")]
async fn study(file: &str, seed: u64, directory: &Path) -> Result<(), Failure> {
    println!("{file}, seed {seed}");
    let mut ended: Vec<Ended> = Vec::new();
    for (index, name) in MODES.iter().enumerate() {
        let mut job = Job::read(Path::new(file))?;
        job.reseed(seed)?;
        (job.fast_starts, job.live_looks) = (index >= 1, index == 2);
        if let [plain, fast] = ended.as_slice() {
            job.budget.trials = None;
            job.budget.time = Some(Duration::from_secs_f64((plain.seconds / 3.0).min(fast.seconds * 2.0 / 3.0)));
        }
        let done = run(&job, &directory.join(format!("{}-{seed}-{index}.db", job.name))).await?;
        println!("{}", line(name, &done));
        ended.push(done);
    }
    if ended.iter().all(|ended| ended.is_confirmed) {
        println!(
            "  time with live looks: {:.2} of plain launches, {:.2} of fast starts",
            ended[2].seconds / ended[0].seconds,
            ended[2].seconds / ended[1].seconds
        );
    } else {
        println!("  the times cannot be compared: a study ended without a confirmed winner");
    }
    let job = Job::read(Path::new(file))?;
    let winners: Vec<Config> = ended.into_iter().map(|ended| ended.winner).collect();
    let values = compare(&job, &winners, &directory.join(format!("{}-{seed}-comparison.db", job.name))).await?;
    for (name, values) in MODES.iter().zip(&values) {
        let cells = values.iter().map(|value| value.map_or("  limit".to_owned(), |value| format!("{value:>7.1}")));
        println!("  {name:<16}{}", cells.collect::<Vec<_>>().join(" "));
    }
    for other in 0..2 {
        let pairs = values[2].iter().zip(&values[other]);
        let ratios: Vec<f64> = pairs.filter_map(|(live, other)| Some((*live)? / (*other)?)).collect();
        if !ratios.is_empty() {
            println!("  live looks / {}: median ratio of {} rounds {:.3}", MODES[other], ratios.len(), median(ratios));
        }
    }
    Ok(())
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the output of the benchmark")]
async fn main() -> Result<(), Failure> {
    let mut studies: Vec<String> = std::env::args().skip(1).collect();
    if studies.is_empty() {
        studies = STUDIES.map(str::to_owned).to_vec();
    }
    let directory = std::env::temp_dir().join(format!("setpoint-studies-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    println!("databases: {}", directory.display());
    for name in &studies {
        let (file, seed) = name.split_once(':').unwrap_or((name, "1"));
        let seed = seed.parse()?;
        // The other studies take hours, and do not depend on this one.
        if let Err(failure) = Box::pin(study(file, seed, &directory)).await {
            println!("  failed: {failure}");
        }
    }
    Ok(())
}
