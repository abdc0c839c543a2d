//! The tuner itself, killed repeatedly at random instants.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value as Json;

use crate::support::{Workplace, all_pass, study_with};

const KILLS: usize = 100;

/// Longest time before a kill. A trial takes about 0.2 s, so the kills hit every part of a trial: checks, start,
/// warm-up, load, end, storing.
const LONGEST: Duration = Duration::from_millis(500);

/// Returns the results that the seed determines: configurations, origins, states, and the numbers of requests and
/// tokens.
fn decided(trials: &[Json]) -> Vec<Json> {
    let metrics = |trial: &Json| {
        ["completed", "total_input_tokens", "total_output_tokens"].map(|name| trial["metrics"][name].clone())
    };
    let of = |trial: &Json| {
        let [number, config, proposed_by, state] =
            ["trial", "config", "proposed_by", "state"].map(|name| trial[name].clone());
        serde_json::json!([number, config, proposed_by, state, metrics(trial)])
    };
    trials.iter().map(of).collect()
}

fn study() -> String {
    study_with("", "trials = 12\nconfirm = 0")
}

#[test]
fn a_tuner_that_is_killed_at_a_hundred_random_instants_ends_where_an_undisturbed_one_does() {
    let undisturbed = Workplace::with_study(&study());
    let whole = undisturbed.run(&["tune", "study.toml"]);
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    let expected = &decided(&undisturbed.trials());
    let halves = [("first half", 5), ("second half", 6)];
    all_pass(halves.len(), halves.into_iter().map(|(name, seed)| (name, move || is_killed(KILLS / 2, seed, expected))));
}

/// Runs studies until `times` kills have hit them. Each study ends as expected.
fn is_killed(times: usize, seed: u64, expected: &[Json]) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut kills, mut studies) = (0, 0);
    while kills < times {
        let workplace = Workplace::with_study(&study());
        studies += 1;
        let mut stored = Vec::new();
        let code = loop {
            let after = (kills < times).then(|| LONGEST.mul_f64(random.random()));
            if let Some(ended) = workplace.run_or_kill(&["tune", "study.toml"], after) {
                break ended.code();
            }
            kills += 1;
            if workplace.path("setpoint.db").exists() {
                // Commands that only read refuse a database that was created but not yet filled.
                let trials = workplace.run(&["trials", "--format", "json"]);
                let trials: Vec<Json> = serde_json::from_str(&trials.stdout).unwrap_or_default();
                assert!(trials.len() >= stored.len(), "after kill {kills}: {} of {}", trials.len(), stored.len());
                assert_eq!(trials[..stored.len()], stored[..], "what was stored stays as it was, kill {kills}");
                stored = trials;
            }
        };
        let stderr = std::fs::read_to_string(workplace.path("stderr.txt")).unwrap();
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(decided(&workplace.trials()), expected);
        assert_eq!(workplace.json(&["studies", "--format", "json"])[0]["running"], 0);
        assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    }
    println!("{kills} kills in {studies} studies");
}
