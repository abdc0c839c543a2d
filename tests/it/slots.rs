//! Several trials at a time on one host.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value as Json;
use setpoint::facts::Processors;
use setpoint::store::Store;
use setpoint::trial::Placement;

use crate::support::{Workplace, signal, study_with, wait_until};

/// Returns a study with `[slots]` that accepts any interference. The simulated engines compute nothing, so on a busy
/// machine the interference between them is only noise.
fn study(engine: &str, budget: &str, slots: &str) -> String {
    format!("{}\n[slots]\nmax_interference = 1.0\n{slots}\n", study_with(engine, budget))
}

/// Returns the simulated engine behind a shell that runs `before` first.
fn engine(before: &str) -> String {
    let program = env!("CARGO_BIN_EXE_setpoint");
    format!(r#"command = ["sh", "-c", '''{before}; exec {program} sim serve "$@"''', "{{trial}}"]"#)
}

/// Start and end of a trial in seconds, and its place.
struct Span {
    number: u64,
    begin: f64,
    end: f64,
    place: Placement,
}

impl Span {
    fn meets(&self, other: &Self) -> bool {
        self.begin < other.end && other.begin < self.end
    }
}

#[tokio::main(flavor = "current_thread")]
async fn spans(workplace: &Workplace) -> Vec<Span> {
    let store = Store::open(&workplace.path("setpoint.db").to_string_lossy(), false).await.unwrap();
    let study = store.study("fast").await.unwrap().unwrap();
    assert_eq!(store.incidents(&study, None).await.unwrap().len(), 0, "no port was taken by a neighbour");
    let mut spans = Vec::new();
    for scored in store.trials(&study).await.unwrap() {
        let trial = scored.trial;
        let Some(place) = store.placement(&study, trial.proposal.number).await.unwrap() else { continue };
        let begin = trial.started_at.parse::<Timestamp>().unwrap().as_duration().as_secs_f64();
        // The start is stored in milliseconds, and the clock may be set during the trial. The end is therefore 20 ms
        // earlier.
        spans.push(Span {
            number: u64::from(trial.proposal.number),
            begin,
            end: begin + trial.elapsed_s - 0.02,
            place,
        });
    }
    spans
}

fn told(workplace: &Workplace, event: &str) -> Vec<Json> {
    let stderr = std::fs::read_to_string(workplace.path("stderr.txt")).unwrap();
    let events = stderr.lines().filter_map(|line| serde_json::from_str::<Json>(line).ok());
    events.filter(|json| json["event"] == event).collect()
}

fn tune(workplace: &Workplace) -> Option<i32> {
    workplace.start(&["tune", "study.toml", "--log-format", "json"]).wait().unwrap().code()
}

#[test]
fn two_hundred_trials_on_eight_slots_have_no_port_and_no_file_in_common() {
    let text = study("", "trials = 200\nconfirm = 0", "count = 8");
    // A start takes longer than the launch of eight trials on a busy machine.
    let text = text.replace("\"0.02\"", "\"0.4\"");
    let many = "low = 1\nhigh = 400".to_owned();
    let text = text.replace("scale = \"pow2\"\nlow = 1\nhigh = 16", &many);
    let workplace = Workplace::with_study(&text);
    assert_eq!(tune(&workplace), Some(0));
    let trials = workplace.trials();
    let numbers: Vec<_> = trials.iter().map(|trial| trial["trial"].as_u64().unwrap()).collect();
    let launched = trials.iter().filter(|trial| trial["state"] == "measured");
    let crowd = launched.clone().filter(|trial| trial["proposed_by"] == "interference").count();
    assert_eq!((crowd, launched.count()), (8, 208), "the defaults beside themselves are on top of the budget");
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>(), "each number exactly once");

    let spans = spans(&workplace);
    assert_eq!(spans.len(), 208);
    let mut most = 0;
    for (index, one) in spans.iter().enumerate() {
        let (first, last) = one.place.ports;
        let neighbours: Vec<_> = spans.iter().filter(|other| other.number != one.number && one.meets(other)).collect();
        most = most.max(spans.iter().filter(|other| other.begin <= one.begin && one.begin < other.end).count());
        for other in &neighbours {
            assert_ne!(one.place.slots, other.place.slots, "trials {} and {}", one.number, other.number);
            assert!(last < other.place.ports.0 || other.place.ports.1 < first, "ports of {index}");
        }
        assert_eq!(one.place.alone, one.number == 0);
        // Its log contains no port of another trial.
        let trial = &trials[usize::try_from(one.number).unwrap()];
        let log = std::fs::read_to_string(trial["log"].as_str().unwrap()).unwrap();
        let addresses: Vec<_> = log.lines().filter(|line| line.contains("Starting vLLM server on")).collect();
        assert!(addresses.len() == 1 && addresses[0].ends_with(&format!(":{first}")), "{addresses:?}");
    }
    assert_eq!(most, 8, "at a time");
    let logs = trials.iter().filter_map(|trial| trial["log"].as_str()).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(logs.len(), 208);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}

