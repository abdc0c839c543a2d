//! Studies of several workloads.

use serde_json::Value as Json;

use super::support::{Workplace, fast_study, query};

/// The fast study with two loads of its workload and a second workload.
fn study() -> String {
    let study = fast_study();
    let (begin, rest) = study.split_once("[workload]").unwrap();
    let (workload, load) = rest.split_once("[load]").unwrap();
    let objective = load.replace("[objective]", "[objective]\nover = \"worst\"");
    format!(
        "{begin}[[workload]]\nname = \"low\"\nload = {{ concurrency = 2, requests = 8 }}\n{workload}\n\
         [[workload]]\nname = \"high\"\n{workload}\n\
         [[workload]]\nname = \"short\"\nweight = 2\nkind = \"random\"\ninput_len = 4\noutput_len = 2\n[load]{objective}"
    )
}

#[test]
fn a_launch_measures_all_workloads_and_the_best_has_the_results_of_each() {
    let workplace = Workplace::with_study(&study());
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let names = ["low", "high", "short"];
    let trials = workplace.trials();
    assert_eq!(trials.len(), 4);
    let part = |trial: &Json, name: &str| {
        let parts = trial["metrics"]["workloads"].as_array().unwrap();
        parts.iter().find(|part| part["workload"] == name).unwrap()["output_throughput"].as_f64().unwrap()
    };
    for trial in &trials {
        let worst = names.map(|name| part(trial, name) / part(&trials[0], name)).into_iter().fold(f64::MAX, f64::min);
        assert!((trial["value"].as_f64().unwrap() - worst).abs() < 1e-9, "{trial}");
        assert_eq!(trial["metrics"]["completed"], 8 + 16 + 16);
    }

    let best = workplace.json(&["best", "--format", "json"]);
    let workloads = best["workloads"].as_array().unwrap();
    assert_eq!(workloads.iter().map(|found| found["name"].as_str().unwrap()).collect::<Vec<_>>(), names);
    assert_eq!(workloads[2]["weight"], 2.0);
    for found in workloads {
        let name = found["name"].as_str().unwrap();
        let highest = trials.iter().map(|trial| part(trial, name)).fold(0.0, f64::max);
        assert!((found["best_value"].as_f64().unwrap() / highest - 1.0).abs() < 1e-9, "{found}");
        assert!((found["value"].as_f64().unwrap() / part(&best, name) - 1.0).abs() < 1e-9, "{found}");
    }
    assert!(best["per_workload"]["gain"].as_f64().unwrap() >= 0.0 && best["crossovers"].is_array());
    for command in [&["best"][..], &["show", "0"]] {
        let shown = workplace.run(command).stdout;
        assert!(names.iter().all(|name| shown.contains(name)), "{command:?}: {shown}");
    }

    let columns =
        ["trials", "--format", "json", "--sort", "short/output_throughput:desc", "--where", "low/completed == 8"];
    let listed = workplace.json(&[&columns[..], &["--columns", "trial,short/output_throughput"]].concat());
    let listed = listed.as_array().unwrap();
    let values: Vec<_> = listed.iter().map(|row| row["short/output_throughput"].as_f64().unwrap()).collect();
    assert!(values.len() == trials.len() && values.is_sorted_by(|a, b| a >= b), "{listed:?}");
    assert!((values[0] - best["workloads"][2]["best_value"].as_f64().unwrap()).abs() < 1e-9, "{listed:?}");

    let rows: Vec<(i64, String, f64)> =
        query(&workplace, "SELECT trial, workload, output_throughput FROM v_workloads ORDER BY trial");
    assert_eq!(rows.len(), 3 * trials.len());
    for (number, name, value) in rows {
        let trial = trials.iter().find(|trial| trial["trial"] == number).unwrap();
        assert!((value - part(trial, &name)).abs() < 1e-9);
    }

    let refused = workplace.run(&["predict", "study.toml", "--workload", "low", "--calibrate", "fast"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("study fast has several workloads"), "{}", refused.stderr);

    let again = workplace.run(&["tune", "study.toml", "--trials", "5"]);
    assert_eq!((again.code, workplace.trials().len()), (Some(0), 5), "{}", again.stderr);
}

#[test]
fn a_prediction_takes_one_workload_and_a_failure_names_its_workload() {
    let workplace = Workplace::with_study(&study());
    let refused = workplace.run(&["predict", "study.toml"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("--workload: low, high, short"), "{}", refused.stderr);
    let unknown = workplace.run(&["predict", "study.toml", "--workload", "long"]);
    assert!(unknown.stderr.contains("no workload \"long\"; it has low, high, short"), "{}", unknown.stderr);
    let predicted = workplace.json(&["predict", "study.toml", "--workload", "short", "--format", "json"]);
    assert!(predicted["predictions"][0]["value"].as_f64().unwrap() > 0.0, "{predicted}");

    let faulty =
        study().replace("\"--sim-noise\", \"0\"", "\"--sim-noise\", \"0\", \"--sim-fault\", \"errors:from=25\"");
    let workplace = Workplace::with_study(&faulty.replace("[load]", "[load]\nmax_error_rate = 0\n"));
    workplace.run(&["tune", "study.toml", "--trials", "1"]);
    let trials = workplace.trials();
    let reason = trials[0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("workload "), "{reason}");
}
