//! Studies that search for the highest load within limits, on the simulated engine.

use super::support::{Workplace, query, study_with};

/// A study of two launches whose requests wait beyond four users.
fn study(objective: &str) -> String {
    let study = study_with("", "trials = 2\nconfirm = 0").replace("\"200\"", "\"20\"");
    let study = study.replace("fixed = { max-model-len = 2048 }", "fixed = { max-model-len = 2048, max-num-seqs = 4 }");
    let (begin, rest) = study.split_once("[space.parameters.max-num-seqs]").unwrap();
    let rest = &rest[rest.find("[space.parameters.max-num-batched").unwrap()..];
    format!("{begin}{rest}")
        .replace("requests = 16", "duration = \"600ms\"")
        .replace("maximize = \"output_throughput\"", objective)
}

const SEARCH: &str = "maximize = \"load_under_slo\"\n\
                      [[objective.constraint]]\nmetric = \"p95_ttft_ms\"\nat_most = 40\n\
                      [objective.search]\nprobes = 4\nhighest = 64\n\
                      [[objective.tier]]\nname = \"relaxed\"\nconstraint = [{ metric = \"p95_ttft_ms\", at_most = 90 }]";

#[test]
fn a_launch_measures_several_loads_and_reports_the_highest_within_the_limits() {
    let workplace = Workplace::with_study(&study(SEARCH));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let probed = tuned.stderr.matches(" at a time: ").count();
    let trials = workplace.trials();
    assert_eq!(trials.len(), 2);
    let mut probes = 0;
    for trial in &trials {
        let curve = &trial["metrics"]["load_curve"];
        assert_eq!((&curve["value"], &trial["value"]), (&trial["metrics"]["load_under_slo"], &curve["value"]));
        assert_eq!(curve["of"], "concurrency");
        let loads = curve["probes"].as_array().unwrap();
        probes += loads.len();
        assert!((2..=7).contains(&loads.len()), "{curve}");
        for load in loads {
            let p95 = load["p95_ttft_ms"].as_f64().unwrap();
            assert_eq!(load["kept"], p95 <= 40.0, "{load}");
        }
        // All other metrics are those of one of the loads that keep the limits.
        let chosen = loads.iter().find(|load| load["p95_ttft_ms"] == trial["metrics"]["p95_ttft_ms"]).unwrap();
        assert_eq!(chosen["kept"], true, "{curve}");
        assert_eq!(curve["tiers"][0]["name"], "relaxed");
    }
    assert_eq!(probed, probes, "{}", tuned.stderr);
    for command in [&["best"][..], &["show", "0"]] {
        let shown = workplace.run(command).stdout;
        assert!(shown.contains("highest load within the limits: "), "{command:?}: {shown}");
        assert!(shown.contains("highest load within relaxed: "), "{command:?}: {shown}");
    }
    let best = workplace.json(&["best", "--format", "json"]);
    assert!(best["load_curve"]["probes"].is_array(), "{best}");
    let rows: Vec<(i64, f64, bool)> = query(&workplace, "SELECT trial, load, kept FROM v_load_curves");
    assert_eq!(rows.len(), probes);
    let exported = workplace.run(&["export", "--format", "sh"]);
    assert!(exported.stdout.contains("load_under_slo"), "{}", exported.stdout);
}

#[test]
fn a_prediction_ranks_by_the_highest_load() {
    let workplace = Workplace::with_study(&study(SEARCH));
    let predicted = workplace.json(&["predict", "study.toml", "--format", "json"]);
    let first = &predicted["predictions"][0];
    assert!(first["value"].as_f64().unwrap() > 0.0, "{first}");
}

#[test]
fn a_search_that_cannot_run_is_refused_with_its_next_step() {
    for (objective, load, problem) in [
        ("maximize = \"load_under_slo\"", "", "load_under_slo needs at least one limit"),
        (SEARCH, "duration", "load_under_slo needs load.duration, the longest time of one probe"),
        (&SEARCH.replace("probes = 4", "probes = 1"), "", "1 is not between 2 and 50"),
        (&SEARCH.replace("highest = 64", "lowest = 8\nhighest = 8"), "", "8 is not above lowest, which is 8"),
        (&SEARCH.replace("probes = 4", "good_share = 0.9"), "", "good_share needs the latency limits of load.goodput"),
        (&SEARCH.replace("load_under_slo", "output_throughput"), "", "is for the highest load within limits"),
        (
            "maximize = \"output_throughput\"\n[[objective.constraint]]\nmetric = \"load_under_slo\"\nat_least = 4",
            "",
            "load_under_slo is an objective, and no limit",
        ),
    ] {
        let study = study(objective);
        let study = if load.is_empty() { study } else { study.replace("duration = \"600ms\"", "requests = 8") };
        let refused = Workplace::with_study(&study).run(&["check", "study.toml"]);
        assert_eq!(refused.code, Some(3), "{objective}: {}", refused.stderr);
        assert!(refused.stderr.contains(problem), "{objective}: {}", refused.stderr);
    }
}