#[test]
fn each_trial_has_its_own_devices_ports_and_processors_and_one_that_needs_two_devices_has_two_slots() {
    let before = r#"echo "$0 $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $VLLM_PORT $(grep Cpus_allowed_list /proc/self/status | cut -f 2)" >> seen"#;
    let all: Vec<_> = Processors::allowed().iter().map(|number| number.to_string()).collect();
    let slots = "devices = [\"4\", \"5\", \"6\", \"7\"]".to_owned();
    let text = study(&engine(before), "trials = 13\nconfirm = 0", &slots)
        .replace("[space.parameters.max-num-seqs]", "[space.parameters.tensor-parallel-size]\nkind = \"categorical\"\nchoices = [1, 2]\n\n[space.parameters.max-num-seqs]");
    let workplace = Workplace::with_study(&text);
    assert_eq!(tune(&workplace), Some(0));
    let seen = std::fs::read_to_string(workplace.path("seen")).unwrap();
    let seen: BTreeMap<u64, Vec<&str>> = seen
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .map(|words| (words[0].parse().unwrap(), words[1..].to_vec()))
        .collect();
    let trials = workplace.trials();
    let spans = spans(&workplace);
    let mut sizes = std::collections::BTreeSet::new();
    for span in &spans {
        let trial = &trials[usize::try_from(span.number).unwrap()];
        let size = trial["config"]["tensor-parallel-size"].as_u64().unwrap_or(1);
        sizes.insert(size);
        assert_eq!(span.place.slots.len() as u64, size);
        let devices: Vec<_> = span.place.slots.iter().map(|slot| (slot + 4).to_string()).collect();
        let [devices, first] = [devices.join(","), (span.place.ports.0 + 1).to_string()];
        let processors = span.place.processors.clone().unwrap_or_else(|| Processors::allowed().to_string());
        assert_eq!(seen[&span.number], [&*devices, "PCI_BUS_ID", &*first, &*processors]);
        for other in spans.iter().filter(|other| other.number != span.number && span.meets(other)) {
            assert!(other.place.slots.iter().all(|slot| !span.place.slots.contains(slot)));
        }
        // The exported configuration does not depend on the slot of the measurement.
        assert_eq!(trial["env"].get("CUDA_VISIBLE_DEVICES"), None);
    }
    assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [1, 2]);
    if all.len() >= 4 {
        assert!(spans.iter().all(|span| span.place.processors.is_some()));
    }
    let shown = workplace.json(&["show", "0", "--format", "json"]);
    assert_eq!(shown["placement"]["devices"], "4");
    assert!(workplace.run(&["show", "0"]).stdout.contains("slots                   0 (devices 4, "));
}

#[test]
fn processors_that_are_declared_are_what_a_launch_runs_on() {
    let all: Vec<_> = Processors::allowed().iter().collect();
    let [first, .., last] = all.as_slice() else {
        return crate::support::say_skipped("one processor is not for two slots");
    };
    let before = r#"echo "$0 $(grep Cpus_allowed_list /proc/self/status | cut -f 2)" >> seen"#;
    let slots = format!("processors = [\"{first}\", \"{last}\"]");
    let workplace = Workplace::with_study(&study(&engine(before), "trials = 4\nconfirm = 0", &slots));
    assert_eq!(tune(&workplace), Some(0));
    let seen = std::fs::read_to_string(workplace.path("seen")).unwrap();
    let spans = spans(&workplace);
    assert_eq!(spans.len(), 6);
    for span in &spans {
        let processor = [first, last][span.place.slots[0] as usize].to_string();
        assert!(seen.lines().any(|line| line == format!("{} {processor}", span.number)), "{seen}");
        assert_eq!(span.place.processors, Some(processor));
    }
}

