//! The guard for flags that may change the output.

use crate::support::{Workplace, study_with};

/// Returns a study whose search sets an 8-bit KV cache. Launches without one are slower: one of their steps takes long.
fn study(simulation: &str, guard: &str) -> String {
    let slow = "\"--sim-fault\", \"long-step:seconds=0.5,request=12,busy=no\", \"--sim-fault-if\", \"kv-cache-dtype=\"";
    let text = study_with("", "trials = 3\nconfirm = 0")
        .replace("\"--sim-noise\", \"0\"", &format!("\"--sim-noise\", \"0\", {slow}, {simulation}"));
    let (before, rest) = text.split_once("[space.parameters.max-num-seqs]").unwrap();
    let after = rest.split_once("[workload]").unwrap().1;
    let space = "[space.parameters.kv-cache-dtype]\nkind = \"categorical\"\nchoices = [\"fp8\"]\n\
                 [space.parameters.max-num-seqs]\nkind = \"int\"\nscale = \"pow2\"\nlow = 8\nhigh = 16\n";
    format!("{before}{space}[workload]{after}\n{guard}\n")
}

const LOSSY: &str = "\"--sim-greedy-noise\", \"0.05\", \"--sim-lossy\", \"kv-cache-dtype=fp8:0.4\"";

/// Returns the trials with an 8-bit cache, as `show` has them.
fn small_caches(workplace: &Workplace) -> Vec<serde_json::Value> {
    let has_small = |trial: &&serde_json::Value| trial["config"]["kv-cache-dtype"] == "fp8";
    let trials = workplace.trials();
    let shown = trials
        .iter()
        .filter(has_small)
        .map(|trial| workplace.json(&["show", &trial["trial"].to_string(), "--format", "json"]));
    shown.collect()
}

#[test]
fn a_flag_that_changes_the_replies_does_not_win_and_a_resumed_study_keeps_the_reference() {
    let workplace = Workplace::with_study(&study(LOSSY, ""));
    let first = workplace.run(&["tune", "study.toml", "--trials", "2"]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let reference = workplace.json(&["show", "0", "--format", "json"])["answers"].clone();
    assert_eq!((&reference["is_reference"], &reference["comparison"]), (&true.into(), &serde_json::Value::Null));
    let lossy = small_caches(&workplace);
    assert_eq!(lossy.len(), 2, "{:?}", workplace.trials());
    for trial in &lossy {
        let comparison = &trial["answers"]["comparison"];
        assert_eq!(comparison["verdict"], "differs", "{comparison}");
        assert_eq!(trial["feasible"], false, "{trial}");
        assert!(trial["metrics"]["server"]["greedy_agreement"].as_f64().unwrap() < 0.9, "{trial}");
    }
    let best = workplace.json(&["best", "--format", "json"]);
    assert_eq!(best["trial"], 0, "{best}");
    assert!(best["value"].as_f64() < lossy[0]["value"].as_f64(), "the lossy configurations are faster");
    assert_eq!(best["guard"]["excluded"].as_array().map(Vec::len), Some(2), "{}", best["guard"]);
    let text = workplace.run(&["best"]).stdout;
    assert!(text.contains("excluded by the guard: 2 trials") && text.contains("differs from the baseline"), "{text}");
}

#[test]
fn a_flag_that_keeps_the_replies_wins() {
    let workplace = Workplace::with_study(&study("\"--sim-greedy-noise\", \"0.05\"", ""));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    for trial in &small_caches(&workplace) {
        assert_ne!(trial["answers"]["comparison"]["verdict"], "differs", "{}", trial["answers"]["comparison"]);
        assert_eq!(trial["feasible"], true, "{trial}");
    }
    let best = workplace.json(&["best", "--format", "json"]);
    assert_eq!(best["config"]["kv-cache-dtype"], "fp8", "{best}");
    assert!(best["guard"]["winner"]["agreement"].as_f64().unwrap() > 0.8, "{}", best["guard"]);
}

#[test]
fn a_tolerated_loss_is_reported_with_the_winner_and_in_its_export() {
    let workplace = Workplace::with_study(&study(LOSSY, "[guard]\nmin_agreement = 0"));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let best = workplace.json(&["best", "--format", "json"]);
    assert_eq!(best["config"]["kv-cache-dtype"], "fp8", "{best}");
    let warning = best["guard"]["warning"].as_str().unwrap();
    assert!(warning.starts_with("the best configuration changes the replies"), "{warning}");
    assert!(tuned.stdout.replace('\n', " ").contains("changes the"), "{}", tuned.stdout);
    let exported = workplace.run(&["export", "--format", "sh"]).stdout;
    assert!(exported.contains("changes the replies"), "{exported}");
}
