//! Benchmark of the simulated engine's schedule in real time: when tokens were due, left the server, and arrived in the
//! client's kernel.
//!
//! ```text
//! cargo build --release
//! cargo run --release --example schedule_benchmark -- --streams 1000 --step-ms 20,50,100
//! ```
//!
//! A run starts `setpoint sim serve` without noise and sends `--streams` requests at once. The device's speed is scaled
//! so that a step of all streams takes `--step-ms`. The server writes its schedule to a file (`--sim-schedule`). The
//! client, this program, has the kernel's time stamps of arrival (`SO_TIMESTAMPNS`), so that it need not read quickly.
//! Only steps that produce a token for all streams count. Lateness is relative to the instant at which the step's
//! tokens are due. For a step it is that of the engine's thread. For a chunk it includes the writes of earlier chunks
//! in the step.

mod client;
mod server;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use client::{Stream, load};
use serde::Deserialize;
use server::Server;
use setpoint::config::ResolvedConfig;
use setpoint::facts::ModelShape;
use setpoint::stats::{f64_to_usize, to_f64};
use setpoint::twin::{BatchWork, DevicePreset, Scheduling, Settings, StepTime};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const DEVICE: &str = "h100";
const PROMPT_LEN: u32 = 8;

#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 1000)]
    streams: u32,
    /// Lengths of a step, in milliseconds of real time.
    #[arg(long, value_delimiter = ',', default_value = "20,50,100")]
    step_ms: Vec<f64>,
    /// Tokens of each stream.
    #[arg(long, default_value_t = 150)]
    tokens: u32,
    /// Runs of each length.
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// Further arguments of `sim serve`, separated by spaces.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    flags: String,
    /// Default: the one that cargo has built beside this program.
    #[arg(long)]
    setpoint: Option<PathBuf>,
}

/// A line of the server's schedule.
#[derive(Deserialize)]
struct Step {
    due_ns: u64,
    ended_ns: u64,
    length_ns: u64,
    prompt_tokens: u32,
    sequences: u32,
    chunks: Vec<(u64, u32, u64, Option<u64>)>,
}

/// Lateness in microseconds.
#[derive(Default)]
struct Late(Vec<f64>);

impl Late {
    fn add(&mut self, at_ns: u64, due_ns: u64) {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        self.0.push(to_f64(signed(at_ns) - signed(due_ns)) / 1e3);
    }

    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let rank = f64_to_usize((share * to_f64(sorted.len())).ceil());
        sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / to_f64(values.len())
    }

    /// Returns the additional lateness of the last quarter relative to the first.
    fn drift(&self) -> f64 {
        let quarter = self.0.len() / 4;
        Self::mean(&self.0[self.0.len() - quarter..]) - Self::mean(&self.0[..quarter])
    }

    /// Returns median, 99th percentile and maximum.
    fn summary(&self) -> [f64; 3] {
        [0.5, 0.99, 1.0].map(|share| self.quantile(share))
    }
}

/// The result of one run.
struct Outcome {
    steps: Late,
    left: Late,
    arrived: Late,
    length_ms: f64,
    /// Steps that ended late by more than their length.
    late: usize,
    /// The share of chunks without a kernel time stamp of their own.
    merged: f64,
    cpu: f64,
}

fn measure(program: &Path, arguments: &Arguments, step: Duration) -> Result<Outcome> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("schedule.jsonl");
    let scale = alone(arguments)?.as_secs_f64() / step.as_secs_f64();
    let server = Server::start(program, arguments, scale, &file)?;
    let (begin, cpu) = (Instant::now(), server.cpu_s()?);
    // The client runs on its own thread: the next server must not inherit its priority.
    let streams = std::thread::scope(|scope| scope.spawn(|| load(server.port, arguments)).join());
    let streams = streams.map_err(|_| "the client panicked")??;
    let cpu = (server.cpu_s()? - cpu) / begin.elapsed().as_secs_f64();
    server.stop()?;

    let arrivals: HashMap<u64, &Stream> = streams.iter().filter_map(|stream| Some((stream.id?, stream))).collect();
    let mut seen: HashMap<u64, usize> = HashMap::new();
    let (mut steps, mut left, mut arrived) = (Late::default(), Late::default(), Late::default());
    let (mut lengths, mut late, mut chunks, mut merged) = (Vec::new(), 0, 0_u32, 0_u32);
    for line in std::fs::read_to_string(&file)?.lines() {
        let step: Step = serde_json::from_str(line)?;
        let whole = step.sequences == arguments.streams && step.prompt_tokens == 0;
        if whole {
            steps.add(step.ended_ns, step.due_ns);
            lengths.push(Duration::from_nanos(step.length_ns).as_secs_f64() * 1e3);
            late += usize::from(step.ended_ns.saturating_sub(step.due_ns) > step.length_ns);
        }
        for (id, _, due, written) in step.chunks {
            let stream = arrivals.get(&id).ok_or("a request that nobody has asked")?;
            let number = seen.entry(id).or_default();
            let stamp = stream.arrived.get(*number).ok_or("a chunk that has not come")?;
            *number += 1;
            if !whole {
                continue;
            }
            chunks += 1;
            merged += u32::from(stamp.is_none());
            if let Some(at) = written {
                left.add(at, due);
            }
            if let Some(at) = *stamp {
                arrived.add(at, due);
            }
        }
    }
    if let Some(stream) =
        streams.iter().find(|stream| stream.id.and_then(|id| seen.get(&id)) != Some(&stream.arrived.len()))
    {
        return Err(format!("{} chunks came, the schedule has others", stream.arrived.len()).into());
    }
    let merged = f64::from(merged) / f64::from(chunks);
    Ok(Outcome { steps, left, arrived, length_ms: Late::mean(&lengths), late, merged, cpu })
}

