//! Nights of a study as they happen, through the program itself: each ends with the right message, exit code and winner, loses
//! nothing and leaves nothing running.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value as Json;

use crate::support::{Workplace, study_with};

/// Nights at a time. More would compete for the processors.
const AT_A_TIME: usize = 4;

/// The budget of every night that has no other: the last two launches confirm.
const BUDGET: &str = "trials = 6\nconfirm = 1";

/// An engine that runs `trouble` with the number of its launch in `$n`, until there is a file `mended`. `fault NAME` gives it
/// a fault of the simulated engine, `say TEXT` ends it with a text.
fn engine(trouble: &str) -> String {
    let script = [
        "echo >> launches; n=$(wc -l < launches); faults=",
        "fault() { faults=\"$faults --sim-fault $1\"; }",
        "say() { echo \"$1\" >&2; exit 1; }",
        &format!("[ -e mended ] || {{ {trouble}; }}"),
        &format!("exec {} sim serve \"$@\" $faults", env!("CARGO_BIN_EXE_setpoint")),
    ];
    let script = script.join("\n");
    format!("command = [\"sh\", \"-c\", '''\n{script}''', \"sh\"]")
}

fn best(workplace: &Workplace) -> Json {
    workplace.json(&["best", "--format", "json"])["config"].clone()
}

/// The configuration with the highest mean value.
fn highest(trials: &[Json]) -> Json {
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for trial in trials {
        let sum = sums.entry(trial["config"].to_string()).or_default();
        *sum = (sum.0 + trial["value"].as_f64().unwrap_or(0.0), sum.1 + 1.0);
    }
    let mean = |(sum, count): &(f64, f64)| sum / count;
    let best = sums.iter().max_by(|a, b| mean(a.1).total_cmp(&mean(b.1)));
    best.map(|(config, _)| serde_json::from_str(config).unwrap()).unwrap_or_default()
}

fn measured(trials: &[Json]) -> usize {
    trials.iter().filter(|trial| trial["state"] == "measured").count()
}

/// A night on which something outside of the configurations breaks after some launches. It pauses with the cause, blames
/// nobody, and is finished once it is mended.
fn breaks(name: &str, trouble: &str, says: &str) {
    let workplace = Workplace::with_study(&study_with(&engine(trouble), BUDGET));
    let paused = workplace.run(&["tune", "study.toml"]);
    assert_eq!(paused.code, Some(5), "{name}: {}", paused.stderr);
    assert!(paused.stderr.contains("error: the study is paused: "), "{name}: {}", paused.stderr);
    assert!(paused.stderr.contains(says), "{name}: {says:?} is not in {}", paused.stderr);
    assert_eq!(workplace.processes_left(), [] as [i32; 0], "{name}");
    let before = workplace.trials();
    assert_eq!(measured(&before), before.len(), "{name}: no configuration is blamed: {before:?}");
    if !before.is_empty() {
        assert_eq!(best(&workplace), highest(&before), "{name}");
    }
    workplace.write("mended", "");
    let mended = workplace.run(&["tune", "study.toml"]);
    assert_eq!(mended.code, Some(0), "{name}: {}", mended.stderr);
    let trials = workplace.trials();
    assert_eq!(measured(&trials), trials.len(), "{name}: {trials:?}");
    let paid = trials.iter().filter(|trial| trial["proposed_by"] != "probe").count();
    assert_eq!(paid, 6, "{name}: {trials:?}");
    let kept =
        |trial: &&Json| before.iter().any(|old| old["trial"] == trial["trial"] && old["value"] == trial["value"]);
    assert_eq!(trials.iter().filter(kept).count(), before.len(), "{name}: nothing is lost");
    assert_eq!(workplace.processes_left(), [] as [i32; 0], "{name}");
}

/// A night on which some configurations fail for reasons of their own. It ends by itself, and the best of the others wins.
fn goes_on(name: &str, trouble: &str, says: &str) {
    let workplace = Workplace::with_study(&study_with(&engine(trouble), BUDGET));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{name}: {}", tuned.stderr);
    assert!(tuned.stderr.contains(says), "{name}: {says:?} is not in {}", tuned.stderr);
    let trials = workplace.trials();
    let failed: Vec<_> = trials.iter().filter(|trial| trial["state"] == "failed").collect();
    assert!(!failed.is_empty() && measured(&trials) > 0, "{name}: {trials:?}");
    let winner = best(&workplace);
    assert!(failed.iter().all(|trial| trial["config"] != winner), "{name}: {winner} has failed");
    assert_eq!(workplace.processes_left(), [] as [i32; 0], "{name}");
}

