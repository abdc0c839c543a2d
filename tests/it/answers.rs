//! Answers about a finished study: the best configuration, its export, and the remarks beside its numbers.

use serde_json::{Value as Json, json};

use crate::support::{Workplace, study_with};

/// Runs a study of six launches. The last two measure the defaults and the best configuration again.
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
    let trials = workplace.trials();
    // The defaults are always confirmed. Noise decides which other configuration is.
    let own: Vec<_> = trials.iter().filter(|trial| trial["config"] == trials[0]["config"]).collect();
    assert_eq!(own.len(), 2, "they were confirmed");
    let [low, high] = [f64::min, f64::max].map(|of: fn(f64, f64) -> f64| of(throughput(own[0]), throughput(own[1])));
    let mean = f64::midpoint(low, high);
    let close =
        |value: &Json, expected: f64| assert!((value.as_f64().unwrap() - expected).abs() < 1e-6, "{value} {expected}");

    let csv = workplace.run(&["best", "--top", "9", "--format", "csv"]).stdout;
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let header = reader.headers().unwrap().clone();
    let row = reader.records().map(Result::unwrap).find(|row| &row[0] == "0").unwrap();
    let cell = |name: &str| row.get(header.iter().position(|column| column == name).unwrap()).unwrap().to_owned();
    assert!((cell("value").parse::<f64>().unwrap() - throughput(own[0])).abs() < 1e-6, "{csv}");
    // Defaults that win have the value of the confirmation.
    let are_winner = csv.lines().nth(1).unwrap().starts_with("0,");
    let expected = if are_winner { throughput(own[1]) } else { mean };
    assert!((cell("mean_value").parse::<f64>().unwrap() / expected - 1.0).abs() < 1e-9, "{csv}");
    assert_eq!(cell("measurements"), "2");

    let exported = workplace.json(&["export", "--trial", "0", "--format", "json"]);
    close(&exported["mean_value"], mean);
    close(&exported["mean_metrics"]["output_throughput"], mean);
    close(&exported["value_range"][0], low);
    close(&exported["value_range"][1], high);
    close(&exported["metrics"]["output_throughput"], throughput(own[0]));
    assert_eq!(exported["trials"], json!(own.iter().map(|trial| trial["trial"].clone()).collect::<Vec<_>>()));
    let script = workplace.run(&["export", "--trial", "0", "--format", "sh"]).stdout;
    assert!(script.contains("the mean of 2 measurements from "), "{script}");
    assert!(script.contains(": means of 2: output_throughput "), "{script}");

    let best = workplace.json(&["best", "--format", "json"]);
    let exported = workplace.json(&["export", "--format", "json"]);
    let same = ["trial", "mean_value", "measurements", "gain", "gain_significant", "expected", "mean_metrics"];
    for name in same {
        assert_eq!(exported[name], best[name], "{name}");
    }
    let table = workplace.run(&["best"]).stdout;
    let gain = table.lines().find(|line| line.starts_with("gain over the engine's defaults: ")).unwrap();
    let script = workplace.run(&["export", "--format", "sh"]).stdout;
    assert!(best["trial"] == 0 || script.contains(&format!("# {gain}\n")), "{gain}\n{script}");
    // Only one-line comments and `set -eu` come before the command.
    let before = script.lines().take_while(|line| !line.starts_with("exec ")).collect::<Vec<_>>();
    assert!(before.iter().all(|line| line.starts_with('#') || *line == "set -eu"), "{script}");
}

#[test]
fn best_gives_the_reason_of_its_order() {
    let workplace = confirmed();
    let table = workplace.run(&["best"]).stdout;
    assert!(table.lines().next().unwrap().contains(" order "), "{table}");
    assert!(table.contains("confirmed: it was launched again beside the baselines, and won"), "{table}");
    let best = workplace.json(&["best", "--format", "json"]);
    let reason = "confirmed: it was launched again beside the baselines, and won";
    assert_eq!((&best["order"], &best["order_reason"]), (&json!("confirmed"), &json!(reason)));
}

/// Creates two study files for an engine that runs as vLLM 0.32.0. `study.toml` does not state the release,
/// `stated.toml` does.
fn with_and_without_release() -> Workplace {
    let program = env!("CARGO_BIN_EXE_setpoint");
    let script = format!(
        "exec {program} sim serve \"$@\" --sim-vllm-version 0.32.0 --sim-device cpu --sim-time-scale 200 \
         --sim-startup-s 0.02 --sim-noise 0"
    );
    let engine = format!("command = [\"sh\", \"-c\", '{script}', \"sh\"]\ndevice = \"cpu\"");
    // The `#` turns the line of `args` into a comment.
    let text = study_with(&engine, "trials = 4\nconfirm = 1").replace("kind = \"sim\"\nargs", "kind = \"vllm\"\n#");
    let text = text.replace("examples/models/qwen3-8b", "tests/fixtures/models/qwen2-tiny");
    let workplace = Workplace::with_study(&text);
    workplace.write("stated.toml", &text.replace("device = \"cpu\"", "device = \"cpu\"\nversion = \"0.32.0\""));
    workplace
}

#[test]
fn a_prediction_is_for_the_release_that_the_trials_ran_or_names_it_as_assumed() {
    let workplace = with_and_without_release();
    let before = workplace.json(&["predict", "study.toml", "--format", "json"]);
    assert_eq!(before["engine_version_assumed"], true, "{before}");
    assert!(
        before["engine"].as_str().unwrap().contains("(assumed: no study, trial or installed engine states it"),
        "{}",
        before["engine"]
    );
    let tuned = workplace.run(&["tune", "stated.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    for more in [&[][..], &["--calibrate", "fast"]] {
        let arguments = [&["predict", "study.toml", "--format", "json"], more].concat();
        let ended = workplace.run(&arguments);
        let document: Json =
            serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error} {}", ended.stderr));
        assert_eq!(document["engine"], "vllm 0.32.0 (from the trials of study \"fast\")", "{more:?}");
        assert_eq!(
            (&document["engine_version"], &document["engine_version_assumed"]),
            (&json!("0.32.0"), &json!(false))
        );
        let noise = &document["predictions"][0]["launch_noise"];
        if more.is_empty() {
            assert_eq!(noise, &Json::Null);
        } else {
            assert_eq!((&noise["measured"], &noise["configurations"]), (&json!(true), &json!(2)), "{noise}");
            let basis = document["predictions"][0]["basis"].as_str().unwrap();
            assert!(
                basis.contains("and the noise between launches, ") && basis.contains("by 4 launches of 2"),
                "{basis}"
            );
        }
    }
    let other = workplace.run(&["predict", "study.toml", "--engine-version", "0.20.0"]);
    assert!(other.stdout.starts_with("study fast, vllm 0.20.0, "), "{}", other.stdout);
}
