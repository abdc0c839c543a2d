//! Nights with a time budget, which includes the confirmation and the stop. A trial that does not fit is launched
//! again.

use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::{Night, best, blames_nobody, ends, engine, nothing_is_lost, running, told};
use crate::support::{Ended, Workplace, study_with};

const TIME_IS_UP: &str = "done: the time budget is spent: no further launch fits";

/// Longest time beyond the deadline: a stop, and a margin for a slow machine.
const STOP: Duration = Duration::from_secs(5);

pub(super) fn nights() -> Vec<Night> {
    vec![
        Night::new("time alone", time_alone),
        Night::new("time that ends in a start", time_that_ends_in_a_start),
        Night::new("time that ends in a load", time_that_ends_in_a_load),
        Night::new("time that is shorter than the first launch", time_that_is_too_short),
        Night::new("trials that are spent before the time", trials_before_the_time),
        Night::new("time that is spent before the trials", time_before_the_trials),
        Night::new("time that ends while the environment is waited for", time_that_ends_in_a_wait),
    ]
}

/// Creates a study with these lines of `[budget]`. One of its configurations is the best by far.
fn place(trouble: &str, budget: &str) -> Workplace {
    let text = study_with(&engine(trouble), budget);
    let text = text.replace("\"200\"", "\"4\"").replace("\"0.02\"", "\"0.5\"");
    Workplace::with_study(&text.replace("high = 16", "high = 8").replace("[8, 256, 2048]", "[8, 2048]"))
}

/// Runs the study and checks that it ends within its time.
fn within(name: &str, workplace: &Workplace, limit: Duration, arguments: &[&str]) -> Ended {
    let begin = Instant::now();
    let run = workplace.run(&[&["tune", "study.toml"], arguments].concat());
    assert!(begin.elapsed() < limit + STOP, "{name}: {:?} of {limit:?}\n{}", begin.elapsed(), run.stderr);
    run
}

fn proposed<'t>(trials: &'t [Json], by: &'t str) -> impl Iterator<Item = &'t Json> {
    trials.iter().filter(move |trial| trial["proposed_by"] == by)
}

fn time_alone(name: &str) {
    let workplace = place("true", "time = \"9s\"\nstop_below = 0");
    let run = within(name, &workplace, Duration::from_secs(9), &[]);
    let trials = ends(name, &workplace, &run, 0, TIME_IS_UP);
    is_confirmed(name, &workplace, &trials);
}

/// Checks that the winner was measured more than once. A busy machine may leave no time for that; then a trial has no
/// outcome yet.
fn is_confirmed(name: &str, workplace: &Workplace, trials: &[Json]) {
    blames_nobody(name, trials);
    let winner = best(workplace);
    let is_confirmed = winner["measurements"].as_u64() >= Some(2) && proposed(trials, "confirmation").count() >= 2;
    // Time for a few launches has no rounds, and then defaults that are the best are not launched again.
    let are_defaults_best = winner["trial"] == 0;
    assert!(is_confirmed || are_defaults_best || running(workplace) > 0, "{name}: {winner} of {:?}", told(trials));
}

fn time_that_ends_in_a_start(name: &str) {
    let workplace =
        place("[ $n -le 2 ] || set -- \"$@\" --sim-startup-s 60", "time = \"4s\"\nconfirm = 1\nstop_below = 0");
    let before = ends(name, &workplace, &within(name, &workplace, Duration::from_secs(4), &[]), 0, TIME_IS_UP);
    assert_eq!((before.len(), running(&workplace)), (2, 1), "{name}");
    goes_on(name, &workplace, &before);
}

fn time_that_ends_in_a_load(name: &str) {
    let workplace =
        place("[ $n -le 2 ] || set -- \"$@\" --sim-time-scale 0.05", "time = \"4s\"\nconfirm = 1\nstop_below = 0");
    let before = ends(name, &workplace, &within(name, &workplace, Duration::from_secs(4), &[]), 0, TIME_IS_UP);
    assert_eq!((before.len(), running(&workplace)), (2, 1), "{name}");
    goes_on(name, &workplace, &before);
}

/// Continues the study on the next evening. The number of trials ends it, so the machine's speed does not matter.
fn goes_on(name: &str, workplace: &Workplace, before: &[Json]) {
    workplace.write("mended", "");
    let run = within(name, workplace, Duration::from_mins(1), &["--trials", "5", "--time", "60s"]);
    let after = ends(name, workplace, &run, 0, "done: the budget of trials is spent");
    blames_nobody(name, &after);
    assert!(proposed(&after, "confirmation").count() >= 2, "{name}: {:?}", told(&after));
    nothing_is_lost(name, workplace, before, &after);
}

fn time_that_is_too_short(name: &str) {
    let workplace = place("set -- \"$@\" --sim-startup-s 60", "time = \"1s\"");
    let run = within(name, &workplace, Duration::from_secs(1), &[]);
    let says =
        "error: the time budget of 1s ended before any launch of study \"fast\" was measured hint: set budget.time";
    assert_eq!(ends(name, &workplace, &run, 4, says), [] as [Json; 0], "{name}");
    assert_eq!(running(&workplace), 1, "{name}");
    workplace.write("mended", "");
    let run = within(name, &workplace, Duration::from_mins(1), &["--time", "60s", "--trials", "3"]);
    let trials = ends(name, &workplace, &run, 0, "done: the budget of trials is spent");
    blames_nobody(name, &trials);
    nothing_is_lost(name, &workplace, &[], &trials);
}

fn trials_before_the_time(name: &str) {
    let workplace = place("true", "trials = 5\nconfirm = 1\ntime = \"60s\"");
    let run = within(name, &workplace, Duration::from_mins(1), &[]);
    let trials = ends(name, &workplace, &run, 0, "plan: 5 launches in all or 60 s");
    assert!(run.stderr.contains("done: the budget of trials is spent"), "{name}: {}", run.stderr);
    assert_eq!((trials.len(), proposed(&trials, "confirmation").count()), (5, 2), "{name}: {:?}", told(&trials));
    nothing_is_lost(name, &workplace, &[], &trials);
}

fn time_before_the_trials(name: &str) {
    let workplace = place("true", "trials = 500\nconfirm = 1\ntime = \"8s\"\nstop_below = 0");
    let run = within(name, &workplace, Duration::from_secs(8), &[]);
    let trials = ends(name, &workplace, &run, 0, TIME_IS_UP);
    is_confirmed(name, &workplace, &trials);
}

fn time_that_ends_in_a_wait(name: &str) {
    let trouble = "[ $n -le 2 ] || fault exit@weights:cause=device-lost";
    let text = study_with(&engine(trouble), "time = \"4s\"\nconfirm = 1\nstop_below = 0");
    let workplace = Workplace::with_study(&text.replace("\"50ms\"", "\"1h\""));
    let run = within(name, &workplace, Duration::from_secs(4), &[]);
    let before = ends(name, &workplace, &run, 0, TIME_IS_UP);
    assert!(run.stderr.contains("environment failure, device_lost: "), "{name}: {}", run.stderr);
    assert!(
        run.stdout.contains("1 more launch failed for reasons of the environment: device_lost 1"),
        "{}",
        run.stdout
    );
    assert_eq!((before.len(), running(&workplace)), (2, 1), "{name}");
    blames_nobody(name, &before);
    goes_on(name, &workplace, &before);
}
