//! The warm-up sends no measured prompt, so recorded prompts do not look better cached than they are.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value as Json, json};

use crate::study::health;
use crate::support::{Workplace, root, signal, study_with, wait_until};

/// Returns a prompt of more than one block of the simulated engine. Prompts have no common beginning.
fn prompt(number: usize) -> String {
    format!("{number:03} is how this one begins, and {}", "it goes on and on. ".repeat(14))
}

fn lines(count: usize, line: impl Fn(usize) -> Json) -> String {
    (0..count).fold(String::new(), |mut all, number| {
        let _ = writeln!(all, "{}", line(number));
        all
    })
}

/// Returns workloads: the section, the file, and whether the file contains messages.
fn workloads(distinct: usize) -> Vec<(&'static str, String, bool)> {
    let file = r#"kind = "jsonl"
path = "prompts.jsonl"
output_len = 4"#;
    let text = |number| json!({"prompt": prompt(number)});
    let tokens = |number: usize| json!({"prompt": (0..64).map(|at| 1000 + number * 64 + at).collect::<Vec<_>>()});
    let messages = |number| json!({"messages": [{"role": "user", "content": prompt(number)}]});
    let row =
        |number: usize| json!({"timestamp": number, "input_length": 512, "output_length": 4, "hash_ids": [number]});
    let mixture = format!("kind = \"mixture\"\n\n[[workload.part]]\nweight = 1.0\n{file}");
    let trace = "kind = \"trace\"\npath = \"prompts.jsonl\"".to_owned();
    vec![
        (file, lines(distinct, text), false),
        (file, lines(distinct, tokens), false),
        (file, lines(distinct, messages), true),
        (mixture.leak(), lines(distinct, text), false),
        (trace.leak(), lines(distinct, row), false),
    ]
}

/// Returns the counter's value on the server's page.
fn counter(port: u16, name: &str) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let samples = page.lines().filter(|line| line.starts_with(name));
    let values: Vec<f64> = samples.filter_map(|line| line.split_whitespace().last()?.parse().ok()).collect();
    assert!(!values.is_empty(), "no {name} in {page}");
    // Counts, which the page writes as `28.0`.
    format!("{:.0}", values.iter().sum::<f64>()).parse().unwrap()
}

/// Returns the number of tokens that the measured window of 20 requests found in the cache.
fn hits_of_a_bench(workload: &str, file: &str, chat: bool, warmup: u64) -> u64 {
    let workplace = Workplace::new();
    let load =
        format!("concurrency = 8\nrequests = 20\nwarmup = {warmup}\n{}", if chat { "api = \"chat\"" } else { "" });
    workplace.write("prompts.jsonl", file);
    let workload = workload.replace("[[workload.part]]", "[[run.workload.part]]");
    workplace
        .write("one.toml", &format!("[[run]]\nname = \"one\"\n\n[run.load]\n{load}\n\n[run.workload]\n{workload}\n"));
    let port = setpoint::server::free_port().unwrap();
    let (model, number) = (root().join("examples/models/qwen3-8b"), port.to_string());
    let fast = ["--sim-time-scale", "200", "--sim-startup-s", "0.02", "--max-model-len", "2048"];
    let engine = workplace.start(&[&["sim", "serve", &model.to_string_lossy(), "--port", &number][..], &fast].concat());
    let engine = End(engine);
    wait_until(Duration::from_secs(30), "the engine", || health(port));
    let url = format!("http://127.0.0.1:{port}");
    let ended = workplace.run(&["bench", "--url", &url, "--profile", "one.toml", "--vocab-size", "150000"]);
    let finished = counter(port, "vllm:request_success_total");
    assert_eq!(finished, 20 + warmup, "{}", ended.stderr);
    let hits = counter(port, "vllm:prefix_cache_hits_total");
    drop(engine);
    hits
}

#[test]
fn bench_finds_no_recorded_prompt_in_the_cache_that_its_warm_up_has_filled() {
    for (workload, file, chat) in workloads(20) {
        assert_eq!(hits_of_a_bench(workload, &file, chat, 8), 0, "{workload}");
    }
}

fn study(workload: &str, chat: bool, warmup: &str) -> String {
    let chat = if chat { "api = \"chat\"" } else { "" };
    // Slow enough for samples of the server within the window.
    study_with("", "trials = 1\nconfirm = 0")
        .replace("\"--sim-time-scale\", \"200\"", "\"--sim-time-scale\", \"1\"")
        .replace("kind = \"random\"\ninput_len = 32\noutput_len = 8", workload)
        .replace("output_len = 4", "output_len = 96")
        .replace("requests = 16\nwarmup = 4", &format!("requests = 20\n{warmup}\n{chat}"))
}

#[test]
fn tune_finds_recorded_prompts_in_the_cache_as_often_as_without_a_warm_up() {
    let (workload, file, chat) = workloads(20).swap_remove(0);
    // The default warm-up has as many requests as there are users.
    let workplace = Workplace::with_study(&study(workload, chat, ""));
    workplace.write("prompts.jsonl", &file);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let shown = workplace.json(&["show", "0", "--format", "json"]);
    let summary = &shown["telemetry"]["summary"];
    assert_eq!(summary["prefix_cache_hit_rate"].as_f64(), Some(0.0), "{summary}");
}

#[test]
fn prompts_that_are_asked_again_are_told_before_the_night() {
    let (workload, file, chat) = workloads(7).swap_remove(0);
    let workplace = Workplace::with_study(&study(workload, chat, ""));
    workplace.write("prompts.jsonl", &file);
    let told = "there are only 7 prompts, and 20 requests are measured: some repeat";
    let checked = workplace.run(&["check", "study.toml"]);
    let text = checked.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(told), "{text}");
    let checked = workplace.json(&["check", "study.toml", "--format", "json"]);
    assert!(
        checked["warnings"][0].as_str().is_some_and(|warning| warning.starts_with(told)),
        "{}",
        checked["warnings"]
    );
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert!(tuned.stderr.contains(told), "{}", tuned.stderr);
}

/// A process that ends with the test, even if the test fails.
struct End(std::process::Child);

impl Drop for End {
    fn drop(&mut self) {
        signal(&self.0, Signal::SIGTERM);
        let _ = self.0.wait();
    }
}
