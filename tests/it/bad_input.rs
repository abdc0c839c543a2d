//! Every mistake gets one clear error, a hint and the documented exit code.

use crate::support::{Workplace, fast_study, root};

/// Runs `tune` on the fast study with one text replaced. Returns the exit code and standard error.
fn tune(from: &str, to: &str) -> (Option<i32>, String) {
    let text = fast_study();
    assert!(text.contains(from), "the study has no {from:?}");
    let workplace = Workplace::with_study(&text.replace(from, to));
    let ended = workplace.run(&["tune", "study.toml"]);
    assert_eq!(ended.stdout, "");
    assert!(!workplace.path("setpoint.db").exists(), "bad input must not create a database");
    (ended.code, ended.stderr)
}

#[test]
fn mistakes_in_a_study_file_name_the_file_the_key_and_the_nearest_valid_one() {
    for (from, to, messages) in [
        (
            "concurrency = 8",
            "concurency = 8",
            &["study.toml:", "load.concurency: unknown key", "hint: did you mean `concurrency`?"][..],
        ),
        ("[budget]", "[bugdet]", &["bugdet: unknown key", "did you mean `budget`?"]),
        ("requests = 16", "requests = 0", &["load.requests: must be at least 1"]),
        ("requests = 16", "requests = \"many\"", &["load.requests: expected an integer, found string \"many\""]),
        ("kind = \"sim\"", "kind = \"vlm\"", &["engine.kind: \"vlm\" is not an engine; there are vllm, sim"]),
        (
            "\"output_throughput\"",
            "\"output_troughput\"",
            &["objective.maximize: \"output_troughput\" is not a metric", "did you mean `output_throughput`?"],
        ),
        (
            "maximize = \"output_throughput\"",
            "maximize = \"p99_ttft_ms\"",
            &["lower values of p99_ttft_ms are better", "did you mean `minimize = \"p99_ttft_ms\"`?"],
        ),
        (
            "max-model-len = 2048",
            "max-modle-len = 2048",
            &["space.fixed.max-modle-len: unrecognized arguments", "did you mean --max-model-len?"],
        ),
        ("max-model-len = 2048", "swap-space = 4", &["unrecognized arguments: --swap-space (last seen in vLLM "]),
        ("max-model-len = 2048", "port = 4", &["`port` is chosen by setpoint for every launch"]),
        (
            "parameters.max-num-seqs]",
            "parameters.max-num-seq]",
            &["unrecognized arguments: --max-num-seq (did you mean --max-num-seqs?)"],
        ),
        (
            "[space]\n",
            "[space]\nfile = \"search_spaces/vllm/core.toml\"\nonly = [\"long-prefill-token-threshold\"]\n",
            &["`long-prefill-token-threshold` would never be set: it depends on `enable-chunked-prefill`"],
        ),
        (
            "kind = \"sim\"",
            "kind = \"sim\"\ncommand = [\"env\", \"HF_TOKEN=hf_secret\", \"vllm\"]",
            &["`HF_TOKEN` would be stored, and visible", "hint: set it in [engine.env]"],
        ),
        (
            "\"--sim-noise\", \"0\"",
            "\"--max_num_seqs=3\"",
            &["engine.args: --max-num-seqs would override the value of the search space"],
        ),
        ("low = 1\n", "low = 64\n", &["no value of `max-num-seqs` lies in 64 to 16"]),
        (
            "scale = \"pow2\"\nlow = 1\nhigh = 16",
            "low = -9e18\nhigh = 9e18",
            &["-9000000000000000000 is not a number between"],
        ),
        ("high = 16\n", "high = \"model.max_len / 0\"\n", &["max-num-seqs.high: inf is not a number between"]),
        ("scale = \"pow2\"\nlow = 1\n", "low = \"0 / 0\"\n", &["max-num-seqs.low: NaN is not a number between"]),
        ("input_len = 32", "input_len = 65536", &["tokens; the limit of the model is 40960"]),
        ("name = \"fast\"", "name = \"../fast\"", &["\"../fast\" is not a study name"]),
        ("trials = 4", "", &["budget.trials: is missing, and so is budget.time"]),
        ("[study]", "[study", &["study.toml:2: not valid TOML"]),
        (
            "kind = \"sim\"",
            "kind = \"sim\"\ncommand = [\"no-such-engine\"]",
            &["engine.command: the program \"no-such-engine\" is not on the PATH", "hint: activate"],
        ),
    ] {
        let (code, stderr) = tune(from, to);
        assert_eq!(code, Some(3), "{to}: {stderr}");
        for message in messages {
            assert!(stderr.contains(message), "{to}: {stderr}");
        }
        assert!(stderr.starts_with("error: "), "{stderr}");
    }
}

