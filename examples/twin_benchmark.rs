//! Benchmark of the twin: virtual time per wall time, and the cost of larger loads.
//!
//! ```text
//! cargo run --release --example twin_benchmark -- [MAX_SIMULATED_REQUESTS]
//! ```

use std::borrow::Cow;
use std::time::{Duration, Instant};

use serde_json::json;
use setpoint::config::ResolvedConfig;
use setpoint::facts::ModelShape;
use setpoint::stats::to_f64;
use setpoint::twin::{
    DevicePreset, Drive, DriveObserver, RequestId, ScheduledStep, Scheduling, Settings, StepTime, Tokens, TwinArrival,
    TwinEngine, VirtualReply,
};
use setpoint::workload::RandomWorkload;

/// The number of runs; their median is printed.
const RUNS: usize = 7;

type Failure = Box<dyn std::error::Error>;

/// An observer that counts and stores nothing else.
#[derive(Debug, Default)]
struct Fold {
    steps: u64,
    replies: u64,
    tokens: u64,
    end: Duration,
}

impl DriveObserver for Fold {
    fn step(&mut self, seen: &ScheduledStep) {
        self.steps += 1;
        self.end = self.end.max(seen.end);
    }

    fn reply(&mut self, reply: VirtualReply) {
        self.replies += 1;
        self.tokens += reply.output_len();
    }
}

fn settings(prefix_caching: bool) -> Settings {
    let settings = Settings::default();
    Settings {
        resolved: ResolvedConfig { prefix_caching, ..settings.resolved },
        num_blocks: 27_000,
        scheduling: Scheduling { async_scheduling: true, ..Scheduling::default() },
        ..settings
    }
}

/// Llama 3 8B.
fn model() -> ModelShape {
    ModelShape::from_json(&json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16"
    }))
}

/// Generates requests at a steady rate with prompts of 500 tokens. `ids`: whether the tokens have ids.
fn arrivals(requests: u64, rate: f64, output_len: u32, ids: bool) -> impl Iterator<Item = TwinArrival> {
    (0..requests).map(move |number| {
        let prompt = if ids {
            let first = u32::try_from(number % 1_000_000).unwrap_or(0);
            Tokens::Ids(Cow::Owned((0..500).map(|at| first * 500 + at).collect()))
        } else {
            Tokens::Count(500)
        };
        let at = Duration::from_secs_f64(to_f64(number) / rate);
        TwinArrival { at, prompt, output_len, priority: 0 }
    })
}

/// Runs a load several times on fresh engines. Returns the median wall time, and the counts of the last run.
fn measure(
    runs: usize,
    prefix_caching: bool,
    load: impl Fn(&mut Drive<'_>, &mut Fold) -> Result<(), Failure>,
) -> Result<(Duration, Fold), Failure> {
    let device = DevicePreset::find("h100").ok_or("no such device")?;
    let settings = settings(prefix_caching);
    let step_time = StepTime::new(&model(), device, &settings)?;
    let mut times = Vec::new();
    let mut last = Fold::default();
    for _ in 0..runs {
        let mut engine = TwinEngine::new(settings.clone())?;
        let mut fold = Fold::default();
        let engines = std::slice::from_mut(&mut engine);
        let mut drive = Drive { engines, step_time: &step_time };
        let began = Instant::now();
        load(&mut drive, &mut fold)?;
        times.push(began.elapsed());
        last = fold;
    }
    times.sort_unstable();
    Ok((times[times.len() / 2], last))
}

/// Returns a line of `/proc/self/status`, in MiB.
fn memory(name: &str) -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with(name)).ok_or("no such line")?;
    let kib: u64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
    Ok(kib / 1024)
}

#[expect(clippy::print_stdout, reason = "it is what the program is for")]
fn row(name: &str, (wall, fold): &(Duration, Fold), note: &str) {
    let (wall_s, virtual_s) = (wall.as_secs_f64(), fold.end.as_secs_f64());
    let token_ns = wall_s * 1e9 / to_f64(fold.tokens);
    println!(
        "{name:<34} {:>10} {:>10} {:>11.2} {:>11.1} {:>10.0} {:>8.1}  {note}",
        fold.replies,
        fold.steps,
        wall_s * 1e3,
        virtual_s,
        virtual_s / wall_s,
        token_ns
    );
}

#[expect(clippy::print_stdout, reason = "it is what the program is for")]
fn main() -> Result<(), Failure> {
    let most: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    println!(
        "{:<34} {:>10} {:>10} {:>11} {:>11} {:>10} {:>8}",
        "load", "requests", "steps", "wall ms", "virtual s", "times", "ns/token"
    );
    let random = RandomWorkload { input_len: 500, output_len: 200, vocab_size: 128_000, seed: 1 };
    for prefix_caching in [false, true] {
        let caching = if prefix_caching { "prefix caching" } else { "no prefix caching" };
        for users in [1, 64] {
            let seen =
                measure(RUNS, prefix_caching, |drive, fold| Ok(drive.run_closed_loop(&random, 300, users, fold)?))?;
            row(&format!("{users} users, {caching}"), &seen, "");
        }
        let seen =
            measure(
                RUNS,
                prefix_caching,
                |drive, fold| Ok(drive.run_open_loop(arrivals(300, 20.0, 200, true), fold)?),
            )?;
        row(&format!("20 per s, {caching}"), &seen, "");
        let seen =
            measure(RUNS, prefix_caching, |drive, fold| Ok(drive.run_open_loop(arrivals(300, 1e6, 200, true), fold)?))?;
        row(&format!("all at once, {caching}"), &seen, "");
    }
    let mut requests = 1000;
    while requests <= most {
        let runs = if requests > 50_000 { 1 } else { 3 };
        // About the rate that this engine can serve.
        let seen =
            measure(runs, false, |drive, fold| Ok(drive.run_open_loop(arrivals(requests, 40.0, 200, false), fold)?))?;
        let note = format!("{} MiB resident, {} at most", memory("VmRSS")?, memory("VmHWM")?);
        row("40 per s", &seen, &note);
        requests *= 10;
    }
    let mut requests = 1000;
    while requests <= most {
        let seen = measure(1, false, |drive, fold| Ok(drive.run_open_loop(arrivals(requests, 1e9, 20, false), fold)?))?;
        let note = format!("{} MiB resident, {} at most", memory("VmRSS")?, memory("VmHWM")?);
        row("all at once, 20 out", &seen, &note);
        requests *= 10;
    }
    for requests in [10_000_u64, 100_000, 1_000_000].into_iter().filter(|requests| *requests <= most) {
        let mut engine = TwinEngine::new(settings(false))?;
        for id in 0..requests {
            engine.add(RequestId(id), &[1; 16], 8, Duration::ZERO)?;
        }
        let began = Instant::now();
        // In reverse order, so that each is the last of the remaining requests.
        let aborted = (0..requests).rev().filter(|id| engine.abort(RequestId(*id))).count();
        let each = began.elapsed().as_nanos() / u128::from(requests);
        println!("{aborted} aborts of {requests} that wait: {each} ns each");
    }
    Ok(())
}
