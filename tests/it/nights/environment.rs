//! Nights with failures of the environment, and nights with failures of configurations.

use super::{BUDGET, Night, PAID, blames_nobody, ends, engine, measured, nothing_is_lost, paid, told};
use crate::support::{Workplace, study_with};

/// The engine's driver fails at the signal to end, when the trial is already measured.
const LOST_AT_THE_STOP: &str = r#"case $n in 1|2) ;; 3) trap 'kill $engine; wait $engine; say "torch.AcceleratorError: CUDA error: unknown error"' TERM INT
PROGRAM sim serve "$@" & engine=$!; wait $engine; exit;; *) fault exit@weights:cause=device-lost;; esac"#;

/// Nights that pause: name, trouble, and a text of the message.
const BREAKS: [(&str, &str, &str); 20] = [
    ("device lost while arguments are read", "[ $n -le 3 ] || fault exit@config:cause=device-lost", "device_lost"),
    ("device lost while weights are loaded", "[ $n -le 3 ] || fault exit@weights:cause=device-lost", "device_lost"),
    ("device lost as the cache is allocated", "[ $n -le 1 ] || fault exit@kv:cause=device-lost", "device_lost"),
    ("device lost while graphs are captured", "[ $n -le 2 ] || fault exit@graphs:cause=device-lost", "device_lost"),
    ("device lost before the first token", "[ $n -le 2 ] || fault die:request=1,cause=device-lost", "device_lost"),
    ("device lost in the warm-up", "[ $n -le 2 ] || fault die:request=3,cause=device-lost", "device_lost"),
    ("device lost under load", "[ $n -le 2 ] || fault die:request=9,cause=device-lost", "device_lost"),
    ("device lost at the stop", LOST_AT_THE_STOP, "device_lost"),
    ("device lost at once", "fault exit@weights:cause=device-lost", "no configuration has worked yet"),
    ("device lost in the confirmation", "[ $n -le 3 ] || fault exit@weights:cause=device-lost", "device_lost"),
    ("device lost in the last launch", "[ $n -le 4 ] || fault exit@weights:cause=device-lost", "device_lost"),
    ("driver upgraded at night", "[ $n -le 2 ] || fault exit@config:cause=driver-mismatch", "device_lost"),
    ("file system gone", "[ $n -le 2 ] || fault exit@weights:cause=stale-file", "device_lost"),
    ("network down", "[ $n -le 2 ] || fault exit@config:cause=network", "network"),
    ("device taken by somebody", "[ $n -le 2 ] || fault exit@profile:cause=device-busy", "device_busy"),
    ("words unknown at the start", "[ $n -le 2 ] || say \"frobnicator $n$$ at 0x7f$n gave up\"", "frobnicator"),
    ("nothing said at all", "[ $n -le 2 ] || exit 3", "exit code 3"),
    ("killed by somebody again and again", "[ $n -le 2 ] || kill -9 $$", "killed"),
    ("memory taken by somebody", "[ $n -le 2 ] || fault exit@kv:cause=no-kv", "no_kv_memory"),
    ("every load crashes", "[ $n -le 2 ] || fault die:request=9", "crash"),
];

/// Nights that do not pause: name, trouble, and a text of the message.
const GOES_ON: [(&str, &str, &str); 8] = [
    (
        "configurations fail in words unknown",
        "case \"$*\" in *max-num-seqs*) say \"frobnicator $n$$ gave up\";; esac",
        "has started: the environment did not",
    ),
    (
        "configurations are killed",
        "case \"$*\" in *max-num-seqs*) kill -9 $$;; esac",
        "has started: the environment did not",
    ),
    (
        "configurations say that the device is busy",
        "case \"$*\" in *max-num-seqs*) fault exit@profile:cause=device-busy;; esac",
        "has started: the environment did not",
    ),
    (
        "configurations say that the device is lost",
        "case \"$*\" in *max-num-seqs*) fault exit@weights:cause=device-lost;; esac",
        "has started: the environment did not",
    ),
    (
        "configurations need too much memory",
        "case \"$*\" in *max-num-seqs*) fault exit@weights:cause=oom-weights;; esac",
        "out_of_memory",
    ),
    ("one launch fails in words unknown", "[ $n -ne 3 ] || say \"frobnicator gave up\"", "frobnicator"),
    ("one launch finds no memory", "[ $n -ne 3 ] || fault exit@kv:cause=no-kv", "no_kv_memory"),
    ("one load crashes", "[ $n -ne 3 ] || fault die:request=9", "crash"),
];

pub(super) fn nights() -> Vec<Night> {
    let broken = BREAKS.map(|(name, trouble, says)| Night::new(name, move |name| breaks(name, trouble, says)));
    let whole = GOES_ON.map(|(name, trouble, says)| Night::new(name, move |name| goes_on(name, trouble, says)));
    broken.into_iter().chain(whole).collect()
}

/// Checks that the study pauses with the cause, that no configuration is blamed, and that the study completes after the
/// repair.
fn breaks(name: &str, trouble: &str, says: &str) {
    let trouble = trouble.replace("PROGRAM", env!("CARGO_BIN_EXE_setpoint"));
    let workplace = Workplace::with_study(&study_with(&engine(&trouble), BUDGET));
    let paused = workplace.run(&["tune", "study.toml"]);
    let before = ends(name, &workplace, &paused, 5, says);
    assert!(paused.stderr.contains("error: the study is paused: "), "{name}: {}", paused.stderr);
    blames_nobody(name, &before);
    workplace.write("mended", "");
    let after = ends(name, &workplace, &workplace.run(&["tune", "study.toml"]), 0, "");
    blames_nobody(name, &after);
    assert_eq!(paid(&after), PAID, "{name}: {:?}", told(&after));
    nothing_is_lost(name, &workplace, &before, &after);
}

/// Checks that the study ends by itself, and that the best of the other configurations wins.
fn goes_on(name: &str, trouble: &str, says: &str) {
    // One launch more than in `BUDGET`, so that three fail in a row before the confirmation.
    let workplace = Workplace::with_study(&study_with(&engine(trouble), "trials = 6\nconfirm = 1"));
    let trials = ends(name, &workplace, &workplace.run(&["tune", "study.toml"]), 0, says);
    let failed: Vec<_> = trials.iter().filter(|trial| trial["state"] == "failed").collect();
    assert!(!failed.is_empty() && measured(&trials) > 0, "{name}: {:?}", told(&trials));
    let winner = &super::best(&workplace)["config"];
    assert!(failed.iter().all(|trial| trial["config"] != *winner), "{name}: {winner} has failed");
    nothing_is_lost(name, &workplace, &[], &trials);
}
