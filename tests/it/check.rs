//! The subcommands `check` and `spaces`, which need no launch.

use crate::support::{Workplace, fast_study, root, study_with};

/// Returns a study of a model whose 14 heads can be split over one or two GPUs only. Its token budget is too small for
/// 16 sequences.
fn narrow_study() -> String {
    let model = |name: &str| root().join(name).display().to_string();
    fast_study()
        .replace(&model("examples/models/qwen3-8b"), &model("tests/fixtures/models/qwen2-0.5b-instruct"))
        .replace("[8, 256, 2048]", "[8]")
        .replace(
            "[workload]",
            "[space.parameters.tensor-parallel-size]\nkind = \"int\"\nscale = \"pow2\"\nlow = 1\nhigh = 8\n\
             help = \"GPUs that share every layer.\"\n\n[workload]",
        )
}

#[test]
fn a_check_shows_what_each_rule_removes_and_how_ranges_were_narrowed() {
    let workplace = Workplace::with_study(&narrow_study());
    let checked = workplace.run(&["check", "study.toml"]);
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""));
    for line in [
        "parameter     max-num-seqs: 1 to 8, powers of two\n",
        "              narrowed from 1 to 16, powers of two, by R2:\n              max_num_batched_tokens (8) must",
        "parameter     tensor-parallel-size: 1 to 2, powers of two\n",
        "space         40.0 % of 20 configurations pass the rules\n",
        "              50.0 % removed by R8: the attention heads can be split over the\n",
        "              20.0 % removed by R2: the token budget holds one token of every\n",
        "defaults      accepted\n",
        "not checked   ",
        "a guess from rough figures",
    ] {
        assert!(checked.stdout.contains(line), "{line:?} is not in\n{}", checked.stdout);
    }
    assert!(!checked.stdout.contains("GPUs that share"), "{}", checked.stdout);
    let explained = workplace.run(&["check", "study.toml", "--explain"]);
    assert!(explained.stdout.contains("\n              GPUs that share every layer.\n"), "{}", explained.stdout);
    assert!(!workplace.path("setpoint.db").exists(), "a check leaves nothing behind");
}

#[test]
fn a_check_as_json_says_the_same_to_programs() {
    let workplace = Workplace::with_study(&narrow_study());
    let json = workplace.json(&["check", "study.toml", "--format", "json"]);
    assert_eq!(json["space"]["remaining_share"], 0.4);
    assert_eq!(json["space"]["rules"][0]["rule"], "R8");
    assert_eq!(json["space"]["rules"][0]["removed_share"], 0.5);
    let parallel = &json["parameters"][2];
    assert_eq!((&parallel["name"], &parallel["range"]["high"]), (&"tensor-parallel-size".into(), &2.into()));
    assert_eq!(parallel["narrowed_from"]["high"], 8);
    assert_eq!(parallel["narrowed_by"][0]["rule"], "R8");
    assert_eq!((&json["defaults"]["verdict"], &json["duration"]["source"]), (&"accept".into(), &"guess".into()));
    // The budget allows 4 launches, which include the defaults.
    assert_eq!(json["duration"]["launches"], 4);
}

