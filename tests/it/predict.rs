//! `predict` as users run it, and its predictions against the simulated engine.

use serde_json::Value as Json;

use crate::support::{Ended, Workplace, root};

fn quickstart() -> String {
    root().join("examples/quickstart.toml").to_string_lossy().into_owned()
}

fn predict(workplace: &Workplace, more: &[&str]) -> Ended {
    let study = quickstart();
    workplace.run(&[&["predict", &study], more].concat())
}

/// Like [`predict`], but for the study in the workplace.
fn predict_study(workplace: &Workplace, more: &[&str]) -> Ended {
    workplace.run(&[&["predict", "study.toml"], more].concat())
}

fn json(workplace: &Workplace, more: &[&str]) -> Json {
    let ended = predict(workplace, &[more, &["--format", "json"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// Flags that make the example keep its limit.
const KEEPS: &str = r#"{"max-num-seqs": 8, "max-num-batched-tokens": 512}"#;
const BREAKS: &str = r#"{"max_num_seqs": 128}"#;

#[test]
fn the_example_is_predicted_as_a_table() {
    let ended = predict(&Workplace::new(), &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    for text in [
        "study quickstart, simulated vLLM",
        "closed loop of 64, 96 requests",
        "output_throughput",
        "p95_itl_ms <= 10",
        "10 % to 90 %",
        "limited by",
        "   advice  ",
        "highest load",
        "at a time",
        "not calibrated: the ranges are wide, because nothing was measured here",
    ] {
        assert!(ended.stdout.contains(text), "{text} is not in\n{}", ended.stdout);
    }
}

#[test]
fn several_configurations_are_ranked_by_the_objective() {
    let document = json(&Workplace::new(), &["--config", BREAKS, "--config", KEEPS]);
    let Json::Array(predictions) = &document["predictions"] else { panic!("{document}") };
    let states: Vec<_> = predictions.iter().map(|one| (&one["config"], one["feasible"].as_bool())).collect();
    assert_eq!(states[0], (&serde_json::from_str::<Json>(KEEPS).unwrap(), Some(true)));
    // The name is spelt as the engine's own.
    assert_eq!(states[1], (&serde_json::json!({"max-num-seqs": 128}), Some(false)));
    for one in predictions {
        assert_eq!(one["metrics"]["completed"], 96);
        let throughput = one["value"].as_f64().unwrap();
        let range = &one["intervals"]["output_throughput"];
        let (low, high) = (range[0].as_f64().unwrap(), range[1].as_f64().unwrap());
        assert!(low < high && (0.8 * low..1.2 * high).contains(&throughput), "{range} {throughput}");
        assert!(one["limit"]["advice"].as_str().is_some_and(|advice| !advice.is_empty()));
        let series = &one["series"];
        let points = series["running"].as_array().unwrap().len();
        assert!((10..=600).contains(&points) && series["tokens_per_step"].as_array().unwrap().len() == points);
    }
}

#[test]
fn other_devices_and_loads_can_be_asked_for() {
    let workplace = Workplace::with_study(&example().replace("requests = 96", "requests = 20"));
    let json = |more: &[&str]| workplace.json(&[&["predict", "study.toml", "--format", "json"], more].concat());
    let document = json(&["--on", "h100", "--config", KEEPS]);
    let by = |name: &str| {
        let all = document["predictions"].as_array().unwrap();
        all.iter().find(|one| one["device"] == name).unwrap()["metrics"]["output_throughput"].as_f64().unwrap()
    };
    assert!(by("h100") > 2.0 * by("l4"), "{} {}", by("h100"), by("l4"));
    let alone = json(&["--concurrency", "1"]);
    assert_eq!(alone["load"], "closed loop of 1, 20 requests");
    assert_eq!(alone["predictions"][0]["metrics"]["server"]["requests_running_max"], 1.0);
    let slow = json(&["--rate", "1", "--device", "h100"]);
    assert_eq!(
        (&slow["load"], &slow["predictions"][0]["limit"]["kind"]),
        (&"1 arrivals/s, 20 requests".into(), &"idle".into())
    );
}

#[test]
fn the_page_stands_for_itself_and_shows_each_configuration() {
    let workplace = Workplace::with_study(&light());
    let predict = |more: &[&str]| predict_study(&workplace, more);
    let ended = predict(&["--config", BREAKS, "--config", KEEPS, "-o", "page.html"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let page = std::fs::read_to_string(workplace.path("page.html")).unwrap();
    assert_eq!(page.matches("<svg ").count(), 2 * 3);
    assert!(!page.contains("<script") && !page.contains("http"), "it needs something else");
    for text in ["prefers-color-scheme: dark", "max-num-seqs=128 on l4", "time in s", "% of its blocks", "budget"] {
        assert!(page.contains(text), "{text}");
    }
    let ended = predict(&["-o", "no/such/folder.html"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("cannot write no/such/folder.html"), "{}", ended.stderr);
}

#[test]
fn what_cannot_be_predicted_is_named_with_a_hint() {
    let workplace = Workplace::new();
    for (arguments, code, texts) in [
        (
            &["--config", r#"{"max-num-sequences": 4}"#][..],
            3,
            &["max-num-sequences", "did you mean --max-num-seqs"][..],
        ),
        (
            &["--config", "{max-num-seqs: 4}"],
            3,
            &["--config {max-num-seqs: 4}: key must be a string", "hint: give flags"],
        ),
        (&["--config", r#"{"max-num-seqs": "many"}"#], 3, &["max-num-seqs", "many"]),
        (&["--device", "tpu"], 2, &["invalid value 'tpu'", "h100"]),
        (&["--rate", "0"], 2, &["must be above 0"]),
        (&["--calibrate", "nothing"], 3, &["setpoint.db"]),
    ] {
        let ended = predict(&workplace, arguments);
        assert_eq!(ended.code, Some(code), "{arguments:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{arguments:?}");
        for text in texts {
            assert!(ended.stderr.contains(text), "{arguments:?}: {text} is not in {}", ended.stderr);
        }
    }
}

#[test]
fn a_rejected_configuration_is_a_row_and_nothing_else_is_an_end_without_a_result() {
    let workplace = Workplace::with_study(&light());
    let predict = |more: &[&str]| predict_study(&workplace, more);
    let rejected = r#"{"max-model-len": 1000000}"#;
    let alone = predict(&["--config", rejected]);
    assert_eq!(alone.code, Some(4), "{}", alone.stderr);
    assert!(alone.stdout.contains("rejected") && alone.stdout.contains("1000000"), "{}", alone.stdout);
    // There is only one simulated device.
    let two = predict(&["--config", r#"{"tensor-parallel-size": 2}"#]);
    assert_eq!(two.code, Some(4), "{}", two.stdout);
    let both = predict(&["--config", rejected, "--config", KEEPS, "--format", "json"]);
    let both: Json = serde_json::from_str(&both.stdout).unwrap();
    let states = both["predictions"].as_array().unwrap().iter().map(|one| one["state"].as_str().unwrap());
    assert_eq!(states.collect::<Vec<_>>(), ["measured", "rejected"]);
    assert!(both["predictions"][1]["rule"].is_string());
}

/// Returns the example with absolute paths of models, so that its file may be anywhere.
fn example() -> String {
    let text = std::fs::read_to_string(quickstart()).unwrap();
    let models = root().join("examples/models");
    text.replace("\"models/", &format!("\"{}/", models.display()))
}

/// Like [`example`], but with a load that a debug build predicts at once.
fn light() -> String {
    example().replace("concurrency = 64\nrequests = 96\nwarmup = 16", "concurrency = 8\nrequests = 16\nwarmup = 4")
}

/// Like [`example`], but with a slower clock. On the example's clock, the program's own delays count for as much as the
/// engine's steps.
fn slower_study() -> String {
    example()
        .replace("\"--sim-time-scale\", \"20\"", "\"--sim-time-scale\", \"8\", \"--sim-noise\", \"0\"")
        .replace("concurrency = 64\nrequests = 96\nwarmup = 16", "concurrency = 16\nrequests = 48\nwarmup = 16")
}

#[test]
fn what_is_predicted_is_what_the_simulated_engine_then_does() {
    let workplace = Workplace::with_study(&slower_study());
    let predicted = workplace.json(&["predict", "study.toml", "--format", "json"]);
    let predicted = &predicted["predictions"][0]["metrics"];
    let mut differences = Vec::new();
    // Other work on the machine can only make it slower than its schedule. The comparison is therefore tried up to
    // three times.
    for attempt in 0..3 {
        let database = format!("{attempt}.db");
        let ended = workplace.run(&["tune", "study.toml", "--sampler", "sobol", "--trials", "1", "--db", &database]);
        let trials = workplace.json(&["trials", "--format", "json", "--db", &database]);
        let measured = &trials[0]["metrics"];
        assert_eq!(measured["completed"], 48, "{}", ended.stderr);
        differences = [("output_throughput", 0.05), ("mean_tpot_ms", 0.05), ("mean_ttft_ms", 0.1)]
            .into_iter()
            .map(|(name, most)| {
                (name, most, predicted[name].as_f64().unwrap() / measured[name].as_f64().unwrap() - 1.0)
            })
            .filter(|(_, most, difference)| difference.abs() >= *most)
            .collect();
        if differences.is_empty() {
            return;
        }
    }
    panic!("predicted over measured, less 1: {differences:?}");
}

#[test]
fn trials_of_a_study_calibrate_the_preset_of_another_device() {
    let workplace = Workplace::with_study(&slower_study());
    let ended = workplace.run(&["tune", "study.toml", "--trials", "2"]);
    assert!(matches!(ended.code, Some(0 | 4)), "{}", ended.stderr);
    let trials = workplace.trials();
    let why = trials[1]["why"].as_str().unwrap();
    assert!(why.starts_with("the twin ranks it "), "{why}");
    let measured = trials[0]["metrics"]["output_throughput"].as_f64().unwrap();
    let predicted = |more: &[&str]| {
        // The simulated engine's device is an L4.
        let arguments = [&["predict", "study.toml", "--device", "a10", "--format", "json"], more].concat();
        let ended = workplace.run(&arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let document: Json = serde_json::from_str(&ended.stdout).unwrap();
        (document["predictions"][0]["metrics"]["output_throughput"].as_f64().unwrap(), ended.stderr)
    };
    let (unknown, _) = predicted(&[]);
    let (known, said) = predicted(&["--calibrate", "quickstart"]);
    assert!(unknown > 1.3 * measured, "{unknown} {measured}");
    assert!((known / measured - 1.0).abs() < 0.1, "{known} {measured}");
    assert!(
        said.contains(
            "calibrated on 2 trials of study quickstart; measured step times relative to the device's default: weights "
        ),
        "{said}"
    );
}

#[test]
fn a_study_of_another_engine_does_not_calibrate() {
    let workplace = Workplace::with_study(&slower_study());
    let ended = workplace.run(&["tune", "study.toml", "--sampler", "sobol", "--trials", "1"]);
    assert!(matches!(ended.code, Some(0 | 4)), "{}", ended.stderr);
    std::fs::write(workplace.path("other.toml"), slower_study().replace("\"l4\"", "\"a10\"")).unwrap();
    let ended = workplace.run(&["predict", "other.toml", "--calibrate", "quickstart"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    for text in
        ["engine.args of study quickstart is ", "a10", "hint: calibrate with a study of the same engine and model"]
    {
        assert!(ended.stderr.contains(text), "{text} is not in {}", ended.stderr);
    }
    let ended = workplace.run(&["predict", "study.toml", "--calibrate", "nothing"]);
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.contains("there is no study \"nothing\" in "), "{}", ended.stderr);
}
