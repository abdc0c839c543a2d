//! The start of a launch on the simulated engine: its phases, and differences from the requested configuration.

use serde_json::Value as Json;

use crate::support::{Workplace, study_with};

/// Returns the names and seconds of a trial's start-up phases.
fn phases(shown: &Json) -> Vec<(String, f64)> {
    let phases = shown["startup"]["phases"].as_array().unwrap_or_else(|| panic!("no phases in {shown}"));
    let phase = |time: &Json| (time["phase"].as_str().unwrap().to_owned(), time["duration_s"].as_f64().unwrap());
    phases.iter().map(phase).collect()
}

fn seconds(phases: &[(String, f64)], name: &str) -> f64 {
    phases.iter().find(|(phase, _)| phase == name).unwrap_or_else(|| panic!("no {name} in {phases:?}")).1
}

#[test]
fn a_trial_is_stored_with_the_phases_of_its_start_and_what_the_engine_runs_with() {
    let study = study_with("", "trials = 1\nconfirm = 0")
        .replace("\"--sim-startup-s\", \"0.02\"", "\"--sim-startup-s\", \"2\"");
    let workplace = Workplace::with_study(&study);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert!(!tuned.stderr.contains("other values"), "{}", tuned.stderr);

    let shown = workplace.json(&["show", "0", "--format", "json"]);
    let times = phases(&shown);
    let names: Vec<_> = times.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["import", "configure", "processes", "weights", "kv_cache", "server", "first_token"]);
    // Shares of 2 s: a quarter for the configuration, up to 70 % for the weights, and the rest for the cache.
    for (name, share) in [("configure", 0.5), ("weights", 0.9), ("kv_cache", 0.6)] {
        let took = seconds(&times, name);
        assert!(took > 0.7 * share, "{name}: {times:?}");
    }
    let sum: f64 = times.iter().map(|(_, seconds)| seconds).sum();
    assert!((sum - shown["startup_s"].as_f64().unwrap()).abs() < 1e-6, "{times:?} of {}", shown["startup_s"]);

    let resolved = &shown["startup"]["resolved"];
    for (name, value) in
        [("engine", "V1"), ("max-model-len", "2048"), ("block-size", "16"), ("enable-prefix-caching", "True")]
    {
        assert_eq!(resolved[name], value, "{name} in {resolved}");
    }
    assert!(resolved["num-gpu-blocks"].as_str().unwrap().parse::<u64>().unwrap() > 0, "{resolved}");
    assert_eq!(shown["startup"]["differences"], Json::Array(Vec::new()));
    // The pressure and the governor are not known on every machine. The swap is.
    let conditions = shown["startup"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|condition| condition["kind"] == "swap"), "{conditions:?}");
    let text = workplace.run(&["show", "0"]).stdout;
    assert!(text.contains("swap: "), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("start   ")).count(), 1, "{text}");
    assert!(text.contains(", weights ") && !text.contains("differs"), "{text}");
}

#[test]
fn a_wrapper_that_sets_a_flag_otherwise_is_found_out() {
    let command = format!("command = [\"./wrapper.sh\", \"{}\"]", env!("CARGO_BIN_EXE_setpoint"));
    let study = study_with(&command, "trials = 1\nconfirm = 0");
    let workplace = Workplace::with_study(&study);
    // The last occurrence of a flag counts, as with argparse.
    workplace
        .write("wrapper.sh", "#!/bin/sh\nengine=$1; shift\nexec \"$engine\" sim serve \"$@\" --max-model-len 1024\n");
    let executable = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(workplace.path("wrapper.sh"), executable).unwrap();
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let note = "trial 0: the engine runs with other values: max-model-len is 1024, not the requested 2048";
    assert!(tuned.stderr.contains(note), "{}", tuned.stderr);
    let shown = workplace.json(&["show", "0", "--format", "json"]);
    let expected = serde_json::json!([{"flag": "max-model-len", "asked": "2048", "resolved": "1024"}]);
    assert_eq!((&shown["state"], &shown["startup"]["differences"]), (&Json::from("measured"), &expected));
    let text = workplace.run(&["show", "0"]).stdout;
    assert!(text.contains("differs                 max-model-len is 1024, not the requested 2048\n"), "{text}");
}

#[test]
fn a_start_that_fails_is_stored_with_how_far_it_came() {
    let study = study_with("", "trials = 1\nconfirm = 0")
        .replace("\"--sim-startup-s\", \"0.02\"", "\"--sim-startup-s\", \"30\"")
        .replace("startup_timeout = \"20s\"", "startup_timeout = \"1s\"");
    let workplace = Workplace::with_study(&study);
    workplace.run(&["tune", "study.toml"]);
    let shown = workplace.json(&["show", "0", "--format", "json"]);
    assert_eq!(shown["reason_code"], "startup_timeout", "{shown}");
    let times = phases(&shown);
    assert_eq!(times.last().map(|(name, _)| name.as_str()), Some("configure"), "{times:?}");
    assert!(seconds(&times, "configure") > 0.5, "{times:?}");
    assert_eq!(shown["startup"]["resolved"], serde_json::json!({}));
}