/// Nights of the two kinds: name, trouble, and a text of the message.
const BREAKS: [(&str, &str, &str); 22] = [
    ("device lost while arguments are read", "[ $n -le 3 ] || fault exit@config:cause=device-lost", "device_lost"),
    ("device lost while weights are loaded", "[ $n -le 3 ] || fault exit@weights:cause=device-lost", "device_lost"),
    ("device lost in the trial run", "[ $n -le 2 ] || fault exit@profile:cause=device-lost", "device_lost"),
    ("device lost as the cache is allocated", "[ $n -le 1 ] || fault exit@kv:cause=device-lost", "device_lost"),
    ("device lost while graphs are captured", "[ $n -le 4 ] || fault exit@graphs:cause=device-lost", "device_lost"),
    ("device lost under load", "[ $n -le 2 ] || fault die:request=9,cause=device-lost", "device_lost"),
    ("device lost at once", "fault exit@weights:cause=device-lost", "no configuration has worked yet"),
    ("device lost in the confirmation", "[ $n -le 4 ] || fault exit@weights:cause=device-lost", "device_lost"),
    ("device lost in the last launch", "[ $n -le 5 ] || fault exit@weights:cause=device-lost", "device_lost"),
    ("no device any more", "[ $n -le 2 ] || fault exit@weights:cause=no-device", "device_lost"),
    ("driver upgraded at night", "[ $n -le 2 ] || fault exit@config:cause=driver-mismatch", "device_lost"),
    ("link between devices lost", "[ $n -le 2 ] || fault exit@weights:cause=link-lost", "device_lost"),
    ("file system gone", "[ $n -le 2 ] || fault exit@weights:cause=stale-file", "device_lost"),
    ("disk full", "[ $n -le 2 ] || fault exit@weights:cause=disk-full", "disk"),
    ("network down", "[ $n -le 2 ] || fault exit@config:cause=network", "network"),
    ("device taken by somebody", "[ $n -le 2 ] || fault exit@profile:cause=device-busy", "device_busy"),
    ("words unknown at the start", "[ $n -le 2 ] || say \"frobnicator $n$$ at 0x7f$n gave up\"", "frobnicator"),
    ("words unknown from the first launch on", "say \"frobnicator $n$$ gave up\"", "no configuration has worked yet"),
    ("words unknown in the confirmation", "[ $n -le 4 ] || say \"frobnicator $n$$ gave up\"", "frobnicator"),
    ("nothing said at all", "[ $n -le 2 ] || exit 3", "exit code 3"),
    ("killed by somebody again and again", "[ $n -le 2 ] || kill -9 $$", "killed"),
    ("every load crashes", "[ $n -le 2 ] || fault die:request=9", "crash"),
];

const GOES_ON: [(&str, &str, &str); 8] = [
    (
        "configurations fail in words unknown",
        "case \"$*\" in *max-num-seqs*) say \"frobnicator $n$$ gave up\";; esac",
        "a probe, has started",
    ),
    ("configurations are killed", "case \"$*\" in *max-num-seqs*) kill -9 $$;; esac", "a probe, has started"),
    (
        "configurations say that the device is busy",
        "case \"$*\" in *max-num-seqs*) fault exit@profile:cause=device-busy;; esac",
        "a probe, has started",
    ),
    (
        "configurations say that the device is lost",
        "case \"$*\" in *max-num-seqs*) fault exit@weights:cause=device-lost;; esac",
        "a probe, has started",
    ),
    (
        "configurations need too much memory",
        "case \"$*\" in *max-num-seqs*) fault exit@weights:cause=oom-weights;; esac",
        "out_of_memory",
    ),
    (
        "collectives run out of memory",
        "case \"$*\" in *max-num-seqs*) fault exit@weights:cause=nccl-oom;; esac",
        "out_of_memory",
    ),
    ("one launch fails in words unknown", "[ $n -ne 3 ] || say \"frobnicator gave up\"", "frobnicator"),
    ("one load crashes", "[ $n -ne 3 ] || fault die:request=9", "crash"),
];

#[test]
fn nights_that_break_pause_and_nights_whose_configurations_fail_go_on() {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let night = next.fetch_add(1, Ordering::Relaxed);
            match (BREAKS.get(night), night.checked_sub(BREAKS.len()).map(|night| GOES_ON.get(night))) {
                (Some((name, trouble, says)), _) => breaks(name, trouble, says),
                (None, Some(Some((name, trouble, says)))) => goes_on(name, trouble, says),
                _ => break,
            }
        }
    };
    std::thread::scope(|scope| {
        for handle in (0..AT_A_TIME).map(|_| scope.spawn(work)).collect::<Vec<_>>() {
            handle.join().unwrap();
        }
    });
}

#[test]
fn a_tuner_that_is_killed_during_a_probe_goes_on_with_the_probe() {
    let trouble = "[ $n -le 2 ] || { [ $n -le 5 ] || sleep 60; say \"frobnicator $n gave up\"; }";
    let workplace = Workplace::with_study(&study_with(&engine(trouble), BUDGET));
    let mut tuner = workplace.start(&["tune", "study.toml"]);
    workplace.wait_for("3 launches in a row failed alike");
    crate::support::signal(&tuner, nix::sys::signal::Signal::SIGKILL);
    tuner.wait().unwrap();
    workplace.write("mended", "");
    let mended = workplace.run(&["tune", "study.toml"]);
    assert_eq!(mended.code, Some(0), "{}", mended.stderr);
    let trials = workplace.trials();
    let of = |by: &str| trials.iter().filter(|trial| trial["proposed_by"] == by).collect::<Vec<_>>();
    assert_eq!((of("probe").len(), &of("probe")[0]["state"]), (1, &"measured".into()), "{trials:?}");
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}

#[test]
fn a_trial_causes_no_second_pause() {
    // The defaults fail in every run, and nothing else was ever measured before them.
    let trouble = "case \"$*\" in *max-num-seqs*) ;; *) fault exit@weights:cause=disk-full;; esac";
    let workplace = Workplace::with_study(&study_with(&engine(trouble), BUDGET));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(5));
    let again = workplace.run(&["tune", "study.toml"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    let trials = workplace.trials();
    assert_eq!((&trials[0]["state"], &trials[0]["reason_code"]), (&"failed".into(), &"disk".into()));
    assert!(measured(&trials) >= 3, "{trials:?}");
}
