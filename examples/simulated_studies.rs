//! Runs a study many times on the twin and a simulated clock, with another seed each time, and prints the search's
//! results.
//!
//! ```text
//! cargo run --release --example simulated_studies -- STUDY.toml [RUNS]
//! ```
//!
//! The result of a run is the best measured value of the objective. The table shows its distribution over the runs, and
//! the total time on this machine and on the simulated clock.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use setpoint::execution::detect;
use setpoint::job::Job;
use setpoint::stats::percentile;
use setpoint::store::Store;
use setpoint::tuner::{SimulatedStudy, Slots};

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it is what the program is for")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("usage: simulated_studies STUDY.toml [RUNS]")?;
    let runs: u64 = arguments.next().map_or(Ok(100), |text| text.parse())?;
    let (mut best, mut simulated, mut launches) = (Vec::new(), Duration::ZERO, 0);
    let begin = Instant::now();
    let job = Job::read(Path::new(&file))?;
    let environment = detect(&job).await;
    for seed in 1..=runs {
        let mut job = Job::read(Path::new(&file))?;
        job.reseed(seed)?;
        let mut installed = environment.clone();
        let slots = Slots::resolve(&job, &mut installed)?;
        let store = Store::in_memory().await?;
        let study = SimulatedStudy { job: &job, store: &store, installed, slots, observer: Arc::new(|_| {}) };
        let run = study.run().await?;
        simulated += run.elapsed;
        launches += store.trials(&run.summary.study).await?.iter().filter(|row| row.trial.elapsed_s > 0.0).count();
        let winner = store.best(&run.summary.study, job.objective.goal, 1).await?.pop();
        best.extend(winner.map(|winner| winner.value));
    }
    let taken = begin.elapsed();
    best.sort_by(f64::total_cmp);
    println!("{runs} runs of {file}, {launches} launches: {taken:.1?} here, {simulated:.0?} on the simulated clock");
    println!("runs with a feasible configuration: {}", best.len());
    for share in [5.0, 50.0, 95.0] {
        if let Some(value) = percentile(&best, share) {
            println!("best {}, percentile {share:>2}: {value:.4}", job.objective.metric);
        }
    }
    Ok(())
}
