//! Share of a time budget that simulated studies use, in virtual time.
//!
//! ```text
//! cargo run --release --example time_budget_benchmark -- [STUDY.toml] [SEEDS]
//! ```
//!
//! Each budget is a number of launches, with a fraction that depends on the seed, times the mean duration of a launch in
//! a study without a limit of time. Runs that end for another reason than their time are counted apart: the verdict is
//! settled and the rest is too short for a further search, or the space is used up.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use setpoint::execution::detect;
use setpoint::job::Job;
use setpoint::stats::{percentile, to_f64};
use setpoint::store::Store;
use setpoint::tuner::{SimulatedStudy, Slots, StudyEnding};

type Failure = Box<dyn std::error::Error>;

/// Lengths of the budgets in launches.
const LENGTHS: [u32; 4] = [20, 30, 60, 120];

/// A finished study.
struct FinishedRun {
    /// The duration on the simulated clock.
    elapsed: Duration,
    launches: usize,
    has_spent_time: bool,
}

async fn run(job: &Job) -> Result<FinishedRun, Failure> {
    let store = Store::in_memory().await?;
    let mut installed = detect(job).await;
    let slots = Slots::resolve(job, &mut installed)?;
    let study = SimulatedStudy { job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
    let run = study.run().await?;
    let launches = store.trials(&run.summary.study).await?.iter().filter(|row| row.trial.elapsed_s > 0.0).count();
    let has_spent_time = run.summary.ending == StudyEnding::TimeSpent;
    Ok(FinishedRun { elapsed: run.elapsed, launches, has_spent_time })
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it is what the program is for")]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "examples/quickstart.toml".to_owned());
    let seeds: u64 = arguments.next().map_or(Ok(20), |text| text.parse())?;
    for length in LENGTHS {
        let (mut used, mut others) = (Vec::new(), 0);
        for seed in 1..=seeds {
            let mut job = Job::read(Path::new(&file))?;
            job.reseed(seed)?;
            job.budget.stop_rule.gain = 0.0;
            (job.budget.trials, job.budget.time) = (Some(length), None);
            let whole = run(&job).await?;
            let launches = f64::from(length) + to_f64(seed % 10) / 10.0;
            let budget = whole.elapsed.mul_f64(launches / to_f64(whole.launches));
            (job.budget.trials, job.budget.time) = (None, Some(budget));
            let timed = run(&job).await?;
            if timed.has_spent_time {
                used.push(timed.elapsed.as_secs_f64() / budget.as_secs_f64());
            } else {
                others += 1;
            }
        }
        used.sort_by(f64::total_cmp);
        let at = |share| 100.0 * percentile(&used, share).unwrap_or(f64::NAN);
        let enough = used.iter().filter(|share| **share >= 0.95).count();
        println!(
            "{length} launches' length: {others} of {seeds} ended for another reason; {enough} of the {} others use at least 95 %; median \
             {:.1} %, from {:.1} to {:.1} %",
            used.len(),
            at(50.0),
            at(0.0),
            at(100.0)
        );
    }
    Ok(())
}
