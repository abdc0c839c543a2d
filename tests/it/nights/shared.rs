//! Nights on a machine with GPUs that others use, that are divided, that the driver loses, or whose driver hangs.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value as Json;

use super::{BUDGET, Night, PAID, blames_nobody, ends, nothing_is_lost, paid, running, told, troubled};
use crate::fake_nvml::{Machine, h100};
use crate::gpus::{FOLLOWS, slice, study};
use crate::support::{Ended, signal, wait_until};

/// 50,000 MiB that stay taken while the file `taken` exists.
const TAKEN: &str = "extra {dir}/taken 50000";

/// Makes one launch fail for another reason. The wait for the next one is long enough for a neighbour to come.
const PAUSE: &str = "[ $n -ne 2 ] || fault exit@config:cause=network";

pub(super) fn nights() -> Vec<Night> {
    vec![
        Night::new("a neighbour comes during a load", comes_during_a_load),
        Night::new("a neighbour takes the memory and gives it back", takes_and_gives_back),
        Night::new("a neighbour stays until the user gives up", stays),
        Night::new("a neighbour stays until the time is up", stays_until_the_time_is_up),
        Night::new("a neighbour on the other instance of a device", on_another_instance),
        Night::new("a device that the driver loses", lost),
        Night::new("a driver that begins to hang", hangs),
    ]
}

/// Creates a study with this trouble, whose engine the program takes for a real one.
fn place(trouble: &str, budget: &str, devices: &str) -> Machine {
    let text = study(&format!("{}\nset -- \"$@\" $faults", troubled(trouble)), "", budget);
    Machine::new(&text.replace("\"50ms\"", "\"1s\""), devices)
}

/// Starts a run, follows it with `course`, and waits for its end.
fn follow(name: &str, machine: &Machine, course: impl FnOnce(&dyn Fn(&str), &std::process::Child)) -> Ended {
    let mut tuner = machine.start(&["tune", "study.toml", "--log-format", "json"]);
    let told = || std::fs::read_to_string(machine.workplace.path("stderr.txt")).unwrap();
    let shows = |text: &str| wait_until(Duration::from_mins(1), &format!("{name}: {text}"), || told().contains(text));
    course(&shows, &tuner);
    let code = tuner.wait().unwrap().code();
    Ended { code, stdout: String::new(), stderr: told() }
}

fn is_complete(name: &str, machine: &Machine, before: &[Json], after: &[Json]) {
    blames_nobody(name, after);
    assert_eq!(paid(after), PAID, "{name}: {:?}", told(after));
    nothing_is_lost(name, &machine.workplace, before, after);
}

fn takes_and_gives_back(name: &str) {
    let machine = place(PAUSE, BUDGET, &h100(0, &[FOLLOWS, TAKEN]));
    let run = follow(name, &machine, |shows, _| {
        shows("\"event\":\"retry\"");
        machine.workplace.write("taken", "");
        shows("the launch waits for up to 5 minutes");
        std::fs::remove_file(machine.workplace.path("taken")).unwrap();
    });
    let trials = ends(name, &machine.workplace, &run, 0, "30959 MiB free, but the launch needs 74482 MiB");
    is_complete(name, &machine, &[], &trials);
}

fn stays(name: &str) {
    let machine = place(PAUSE, BUDGET, &h100(0, &[FOLLOWS, TAKEN]));
    let run = follow(name, &machine, |shows, tuner| {
        shows("\"event\":\"retry\"");
        machine.workplace.write("taken", "");
        shows("the launch waits for up to 5 minutes");
        signal(tuner, Signal::SIGINT);
    });
    let before = ends(name, &machine.workplace, &run, 130, "interrupted; run the same command again to go on");
    assert_eq!(running(&machine.workplace), 1, "{name}");
    std::fs::remove_file(machine.workplace.path("taken")).unwrap();
    let after = ends(name, &machine.workplace, &machine.run(&["tune", "study.toml"]), 0, "");
    is_complete(name, &machine, &before, &after);
}