#[test]
fn a_space_in_which_nothing_works_is_shown_with_an_example() {
    let workplace = Workplace::with_study(&fast_study().replace("max-model-len = 2048", "max-model-len = 99999"));
    let checked = workplace.run(&["check", "study.toml"]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(checked.stdout.contains("space         0.0 % of 15 configurations pass the rules\n"), "{}", checked.stdout);
    let words = checked.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let example = "for instance max-num-batched-tokens=8 max-num-seqs=1: User-specified max_model_len (99999)";
    assert!(words.contains(example), "{}", checked.stdout);
    assert!(checked.stdout.contains("defaults      rejected by R11"), "{}", checked.stdout);
}

#[test]
fn durations_come_from_earlier_trials_with_the_same_model() {
    let workplace = Workplace::with_study(&study_with("", "trials = 2\nconfirm = 0"));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    let own = workplace.json(&["check", "study.toml", "--format", "json"]);
    assert_eq!((&own["duration"]["source"], &own["duration"]["source_trials"]), (&"study".into(), &2.into()));
    assert_eq!((&own["duration"]["launches"], &own["duration"]["total_s"]), (&0.into(), &0.0.into()));

    let text = study_with("", "trials = 30\ntime = \"8h\"").replace("\"fast\"", "\"other\"");
    workplace.write("other.toml", &text.replace("requests = 16", "requests = 56"));
    let other = workplace.json(&["check", "other.toml", "--format", "json"])["duration"].clone();
    assert_eq!((&other["source"], &other["source_trials"]), (&"model".into(), &2.into()));
    // 14 valid configurations of 15, the defaults, and a confirmation of at most ten launches.
    assert_eq!((&other["launches"], &other["limit_s"]), (&25.into(), &28800.0.into()));
    let seconds = |json: &serde_json::Value, key: &str| json[key].as_f64().unwrap();
    assert!((seconds(&other, "startup_s") - seconds(&own["duration"], "startup_s")).abs() < 1e-9);
    // 56 measured and 4 warm-up requests instead of 16 and 4.
    assert!((seconds(&other, "load_s") - 3.0 * seconds(&own["duration"], "load_s")).abs() < 1e-6);
    let total = 25.0 * (seconds(&other, "startup_s") + seconds(&other, "load_s"));
    assert!((seconds(&other, "total_s") - total).abs() < 1e-6);
}

#[test]
fn the_spaces_that_ship_are_listed_and_can_be_printed() {
    let workplace = Workplace::new();
    let listed = workplace.run(&["spaces"]);
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    let line = "search_spaces/vllm/v0.toml  (vllm 0.6.0 to 0.7.99, 8 parameters)\n    vLLM's V0 engine";
    assert!(listed.stdout.contains(line), "{}", listed.stdout);
    assert!(listed.stdout.lines().all(|line| line.chars().count() <= 80), "{}", listed.stdout);
    let json = workplace.json(&["spaces", "--format", "json"]);
    assert!(json.as_array().unwrap().len() >= 19);
    assert_eq!(json[0]["file"], "search_spaces/llama.cpp/cpu-full.toml");
    let printed = workplace.run(&["spaces", "search_spaces/vllm/v0.toml"]);
    assert_eq!(printed.stdout, std::fs::read_to_string(root().join("search_spaces/vllm/v0.toml")).unwrap());
    let wrong = workplace.run(&["spaces", "search_spaces/vllm/mo.toml"]);
    assert_eq!(wrong.code, Some(3));
    assert!(wrong.stderr.contains("did you mean search_spaces/vllm/moe.toml?"), "{}", wrong.stderr);
}

#[test]
fn a_wrong_space_name_gets_the_nearest_one() {
    let text = fast_study().replace("[space]", "[space]\nfile = \"search_spaces/vllm/ful.toml\"");
    let checked = Workplace::with_study(&text).run(&["check", "study.toml"]);
    assert_eq!(checked.code, Some(3));
    assert!(checked.stderr.contains("did you mean search_spaces/vllm/full.toml?"), "{}", checked.stderr);
}

#[test]
fn a_study_on_a_device_that_the_twin_knows_is_estimated_by_it() {
    let text = study_with("command = [\"sh\"]\ndevice = \"cpu\"\nversion = \"0.32.0\"", "trials = 8");
    let text = text
        .replace("kind = \"sim\"\nargs", "kind = \"vllm\"\n#")
        .replace("examples/models/qwen3-8b", "tests/fixtures/models/qwen2-tiny")
        .replace("input_len = 32\noutput_len = 8", "input_len = 64\noutput_len = 64")
        .replace("concurrency = 8\nrequests = 16\nwarmup = 4", "concurrency = 16\nrequests = 128");
    let workplace = Workplace::with_study(&text);
    let duration = workplace.json(&["check", "study.toml", "--format", "json"])["duration"].clone();
    assert_eq!(duration["source"], "twin", "{duration}");
    // The real engine takes about 3 s for this load and about 40 s to start. An earlier, rough estimate was 57.6 s for
    // the load.
    let seconds = |name: &str| duration[name].as_f64().unwrap();
    assert!((0.5..10.0).contains(&seconds("load_s")), "{duration}");
    assert!((10.0..60.0).contains(&seconds("startup_s")), "{duration}");
    let text = workplace.run(&["check", "study.toml"]).stdout;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("preset of cpu, not calibrated"), "{text}");
}

#[test]
fn a_study_that_is_over_says_what_it_took() {
    let workplace = Workplace::with_study(&study_with("", "trials = 2"));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    let text = workplace.run(&["check", "study.toml"]).stdout;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("duration nothing is left to launch; 2 launches took ") && !text.contains("about 0 s"),
        "{text}"
    );
    let taken: f64 = workplace.trials().iter().map(|trial| trial["elapsed_s"].as_f64().unwrap()).sum();
    let duration = workplace.json(&["check", "study.toml", "--format", "json"])["duration"].clone();
    assert!((duration["taken_s"].as_f64().unwrap() - taken).abs() < 1e-6, "{duration}");
}
