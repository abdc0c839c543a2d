//! `setpoint importance` on a study of the simulated engine.

use serde_json::{Value as Json, json};

use crate::support::{Workplace, fast_study};

/// Replaces all numbers, because they differ between runs. The fields do not.
fn without_numbers(json: &Json) -> Json {
    match json {
        Json::Number(_) => json!("number"),
        Json::Array(items) => items.iter().map(without_numbers).collect(),
        Json::Object(fields) => fields
            .iter()
            .map(|(name, field)| (name.clone(), without_numbers(field)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

#[test]
fn the_parameter_that_limits_the_batch_is_the_important_one() {
    // With eight users, throughput grows with the number of sequences up to eight. A batch can hold all of their tokens
    // in any case.
    let text = fast_study().replace("trials = 4", "trials = 11").replace("[8, 256, 2048]", "[1024, 2048]");
    let text = text.replace(r#""--sim-time-scale", "200""#, r#""--sim-time-scale", "10""#);
    let workplace = Workplace::with_study(&text);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);

    let mut explained = workplace.json(&["importance", "study.toml", "--format", "json"]);
    let about = &mut explained["about"][0];
    assert!(about["measured"].as_i64().unwrap() >= 10, "{about:#}");
    // Other work on this machine determines how noisy the measurements are.
    assert_eq!(about["doubts"] == json!([]), about["held_out_r2"].as_f64().unwrap() >= 0.3, "{about:#}");
    let parameters = about["parameters"].as_array_mut().unwrap();
    assert_eq!(parameters[0]["parameter"], "max-num-seqs");
    assert!(parameters[0]["total"]["share"].as_f64().unwrap() > 0.7, "{:#}", parameters[0]);
    let means: Vec<_> =
        parameters[0]["dependence"].as_array().unwrap().iter().map(|p| p["mean"].as_f64().unwrap()).collect();
    assert!(means[0] < 0.5 * means[4], "one at a time is slower than many: {means:?}");
    // The measurements determine whether a pair is large enough to be reported.
    (about["pairs"], about["doubts"]) = (json!([]), json!([]));
    insta::assert_snapshot!(format!("{:#}", without_numbers(&explained)));

    let told = workplace.run(&["importance", "study.toml"]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert!(
        told.stdout.starts_with("objective output_throughput: 1")
            && told.stdout.contains(" of the variance unexplained\n"),
        "{}",
        told.stdout
    );
    let csv = workplace.run(&["importance", "study.toml", "--format", "csv"]).stdout;
    assert!(csv.lines().nth(1).is_some_and(|line| line.contains(",max-num-seqs,,")), "{csv}");
}

#[test]
fn too_few_trials_are_said_and_none_at_all_are_refused() {
    let workplace = Workplace::with_study(&fast_study());
    let none = workplace.run(&["importance", "study.toml"]);
    assert_eq!(none.code, Some(3), "{}", none.stderr);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    // The defaults are one of the four trials. Their batch is not among the choices, so they give no measurement of the
    // space.
    let told = workplace.run(&["importance", "study.toml"]);
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert!(
        told.stdout.contains("warning: 3 measurements for 2 parameters: with fewer than 4 the shares are rough"),
        "{}",
        told.stdout
    );
    let csv = workplace.run(&["importance", "study.toml", "--format", "csv"]);
    assert!(csv.stderr.contains("warning: output_throughput: 3 measurements for 2"), "{}", csv.stderr);

    // These trials do not explain another study of the same name.
    workplace.write("study.toml", &fast_study().replace("input_len = 32", "input_len = 64"));
    let other = workplace.run(&["importance", "study.toml"]);
    assert_eq!(other.code, Some(3), "{}", other.stderr);
    assert!(other.stderr.contains("workload.input_len (now 64, stored 32)"), "{}", other.stderr);
    workplace.write("study.toml", &fast_study().replace("\"fast\"", "\"slow\""));
    let unknown = workplace.run(&["importance", "study.toml"]);
    assert_eq!(unknown.code, Some(3), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("the database holds no study \"slow\""), "{}", unknown.stderr);
}