/// Returns the length of a decode step of all streams on the unscaled device, with half of the tokens generated.
fn alone(arguments: &Arguments) -> Result<Duration> {
    let model = ModelShape::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/qwen3-8b"))?;
    let settings = Settings {
        resolved: ResolvedConfig {
            v0: false,
            max_model_len: 4096,
            max_num_seqs: arguments.streams.into(),
            max_num_batched_tokens: 16384,
            block_size: 16,
            chunked_prefill: true,
            prefix_caching: false,
            scheduler_delay_factor: 0.0,
            gpu_memory_utilization: 0.9,
            tensor_parallel_size: 1,
            pipeline_parallel_size: 1,
        },
        num_blocks: 1 << 20,
        eager: false,
        cache_dtype_bytes: None,
        scheduling: Scheduling { async_scheduling: true, ..Scheduling::default() },
    };
    let (sequences, context) = (arguments.streams, PROMPT_LEN + arguments.tokens / 2);
    let work = BatchWork {
        sequences,
        tokens: sequences,
        samples: sequences,
        decodes: sequences,
        decode_context: u64::from(sequences) * u64::from(context),
        decode_longest: context,
        blocks: u64::from(sequences) * u64::from(context.div_ceil(16)),
        ..BatchWork::default()
    };
    let device = DevicePreset::find(DEVICE).ok_or("no such device")?;
    Ok(StepTime::new(&model, device, &settings)?.step_duration(&work))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

#[expect(clippy::print_stdout, reason = "it is what the program is for")]
fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let program = if let Some(program) = &arguments.setpoint {
        program.clone()
    } else {
        let own = std::env::current_exe()?;
        own.parent().and_then(Path::parent).ok_or("no directory above this program")?.join("setpoint")
    };
    println!("lateness in microseconds: median / 99th percentile / largest; medians of {} runs", arguments.repeats);
    println!(
        "{:>8} {:>9} {:>22} {:>22} {:>22} {:>8} {:>6} {:>7} {:>7}",
        "step ms", "chunks/s", "steps", "chunks left", "chunks arrived", "drift", "behind", "merged", "server"
    );
    for step_ms in &arguments.step_ms {
        let step = Duration::from_secs_f64(step_ms / 1e3);
        let runs = (0..arguments.repeats).map(|_| measure(&program, &arguments, step));
        let runs = runs.collect::<Result<Vec<Outcome>>>()?;
        let of = |of: &dyn Fn(&Outcome) -> f64| median(runs.iter().map(of).collect());
        let three = |late: &dyn Fn(&Outcome) -> &Late| {
            let [mid, high, most] = [0, 1, 2].map(|which| of(&|run| late(run).summary()[which]));
            format!("{mid:.0} / {high:.0} / {most:.0}")
        };
        let behind = of(&|run| to_f64(run.late));
        let length_ms = of(&|run| run.length_ms);
        println!(
            "{length_ms:>8.2} {:>9.0} {:>22} {:>22} {:>22} {:>8.0} {behind:>6.0} {:>6.1}% {:>6.0}%",
            f64::from(arguments.streams) / length_ms * 1e3,
            three(&|run| &run.steps),
            three(&|run| &run.left),
            three(&|run| &run.arrived),
            of(&|run| run.steps.drift()),
            of(&|run| 100.0 * run.merged),
            of(&|run| 100.0 * run.cpu),
        );
    }
    Ok(())
}
