//! Launches that fail because of their environment. They are repeated and stored, and the study pauses if that does not
//! help.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value as Json;

use crate::support::{Ended, Workplace, signal, study_with};

/// Returns an engine that runs `before` in the study's directory. If `before` does not exit, it continues as the
/// simulated engine.
fn engine(before: &str) -> String {
    let program = env!("CARGO_BIN_EXE_setpoint");
    format!(r#"command = ["sh", "-c", '''{before}; exec {program} sim serve "$@"''', "sh"]"#)
}

const FULL: &str = r#"[ -e mended ] || { echo "OSError: [Errno 28] No space left on device: /x" >&2; exit 1; }"#;

/// Returns an engine that fails at its first `times` launches, which it counts in a file.
fn failing(times: u32, failure: &str) -> String {
    engine(&format!(r#"echo >> launches; [ "$(wc -l < launches)" -gt {times} ] || {{ {failure}; }}"#))
}

fn launches(workplace: &Workplace) -> usize {
    std::fs::read_to_string(workplace.path("launches")).unwrap().lines().count()
}

fn running(workplace: &Workplace) -> Json {
    workplace.json(&["studies", "--format", "json"])[0]["running"].clone()
}

#[test]
fn a_failure_of_the_environment_is_kept_and_the_same_trial_is_launched_again() {
    let failure = r#"echo "OSError: [Errno 28] No space left on device: /x" >&2; exit 1"#;
    let workplace = Workplace::with_study(&study_with(&failing(1, failure), "trials = 1"));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let told =
        "trial 0: not its fault, disk: OSError: [Errno 28] No space left on device: /x; launching again in 0.050 s";
    assert!(tuned.stderr.contains(told), "{}", tuned.stderr);
    assert!(tuned.stdout.contains("1 measured, 0 failed, 0 rejected"), "{}", tuned.stdout);
    assert!(tuned.stdout.contains("1 more launch failed for reasons of the environment: disk 1"), "{}", tuned.stdout);
    let trials = workplace.trials();
    assert_eq!((trials.len(), &trials[0]["state"], launches(&workplace)), (1, &"measured".into(), 2));

    let shown = workplace.json(&["show", "0", "--format", "json"]);
    let incidents = shown["incidents"].as_array().unwrap();
    assert_eq!((incidents.len(), &incidents[0]["kind"], &incidents[0]["attempt"]), (1, &"disk".into(), &1.into()));
    let log = incidents[0]["log"].as_str().unwrap();
    assert!(log.ends_with("trial-0000.1.log"), "{log}");
    assert!(std::fs::read_to_string(log).unwrap().contains("No space left"));
    assert!(std::fs::read_to_string(shown["log"].as_str().unwrap()).unwrap().contains("startup complete"));
    let text = workplace.run(&["show", "0"]).stdout;
    assert!(text.lines().any(|line| line.starts_with("incident ") && line.contains("disk: OSError")), "{text}");
}

#[test]
fn an_environment_that_fails_for_a_configuration_that_worked_pauses_the_study_which_goes_on_with_the_same_trial() {
    // The first trial is measured, then the disk is full.
    let before = format!(r#"echo >> launches; [ "$(wc -l < launches)" -le 1 ] || {{ {FULL}; }}"#);
    let workplace = Workplace::with_study(&study_with(&engine(&before), "trials = 3\nconfirm = 0"));
    let paused = workplace.run(&["tune", "study.toml", "--log-format", "json"]);
    assert_eq!((paused.code, launches(&workplace)), (Some(5), 5), "{}", paused.stderr);
    let of = |ended: &Ended, kind: &str| -> Vec<Json> {
        let events = ended.stderr.lines().map(|line| serde_json::from_str::<Json>(line).unwrap());
        events.filter(|event| event["event"] == kind).collect()
    };
    let waits: Vec<_> = of(&paused, "retry").iter().map(|event| event["wait_s"].as_f64().unwrap()).collect();
    assert_eq!(waits, [0.05, 0.25]);
    assert_eq!((of(&paused, "pause").len(), &of(&paused, "error")[0]["exit_code"]), (1, &5.into()));
    assert!(paused.stdout.contains("best: trial 0, "), "what was found so far is told: {}", paused.stdout);
    assert_eq!((workplace.trials().len(), running(&workplace)), (1, 2.into()), "the trial and the probe");
    let shown = workplace.run(&["show", "1"]);
    assert_eq!(shown.code, Some(3));
    assert_eq!(shown.stderr.matches("disk: OSError").count(), 3, "{}", shown.stderr);

    // The next run launches only the probe, and no trial is affected.
    let again = workplace.run(&["tune", "study.toml"]);
    assert_eq!((again.code, launches(&workplace)), (Some(5), 6), "{}", again.stderr);
    let told = "error: the study is paused: 2 launches in a row failed since 2";
    assert!(again.stderr.contains(told), "{}", again.stderr);
    assert!(again.stderr.contains("most recently trial 2 with disk: OSError"), "{}", again.stderr);
    assert!(again.stderr.contains("hint: free some space"), "{}", again.stderr);

    workplace.write("mended", "");
    let mended = workplace.run(&["tune", "study.toml"]);
    assert_eq!(mended.code, Some(0), "{}", mended.stderr);
    let trials = workplace.trials();
    let decided: Vec<_> =
        trials.iter().map(|trial| (trial["trial"].as_i64().unwrap(), &trial["proposed_by"])).collect();
    assert_eq!(decided.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(decided[2].1, "probe");
    assert!(trials.iter().all(|trial| trial["state"] == "measured"), "{trials:?}");
    assert_eq!((&trials[2]["config"], running(&workplace)), (&trials[0]["config"], 0.into()));
    let undisturbed = Workplace::with_study(&study_with("", "trials = 2\nconfirm = 0"));
    assert_eq!(undisturbed.run(&["tune", "study.toml"]).code, Some(0));
    assert_eq!(trials[1]["config"], undisturbed.trials()[1]["config"]);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}

#[test]
fn an_environment_that_fails_for_one_configuration_alone_is_that_configurations_failure() {
    let before =
        format!(r#"echo >> launches; [ "$(wc -l < launches)" -le 1 ] || case "$*" in *max-num-seqs*) {FULL};; esac"#);
    let workplace = Workplace::with_study(&study_with(&engine(&before), "trials = 3\nconfirm = 0"));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let trials = workplace.trials();
    let of: Vec<_> = trials.iter().map(|trial| format!("{} {}", trial["proposed_by"], trial["state"])).collect();
    assert_eq!(of.iter().filter(|of| *of == "\"probe\" \"measured\"").count(), 1, "{of:?}");
    // The defaults, three launches of trial 1, the probe, and one launch of the next trial, which fails like trial 1.
    assert_eq!((launches(&workplace), running(&workplace)), (6, 0.into()), "{of:?}");
    assert!(
        tuned.stderr.contains("the probe, trial 2, has started: the environment did not cause"),
        "{}",
        tuned.stderr
    );
}

#[test]
fn a_failure_of_the_configuration_is_its_outcome_at_once() {
    let failure = r#"echo "ValueError: No available memory for the cache blocks." >&2; exit 1"#;
    let workplace = Workplace::with_study(&study_with(&failing(1, failure), "trials = 2\nconfirm = 0"));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    let trials = workplace.trials();
    assert_eq!((&trials[0]["state"], &trials[0]["reason_code"]), (&"failed".into(), &"no_kv_memory".into()));
    assert_eq!((&trials[1]["state"], launches(&workplace)), (&"measured".into(), 2));
    assert_eq!(workplace.json(&["show", "0", "--format", "json"])["incidents"], serde_json::json!([]));
}

#[test]
fn an_engine_that_somebody_else_kills_is_launched_again_at_any_moment() {
    // The first launch is killed before it is ready. The second is killed under load: a background loop waits for the
    // end of the start-up in the log, and kills the engine 0.3 s later.
    let kill = r#"case $(wc -l < launches) in 1) kill -9 $$;; 2) (while ! grep -q complete /proc/$$/fd/1; do sleep 0.02; done; sleep 0.3; kill -9 $$) & set -- "$@" --sim-time-scale 0.05;; esac"#;
    let workplace = Workplace::with_study(&study_with(&failing(2, kill), "trials = 1"));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let shown = workplace.json(&["show", "0", "--format", "json"]);
    let incidents = shown["incidents"].as_array().unwrap();
    let kinds: Vec<_> = incidents.iter().map(|incident| &incident["kind"]).collect();
    assert_eq!(
        (serde_json::json!(kinds), launches(&workplace)),
        (serde_json::json!(["killed", "killed"]), 3),
        "{incidents:?}"
    );
    assert_eq!(incidents[0]["message"], "signal 9, which the tuner did not send");
    assert_eq!(shown["state"], "measured");
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}

#[test]
fn a_wait_for_the_environment_can_be_interrupted() {
    let text = study_with(&engine(FULL), "trials = 1").replace("\"50ms\"", "\"1h\"");
    let workplace = Workplace::with_study(&text);
    let mut tuner = workplace.start(&["tune", "study.toml"]);
    workplace.wait_for("launching again in 60 min");
    let begin = Instant::now();
    signal(&tuner, Signal::SIGINT);
    assert_eq!(tuner.wait().unwrap().code(), Some(130));
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert_eq!(running(&workplace), 1);
}

#[test]
fn a_configuration_that_is_killed_in_every_run_fails_and_the_study_goes_on_with_the_next() {
    // Only the defaults have no --max-num-seqs.
    let before = r#"case "$*" in *max-num-seqs*) ;; *) kill -9 $$;; esac"#;
    let workplace = Workplace::with_study(&study_with(&engine(before), "trials = 2\nconfirm = 0"));
    let paused = workplace.run(&["tune", "study.toml"]);
    assert_eq!((paused.code, workplace.trials().len()), (Some(5), 0), "{}", paused.stderr);
    assert!(paused.stderr.contains("no configuration has worked yet, the defaults included"), "{}", paused.stderr);
    let again = workplace.run(&["tune", "study.toml"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    let trials = workplace.trials();
    let states: Vec<_> = trials.iter().map(|trial| trial["state"].as_str().unwrap()).collect();
    assert_eq!((states, &trials[0]["reason_code"]), (vec!["failed", "measured"], &"killed".into()));
    assert!(trials[0]["log"].as_str().unwrap().ends_with("trial-0000.4.log"), "{}", trials[0]);
}
