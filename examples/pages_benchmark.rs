//! Benchmark of reports and live pages.
//!
//! ```text
//! cargo build --release
//! cargo run --release --example pages_benchmark -- target/release/setpoint report
//! cargo run --release --example pages_benchmark -- target/release/setpoint live [STUDY.toml]
//! cargo run --example pages_benchmark -- write DATABASE TRIALS
//! ```
//!
//! `report` writes the reports of 200 and of 2,000 trials with telemetry, five times each. `live` runs a study of 20 trials or more
//! while a page follows it: it measures the delay from the commit of a trial to the page that contains it, the processor
//! time of the server, and the void samples. `write` only writes a study, whose name and messages are full of HTML, quotes and
//! control characters: the browser tests check its pages.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use setpoint::config::Config;
use setpoint::facts::Host;
use setpoint::objective::{Goal, Objective};
use setpoint::stats::to_f64;
use setpoint::store::{Store, StoreError, TrialRecord, now};
use setpoint::trial::{
    Distribution, ExpectedValue, Failure, FailureKind, LaunchCommand, LaunchRecords, Measurement, Origin, Outcome,
    Proposal, ServerTelemetry, Trial,
};

type AnyError = Box<dyn std::error::Error>;

/// A text that must stay text.
const HOSTILE: &str = "</script><img src=x onerror=\"document.title='broken'\"> '\"`{{ 7 * 7 }} \u{1b}[31m\u{7}";

const RUNS: usize = 5;
/// Samples of each series, the most that a trial stores.
const SAMPLES: u32 = 120;
/// Some launches of the budget are kept for a confirmation, so that at least 20 trials end.
const LIVE_TRIALS: u32 = 24;

/// Returns a number from 0 to 1, spread over the numbers without a pattern.
fn spread(number: u32) -> f64 {
    f64::from(number.wrapping_mul(2_654_435_761) % 10_000) / 10_000.0
}

fn trial(number: u32) -> Trial {
    let config = Config::new()
        .with("max-num-seqs", i64::from(number * 7 % 512 + 1))
        .with("max-num-batched-tokens", i64::from(1024 + number))
        .with("gpu-memory-utilization", 0.8 + 0.15 * spread(number + 1))
        .with("block-size", if number.is_multiple_of(3) { 16_i64 } else { 32 })
        .with("enable-chunked-prefill", number.is_multiple_of(5))
        .with("enable-prefix-caching", number.is_multiple_of(2));
    let latency = 50.0 + 100.0 * spread(number);
    let percentiles = |middle: f64| {
        let [p90, p95, p99] = [1.2, 1.3, 1.5].map(|factor| factor * middle);
        Some(Distribution { mean: middle, median: middle, std: 1.0, p90, p95, p99 })
    };
    let outcome = if number % 10 == 9 {
        let message = format!("torch.OutOfMemoryError: Tried to allocate 2.00 GiB {HOSTILE}");
        Outcome::Failed(Failure { kind: FailureKind::OutOfMemory, message })
    } else {
        Outcome::Measured(Measurement {
            completed: 200,
            duration_s: latency,
            total_input_tokens: 102_400,
            total_output_tokens: 25_600,
            ttft_ms: percentiles(latency),
            tpot_ms: percentiles(latency / 10.0),
            itl_ms: percentiles(latency / 10.0),
            e2el_ms: percentiles(latency * 14.0),
            server: BTreeMap::from([("kv_cache_usage_max".to_owned(), 0.9), ("preemptions".to_owned(), 3.0)]),
            ..Measurement::default()
        })
    };
    let words = "vllm serve org/model --max-num-seqs 64 --max-num-batched-tokens 2048 --host 127.0.0.1 --port 12345";
    Trial {
        proposal: Proposal {
            number,
            origin: Origin::from_name(if number == 0 { "baseline" } else { "auto" }),
            why: Some(
                "highest expected improvement: output_throughput 300 (250 to 350), 97 % likely feasible".to_owned(),
            ),
            expected_gain: Some(0.01),
            expected: Some(ExpectedValue { mean: 300.0, low: 250.0, high: 350.0 }),
            config,
            server_of: None,
        },
        launch: LaunchCommand { command: words.split(' ').map(str::to_owned).collect(), ..LaunchCommand::default() },
        started_at: now(),
        startup_s: Some(42.0),
        elapsed_s: 90.0 + latency,
        engine_version: Some("0.32.0".to_owned()),
        log: Some(format!("setpoint.logs/benchmark/{number}.log").into()),
        outcome,
        probe: None,
    }
}

