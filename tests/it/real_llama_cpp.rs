//! The real `llama-server` with a real model: the rules against its own verdicts, and its failures.
//!
//! Needs an installation by `examples/setup-llama-cpp.sh`, which the environment variable `SETPOINT_LLAMA_CPP` names.
//! `SETPOINT_LLAMA_CPP_LINES` is the number of random command lines (default: 40). 300 of them take about 5 minutes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use setpoint::config::{Config, Value};
use setpoint::engine::{Engine, EngineEvidence, ProcessExit};
use setpoint::engines;
use setpoint::facts::{Device, EngineVersion, HostLimits, ModelShape};
use setpoint::preflight::{Preflight, PreflightLimits, PreflightSetup, decide_finding};
use setpoint::rule::{Facts, check};
use setpoint::server::Marker;
use setpoint::trial::FailureKind;

/// The longest start of a server with this model.
const START_LIMIT: Duration = Duration::from_mins(1);

/// The tokens of the longest context in a random line. Its cache has 8 GiB.
const MAX_CONTEXT: i64 = 360_000;

pub(crate) fn installation() -> PathBuf {
    let directory = std::env::var_os("SETPOINT_LLAMA_CPP").expect("SETPOINT_LLAMA_CPP names an installation");
    Path::new(&directory).canonicalize().unwrap()
}

fn engine() -> Arc<dyn Engine> {
    engines::built_in("llama.cpp").unwrap()
}

/// The outcome of one start.
struct Start {
    is_ready: bool,
    exit: Option<ProcessExit>,
    log: String,
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Returns the answer to a request of this page, if it succeeds.
pub(crate) fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    stream.write_all(request.as_bytes()).ok()?;
    stream.read_to_string(&mut answer).ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(answer)
}

fn is_healthy(port: u16) -> bool {
    get(port, "/health").is_some()
}

/// Starts the server with these arguments, and ends it once it is ready.
#[expect(clippy::disallowed_methods, reason = "the engine under test")]
fn start(model: &Path, arguments: &[String], port: u16, log: &Path) -> Start {
    let file = std::fs::File::create(log).unwrap();
    let mut command = Command::new(installation().join("bin/llama-server"));
    command.arg("-m").arg(model).args(arguments).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).process_group(0);
    let mut child: Child = command.spawn().unwrap();
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let log = std::fs::read_to_string(log).unwrap();
            return Start { is_ready: false, exit: Some(status.into()), log };
        }
        let is_ready = is_healthy(port);
        if is_ready || begin.elapsed() > START_LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            return Start { is_ready, exit: None, log: std::fs::read_to_string(log).unwrap() };
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Draws a configuration from ranges that contain invalid values.
fn random_config(rng: &mut ChaCha8Rng) -> Config {
    let mut config = Config::new();
    let mut add = |flag: &str, values: &[i64], rng: &mut ChaCha8Rng| {
        if rng.random_bool(0.5) {
            config.set(flag, *values.choose(rng).unwrap());
        }
    };
    add("ctx-size", &[0, 100, 512, 4096, 8192, 65_536, 200_000, MAX_CONTEXT], rng);
    add("parallel", &[-2, -1, 0, 1, 2, 3, 8, 64, 256, 257, 300], rng);
    add("batch-size", &[0, 1, 16, 64, 512, 2048, 4096], rng);
    add("ubatch-size", &[0, 1, 16, 64, 512, 1024, 4096], rng);
    add("threads", &[-1, 1, 2, 4], rng);
    add("threads-batch", &[1, 2, 4], rng);
    add("poll", &[0, 50, 100], rng);
    add("kv-unified-per-slot", &[1, 256, 1000, 4096], rng);
    add("cache-ram", &[-1, 0, 64], rng);
    add("cache-reuse", &[0, 64], rng);
    let mut name = |flag: &str, values: &[&str], rng: &mut ChaCha8Rng| {
        if rng.random_bool(0.4) {
            config.set(flag, *values.choose(rng).unwrap());
        }
    };
    let kinds = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"];
    name("cache-type-k", &kinds, rng);
    name("cache-type-v", &kinds, rng);
    name("flash-attn", &["on", "off", "auto"], rng);
    name("spec-type", &["none", "ngram-simple", "ngram-mod", "ngram-map-k", "draft-simple", "medusa"], rng);
    for flag in ["kv-unified", "cont-batching", "repack", "cache-prompt", "swa-full"] {
        if rng.random_bool(0.3) {
            config.set(flag, rng.random_bool(0.5));
        }
    }
    if context(&config) > MAX_CONTEXT {
        config.set("ctx-size", 8192_i64);
    }
    config
}

