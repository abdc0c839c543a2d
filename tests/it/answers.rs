//! Answers about a finished study: the best configuration, its export, and the words beside its numbers.

use serde_json::{Value as Json, json};

use crate::support::{Workplace, study_with};

/// A study of four trials, whose last two measure the defaults and the best again.
fn confirmed() -> Workplace {
    let workplace = Workplace::with_study(&study_with("", "trials = 6\nconfirm = 1"));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    workplace
}

fn throughput(trial: &Json) -> f64 {
    trial["metrics"]["output_throughput"].as_f64().unwrap()
}

#[test]
fn best_and_export_give_the_mean_of_all_measurements_beside_the_single_one() {
    let workplace = confirmed();
    let best = workplace.json(&["best", "--format", "json"]);
    let trials = workplace.trials();
    let own: Vec<_> = trials.iter().filter(|trial| trial["config"] == best["config"]).collect();
    assert_eq!(own.len(), 2, "it was confirmed: {best}");
    let [low, high] = [f64::min, f64::max].map(|of: fn(f64, f64) -> f64| of(throughput(own[0]), throughput(own[1])));
    let mean = f64::midpoint(low, high);
    let close =
        |value: &Json, expected: f64| assert!((value.as_f64().unwrap() - expected).abs() < 1e-6, "{value} {expected}");

    let csv = workplace.run(&["best", "--format", "csv"]).stdout;
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let header = reader.headers().unwrap().clone();
    let row = reader.records().next().unwrap().unwrap();
    let cell = |name: &str| row.get(header.iter().position(|column| column == name).unwrap()).unwrap().to_owned();
    assert!((cell("mean_value").parse::<f64>().unwrap() - mean).abs() < 1e-6, "{csv}");
    assert_eq!((cell("measurements").as_str(), cell("trial")), ("2", best["trial"].to_string()));

    let exported = workplace.json(&["export", "--format", "json"]);
    close(&exported["mean_value"], mean);
    close(&exported["mean_metrics"]["output_throughput"], mean);
    close(&exported["value_range"][0], low);
    close(&exported["value_range"][1], high);
    close(&exported["metrics"]["output_throughput"], throughput(own[0]));
    assert_eq!(exported["trials"], json!(own.iter().map(|trial| trial["trial"].clone()).collect::<Vec<_>>()));
    assert_eq!(exported["gain_significant"], best["gain_significant"]);

    let table = workplace.run(&["best"]).stdout;
    let gain = table.lines().find(|line| line.starts_with("gain over the engine's defaults: ")).unwrap();
    let script = workplace.run(&["export", "--format", "sh"]).stdout;
    assert!(script.contains("the mean of 2 measurements from "), "{script}");
    assert!(best["trial"] == 0 || script.contains(&format!("# {gain}\n")), "{gain}\n{script}");
    assert!(script.contains(": means of 2: output_throughput "), "{script}");
    // Every comment is one line, and nothing else comes before the command.
    let before = script.lines().take_while(|line| !line.starts_with("exec ")).collect::<Vec<_>>();
    assert!(before.iter().all(|line| line.starts_with('#') || *line == "set -eu"), "{script}");
}

#[test]
fn best_gives_the_reason_of_its_order() {
    let workplace = confirmed();
    let table = workplace.run(&["best"]).stdout;
    assert!(table.lines().next().unwrap().contains(" order "), "{table}");
    assert!(table.contains("mean: by the mean of its measurements"), "{table}");
    let best = workplace.json(&["best", "--format", "json"]);
    assert_eq!((&best["order"], &best["order_reason"]), (&json!("mean"), &json!("by the mean of its measurements")));
}
