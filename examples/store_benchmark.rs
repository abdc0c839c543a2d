//! Benchmark of queries to a database with many trials.
//!
//! ```text
//! cargo build --release
//! cargo run --release --example store_benchmark -- target/release/setpoint [TRIALS]
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use setpoint::config::Config;
use setpoint::facts::Host;
use setpoint::objective::{Goal, Objective};
use setpoint::store::{Store, now};
use setpoint::trial::{
    Distribution, Failure, FailureKind, LaunchCommand, Measurement, Origin, Outcome, Proposal, Trial,
};

/// The questions to the whole program.
const QUESTIONS: [&[&str]; 11] = [
    &["best"],
    &["best", "--format", "json", "--top", "20"],
    &["best", "--limit", "p99_ttft_ms<=100"],
    &["best", "--pareto", "output_throughput,p99_ttft_ms"],
    &["trials"],
    &["trials", "--state", "failed"],
    &["trials", "--last", "20", "--format", "json"],
    &["trials", "--where", "max-num-seqs >= 256", "--where", "p99_ttft_ms < 100", "--sort", "output_throughput:desc"],
    &["trials", "--columns", "trial,max-num-seqs,output_throughput,p99_ttft_ms", "--format", "csv"],
    &["compare", "1", "9"],
    &["sql", "SELECT flag, value, count(*) FROM v_flags WHERE flag = 'enable-prefix-caching' GROUP BY value"],
];

/// Creates a trial with its own configuration and plausible sizes of all stored data.
fn trial(number: u32) -> Trial {
    let config = Config::new()
        .with("max-num-seqs", i64::from(number % 512 + 1))
        .with("max-num-batched-tokens", i64::from(1024 + number))
        .with("gpu-memory-utilization", 0.9)
        .with("enable-prefix-caching", number.is_multiple_of(2));
    let words = "setpoint sim serve /models/m --max-num-seqs 64 --max-num-batched-tokens 2048 --port 12345";
    let spread = |middle: f64| {
        let [p90, p95, p99] = [1.2, 1.3, 1.5].map(|factor| factor * middle);
        Some(Distribution { mean: middle, median: middle, std: 1.0, p90, p95, p99 })
    };
    // Spread over the numbers without a pattern.
    let latency = 50.0 + f64::from(number.wrapping_mul(2_654_435_761) % 10_000) / 100.0;
    let outcome = if number.is_multiple_of(10) {
        let message = "CUDA out of memory. Tried to allocate 2.00 GiB".to_owned();
        Outcome::Failed(Failure { kind: FailureKind::OutOfMemory, message })
    } else {
        Outcome::Measured(Measurement {
            completed: 200,
            failed: 0,
            duration_s: 2.0 * latency,
            total_input_tokens: 102_400,
            total_output_tokens: 25_600,
            ttft_ms: spread(latency),
            tpot_ms: spread(latency / 10.0),
            itl_ms: spread(latency / 10.0),
            e2el_ms: spread(latency * 14.0),
            errors: BTreeMap::new(),
            ..Measurement::default()
        })
    };
    Trial {
        proposal: Proposal {
            number,
            origin: Origin::from_name("sobol"),
            why: None,
            expected_gain: None,
            expected: None,
            config,
            server_of: None,
        },
        launch: LaunchCommand { command: words.split(' ').map(str::to_owned).collect(), ..LaunchCommand::default() },
        started_at: now(),
        startup_s: Some(42.0),
        elapsed_s: 90.0,
        engine_version: Some("0.32.0".to_owned()),
        log: Some(format!("setpoint.logs/benchmark/{number}.log").into()),
        outcome,
        probe: None,
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

#[expect(clippy::disallowed_methods, reason = "measures a short command from outside, as a shell would run it")]
fn ask(program: &str, question: &[&str], database: &Path) -> Result<Duration, Box<dyn std::error::Error>> {
    let mut command = Command::new(program);
    command.args(question).arg("--db").arg(database).stdout(Stdio::null());
    let began = Instant::now();
    let status = command.status().map_err(|error| format!("{program}: {error}"))?;
    if !status.success() {
        return Err(format!("{program} {}: {status}", question.join(" ")).into());
    }
    Ok(began.elapsed())
}

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "it is what the program is for")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let program = arguments.next();
    let trials: u32 = arguments.next().map_or(Ok(10_000), |text| text.parse())?;
    let directory = tempfile::tempdir()?;
    let database = directory.path().join("benchmark.db");
    let store = Store::open(&database.to_string_lossy(), true).await?;
    let objective = Objective {
        metric: "output_throughput".to_owned(),
        goal: Goal::Maximize,
        constraints: Vec::new(),
        joint: None,
        price_per_hour: None,
        load_goal: None,
    };
    let definition = json!({ "objective": objective });
    let study = store.create_study("benchmark", &definition, &Host::detect()).await?;

    let began = Instant::now();
    for number in 0..trials {
        let trial = trial(number);
        store.append(study.id, &trial, objective.score(&trial.outcome)).await?;
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("append         {:8.3} ms a trial, {trials} in {seconds:.2} s", seconds * 1e3 / f64::from(trials));
    let mut times = Vec::new();
    for _ in 0..20 {
        let began = Instant::now();
        if store.best(&study, objective.goal, 5).await?.len() != 5 {
            return Err("fewer than five configurations were found".into());
        }
        times.push(began.elapsed());
    }
    println!("best           {:8.3} ms, median of 20 in this process", median(times));
    store.close().await;
    if let Some(program) = program {
        println!("\nmilliseconds of a whole process, median of 10:");
        for question in QUESTIONS {
            let times = (0..10).map(|_| ask(&program, question, &database)).collect::<Result<_, _>>()?;
            println!("{:8.1}  setpoint {}", median(times), question.join(" "));
        }
    }
    Ok(())
}
