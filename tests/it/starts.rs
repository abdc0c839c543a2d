//! Observed starts: the memory figures in the log of each launch are stored, and later checks learn from them.

use setpoint::trial::MemoryObservation;

use super::support::{Workplace, fast_study, query};

#[test]
fn every_launch_that_tells_of_its_memory_is_remembered() {
    let workplace = Workplace::with_study(&fast_study());
    let ended = workplace.run(&["tune", "study.toml", "--quiet"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let launched = workplace.trials().iter().filter(|trial| trial["state"] != "rejected").count();
    let starts: Vec<(String, String, String)> =
        query(&workplace, "SELECT device, config, observed FROM memory_observations ORDER BY number");
    assert_eq!(starts.len(), launched);
    for (device, config, observed) in starts {
        let observed: MemoryObservation = serde_json::from_str(&observed).unwrap();
        assert!(device.starts_with("cuda "), "{device}");
        assert!(config.contains("max-model-len"), "the fixed flags are stored as well: {config}");
        assert!(observed.weights_gib.is_some() && observed.cache_gib.is_some() && observed.tokens.is_some());
    }
}

#[test]
fn another_study_is_checked_with_what_starts_have_shown() {
    let workplace = Workplace::with_study(&fast_study());
    let ended = workplace.run(&["tune", "study.toml", "--quiet", "--trials", "1"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // Simulates a device on which something else left no memory for the cache.
    let changed =
        "UPDATE memory_observations SET observed = '{\"weights_gib\": 15.0, \"cache_gib\": -9.5}' RETURNING observed";
    assert_eq!(query::<(String,)>(&workplace, changed).len(), 1);
    workplace.write("other.toml", &fast_study().replace("name = \"fast\"", "name = \"other\""));
    workplace.run(&["tune", "other.toml", "--quiet"]);
    let verdicts = "SELECT DISTINCT reason_code FROM trials WHERE state <> 'measured' AND study_id = 2";
    let verdicts: Vec<(String,)> = query(&workplace, verdicts);
    assert!(verdicts.contains(&("R7".to_owned(),)), "{verdicts:?}");
    // The rule removes the whole space. A launch therefore tests it, and the engine serves.
    let tested: Vec<(String,)> = query(&workplace, "SELECT verdict FROM rule_tests WHERE study_id = 2 AND rule = 'R7'");
    assert_eq!(tested, [("refuted".to_owned(),)]);
}
