//! The server's side of a trial on the simulated engine.

use serde_json::Value as Json;

use crate::support::{Workplace, study_with};

#[test]
fn a_trial_is_stored_with_what_was_seen_of_its_server() {
    // Slow enough for a sample or two within the window.
    let study = study_with("", "trials = 1\nconfirm = 0")
        .replace("\"--sim-time-scale\", \"200\"", "\"--sim-time-scale\", \"1\"")
        .replace("output_len = 8", "output_len = 192");
    let workplace = Workplace::with_study(&study);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);

    let shown = workplace.json(&["show", "0", "--format", "json"]);
    let (summary, series) = (&shown["telemetry"]["summary"], &shown["telemetry"]["series"]);
    let number = |name: &str| summary[name].as_f64().unwrap_or_else(|| panic!("no {name} in {summary}"));
    assert!(shown["metrics"]["duration"].as_f64().unwrap() > 1.5, "{}", shown["metrics"]);
    assert!((1.0..=8.0).contains(&number("requests_running_max")), "{summary}");
    assert!(number("kv_cache_usage_max") > 0.0, "{summary}");
    // The window has 16 requests. The 4 of the warm-up end at its beginning, between two samples, and may count.
    let (generated, finished) = (number("server_generation_tokens"), number("server_requests_finished"));
    assert!((0.8 * 16.0 * 192.0..=20.0 * 192.0).contains(&generated), "{summary}");
    assert!((12.0..=20.0).contains(&finished), "{summary}");
    assert!(number("server_cpu_s") > 0.0 && number("server_rss_gib_max") > 0.0, "{summary}");
    assert!((0.0..=1.0).contains(&number("host_cpu_share_mean")), "{summary}");
    assert!(summary.get("energy_j").is_none(), "nothing is simulated on a GPU: {summary}");

    let at = series["server"]["at_s"].as_array().unwrap();
    assert!(at.len() >= 4 && at[0].as_f64().unwrap() < 0.0, "{series}");
    for source in ["server", "process", "host"] {
        let columns = series[source].as_object().unwrap();
        let length = columns["at_s"].as_array().unwrap().len();
        assert!(
            columns.values().all(|column| column.as_array().is_some_and(|values| values.len() == length)),
            "{series}"
        );
    }
    assert_eq!((&series["notes"], &series["missed"]), (&Json::Array(Vec::new()), &Json::from(0)));
    assert!(series.to_string().len() < 10_000, "{} bytes", series.to_string().len());

    let text = workplace.run(&["show", "0"]).stdout;
    for part in ["scheduler", "kv cache", "server processes", "host"] {
        assert_eq!(text.lines().filter(|line| line.starts_with(part)).count(), 1, "{part}: {text}");
    }
    assert!(!text.contains("gpu "), "{text}");
}

#[test]
fn a_server_that_says_nothing_of_itself_is_measured_all_the_same() {
    let study = study_with("", "trials = 1\nconfirm = 0")
        .replace("\"--sim-noise\"", "\"--disable-log-stats\", \"--sim-noise\"");
    let workplace = Workplace::with_study(&study);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let shown = workplace.json(&["show", "0", "--format", "json"]);
    assert_eq!(shown["state"], "measured");
    let series = &shown["telemetry"]["series"];
    assert_eq!(series["notes"].as_array().map(Vec::len), Some(1), "{series}");
    assert!(series["notes"][0].as_str().unwrap().ends_with("/metrics has no series of a known engine"), "{series}");
    assert!(series.get("server").is_none() && series.get("host").is_some(), "{series}");
}
