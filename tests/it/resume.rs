//! Interrupted and resumed studies.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Workplace, fast_study, signal, study_with, wait_until};

#[test]
fn a_study_goes_on_where_it_stopped_as_if_it_had_not() {
    let interrupted = Workplace::with_study(&fast_study());
    assert_eq!(interrupted.run(&["tune", "study.toml", "--trials", "2"]).code, Some(0));
    let before = interrupted.trials();
    let second = interrupted.run(&["tune", "study.toml", "--trials", "4"]);
    assert!(second.stderr.contains("study fast: resuming after"), "{}", second.stderr);
    let after = interrupted.trials();
    assert_eq!(after[..before.len()], before[..]);

    let whole = Workplace::with_study(&fast_study());
    assert_eq!(whole.run(&["tune", "study.toml"]).code, Some(0));
    let configs = |trials: &[serde_json::Value]| trials.iter().map(|trial| trial["config"].clone()).collect::<Vec<_>>();
    assert_eq!(configs(&after), configs(&whole.trials()));
    // A spent budget launches nothing more.
    assert_eq!(interrupted.run(&["tune", "study.toml"]).code, Some(0));
    assert_eq!(interrupted.trials(), after);
}

#[test]
fn an_interrupted_study_ends_its_server_and_keeps_what_it_measured() {
    // On a clock slower than the simulated device, a trial takes several seconds.
    let text =
        study_with("", "trials = 3").replace("\"200\"", "\"0.2\"").replace("max-model-len = 2048", "max-num-seqs = 1");
    for stop in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let workplace = Workplace::with_study(&text);
        let mut tuner = workplace.start(&["tune", "study.toml", "--verbose"]);
        workplace.wait_for("trial 0: warming up");
        assert!(!workplace.processes_left().is_empty());
        let asked = Instant::now();
        signal(&tuner, stop);
        assert_eq!(tuner.wait().unwrap().code(), Some(130), "{stop}");
        assert_eq!(workplace.processes_left(), [] as [i32; 0], "{stop}");
        let took = asked.elapsed();
        println!("{stop}: all gone after {took:?}");
        assert!(took < Duration::from_secs(5), "an engine that does as it is told took {took:?}");
        let studies = workplace.json(&["studies", "--format", "json"]);
        assert_eq!((&studies[0]["running"], &studies[0]["measured"]), (&1.into(), &0.into()));
    }
}

#[test]
fn what_a_killed_tuner_left_running_is_ended_by_the_next_one_which_takes_the_trial_up_again() {
    let slow = study_with("", "trials = 1").replace("\"0.02\"", "\"15\"");
    let workplace = Workplace::with_study(&slow);
    let mut tuner = workplace.start(&["tune", "study.toml", "--verbose"]);
    workplace.wait_for("trial 0: starting");
    wait_until(Duration::from_secs(10), "the engine's process", || !workplace.processes_left().is_empty());
    signal(&tuner, Signal::SIGKILL);
    tuner.wait().unwrap();
    let orphans = workplace.processes_left();
    assert_eq!(orphans.len(), 1, "the engine outlives a tuner that was killed");

    // The engine's arguments belong to the study's definition. With other arguments it is another study.
    let quick = study_with("", "trials = 1");
    workplace.write("other.toml", &quick);
    let refused = workplace.run(&["tune", "other.toml"]);
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("engine.args (now "), "{}", refused.stderr);

    let mut second = workplace.start(&["tune", "study.toml", "--verbose"]);
    workplace.wait_for("ended 1 processes that a killed run had left behind");
    assert!(!workplace.processes_left().contains(&orphans[0]));
    workplace.wait_for("trial 0: starting");
    signal(&second, Signal::SIGTERM);
    assert_eq!(second.wait().unwrap().code(), Some(130));
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}

#[test]
fn a_second_tuner_of_the_same_study_is_refused_and_told_who_holds_it() {
    let slow = study_with("", "trials = 1").replace("\"0.02\"", "\"15\"");
    let workplace = Workplace::with_study(&slow);
    let mut first = workplace.start(&["tune", "study.toml", "--verbose"]);
    workplace.wait_for("trial 0: starting");
    let second = workplace.run(&["tune", "study.toml"]);
    assert_eq!(second.code, Some(1));
    let holder = format!("another tuner works on this study: process {} holds", first.id());
    assert!(second.stderr.contains(&holder), "{}", second.stderr);
    signal(&first, Signal::SIGTERM);
    assert_eq!(first.wait().unwrap().code(), Some(130));
}
