//! A study from options: `init`, and `tune --model`.

use crate::support::{Workplace, fast_study};

/// The shape of a model, from the repository.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/models/qwen3-8b");

#[test]
fn the_written_study_is_valid_and_a_changed_file_stays() {
    let workplace = Workplace::new();
    let init = ["init", "--model", MODEL, "--engine", "sim", "--slo", "ttft_p99=500ms", "-o", "a.toml"];
    let written = workplace.run(&init);
    assert_eq!((written.code, written.stdout.trim()), (Some(0), "a.toml"), "{}", written.stderr);
    assert!(
        written.stderr.contains("p99_ttft_ms at most 100 ms"),
        "the clock is five times faster: {}",
        written.stderr
    );
    let checked = workplace.run(&["check", "a.toml"]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    // Another budget belongs to the same study.
    let longer: Vec<_> = init.into_iter().chain(["--trials", "7"]).collect();
    assert_eq!(workplace.run(&longer).code, Some(0));
    let text = std::fs::read_to_string(workplace.path("a.toml")).unwrap();
    assert!(text.ends_with("trials = 7\n"), "{text}");
    let edited = text.replace("block", "blocks").replace("concurrency = 32", "concurrency = 3");
    std::fs::write(workplace.path("a.toml"), &edited).unwrap();
    let refused = workplace.run(&init);
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("a.toml exists and differs from these options"), "{}", refused.stderr);
    assert_eq!(std::fs::read_to_string(workplace.path("a.toml")).unwrap(), edited);
}