/// Returns telemetry of the largest stored size, of a server with one GPU.
fn telemetry(number: u32) -> ServerTelemetry {
    let column = |scale: f64| -> Json {
        (0..SAMPLES).map(|at| json!((1e4 * scale * spread(number + at)).round() / 1e4)).collect()
    };
    let counter = |step: u32| -> Json { (0..SAMPLES).map(|at| json!(at * step)).collect() };
    let at_s = || -> Json { (0..SAMPLES).map(|at| json!(f64::from(at) * 0.75)).collect() };
    let series = json!({
        "interval_s": 0.75, "window_s": 90.0, "missed": 0, "notes": [],
        "server": {"at_s": at_s(), "kv_cache_usage": column(1.0), "requests_running": column(64.0),
                   "requests_waiting": column(100.0), "preemptions": counter(0), "engine_steps": counter(40),
                   "prompt_tokens": counter(900), "generation_tokens": counter(1200)},
        "process": {"at_s": at_s(), "cpu_s": counter(1), "rss_gib": column(8.0)},
        "host": {"at_s": at_s(), "cpu_busy_s": counter(3), "cpu_all_s": counter(12), "memory_available_gib": column(64.0)},
        "gpus": [{"at_s": at_s(), "memory_gib": column(70.0), "utilization": column(1.0), "power_w": column(600.0),
                  "temperature_c": column(80.0)}],
    });
    ServerTelemetry { series, ..ServerTelemetry::default() }
}

/// Returns the importance of six parameters for one number, as a run stores it.
fn explanation() -> Json {
    let share = json!({"share": 0.2, "low": 0.1, "high": 0.3});
    let dependence: Vec<_> =
        (0..12).map(|value| json!({"value": value, "mean": 300.0, "low": 250.0, "high": 350.0})).collect();
    let names = [
        "block-size",
        "enable-chunked-prefill",
        "enable-prefix-caching",
        "gpu-memory-utilization",
        "max-num-batched-tokens",
        "max-num-seqs",
    ];
    let parameters: Vec<_> = names
        .iter()
        .map(
            |name| json!({"parameter": name, "alone": share, "total": share, "at_best": 0.2, "dependence": dependence}),
        )
        .collect();
    json!({"about": [{"name": "output_throughput", "of": "objective", "measured": 180, "held_out_r2": 0.8,
                      "unknown": 0.1, "doubts": [], "parameters": parameters, "pairs": []}]})
}

async fn write_study(database: &Path, trials: u32) -> Result<(), StoreError> {
    let store = Store::open(&database.to_string_lossy(), true).await?;
    let objective = Objective {
        metric: "output_throughput".to_owned(),
        goal: Goal::Maximize,
        constraints: Vec::new(),
        joint: None,
        price_per_hour: None,
        load_goal: None,
    };
    let parameter = |domain: &str| json!({"domain": domain, "when": []});
    let definition = json!({
        "engine": {"kind": "vllm"}, "model": "org/model", "objective": objective,
        "space": {"fixed": {}, "parameters": {
            "max-num-seqs": parameter("1 to 512, powers of two"),
            "max-num-batched-tokens": parameter("1024 to 8192, logarithmic"),
            "gpu-memory-utilization": parameter("0.8 to 0.95"), "block-size": parameter("16, 32"),
            "enable-chunked-prefill": parameter("true or false"), "enable-prefix-caching": parameter("true or false"),
        }},
    });
    let study = store.create_study(&format!("made {HOSTILE}"), &definition, &Host::detect()).await?;
    for number in 0..trials {
        let trial = trial(number);
        let records = LaunchRecords { telemetry: Some(telemetry(number)), ..LaunchRecords::default() };
        let record = TrialRecord { records: &records, ..TrialRecord::new(&trial, objective.score(&trial.outcome)) };
        store.append_record(study.id, record).await?;
    }
    store.store_explanation(study.id, &explanation()).await?;
    store.close().await;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "measures a short command from outside, as a shell would run it")]
#[expect(clippy::print_stdout, reason = "it is what the program is for")]
async fn reports(program: &str) -> Result<(), AnyError> {
    let directory = tempfile::tempdir()?;
    println!("| trials | format | median of {RUNS} runs | size |\n|---:|---|---:|---:|");
    for trials in [200, 2000] {
        let database = directory.path().join(format!("{trials}.db"));
        write_study(&database, trials).await?;
        for format in ["html", "md", "json"] {
            let file = directory.path().join(format!("{trials}.{format}"));
            let mut times = Vec::new();
            for _ in 0..RUNS {
                let began = Instant::now();
                let mut command = Command::new(program);
                command.args(["--quiet", "report", "--format", format]).arg("--db").arg(&database).arg("-o").arg(&file);
                let status = command.status()?;
                if !status.success() {
                    return Err(format!("{program} report: {status}").into());
                }
                times.push(began.elapsed());
            }
            times.sort_unstable();
            let bytes = std::fs::metadata(&file)?.len();
            println!("| {trials} | {format} | {:.2} s | {} kB |", times[RUNS / 2].as_secs_f64(), bytes / 1000);
        }
    }
    Ok(())
}

/// A process that ends with this value.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str) -> std::io::Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    Ok(BufReader::new(stream))
}