fn stays_until_the_time_is_up(name: &str) {
    let begin = Instant::now();
    let machine = place(PAUSE, "time = \"6s\"\nconfirm = 1\nstop_below = 0", &h100(0, &[FOLLOWS, TAKEN]));
    let run = follow(name, &machine, |shows, _| {
        shows("\"event\":\"retry\"");
        machine.workplace.write("taken", "");
    });
    assert!(begin.elapsed() < Duration::from_secs(11), "{name}: {:?}", begin.elapsed());
    let before = ends(name, &machine.workplace, &run, 0, "the launch waits for up to 5 minutes");
    assert!(run.stderr.contains("the time budget is spent"), "{name}: {}", run.stderr);
    std::fs::remove_file(machine.workplace.path("taken")).unwrap();
    let arguments = ["tune", "study.toml", "--trials", "5", "--time", "60s"];
    let after = ends(name, &machine.workplace, &machine.run(&arguments), 0, "");
    is_complete(name, &machine, &before, &after);
}

fn comes_during_a_load(name: &str) {
    let text = study("true", "", BUDGET).replace("--sim-time-scale 200", "--sim-time-scale 1");
    let text = text.replace("output_len = 8", "output_len = 96").replace("choices = [8, 256, 2048]", "choices = [256]");
    let machine = Machine::new(&text, &h100(0, &[FOLLOWS, "visitor {dir}/visitor 4100001"]));
    let run = follow(name, &machine, |shows, _| {
        shows("\"measuring\",\"trial\":1");
        machine.workplace.write("visitor", "");
        shows("\"disturbed\"");
        std::fs::remove_file(machine.workplace.path("visitor")).unwrap();
    });
    let trials = ends(name, &machine.workplace, &run, 0, "\"repeated\":true");
    assert!(!run.stderr.contains("\"repeated\":false"), "{name}: {}", run.stderr);
    let marked = |trial: &Json| trial["metrics"].get("disturbed").is_some();
    assert!(!trials.iter().any(marked), "{name}: {:?}", told(&trials));
    is_complete(name, &machine, &[], &trials);
}

fn on_another_instance(name: &str) {
    let own = slice(1, &["follows {dir}/pids 30000"]);
    let other = slice(2, &["extra {dir}/launches 39000"]);
    let device = h100(0, &["mig 1", "error memory_v2 4", "error memory 4"]);
    let machine = place("true", BUDGET, &[device, own, other].concat());
    let run = machine.run_with(&[("CUDA_VISIBLE_DEVICES", "MIG-1bbb-22")], &["tune", "study.toml"]);
    let trials = ends(name, &machine.workplace, &run, 0, "");
    assert!(!run.stderr.contains("the launch waits"), "{name}: {}", run.stderr);
    is_complete(name, &machine, &[], &trials);
}

fn lost(name: &str) {
    let trouble = "[ $n -le 2 ] || { mv lost devices 2>/dev/null; fault exit@weights:cause=no-device; }";
    let machine = place(trouble, BUDGET, &h100(0, &[FOLLOWS]));
    machine.workplace.write("lost", &h100(0, &["error all 15"]));
    let paused = machine.run(&["tune", "study.toml"]);
    let before = ends(name, &machine.workplace, &paused, 5, "device_lost: RuntimeError: Failed to infer device type");
    assert!(paused.stderr.contains("hint: check with `nvidia-smi` and `dmesg`"), "{name}: {}", paused.stderr);
    blames_nobody(name, &before);
    // On the next evening the device is still lost. One launch is enough to notice it.
    let launches = || std::fs::read_to_string(machine.workplace.path("launches")).unwrap().lines().count();
    let so_far = launches();
    let still = machine.run(&["tune", "study.toml"]);
    let says = "GPU 0 cannot be read: device fell off the bus";
    assert_eq!(ends(name, &machine.workplace, &still, 5, says), before, "{name}");
    assert_eq!(launches(), so_far + 1, "{name}");
    machine.set(&h100(0, &[FOLLOWS]));
    machine.workplace.write("mended", "");
    let after = ends(name, &machine.workplace, &machine.run(&["tune", "study.toml"]), 0, "");
    is_complete(name, &machine, &before, &after);
}

fn hangs(name: &str) {
    let machine = place("[ $n -le 1 ] || touch hang", BUDGET, &h100(0, &[FOLLOWS, "hang all {dir}/hang"]));
    let run = machine.run(&["tune", "study.toml"]);
    let trials = ends(name, &machine.workplace, &run, 0, "the devices' memory is not watched: the driver hangs: ");
    let told = run.stderr.matches("memory is not watched: the driver hangs: listing").count();
    assert!(told <= 1, "{name}: once is enough: {}", run.stderr);
    is_complete(name, &machine, &[], &trials);
}