#[test]
fn a_model_directory_without_config_json_is_named() {
    let workplace = Workplace::new();
    std::fs::create_dir(workplace.path("empty")).unwrap();
    let model = root().join("examples/models/qwen3-8b").display().to_string();
    workplace.write("study.toml", &fast_study().replace(&model, "empty"));
    let ended = workplace.run(&["tune", "study.toml"]);
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.contains("empty has no config.json"), "{}", ended.stderr);
    workplace.write("study.toml", &fast_study().replace(&model, "nobody/nothing"));
    let ended = workplace.run(&["tune", "study.toml"]);
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.contains("\"nobody/nothing\" is neither a directory nor a model in the local hub cache"));
}

#[test]
fn databases_that_cannot_be_used_are_told_apart() {
    let workplace = Workplace::with_study(&fast_study());
    let missing = workplace.run(&["best"]);
    assert_eq!(missing.code, Some(3));
    assert!(missing.stderr.contains("database setpoint.db does not exist"), "{}", missing.stderr);

    for place in ["no-such-directory/a.db", "."] {
        let closed = workplace.run(&["--db", place, "tune", "study.toml"]);
        assert_eq!(closed.code, Some(3), "{}", closed.stderr);
        assert!(closed.stderr.contains(&format!("database {place} cannot be opened")), "{}", closed.stderr);
    }

    workplace.write("text.db", &"this is no database, it only pretends to be one".repeat(50));
    let text = workplace.run(&["--db", "text.db", "best"]);
    assert_eq!(text.code, Some(3));
    assert!(text.stderr.contains("text.db is not a setpoint database"), "{}", text.stderr);

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let foreign = workplace.path("foreign.db");
    let bytes = runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&foreign).create_if_missing(true);
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        sqlx::query("CREATE TABLE theirs (x)").execute(&pool).await.unwrap();
        pool.close().await;
        std::fs::read(&foreign).unwrap()
    });
    workplace.write("empty.db", "");
    for arguments in [&["--db", "foreign.db", "best"][..], &["--db", "foreign.db", "tune", "study.toml"]] {
        let other = workplace.run(arguments);
        assert_eq!(other.code, Some(3), "{}", other.stderr);
        assert!(other.stderr.contains("it holds the tables of another program"), "{}", other.stderr);
    }
    assert_eq!(std::fs::read(&foreign).unwrap(), bytes, "another program's database is left as it is");
    let empty = workplace.run(&["--db", "empty.db", "best"]);
    assert!(empty.stderr.contains("empty.db is not a setpoint database: it is empty"), "{}", empty.stderr);

    assert_eq!(workplace.run(&["tune", "study.toml", "--trials", "1"]).code, Some(0));
    runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(workplace.path("setpoint.db"));
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                     VALUES (9999, 'from the future', TRUE, x'00', 0)";
        sqlx::query(later).execute(&pool).await.unwrap();
        pool.close().await;
    });
    let newer = workplace.run(&["best"]);
    assert_eq!(newer.code, Some(3));
    assert!(newer.stderr.contains("was made by a newer setpoint (migration 9999 is unknown here)"), "{}", newer.stderr);
    assert!(newer.stderr.contains("hint: update setpoint"), "{}", newer.stderr);
}

#[test]
fn wrong_usage_ends_with_exit_code_2() {
    let workplace = Workplace::with_study(&fast_study());
    for arguments in [
        &["tun"][..],
        &["tune"],
        &["tune", "study.toml", "--trials", "none"],
        &["tune", "study.toml", "--sampler", "oracle"],
        &["tune", "study.toml", "--time", "soon"],
        &["export", "--format", "stone-tablet"],
        &["show", "three"],
        &["sim", "serve", "--no-such-flag"],
    ] {
        let ended = workplace.run(arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
        assert!(!ended.stderr.is_empty());
    }
}

#[test]
fn questions_that_have_no_answer_say_so() {
    let workplace = Workplace::with_study(&fast_study());
    assert_eq!(workplace.run(&["tune", "study.toml", "--trials", "1"]).code, Some(0));
    for (arguments, code, message) in [
        (&["show", "77"][..], 3, "study \"fast\" has no finished trial 77"),
        (&["best", "--study", "slow"], 3, "there is no study \"slow\""),
        (&["export", "--trial", "9"], 3, "has no finished trial 9"),
        (&["studies", "--format", "csv"], 2, "invalid value 'csv' for '--format <FORMAT>'"),
    ] {
        let ended = workplace.run(arguments);
        assert_eq!(ended.code, Some(code), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(message), "{}", ended.stderr);
    }
}