/// Follows a page as a browser does, and sends the number of its trials with an outcome and the instant of each answer.
fn follow(address: &str, path: &str, sender: &mpsc::Sender<(usize, Instant)>) -> Result<(), AnyError> {
    let mut events = get(address, &format!("{path}/events"))?;
    let mut line = String::new();
    while events.read_line(&mut line)? > 0 {
        if line.starts_with("event: change") {
            let mut page = String::new();
            get(address, path)?.read_to_string(&mut page)?;
            let data = page.split_once("id=\"document\">").ok_or("the page has no document")?.1;
            let document: Json = serde_json::from_str(data.split_once("</script>").ok_or("no end")?.0)?;
            let trials = document["trials"]
                .as_array()
                .map_or(0, |trials| trials.iter().filter(|trial| trial["state"] != "running").count());
            sender.send((trials, Instant::now()))?;
        }
        line.clear();
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "runs the program as a shell would run it")]
#[expect(clippy::print_stdout, reason = "it is what the program is for")]
async fn live(program: &str, study_file: &str) -> Result<(), AnyError> {
    let directory = tempfile::tempdir()?;
    let database = directory.path().join("live.db");
    let trials = LIVE_TRIALS.to_string();
    let mut tune = Command::new(program);
    // This sampler does not end a search early.
    tune.args(["--quiet", "tune", study_file, "--trials", &trials, "--sampler", "sobol", "--db"])
        .arg(&database)
        .stdout(Stdio::null());
    let began = Instant::now();
    let mut tune = Ending(tune.spawn()?);
    let store = loop {
        if let Ok(store) = Store::open(&database.to_string_lossy(), false).await
            && !store.studies().await?.is_empty()
        {
            break store;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let (study, _) = store.studies().await?.remove(0);
    let mut serve = Command::new(program);
    serve.args(["serve", "--port", "0", "--db"]).arg(&database).stdout(Stdio::piped());
    let mut serve = Ending(serve.spawn()?);
    let mut address = String::new();
    BufReader::new(serve.0.stdout.take().ok_or("no output")?).read_line(&mut address)?;
    let address = address.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let served = Instant::now();
    let (sender, receiver) = mpsc::channel();
    let (server, path) = (address.clone(), format!("/studies/{}", study.name));
    std::thread::spawn(move || {
        // The stream of events ends with the server.
        let _ = follow(&server, &path, &sender);
    });
    let (mut commits, mut pages) = (Vec::new(), Vec::new());
    while tune.0.try_wait()?.is_none() {
        let counts = store.counts(study.id).await?;
        let ended = usize::try_from(counts.measured + counts.failed + counts.rejected)?;
        while commits.len() < ended {
            commits.push(Instant::now());
        }
        pages.extend(receiver.try_iter());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    std::thread::sleep(Duration::from_secs(2));
    pages.extend(receiver.try_iter());
    let process = procfs::process::Process::new(i32::try_from(serve.0.id())?)?.stat()?;
    let cpu_s = to_f64(process.utime + process.stime) / to_f64(procfs::ticks_per_second());
    let wall_s = served.elapsed().as_secs_f64();
    let mut delays: Vec<f64> = Vec::new();
    for (index, commit) in commits.iter().enumerate() {
        let shown = pages.iter().find(|(trials, _)| *trials > index).ok_or("a trial was never shown")?;
        delays.push(shown.1.saturating_duration_since(*commit).as_secs_f64());
    }
    delays.sort_by(f64::total_cmp);
    let study_s = began.elapsed().as_secs_f64();
    let void = void_samples(program, &database)?;
    println!("trials: {} in {study_s:.0} s; samples that were void: {void}", commits.len());
    println!(
        "delay from the commit of a trial to the page that shows it: median {:.2} s, most {:.2} s",
        delays[delays.len() / 2],
        delays[delays.len() - 1]
    );
    println!("processor time of the server: {cpu_s:.2} s of {wall_s:.0} s, {:.2} % of a core", 100.0 * cpu_s / wall_s);
    drop(serve);
    Ok(())
}

/// Returns the number of measurements that were set aside, and of trials without a valid one.
#[expect(clippy::disallowed_methods, reason = "runs the program as a shell would run it")]
fn void_samples(program: &str, database: &Path) -> Result<String, AnyError> {
    let query = "SELECT (SELECT count(*) FROM measurements WHERE kind <> 'trial') \
                 + (SELECT count(*) FROM trials WHERE reason_code = 'client_bound') AS void";
    let output = Command::new(program).args(["sql", query, "--format", "csv", "--db"]).arg(database).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().nth(1).ok_or("no answer of setpoint sql")?.to_owned())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [program, "report"] => reports(program).await,
        [program, "live"] => live(program, "examples/quickstart.toml").await,
        [program, "live", study] => live(program, study).await,
        ["write", database, trials] => Ok(write_study(Path::new(database), trials.parse()?).await?),
        _ => Err("usage: pages_benchmark PROGRAM report | PROGRAM live [STUDY.toml] | write DATABASE TRIALS".into()),
    }
}
