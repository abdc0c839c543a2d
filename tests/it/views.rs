//! The views of the database, for people who query it with `sqlite3`.

use super::support::{Workplace, fast_study, query};

#[test]
fn the_views_show_trials_the_best_and_starts_by_the_names_of_studies() {
    let workplace = Workplace::with_study(&fast_study());
    let ended = workplace.run(&["tune", "study.toml", "--quiet"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let trials = workplace.trials();
    let measured = trials.iter().filter(|trial| trial["state"] == "measured");

    let columns = "SELECT study, trial, proposed_by, output_throughput, feasible FROM v_trials WHERE state = 'measured' \
                   AND p99_ttft_ms > 0 AND completed = 16 AND NOT earlier_context ORDER BY trial";
    let rows: Vec<(String, i64, String, f64, bool)> = query(&workplace, columns);
    let expected = measured.clone().map(|trial| {
        let text = |name: &str| trial[name].as_str().unwrap().to_owned();
        let throughput = trial["metrics"]["output_throughput"].as_f64().unwrap();
        ("fast".to_owned(), trial["trial"].as_i64().unwrap(), text("proposed_by"), throughput, true)
    });
    assert_eq!(rows, expected.collect::<Vec<_>>());

    let best = workplace.json(&["best", "--format", "json"]);
    let first = "SELECT trial, mean_value FROM v_best WHERE study = 'fast' ORDER BY mean_value DESC";
    let rows: Vec<(i64, f64)> = query(&workplace, first);
    assert_eq!((Some(rows[0].0), Some(rows[0].1)), (best["trial"].as_i64(), best["value"].as_f64()));

    let starts = "SELECT trial, phases_s, resolved FROM v_starts WHERE startup_s > 0 ORDER BY trial";
    let rows: Vec<(i64, String, String)> = query(&workplace, starts);
    assert_eq!(rows.len(), measured.count());
    for (_, phases, resolved) in rows {
        let phases: std::collections::BTreeMap<String, f64> = serde_json::from_str(&phases).unwrap();
        assert!(phases.values().sum::<f64>() > 0.0, "{phases:?}");
        assert!(resolved.contains("max_model_len") || resolved.contains("max-model-len"), "{resolved}");
    }
}