/// Returns an engine that is slower in these trials.
fn slower_in(trials: &str) -> String {
    engine(&format!(r#"case $0 in {trials}) set -- "$@" --sim-time-scale 2;; esac"#))
}

#[test]
fn trials_that_cost_each_other_too_much_run_one_at_a_time() {
    // Trial 0 measures the defaults alone. Trials 1 to 3 measure them at the same time.
    let text = study(&slower_in("1|2|3"), "trials = 5\nconfirm = 0", "count = 3").replace("max_interference = 1.0", "");
    let workplace = Workplace::with_study(&text);
    assert_eq!(tune(&workplace), Some(0));
    let found = &told(&workplace, "interference")[0];
    assert_eq!((&found["at_a_time"], found["together"].as_array().unwrap().len()), (&1.into(), 3), "{found}");
    assert!(found["cost"].as_f64().unwrap() > 0.5, "{found}");
    let spans = spans(&workplace);
    assert_eq!(spans.len(), 8);
    for one in spans.iter().filter(|span| span.number > 3) {
        assert!(!spans.iter().any(|other| other.number != one.number && one.meets(other)), "trial {}", one.number);
    }
    // These trials do not count as measurements of the defaults.
    let best = workplace.json(&["best", "--format", "json"]);
    assert_eq!(best["baseline"]["measurements"], 1, "{best}");

    let line = workplace.run(&["tune", "study.toml", "--trials", "6"]).stderr;
    assert!(
        line.contains("% lost; more than slots.max_interference of 10 % allows: from here on trials run one at a"),
        "{line}"
    );
}

#[test]
fn a_slot_whose_environment_fails_is_set_aside_and_the_others_go_on() {
    let busy = r#"[ "$CUDA_VISIBLE_DEVICES" != 1 ] || [ "$0" -lt 4 ] || { echo "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"; exit 1; }"#;
    let text = study(&engine(busy), "trials = 8\nconfirm = 0", "devices = [\"0\", \"1\", \"2\"]");
    let workplace = Workplace::with_study(&text);
    assert_eq!(tune(&workplace), Some(0));
    let aside = told(&workplace, "set_aside");
    assert_eq!((aside.len(), &aside[0]["slots"]), (1, &serde_json::json!([1])),);
    assert!(aside[0]["why"].as_str().unwrap().starts_with("4 launches failed in a row, device_busy: "), "{aside:?}");
    let trials = workplace.trials();
    assert_eq!(trials.iter().filter(|trial| trial["state"] == "measured").count(), 12, "with the probe");
    // If every slot fails, the study pauses.
    let busy = engine(
        r#"[ "$0" -lt 4 ] || { echo "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"; exit 1; }"#,
    );
    let workplace = Workplace::with_study(&study(&busy, "trials = 8\nconfirm = 0", "devices = [\"0\", \"1\", \"2\"]"));
    let paused = workplace.run(&["tune", "study.toml"]);
    assert_eq!(paused.code, Some(5), "{}", paused.stderr);
    assert!(paused.stderr.contains("the study is paused: "), "{}", paused.stderr);
    assert_eq!(workplace.trials().len(), 4);
}

#[test]
fn an_interruption_ends_all_servers_and_their_trials_come_again_under_their_numbers() {
    let text = study("", "trials = 12\nconfirm = 0", "count = 4").replace("\"0.02\"", "\"0.5\"");
    let workplace = Workplace::with_study(&text);
    let mut tuner = workplace.start(&["tune", "study.toml", "--verbose"]);
    for number in 5..9 {
        workplace.wait_for(&format!("trial {number}: starting"));
    }
    wait_until(Duration::from_secs(10), "four engines", || workplace.processes_left().len() == 4);
    let asked = Instant::now();
    signal(&tuner, Signal::SIGINT);
    assert_eq!(tuner.wait().unwrap().code(), Some(130));
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    let studies = workplace.json(&["studies", "--format", "json"]);
    assert_eq!((&studies[0]["running"], &studies[0]["measured"]), (&4.into(), &5.into()));
    assert_eq!(tune(&workplace), Some(0));
    let again = told(&workplace, "launch").iter().map(|launch| launch["trial"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(again, (5..16).collect::<Vec<_>>());
}

/// Returns number, configuration, origin and state of each trial, in the order of the numbers.
fn decided(workplace: &Workplace) -> Vec<String> {
    let of =
        |trial: &Json| format!("{} {} {} {}", trial["trial"], trial["config"], trial["proposed_by"], trial["state"]);
    workplace.trials().iter().map(of).collect()
}

#[test]
fn a_tuner_of_several_trials_that_is_killed_ends_where_an_undisturbed_one_does() {
    let text = study("", "trials = 16\nconfirm = 0", "count = 4");
    let undisturbed = Workplace::with_study(&text);
    assert_eq!(tune(&undisturbed), Some(0));
    let workplace = Workplace::with_study(&text);
    let (mut random, mut kills) = (StdRng::seed_from_u64(7), 0);
    let code = loop {
        let after = (kills < 10).then(|| Duration::from_millis(700).mul_f64(random.random()));
        if let Some(ended) = workplace.run_or_kill(&["tune", "study.toml"], after) {
            break ended.code();
        }
        kills += 1;
    };
    assert_eq!(code, Some(0), "{}", std::fs::read_to_string(workplace.path("stderr.txt")).unwrap());
    assert_eq!(decided(&workplace), decided(&undisturbed));
    assert_eq!(workplace.json(&["studies", "--format", "json"])[0]["running"], 0);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}

#[test]
fn a_check_tells_the_slots_and_how_long_they_take_together() {
    let workplace = Workplace::with_study(&study("", "trials = 41\nconfirm = 0", "count = 8"));
    let checked = workplace.json(&["check", "study.toml", "--format", "json"]);
    assert_eq!((&checked["slots"]["count"], &checked["slots"]["at_a_time"]), (&8.into(), &8.into()));
    let duration = &checked["duration"];
    assert!(duration["rounds"].as_u64() < duration["launches"].as_u64(), "{duration}");
    let text = workplace.run(&["check", "study.toml"]).stdout;
    assert!(text.lines().any(|line| line.starts_with("slots         8 trials at a time on 8 slots, ")), "{text}");
}

#[test]
fn what_cannot_be_kept_apart_is_refused_before_anything_starts() {
    for (engine, slots, arguments, problem) in [
        ("", "", &[][..], "slots.count: is missing"),
        ("", "count = 2", &["--parallel", "3"], "slots.parallel: 3 trials at a time do not fit on 2 slots"),
        (
            "",
            "processors = [\"1000\"]",
            &[],
            "slots.processors: 1000 contains processors that this process may not use; ",
        ),
        ("env = { VLLM_PORT = \"9\" }", "count = 2", &[], "engine.env.VLLM_PORT: concurrent launches would"),
        (
            "env = { CUDA_VISIBLE_DEVICES = \"0\" }",
            "devices = [\"0\", \"1\"]",
            &[],
            "engine.env.CUDA_VISIBLE_DEVICES: concurrent launches would",
        ),
        (
            "command = [\"docker\", \"run\", \"image\"]",
            "devices = [\"0\", \"1\"]",
            &[],
            "engine.command: does not pass on CUDA_VISIBLE_DEVICES",
        ),
    ] {
        let workplace = Workplace::with_study(&study(engine, "trials = 2", slots));
        let refused = workplace.run(&[&["tune", "study.toml"], arguments].concat());
        assert_eq!(refused.code, Some(3), "{}", refused.stderr);
        assert!(refused.stderr.contains(problem), "{}", refused.stderr);
        assert!(!workplace.path("setpoint.db").exists());
    }
}

#[test]
fn a_study_pauses_once_its_last_slot_has_failed_and_what_runs_meanwhile_is_measured() {
    let busy = engine(
        r#"case $0 in 3) sleep 2;; 4|5|6|7|8|9) echo "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"; exit 1;; esac"#,
    );
    let text = study(&busy, "trials = 12\nconfirm = 0", "devices = [\"0\", \"1\"]");
    let workplace = Workplace::with_study(&text);
    let paused = workplace.run(&["tune", "study.toml", "--log-format", "json"]);
    assert_eq!(paused.code, Some(5), "{}", paused.stderr);
    let trials = workplace.trials();
    let measured: Vec<_> = trials.iter().map(|trial| (&trial["trial"], &trial["state"])).collect();
    assert!(measured.contains(&(&3.into(), &"measured".into())), "{measured:?}");
    assert!(measured.iter().all(|(_, state)| *state == "measured"), "nobody is blamed: {measured:?}");
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}
