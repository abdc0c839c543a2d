//! `reap`: it ends the processes that a killed run left behind, and no others.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Workplace, signal, study_with, wait_until};

/// Returns a study whose engine takes long to start.
fn slow() -> String {
    study_with("", "trials = 1").replace("\"0.02\"", "\"60\"")
}

#[test]
fn what_a_killed_tuner_left_is_listed_and_then_ended() {
    let workplace = Workplace::with_study(&slow());
    let mut tuner = workplace.start(&["tune", "study.toml", "--verbose"]);
    workplace.wait_for("trial 0: starting");
    wait_until(Duration::from_secs(10), "the engine's process", || !workplace.processes_left().is_empty());
    let engine = workplace.processes_left()[0];

    // While the tuner lives, its engine is listed but not ended.
    let running = workplace.json(&["reap", "--format", "json"]);
    let process = &running["processes"][0];
    assert_eq!(
        (process["pid"].as_i64(), process["state"].as_str()),
        (Some(engine.into()), Some("running")),
        "{running}"
    );
    assert_eq!(process["tuner"], tuner.id());
    let told = workplace.run(&["reap"]);
    assert_eq!(told.code, Some(0));
    assert!(told.stdout.contains(&format!("running (tuner {})", tuner.id())), "{}", told.stdout);
    assert!(
        told.stderr.contains("nothing was left behind; not touched, because their tuner is running: 1"),
        "{}",
        told.stderr
    );
    assert_eq!(workplace.processes_left(), [engine]);

    signal(&tuner, Signal::SIGKILL);
    tuner.wait().unwrap();
    let listed = workplace.json(&["reap", "--dry-run", "--format", "json"]);
    let process = &listed["processes"][0];
    assert_eq!(process["state"], "left behind");
    assert_eq!((process["study"].as_str(), process["trial"].as_u64()), (Some("fast"), Some(0)));
    assert_eq!(process["database"], workplace.path("setpoint.db").canonicalize().unwrap().to_str().unwrap());
    assert!(process["age_s"].as_f64().is_some_and(|age| age < 60.0), "{process}");
    assert_eq!(workplace.processes_left(), [engine]);
    let doctor = workplace.run(&["doctor"]);
    assert!(doctor.stdout.contains("warn  leftovers    1 process that "), "{}", doctor.stdout);

    // Processes of another database are ignored.
    let other = Workplace::with_study(&study_with("", "trials = 1"));
    assert_eq!(other.run(&["tune", "study.toml"]).code, Some(0));
    let nothing = other.run(&["reap"]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(0), ""));
    assert_eq!(workplace.processes_left(), [engine]);

    let ended = workplace.run(&["reap"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("ended 1 processes that a killed run had left behind"), "{}", ended.stderr);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    let again = workplace.run(&["reap"]);
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), ""));
    assert!(again.stderr.contains("nothing was left behind"), "{}", again.stderr);
}

#[test]
fn an_engine_that_has_cleared_its_environment_and_left_the_session_is_known_by_its_log() {
    let program = env!("CARGO_BIN_EXE_setpoint");
    let script = format!("setsid --fork env -i {program} sim serve \\\"$@\\\"; exec sleep 600");
    let engine = format!("kind = \"sim\"\ncommand = [\"sh\", \"-c\", \"{script}\", \"sh\"]");
    let workplace = Workplace::with_study(&slow().replace("kind = \"sim\"", &engine));
    let mut tuner = workplace.start(&["tune", "study.toml", "--verbose"]);
    wait_until(Duration::from_secs(10), "the engine and the leader", || {
        workplace.processes_left().iter().filter(|pid| named(**pid).is_some()).count() == 2
    });
    signal(&tuner, Signal::SIGKILL);
    tuner.wait().unwrap();
    // Without its leader, the engine has no parent, session or environment that identifies the trial.
    let leader = workplace.processes_left().into_iter().find(|pid| named(*pid).as_deref() == Some("sleep")).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(leader), Signal::SIGKILL).unwrap();
    wait_until(Duration::from_secs(10), "the leader's end", || workplace.processes_left().len() == 1);

    let left = workplace.json(&["reap", "--dry-run", "--format", "json"]);
    assert_eq!(
        (left["processes"].as_array().unwrap().len(), &left["processes"][0]["proof"]),
        (1, &serde_json::json!("log"))
    );
    let ended = workplace.run(&["reap"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}

/// Returns the program of the process, if it is the engine or the leader.
fn named(pid: i32) -> Option<String> {
    let stat = procfs::process::Process::new(pid).ok()?.stat().ok()?;
    ["setpoint", "sleep"].contains(&stat.comm.as_str()).then_some(stat.comm)
}