/// Returns the tokens of the context. The model was trained with 8192.
fn context(config: &Config) -> i64 {
    let slots = config.get_i64("parallel").filter(|slots| *slots >= 0);
    let is_unified = slots.is_none() || config.get("kv-unified").and_then(Value::as_bool) == Some(true);
    let sized = config.get_i64("ctx-size").filter(|tokens| *tokens > 0);
    let cap = config.get_i64("kv-unified-per-slot").filter(|_| config.get("ctx-size").is_none());
    let slots = slots.unwrap_or(4);
    sized.or_else(|| Some(slots * cap?)).unwrap_or(if is_unified { 8192 } else { 8192 * slots })
}

/// The rules alone reject no line that starts. Together with the preflight they reject exactly the lines that do not.
#[tokio::test]
#[ignore = "needs llama.cpp's server"]
async fn the_rules_and_the_preflight_agree_with_the_real_server() {
    let lines: u64 = std::env::var("SETPOINT_LLAMA_CPP_LINES").map_or(40, |text| text.parse().unwrap());
    let (engine, directory) = (engine(), tempfile::tempdir().unwrap());
    let model_file = installation().join("model.gguf");
    let model = ModelShape::read(&model_file).unwrap();
    let build = EngineVersion::build(11_434);
    let facts = Facts { host: HostLimits::detect(), ..Facts::new(engine.rules(), &model, build, Device::Cpu) };
    let executable = installation().join("bin/llama-server").to_string_lossy().into_owned();
    let model_words = ["-m".to_owned(), model_file.to_string_lossy().into_owned()];
    let preflight = Preflight::start(PreflightSetup {
        program: engine.preflight().unwrap(),
        executable,
        env: BTreeMap::new(),
        marker: Marker::helper(directory.path(), "test", "preflight"),
        warm_up: model_words.to_vec(),
        limits: PreflightLimits::default(),
    });
    let mut differences = Vec::new();
    let (mut started, mut refused, mut by_rules) = (0, 0, 0);
    for seed in 0..lines {
        let config = random_config(&mut ChaCha8Rng::seed_from_u64(seed));
        let words = engine.flag_table(build).unwrap().render(&config).unwrap();
        let found = start(&model_file, &words, free_port(), &directory.path().join("log"));
        started += u32::from(found.is_ready);
        refused += u32::from(!found.is_ready);
        let findings = check(&config, &facts);
        let by_rule = findings.iter().find(|finding| finding.severity.rejects()).cloned();
        by_rules += u32::from(by_rule.is_some() && !found.is_ready);
        let verdict = preflight.ask(&[&model_words[..], &words].concat(), &BTreeMap::new()).await.unwrap();
        let decided = decide_finding(findings, &verdict).0.filter(|finding| finding.severity.rejects());
        if (by_rule.is_some() && found.is_ready) || decided.is_some() == found.is_ready {
            let last = found.log.lines().rev().take(3).collect::<Vec<_>>().join(" | ");
            let ready = found.is_ready;
            differences.push(format!("{seed}: {config}: rule {by_rule:?}, {verdict:?}, ready {ready}: {last}"));
        }
    }
    preflight.stop().await;
    println!(
        "{lines} lines: {started} started, {refused} were refused, {by_rules} of these by the rules alone; {} differ",
        differences.len()
    );
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(started > 0 && refused > 0);
}

/// Each cause of a failed start has its kind.
#[test]
#[ignore = "needs llama.cpp's server"]
fn the_real_servers_failures_have_their_kinds() {
    let (engine, directory) = (engine(), tempfile::tempdir().unwrap());
    let model = installation().join("model.gguf");
    let log = directory.path().join("log");
    let damaged = directory.path().join("damaged.gguf");
    let mut head = vec![0; 4 << 20];
    std::fs::File::open(&model).unwrap().read_exact(&mut head).unwrap();
    std::fs::write(&damaged, head).unwrap();
    let busy = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let kind = |start: &Start| {
        let evidence = EngineEvidence {
            log: &start.log,
            exit: start.exit,
            under_load: false,
            oom_kills: 0,
            ended_by_tuner: false,
            own_models: &[],
        };
        engine.diagnose(&evidence).kind
    };
    let missing = directory.path().join("missing.gguf");
    for (model, line, port, expected) in [
        (&model, "--max-num-seqs 8", free_port(), FailureKind::InvalidArgument),
        (&model, "--parallel many", free_port(), FailureKind::InvalidArgument),
        (&model, "--flash-attn off --cache-type-v q8_0", free_port(), FailureKind::Unsupported),
        (&model, "--parallel 300", free_port(), FailureKind::Unsupported),
        (&model, "--ctx-size 20000000 --parallel 1", free_port(), FailureKind::OutOfMemoryKvCache),
        (&missing, "", free_port(), FailureKind::ModelUnavailable),
        (&damaged, "", free_port(), FailureKind::ModelUnavailable),
        (&model, "", busy.local_addr().unwrap().port(), FailureKind::PortInUse),
    ] {
        let found = start(model, &words(line), port, &log);
        assert!(!found.is_ready, "{line}");
        assert_eq!(kind(&found), expected, "{line}: {}", found.log);
    }
}
