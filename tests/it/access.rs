//! Servers as people run them: with a key, several names, a root path, and flags that nobody can reach a server with.

use crate::support::{Workplace, study_with};

const KEY: &str = "hush-hush-4711";

/// The study with further arguments of the engine.
fn with_arguments(arguments: &[&str], engine: &str) -> String {
    let words: String = arguments.iter().map(|word| format!(", {word:?}")).collect();
    study_with(engine, "trials = 2\nconfirm = 0")
        .replace(r#""--sim-noise", "0""#, &format!(r#""--sim-noise", "0"{words}"#))
}

fn is_measured(workplace: &Workplace) {
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert!(workplace.trials().iter().all(|trial| trial["state"] == "measured"), "{}", tuned.stderr);
}

/// Whether a text is in any file of the workplace but the study.
fn is_stored(workplace: &Workplace, text: &str) -> bool {
    let mut left = vec![workplace.path(".")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if !path.ends_with("study.toml") {
            let bytes = std::fs::read(&path).unwrap();
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                return true;
            }
        }
    }
    false
}

#[test]
fn a_server_that_asks_for_a_key_is_measured_and_the_key_is_nowhere() {
    for text in [
        with_arguments(&["--api-key", KEY], ""),
        with_arguments(&[&format!("--api-key={KEY}")], ""),
        with_arguments(&[], &format!("env = {{ VLLM_API_KEY = {KEY:?} }}")),
    ] {
        let workplace = Workplace::with_study(&text);
        is_measured(&workplace);
        assert!(!is_stored(&workplace, KEY));
        let script = workplace.run(&["export", "--format", "sh"]).stdout;
        assert!(!script.contains(KEY) && script.contains("${VLLM_API_KEY:?"), "{script}");
        let dry = workplace.run(&["tune", "study.toml", "--dry-run"]);
        assert!(!dry.stdout.contains(KEY), "{}", dry.stdout);
    }
    // From the user's own environment.
    let workplace = Workplace::with_study(&with_arguments(&[], ""));
    let tuned = workplace.run_with(&[("VLLM_API_KEY", KEY)], "", &["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert!(!is_stored(&workplace, KEY));
}

#[test]
fn a_key_that_the_server_does_not_take_is_named_at_once() {
    let program = env!("CARGO_BIN_EXE_setpoint");
    let engine = format!(
        r#"command = ["sh", "-c", 'k=VLLM_API; export "$k"_KEY=another; exec {program} sim serve "$@"', "sh"]
env = {{ VLLM_API_KEY = {KEY:?} }}"#
    );
    let workplace = Workplace::with_study(&study_with(&engine, "trials = 1"));
    let refused = workplace.run(&["tune", "study.toml"]);
    let told = "answers with status 401 Unauthorized: the server wants another API key; give it as VLLM_API_KEY";
    assert!(refused.code != Some(0) && refused.stderr.contains(told), "{}", refused.stderr);
}

#[test]
fn any_of_several_names_proves_the_server() {
    let workplace = Workplace::with_study(&with_arguments(&["--served-model-name", "one", "two"], ""));
    is_measured(&workplace);
}

#[test]
fn a_root_path_moves_no_route() {
    is_measured(&Workplace::with_study(&with_arguments(&["--root-path", "/llm"], "")));
}

#[test]
fn flags_that_hide_the_server_are_refused_with_a_way_out() {
    for (arguments, told) in [
        (&["--uds", "/tmp/x.sock"][..], "--uds makes the server listen on a socket file"),
        (&["--headless"][..], "--headless starts no API server"),
    ] {
        let workplace = Workplace::with_study(&with_arguments(arguments, ""));
        for command in ["check", "tune"] {
            let refused = workplace.run(&[command, "study.toml"]);
            assert_eq!(refused.code, Some(3), "{}", refused.stderr);
            assert!(
                refused.stderr.contains(told) && refused.stderr.contains("hint: leave it out"),
                "{}",
                refused.stderr
            );
        }
    }
}
