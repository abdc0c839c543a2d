//! Whole nights of a study, through the program itself. Each ends with the right message, exit code and winner, loses
//! nothing and leaves nothing running.

mod access;
mod budgets;
mod environment;
mod releases;
mod shared;
mod slots;
mod tuner;

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::support::{Ended, Workplace, all_pass};

/// Nights that run at the same time. More would compete for the processors.
const AT_A_TIME: usize = 4;

/// The budget of nights that state no other. The last two launches confirm.
const BUDGET: &str = "trials = 5\nconfirm = 1";

/// The launches that [`BUDGET`] pays for.
const PAID: usize = 5;

/// One night. `course` receives the name for the messages of its assertions.
struct Night {
    name: &'static str,
    course: Box<dyn Fn(&str) + Send + Sync>,
}

impl Night {
    fn new(name: &'static str, course: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { name, course: Box::new(course) }
    }
}

/// Returns shell code that counts launches in `$n` and runs `trouble` until the file `mended` exists. `fault NAME`
/// gives the launch a fault of the simulated engine. `say TEXT` ends it with a message.
fn troubled(trouble: &str) -> String {
    [
        "echo >> launches; n=$(wc -l < launches); faults=",
        "fault() { faults=\"$faults --sim-fault $1\"; }",
        "say() { echo \"$1\" >&2; exit 1; }",
        &format!("[ -e mended ] || {{ {trouble}; }}"),
    ]
    .join("\n")
}

/// Returns the simulated engine behind such a shell. `$0` is the number of the trial.
fn engine(trouble: &str) -> String {
    let script = format!("{}\nexec {} sim serve \"$@\" $faults", troubled(trouble), env!("CARGO_BIN_EXE_setpoint"));
    format!("command = [\"sh\", \"-c\", '''\n{script}''', \"{{trial}}\"]")
}

fn best(workplace: &Workplace) -> Json {
    workplace.json(&["best", "--format", "json"])
}

/// Returns the configuration with the highest mean value in the present context, or `None` if nothing is measured.
fn highest(trials: &[Json]) -> Option<Json> {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    let counts = |trial: &&Json| trial["proposed_by"] != "interference" && trial["earlier_context"] != true;
    for trial in trials.iter().filter(counts) {
        let Some(value) = trial["value"].as_f64() else { continue };
        let sum = sums.entry(trial["config"].to_string()).or_default();
        *sum = (sum.0 + value, sum.1 + 1.0);
    }
    let mean = |(sum, count): &(f64, f64)| sum / count;
    let best = sums.iter().max_by(|a, b| mean(a.1).total_cmp(&mean(b.1)));
    best.map(|(config, _)| serde_json::from_str(config).unwrap())
}

/// Summarizes trials for messages.
fn told(trials: &[Json]) -> Vec<String> {
    let names = ["trial", "proposed_by", "state", "reason_code", "value", "config"];
    let of = |trial: &Json| names.map(|name| trial[name].to_string()).join(" ");
    trials.iter().map(of).collect()
}

fn measured(trials: &[Json]) -> usize {
    trials.iter().filter(|trial| trial["state"] == "measured").count()
}

/// Returns the number of launches that the budget pays for.
fn paid(trials: &[Json]) -> usize {
    trials.iter().filter(|trial| trial["proposed_by"] != "probe" && trial["proposed_by"] != "interference").count()
}

/// Checks the end of a run: the exit code and the message, that no process is left, and that the winner has the highest
/// mean unless a confirmation has decided. Returns the trials.
fn ends(name: &str, workplace: &Workplace, run: &Ended, code: i32, says: &str) -> Vec<Json> {
    assert_eq!(run.code, Some(code), "{name}: {}", run.stderr);
    let message = run.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(message.contains(says), "{name}: {says:?} is not in {}", run.stderr);
    assert_eq!(workplace.processes_left(), [] as [i32; 0], "{name}");
    let trials = workplace.trials();
    if let Some(highest) = highest(&trials) {
        let best = best(workplace);
        // A confirmation decides by its own launches.
        if best["verdict"].is_null() {
            assert_eq!(best["config"], highest, "{name}: {:?}", told(&trials));
        }
    }
    trials
}

/// Checks that every trial is measured, so that no configuration is blamed.
fn blames_nobody(name: &str, trials: &[Json]) {
    assert_eq!(measured(trials), trials.len(), "{name}: no configuration is blamed: {:?}", told(trials));
}

/// Checks that a resumed study is complete: it has all earlier measurements and each number once, and nothing waits.
fn nothing_is_lost(name: &str, workplace: &Workplace, before: &[Json], after: &[Json]) {
    for old in before {
        let is_kept = |new: &Json| new["trial"] == old["trial"] && new["value"] == old["value"];
        assert!(after.iter().any(is_kept), "{name}: {:?} is not in {:?}", told(std::slice::from_ref(old)), told(after));
    }
    let numbers: Vec<_> = after.iter().filter_map(|trial| trial["trial"].as_u64()).collect();
    assert_eq!(numbers, (0..after.len() as u64).collect::<Vec<_>>(), "{name}: each number once: {:?}", told(after));
    assert_eq!(running(workplace), 0, "{name}");
}

/// Returns the number of trials without an outcome.
fn running(workplace: &Workplace) -> u64 {
    workplace.json(&["studies", "--format", "json"])[0]["running"].as_u64().unwrap()
}

#[test]
fn every_night_ends_with_the_right_message_exit_code_and_winner() {
    let kinds = [
        budgets::nights(),
        shared::nights(),
        slots::nights(),
        releases::nights(),
        access::nights(),
        environment::nights(),
    ];
    let nights: Vec<Night> = kinds.into_iter().flatten().collect();
    assert!(nights.len() >= 44, "{} nights", nights.len());
    all_pass(AT_A_TIME, nights.iter().map(|night| (night.name, || (night.course)(night.name))));
}
