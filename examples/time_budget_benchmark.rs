//! Share of a time budget that simulated studies use, in virtual time.
//!
//! ```text
//! cargo run --release --example time_budget_benchmark -- [STUDY.toml] [SEEDS]
//! ```
//!
//! Each budget is a number of launches times their mean duration, of a study with as many launches and no limit of time.
//! No search ends early. A run uses its budget until its last launch ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use setpoint::execution::detect;
use setpoint::job::Job;
use setpoint::stats::{percentile, to_f64};
use setpoint::store::Store;
use setpoint::tuner::{SimulatedStudy, Slots};

type Failure = Box<dyn std::error::Error>;

/// Lengths of the budgets in launches.
const LENGTHS: [u32; 4] = [20, 30, 60, 120];

/// Runs a study. Returns its duration on the simulated clock and the number of its launches.
async fn run(job: &Job) -> Result<(Duration, usize), Failure> {
    let store = Store::in_memory().await?;
    let mut installed = detect(job).await;
    let slots = Slots::resolve(job, &mut installed)?;
    let study = SimulatedStudy { job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
    let run = study.run().await?;
    let launches = store.trials(&run.summary.study).await?.iter().filter(|row| row.trial.elapsed_s > 0.0).count();
    Ok((run.elapsed, launches))
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it is what the program is for")]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap_or_else(|| "examples/gain-study.toml".to_owned());
    let seeds: u64 = arguments.next().map_or(Ok(20), |text| text.parse())?;
    for length in LENGTHS {
        let mut used = Vec::new();
        for seed in 1..=seeds {
            let mut job = Job::read(Path::new(&file))?;
            job.reseed(seed)?;
            job.budget.stop_rule.gain = 0.0;
            (job.budget.trials, job.budget.time) = (Some(length), None);
            let (elapsed, launches) = run(&job).await?;
            let budget = elapsed.mul_f64(f64::from(length) / to_f64(launches));
            (job.budget.trials, job.budget.time) = (None, Some(budget));
            used.push(run(&job).await?.0.as_secs_f64() / budget.as_secs_f64());
        }
        used.sort_by(f64::total_cmp);
        let at = |share| 100.0 * percentile(&used, share).unwrap_or(f64::NAN);
        let enough = used.iter().filter(|share| **share >= 0.95).count();
        println!(
            "{length} launches' length: {enough} of {seeds} use at least 95 %; median {:.1} %, from {:.1} to {:.1} %",
            at(50.0),
            at(0.0),
            at(100.0)
        );
    }
    Ok(())
}
