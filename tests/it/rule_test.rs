//! Rules that only a start can refute, tested by a launch of the simulated engine.

use super::support::{Workplace, study_with};

/// Describes the device as smaller than the simulated H100. The weights of 15.3 GiB do not fit.
const TOO_SMALL: &str = "gpu_memory_gib = 12";

/// Returns a study on a simulated device of 24 GiB. The smaller ones of its memory shares do not hold the weights.
fn right_study() -> String {
    let study = study_with("", "trials = 6\nconfirm = 0");
    let study = study.replace("\"--sim-noise\", \"0\"", "\"--sim-noise\", \"0\", \"--sim-device\", \"l4\"");
    format!("{study}\n[space.parameters.gpu-memory-utilization]\nkind = \"categorical\"\nchoices = [0.3, 0.6, 0.9]\n")
}

#[test]
fn a_wrong_rule_that_empties_the_space_is_refuted_by_the_first_launch() {
    let workplace = Workplace::with_study(&study_with(TOO_SMALL, "trials = 4\nconfirm = 0"));
    let checked = workplace.json(&["check", "study.toml", "--format", "json"]);
    assert_eq!(checked["rule_tests"][0]["rule"], "R7", "{checked:#}");
    let ended = workplace.run(&["tune", "study.toml"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("R7 removes for instance "), "{}", ended.stderr);
    assert!(ended.stderr.contains("rule R7 is set aside: trial "), "{}", ended.stderr);
    let trials = workplace.trials();
    let launched: Vec<_> = trials.iter().filter(|trial| trial["state"] != "rejected").collect();
    assert_eq!(launched.len(), 4);
    assert_eq!(launched[0]["proposed_by"], "rule_test");
    assert!(launched.iter().all(|trial| trial["state"] == "measured"), "{launched:#?}");
    assert_eq!(launched.iter().filter(|trial| trial["proposed_by"] == "rule_test").count(), 1);
    assert!(ended.stdout.contains("engine's defaults: "), "{}", ended.stdout);
    assert!(ended.stdout.contains("rule R7 rejects the configuration that trial "), "{}", ended.stdout);

    // Another study of the same database starts without the rule, and `check` lists it as set aside.
    workplace.write("study.toml", &study_with(TOO_SMALL, "trials = 2\nconfirm = 0").replace("\"fast\"", "\"second\""));
    let ended = workplace.run(&["check", "study.toml"]);
    assert!(ended.stdout.contains("set aside     R7: trial "), "{}", ended.stdout);
    assert!(ended.stdout.contains("of study fast served a configuration that it rejects"), "{}", ended.stdout);
    let ended = workplace.run(&["tune", "study.toml"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("of study fast served a configuration that it rejects"), "{}", ended.stderr);
    let trials = workplace.json(&["trials", "--study", "second", "--format", "json"]);
    assert_eq!(trials[0]["proposed_by"], "baseline");
    assert!(trials.as_array().unwrap().iter().all(|trial| trial["proposed_by"] != "rule_test"), "{trials:#}");
}

#[test]
fn a_right_rule_is_confirmed_once_for_all_studies_of_a_database() {
    let workplace = Workplace::with_study(&right_study());
    let ended = workplace.run(&["check", "study.toml"]);
    assert!(ended.stdout.contains("rule tests    R7 removes "), "{}", ended.stdout);
    assert!(ended.stdout.contains("for instance "), "{}", ended.stdout);
    for (name, tests) in [("fast", 1), ("second", 0)] {
        workplace.write("study.toml", &right_study().replace("\"fast\"", &format!("\"{name}\"")));
        let ended = workplace.run(&["tune", "study.toml"]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(
            ended.stderr.contains("rule R7 is confirmed: trial 1 failed as predicted, no_kv_memory"),
            tests == 1
        );
        let trials = workplace.json(&["trials", "--study", name, "--format", "json"]);
        let trials = trials.as_array().unwrap();
        let by_test: Vec<_> = trials.iter().filter(|trial| trial["proposed_by"] == "rule_test").collect();
        assert_eq!(by_test.len(), tests, "{trials:#?}");
        assert!(by_test.iter().all(|trial| trial["state"] == "failed"), "{by_test:#?}");
        assert_eq!(trials.iter().filter(|trial| trial["state"] == "failed").count(), tests);
        assert_eq!(trials.iter().filter(|trial| trial["state"] != "rejected").count(), 6);
    }
    let ended = workplace.run(&["check", "study.toml"]);
    assert!(!ended.stdout.contains("rule tests"), "{}", ended.stdout);
}
