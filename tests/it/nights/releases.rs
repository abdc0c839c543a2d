//! Nights on which the engine's release changes: in the middle, or between two evenings.

use serde_json::Value as Json;

use super::{Night, best, blames_nobody, ends, engine, nothing_is_lost, told};
use crate::support::{Workplace, study_with};

/// The first release of a night. The study states it, or only the server reports it.
const FIRST: &str = "0.32.0";

pub(super) fn nights() -> Vec<Night> {
    vec![
        Night::new("a release that changes in the middle and is taken back", taken_back),
        Night::new("a release that changes in the middle and stays", stays),
        Night::new("a new release on the next evening", next_evening),
        Night::new("a patch in the middle", patched),
    ]
}

/// Creates a study whose engine has the release in the file `release`. Without this file, launches from the third on
/// have the release `second`.
fn place(second: &str, states: bool) -> Workplace {
    let trouble = format!(
        "release={FIRST}; [ $n -lt 3 ] || release={second}; [ ! -e release ] || release=$(cat release); \
         set -- \"$@\" --sim-vllm-version $release"
    );
    let stated = if states { format!("version = \"{FIRST}\"") } else { String::new() };
    let program = format!("{}\n{stated}", engine(&trouble));
    Workplace::with_study(&study_with(&program, "trials = 5\nconfirm = 1"))
}

fn tune(name: &str, workplace: &Workplace, arguments: &[&str], code: i32, says: &str) -> Vec<Json> {
    ends(name, workplace, &workplace.run(&[&["tune", "study.toml"], arguments].concat()), code, says)
}

const IN_THE_MIDDLE: &str = "the server of trial 2 reports release 0.33.0, but flags, rules and memory were computed for \
                             0.32.0 (reported by the first server of this run); the trial is not measured and stays \
                             unfinished hint: the engine was changed during the study";

fn of_release(trials: &[Json], release: &str) -> usize {
    trials.iter().filter(|trial| trial["context"]["release"] == release).count()
}

fn taken_back(name: &str) {
    let workplace = place("0.33.0", true);
    let before = tune(name, &workplace, &[], 3, IN_THE_MIDDLE);
    assert_eq!((before.len(), of_release(&before, FIRST)), (2, 2), "{name}: {:?}", told(&before));
    // The study states the earlier release, so another one cannot be accepted.
    let says = "set by engine.version";
    assert_eq!(tune(name, &workplace, &["--accept-change"], 3, says), before, "{name}");
    workplace.write("release", FIRST);
    let after = tune(name, &workplace, &[], 0, "");
    blames_nobody(name, &after);
    assert_eq!((after.len(), of_release(&after, FIRST)), (5, 5), "{name}: {:?}", told(&after));
    nothing_is_lost(name, &workplace, &before, &after);
}

fn stays(name: &str) {
    // The release is only assumed until the first launch reports it.
    let workplace = place("0.31.0", false);
    let says = "the server of trial 1 reports release 0.31.0, but flags, rules and memory were computed for 0.32.0";
    let before = tune(name, &workplace, &[], 3, says);
    assert_eq!((before.len(), of_release(&before, FIRST)), (1, 1), "{name}: {:?}", told(&before));
    refused_until_accepted(name, &workplace, &before);
}

/// Checks that every run without the flag is refused with one message and changes nothing. With the flag, the defaults
/// are measured again, and only trials of the new release are compared.
fn refused_until_accepted(name: &str, workplace: &Workplace, before: &[Json]) {
    let says = "engine release (stored: 0.32.0, now: 0.31.0)";
    for _ in 0..2 {
        assert_eq!(tune(name, workplace, &[], 3, says), before, "{name}");
    }
    let run = workplace.run(&["tune", "study.toml", "--accept-change", "--trials", "8"]);
    let says = "the change is accepted: engine release (stored: 0.32.0, now: 0.31.0)";
    let after = ends(name, workplace, &run, 0, says);
    assert!(!run.stderr.contains("--accept-change has no effect"), "{name}: {}", run.stderr);
    blames_nobody(name, &after);
    let baselines = after.iter().filter(|trial| trial["proposed_by"] == "baseline").count();
    assert_eq!((after.len(), baselines, of_release(&after, FIRST)), (8, 2, before.len()), "{name}: {:?}", told(&after));
    let winner = best(workplace);
    let is_new = after.iter().any(|trial| trial["trial"] == winner["trial"] && trial["earlier_context"] == false);
    assert!(is_new, "{name}: {winner}");
    nothing_is_lost(name, workplace, before, &after);
    assert_eq!(tune(name, workplace, &["--trials", "8"], 0, ""), after, "{name}: accepted once is enough");
}

fn next_evening(name: &str) {
    let workplace = place(FIRST, false);
    let before = tune(name, &workplace, &["--trials", "3"], 0, "");
    workplace.write("release", "0.31.0");
    refused_until_accepted(name, &workplace, &before);
}

fn patched(name: &str) {
    let workplace = place("0.32.1", true);
    let trials = tune(name, &workplace, &[], 0, "");
    blames_nobody(name, &trials);
    assert_eq!((of_release(&trials, FIRST), of_release(&trials, "0.32.1")), (2, 3), "{name}: {:?}", told(&trials));
    nothing_is_lost(name, &workplace, &[], &trials);
}