#[test]
fn an_option_that_cannot_be_used_is_named_and_leaves_no_file() {
    let workplace = Workplace::new();
    for (arguments, code, expected) in [
        (["--model", "nothing/here", "--engine", "sim"], 3, "\"nothing/here\" is neither a directory nor a model"),
        (["--model", MODEL, "--engine", "simm"], 2, "'simm'"),
    ] {
        let ended = workplace.run(&["tune"].into_iter().chain(arguments).collect::<Vec<_>>());
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    }
    let ended = workplace.run(&["init", "--model", MODEL, "--engine", "sim", "--workload", "chta"]);
    assert!(ended.code == Some(2) && ended.stderr.contains("did you mean chat?"), "{}", ended.stderr);
    let files: Vec<_> =
        std::fs::read_dir(workplace.path("")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(files.iter().all(|name| !name.to_string_lossy().ends_with(".toml")), "{files:?}");
}

/// A production script with an address, a name of the model, a secret and adapters.
const SCRIPT: &str = "#!/bin/sh\nexport HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345\ntouch executed\n\
     exec vllm serve /models/qwen3 --max-num-seqs 64 --max-num-batched-tokens 2048 --max-model-len 8192 \\\n  \
     --served-model-name chat --port 8000 --api-key sk-1234567890abcdef --enable-lora \\\n  \
     --lora-modules sql=/adapters/sql '{\"name\": \"code\", \"path\": \"/adapters/code\"}'\n";

#[test]
fn a_deployment_becomes_a_first_point_and_fixed_flags() {
    let workplace = Workplace::new();
    workplace.write("serve.sh", SCRIPT);
    let init = ["init", "--from", "serve.sh", "--model", MODEL, "--engine", "sim", "--adapter", "sql", "-o", "a.toml"];
    let written = workplace.run(&init);
    assert_eq!(written.code, Some(0), "{}", written.stderr);
    let said = "today's deployment: serve.sh:4; max-num-batched-tokens 2048, max-num-seqs 64\n";
    assert!(written.stderr.contains(said), "{}", written.stderr);
    let study: toml::Table = toml::from_str(&std::fs::read_to_string(workplace.path("a.toml")).unwrap()).unwrap();
    assert_eq!(study["model"]["adapter"].as_str(), Some("sql"));
    assert_eq!(
        study["deployment"]["flags"],
        toml::toml! { max-num-batched-tokens = 2048
        max-num-seqs = 64 }
        .into()
    );
    let fixed = toml::toml! { enable-lora = true
    lora-modules = "sql=/adapters/sql {\"name\":\"code\",\"path\":\"/adapters/code\"}"
    max-model-len = 8192 };
    assert_eq!(study["space"]["fixed"], fixed.into());
    for secret in ["hf_abc", "sk-123"] {
        assert!(!format!("{study} {}", written.stderr).contains(secret), "{secret}");
    }
    assert!(!workplace.path("executed").exists(), "a script is parsed and never executed");
    let dry = workplace.run(&["tune", "a.toml", "--dry-run"]);
    assert!(dry.stdout.lines().nth(1).unwrap().contains("--max-num-seqs 64"), "{}", dry.stdout);
    let others = workplace.run(&["init", "--from", "serve.sh", "--model", MODEL, "--engine", "sim", "--adapter", "ql"]);
    let expected = "--adapter \"ql\" is not served by the deployment; it serves sql, code";
    assert!(others.code == Some(2) && others.stderr.contains(expected), "{}", others.stderr);
}

#[test]
fn an_adapter_answers_the_requests_and_a_line_is_measured_beside_the_defaults() {
    let text = fast_study().replace("[model]", "[model]\nadapter = 'sql'");
    let text =
        text.replace("max-model-len = 2048", "max-model-len = 2048, enable-lora = true, lora-modules = 'sql=/a'");
    assert!(text.contains("lora-modules"), "{text}");
    let workplace = Workplace::with_study(&text);
    let tuned = workplace.run(&["tune", "study.toml", "--from", "vllm serve m --max-num-seqs 4 --port 80"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert!(tuned.stdout.contains("gain over today's deployment: "), "{}", tuned.stdout);
    let best = workplace.json(&["best", "--format", "json"]);
    assert!(best["gain_over_deployment"].as_f64().is_some_and(|gain| gain >= 1.0), "{best}");
    assert_eq!(best["deployment_status"]["source"], "command line");
    assert!(workplace.trials().iter().all(|trial| trial["metrics"]["failed"] == 0), "requests address the adapter");
}

#[test]
fn a_flag_that_the_release_lacks_is_named_and_nothing_is_written() {
    let workplace = Workplace::new();
    for study in [&["--model", MODEL, "--engine", "sim"][..], &["study.toml"]] {
        workplace.write("study.toml", &fast_study());
        let line = ["tune", "--from", "vllm serve m --max-num-sequences-at-once 3"];
        let ended = workplace.run(&line.into_iter().chain(study.iter().copied()).collect::<Vec<_>>());
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        assert!(ended.stderr.contains("unrecognized arguments: --max-num-sequences-at-once"), "{}", ended.stderr);
        assert!(ended.stderr.contains("hint: remove the flag from the deployment"), "{}", ended.stderr);
        std::fs::remove_file(workplace.path("study.toml")).unwrap();
        let left = std::fs::read_dir(workplace.path("")).unwrap().flatten().count();
        assert_eq!(left, 0, "no study and no database");
    }
}

#[test]
fn further_first_points_come_from_a_recipe_and_an_earlier_study() {
    let workplace = Workplace::with_study(&fast_study());
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    let recipe = "model:\n  model_id: Qwen/Qwen3-8B\n  base_args: [--max-num-seqs, '32']\nvariants:\n  default: {}\n\
                  compatible_strategies: [single_node_tp]\n";
    workplace.write("recipe.yaml", recipe);
    let init = ["init", "--model", MODEL, "--engine", "sim", "-o", "a.toml", "--start", "recipe.yaml", "--start"];
    let written = workplace.run(&init.into_iter().chain(["fast"]).collect::<Vec<_>>());
    assert_eq!(written.code, Some(0), "{}", written.stderr);
    let study: toml::Table = toml::from_str(&std::fs::read_to_string(workplace.path("a.toml")).unwrap()).unwrap();
    let sources: Vec<_> =
        study["start"].as_array().unwrap().iter().map(|start| start["source"].as_str().unwrap()).collect();
    assert!(
        sources[0].starts_with("recipe Qwen/Qwen3-8B") && sources[1].starts_with("study fast, trial "),
        "{sources:?}"
    );
    assert_eq!(study["start"][0]["flags"]["max-num-seqs"].as_integer(), Some(32));
    assert_eq!(study["study"]["prior"].as_array().unwrap().len(), 2);
    let refused = workplace.run(&init.into_iter().chain(["nope"]).collect::<Vec<_>>());
    assert!(refused.code == Some(3) && refused.stderr.contains("there is no study \"nope\""), "{}", refused.stderr);
}
