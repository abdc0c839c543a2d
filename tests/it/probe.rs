//! Failures of the environment and failures that only look like them, with the cause that the study assigns.

use crate::support::{Workplace, study_with};

/// Returns an engine that runs `before` with the number of its launch in `$n`. If `before` does not exit, it continues
/// as the simulated engine.
fn engine(before: &str) -> String {
    let program = env!("CARGO_BIN_EXE_setpoint");
    format!(
        r#"command = ["sh", "-c", '''echo >> launches; n=$(wc -l < launches); {before}; exec {program} sim serve "$@"''', "sh"]"#
    )
}

/// A message that no pattern matches, with numbers that differ from launch to launch.
const UNKNOWN: &str = r#"{ echo "flux capacitor $$ lost charge at 0x$n$$" >&2; exit 7; }"#;

fn states(workplace: &Workplace) -> Vec<String> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let trials = workplace.trials();
    trials.iter().map(|trial| format!("{} {}", text(&trial["proposed_by"]), text(&trial["state"]))).collect()
}

fn launches(workplace: &Workplace) -> usize {
    std::fs::read_to_string(workplace.path("launches")).unwrap().lines().count()
}

fn best(workplace: &Workplace) -> serde_json::Value {
    workplace.json(&["best", "--format", "json"])["config"].clone()
}

#[test]
fn a_machine_that_breaks_in_words_unknown_costs_four_launches_and_no_result() {
    let broken = format!(r#"[ -e mended ] || [ "$n" -le 4 ] || {UNKNOWN}"#);
    let workplace = Workplace::with_study(&study_with(&engine(&broken), "trials = 8\nconfirm = 0"));
    let paused = workplace.run(&["tune", "study.toml"]);
    assert_eq!((paused.code, launches(&workplace)), (Some(5), 8), "{}", paused.stderr);
    assert!(paused.stderr.contains("the study is paused: 4 launches in a row failed since"), "{}", paused.stderr);
    assert!(paused.stderr.contains("startup_exit: exit code 7; flux capacitor"), "{}", paused.stderr);
    assert_eq!(states(&workplace).len(), 4, "the failures are no outcomes: {:?}", states(&workplace));
    let before = best(&workplace);
    let incidents = workplace.run(&["show", "5"]).stderr;
    assert!(incidents.contains("flux capacitor"), "the evidence is kept: {incidents}");

    workplace.write("mended", "");
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let states = states(&workplace);
    assert_eq!((states.len(), states.iter().filter(|state| state.ends_with("measured")).count()), (9, 9), "{states:?}");
    assert_eq!(states.iter().filter(|state| *state == "probe measured").count(), 1);
    assert!(before.is_object() && best(&workplace).is_object());
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}

#[test]
fn configurations_that_fail_in_words_unknown_do_not_stop_the_study() {
    // Everything but the defaults fails.
    let before = format!(r#"case "$*" in *max-num-seqs*) {UNKNOWN};; esac"#);
    let workplace = Workplace::with_study(&study_with(&engine(&before), "trials = 11\nconfirm = 0"));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let states = states(&workplace);
    let probes: Vec<_> = (0..states.len()).filter(|place| states[*place] == "probe measured").collect();
    assert_eq!((probes, states.len()), (vec![4, 11], 13), "after three failures, then after six: {states:?}");
    let ranked = workplace.json(&["best", "--format", "json"]);
    assert_eq!(ranked["measurements"], 3, "probes are replicates: {ranked}");
}

#[test]
fn a_machine_that_breaks_before_the_confirmation_does_not_turn_the_ranking() {
    let broken = format!(r#"[ -e mended ] || [ "$n" -le 6 ] || {UNKNOWN}"#);
    let text = study_with(&engine(&broken), "trials = 8\nconfirm = 1");
    let workplace = Workplace::with_study(&text);
    let paused = workplace.run(&["tune", "study.toml"]);
    assert_eq!((paused.code, launches(&workplace)), (Some(5), 8), "{}", paused.stderr);
    let trials = workplace.trials();
    let value = |trial: &serde_json::Value| trial["value"].as_f64().unwrap();
    let highest = trials.iter().max_by(|a, b| value(a).total_cmp(&value(b))).unwrap();
    assert_eq!(best(&workplace), highest["config"], "the winner is still the winner");
    workplace.write("mended", "");
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    let states = states(&workplace);
    assert_eq!(states.iter().filter(|state| *state == "confirmation measured").count(), 2, "{states:?}");
}

#[test]
fn an_engine_that_never_starts_pauses_the_study_and_each_trial_comes_again_once_it_does() {
    let broken = format!("[ -e mended ] || {UNKNOWN}");
    let workplace = Workplace::with_study(&study_with(&engine(&broken), "trials = 4\nconfirm = 0"));
    for _ in 0..2 {
        let paused = workplace.run(&["tune", "study.toml"]);
        assert_eq!(paused.code, Some(5), "{}", paused.stderr);
        assert!(paused.stderr.contains("no configuration has worked yet"), "{}", paused.stderr);
    }
    assert_eq!(launches(&workplace), 6, "the defaults have failed alike: there is nothing to probe with");
    workplace.write("mended", "");
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    assert_eq!(states(&workplace).iter().filter(|state| state.ends_with(" measured")).count(), 4);
}
