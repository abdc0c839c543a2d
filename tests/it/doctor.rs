//! `doctor`: one line for each check.

use crate::support::{Workplace, fast_study};

#[test]
fn a_machine_that_can_run_a_study_on_the_simulated_engine_is_well() {
    let workplace = Workplace::with_study(&fast_study());
    assert_eq!(workplace.run(&["tune", "study.toml", "--trials", "1"]).code, Some(0));
    let told = workplace.run(&["doctor", "study.toml"]);
    assert_eq!(told.code, Some(0), "{}{}", told.stdout, told.stderr);
    for line in told.stdout.lines() {
        assert!(["ok    ", "warn  "].iter().any(|state| line.starts_with(state)), "{line}");
    }
    for line in ["ok    engine       sim ", "ok    database     setpoint.db is intact and contains 1 study"] {
        assert!(told.stdout.contains(line), "{}", told.stdout);
    }
    let json = workplace.json(&["doctor", "study.toml", "--format", "json"]);
    let findings = json.as_array().unwrap();
    assert_eq!(findings.len(), told.stdout.lines().count());
    let checks: Vec<_> = findings.iter().map(|finding| finding["check"].as_str().unwrap()).collect();
    for check in
        ["engine", "device", "disk", "files", "priority", "swap", "load", "others", "ports", "database", "leftovers"]
    {
        assert!(checks.contains(&check), "{checks:?}");
    }
}

#[test]
fn what_would_stop_every_trial_fails_with_a_hint_and_an_exit_code() {
    let workplace =
        Workplace::with_study(&fast_study().replace("kind = \"sim\"", "kind = \"sim\"\ncommand = [\"gone\"]"));
    workplace.write("setpoint.db", "this is not a database at all, whatever its name says");
    let told = workplace.run(&["doctor", "study.toml"]);
    assert_eq!(told.code, Some(1));
    let engine = "fail  engine       engine.command: the program \"gone\" is not on the PATH; activate its environment";
    assert!(told.stdout.contains(engine), "{}", told.stdout);
    assert!(told.stdout.contains("fail  database     setpoint.db is not a setpoint database"), "{}", told.stdout);
    assert!(told.stderr.contains("2 checks failed"), "{}", told.stderr);
    workplace.write("study.toml", &fast_study());
    let told = workplace.run(&["doctor", "study.toml"]);
    assert_eq!(told.code, Some(1));
    assert!(told.stderr.contains("1 check failed"), "{}", told.stderr);
}
