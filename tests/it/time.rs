//! Time budgets, which include the confirmation and the stop.

use std::time::{Duration, Instant};

use crate::support::{Workplace, study_with};

fn proposed(workplace: &Workplace) -> Vec<String> {
    workplace.trials().iter().map(|trial| trial["proposed_by"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_budget_of_time_alone_ends_with_the_confirmation() {
    let workplace = Workplace::with_study(&study_with("", "time = \"9s\"\nstop_below = 0"));
    let begin = Instant::now();
    let tuned = workplace.run(&["tune", "study.toml", "--log-format", "json"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert!(begin.elapsed() < Duration::from_secs(16), "{:?}", begin.elapsed());
    let proposed = proposed(&workplace);
    // A further trial that is better than all others is confirmed as well.
    let confirmed = proposed.iter().filter(|by| *by == "confirmation").count();
    assert!(confirmed >= 2, "{proposed:?}\n{}", tuned.stderr);
    let plans: Vec<serde_json::Value> = tuned.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let plans: Vec<_> = plans.iter().filter(|event| event["event"] == "plan").collect();
    assert_eq!((&plans[0]["time_s"], &plans[0]["confirmations"]), (&9.0.into(), &4.into()));
    assert!(plans.iter().any(|plan| plan["reserve_s"].as_f64() > Some(0.0)), "{plans:?}");
    let states = workplace.json(&["studies", "--format", "json"])[0].clone();
    assert_eq!(states["running"], 0, "nothing was cut off");
}

#[test]
fn a_trial_that_outlives_the_time_is_ended_and_comes_again() {
    // The start takes far longer than the budget.
    let workplace = Workplace::with_study(&study_with("", "time = \"3s\"").replace("\"0.02\"", "\"60\""));
    let begin = Instant::now();
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert!(begin.elapsed() < Duration::from_secs(11), "{:?}", begin.elapsed());
    assert_eq!(tuned.code, Some(4), "{}", tuned.stderr);
    assert!(tuned.stderr.contains("done: the time budget is spent"), "{}", tuned.stderr);
    assert_eq!(workplace.json(&["studies", "--format", "json"])[0]["running"], 1);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}
