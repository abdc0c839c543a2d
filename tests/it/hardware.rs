//! Hardware that a study or an argument describes and that need not be present.

use serde_json::Value as Json;

use crate::support::{Workplace, root, study_with};

/// Returns a study of the real engine, which `check` does not start.
fn study(engine: &str) -> String {
    let sim =
        "kind = \"sim\"\nargs = [\"--sim-time-scale\", \"200\", \"--sim-startup-s\", \"0.02\", \"--sim-noise\", \"0\"]";
    let vllm = "kind = \"vllm\"\ncommand = [\"/bin/true\"]\nversion = \"0.20.2\"";
    let text = study_with(engine, "trials = 4");
    assert!(text.contains(sim));
    text.replace(sim, vllm).replace("max-model-len = 2048", "max-model-len = 2048, tensor-parallel-size = 4")
}

#[test]
fn a_study_is_checked_against_the_gpus_that_it_describes() {
    let workplace = Workplace::with_study(&study("gpus = 4\ngpu_memory_gib = 79.2\ncompute_capability = \"9.0\""));
    let ended = workplace.run(&["check", "study.toml"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let engine = "engine        vllm 0.20.2 on 4 GPUs of 79 GiB, compute capability 9.0\n";
    assert!(ended.stdout.contains(engine), "{}", ended.stdout);
    assert!(ended.stdout.contains("defaults      accepted"), "{}", ended.stdout);

    let workplace = Workplace::with_study(&study("gpus = 2"));
    let rejected = "defaults      rejected by R10: World size (4) is larger than the number";
    let ended = workplace.run(&["check", "study.toml"]);
    assert!(ended.stdout.contains(rejected), "{}", ended.stdout);
}

#[test]
fn arguments_are_checked_against_the_described_gpus() {
    let workplace = Workplace::new();
    workplace.write("arguments.jsonl", "{\"args\": [\"--tensor-parallel-size\", \"2\"]}\n");
    let model = root().join("examples/models/qwen3-8b");
    let verdict = |more: &[&str]| -> Json {
        let mut arguments = vec!["check", "--args-file", "arguments.jsonl", "--model", model.to_str().unwrap()];
        arguments.extend(more);
        workplace.json(&arguments)
    };
    assert_eq!(verdict(&["--gpus", "2"])["verdict"], "accept");
    assert_eq!(verdict(&[])["verdict"], "accept", "nobody said how many there are");
    let rejected = verdict(&["--gpus", "1", "--gpu-memory-gib", "80", "--compute-capability", "9.0"]);
    assert_eq!((&rejected["verdict"], &rejected["rule"]), (&"reject".into(), &"R10".into()));
    assert_eq!(rejected["repair"], serde_json::json!({"tensor-parallel-size": 1}));
    for wrong in
        [["--compute-capability", "x"], ["--gpu-memory-gib", "nan"], ["--gpu-memory-gib", "0"], ["--gpus", "0"]]
    {
        let mut arguments = vec!["check", "--args-file", "arguments.jsonl", "--model", model.to_str().unwrap()];
        arguments.extend(wrong);
        assert_eq!(workplace.run(&arguments).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn arguments_may_come_from_standard_input_and_variables_decide_as_in_a_launch() {
    let workplace = Workplace::new();
    let model = root().join("examples/models/qwen3-8b");
    let line = "{\"args\": [\"--max-model-len\", \"999999\"]}\n";
    let verdict = |inherited: &[(&str, &str)], more: &[&str]| {
        let mut arguments = vec!["check", "--args-file", "-", "--model", model.to_str().unwrap()];
        arguments.extend(more);
        workplace.run_with(inherited, line, &arguments)
    };
    let rule = |ended: &str| serde_json::from_str::<Json>(ended).unwrap()["rule"].clone();
    let allow = ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1");
    assert_eq!(rule(&verdict(&[], &[]).stdout), "R11");
    assert_eq!(rule(&verdict(&[], &["--env", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"]).stdout), Json::Null);
    assert_eq!(rule(&verdict(&[allow], &[]).stdout), "R11", "our own environment says nothing of another launch");
    let broken =
        workplace.run_with(&[], "\nnull\n", &["check", "--args-file", "-", "--model", model.to_str().unwrap()]);
    assert!(broken.stderr.contains("standard input:2: invalid type: null, expected an object"), "{}", broken.stderr);
    for wrong in ["VLLM_USE_V1", "1A=2", "=2"] {
        assert_eq!(verdict(&[], &["--env", wrong]).code, Some(2), "{wrong}");
    }
}

#[test]
fn a_study_is_checked_with_the_environment_that_its_launches_inherit() {
    let text = study("").replace("max-model-len = 2048", "max-model-len = 999999");
    let allow = ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1");
    let defaults = |text: &str, inherited: &[(&str, &str)]| {
        let workplace = Workplace::with_study(text);
        let checked = workplace.run_with(inherited, "", &["check", "study.toml", "--format", "json"]);
        serde_json::from_str::<Json>(&checked.stdout).unwrap()["defaults"]["rule"].clone()
    };
    assert_eq!(defaults(&text, &[]), "R11");
    assert_eq!(defaults(&text, &[allow]), Json::Null);
    let forbids = "command = [\"/bin/true\"]\nenv = { VLLM_ALLOW_LONG_MAX_MODEL_LEN = \"0\" }";
    let text = text.replace("command = [\"/bin/true\"]", forbids);
    assert_eq!(defaults(&text, &[allow]), "R11", "the study's own variables stand over the inherited ones");
}

#[test]
fn the_memory_of_a_launch_is_predicted_with_its_risk() {
    // 8 billion weights of two bytes on 24 GiB leave a cache of some GiB. Long sequences may not fit into it.
    let text = study("gpus = 1\ngpu_memory_gib = 23.5\ncompute_capability = \"8.9\"")
        .replace("max-model-len = 2048, tensor-parallel-size = 4", "max-model-len = 2048")
        .replace(
            "[workload]",
            "[space.parameters.gpu-memory-utilization]\nkind = \"float\"\nlow = 0.6\nhigh = 0.9\n\n[workload]",
        );
    let workplace = Workplace::with_study(&text);
    let checked = workplace.run(&["check", "study.toml"]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(checked.stdout.contains("memory        KV cache of "), "{}", checked.stdout);
    let words = checked.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(" of the space may fail to start"), "{}", checked.stdout);
    let json = workplace.json(&["check", "study.toml", "--format", "json"]);
    let memory = |key: &str| json["memory"][key].as_f64().unwrap();
    assert!((14.0..16.5).contains(&memory("weights_gib")), "{}", json["memory"]);
    assert!((1.0..6.0).contains(&memory("cache_gib")), "{}", json["memory"]);
    // 36 layers, 8 heads of 128 elements, keys and values, two bytes each.
    let tokens = memory("cache_gib") * f64::from(1 << 30) / f64::from(36 * 8 * 128 * 2 * 2);
    assert!((memory("cache_tokens") / tokens - 1.0).abs() < 0.01, "{tokens} {}", json["memory"]);
    assert!((memory("concurrency") * 2048.0 / memory("cache_tokens") - 1.0).abs() < 0.01, "{}", json["memory"]);
    assert!(
        memory("failure_probability") < 0.05 && (0.001..0.5).contains(&memory("risky_share")),
        "{}",
        json["memory"]
    );

    let unknown = Workplace::with_study(&study("gpus = 4"));
    assert_eq!(unknown.json(&["check", "study.toml", "--format", "json"])["memory"], Json::Null);
}

#[test]
fn what_a_model_does_not_say_is_told_beside_the_verdicts() {
    let workplace = Workplace::new();
    std::fs::create_dir(workplace.path("model")).unwrap();
    workplace.write("model/config.json", "{\"hidden_size\": \"wide\"}");
    let arguments = ["check", "--args-file", "-", "--model", "model"];
    let checked = workplace.run_with(&[], "{\"args\": []}", &arguments);
    assert_eq!((checked.code, checked.stdout.lines().count()), (Some(0), 1), "{}", checked.stderr);
    for told in ["the model's hidden_size: \"wide\" is not a size", "the model's own length: config.json states no"] {
        assert!(checked.stderr.contains(told), "{}", checked.stderr);
    }
    let quiet = workplace.run_with(&[], "{\"args\": []}", &[&arguments[..], &["--quiet"]].concat());
    assert_eq!(quiet.stderr, "");
}
