//! A study from options: `init`, and `tune --model`.

use crate::support::Workplace;

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
