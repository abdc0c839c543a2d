//! Fast starts: launches of the search are forks of a process that has imported the engine. The engine is a Python script that
//! becomes the simulated one.

use serde_json::{Value as Json, json};

use super::support::{Workplace, query, say_skipped, study_with};

/// Returns a workplace with an executable `vllm` and a study of it. `None` without a Python.
fn workplace(head: &str, engine: &str) -> Option<Workplace> {
    let Some(python) = setpoint::engine::resolve_program("python3") else {
        say_skipped("fast starts: there is no python3 on the PATH");
        return None;
    };
    let workplace = Workplace::with_study("");
    let program = env!("CARGO_BIN_EXE_setpoint");
    workplace.write(
        "vllm",
        &format!(
            "#!{}\nimport os, sys\nprint('script', __name__, flush=True)\n\
             os.execv({program:?}, [{program:?}, 'sim', *sys.argv[1:], '--sim-time-scale', '200', '--sim-startup-s', '0.02', \
             '--sim-noise', '0'])\n",
            python.display()
        ),
    );
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(workplace.path("vllm"), executable).unwrap();
    let command = workplace.path("vllm");
    let engine =
        format!("command = [\"{}\", \"serve\"]\nversion = \"0.33.0\"\npreflight = false\n{engine}", command.display());
    let text = study_with(&engine, "trials = 4\nconfirm = 1").replace("kind = \"sim\"", "kind = \"vllm\"");
    let args = r#"args = ["--sim-time-scale", "200", "--sim-startup-s", "0.02", "--sim-noise", "0"]"#;
    assert!(text.contains(args));
    workplace.write("study.toml", &text.replace(args, "").replace("seed = 3", &format!("seed = 3\n{head}")));
    Some(workplace)
}

/// Tunes, and returns the way of each launch of the search and those of the confirmation, with the messages.
fn tune(workplace: &Workplace) -> (Vec<Json>, Vec<Json>, String) {
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    let (confirmation, search): (Vec<_>, Vec<_>) =
        workplace.trials().into_iter().partition(|trial| trial["proposed_by"] == "confirmation");
    let ways = |trials: Vec<Json>| trials.iter().map(|trial| trial["measured_by"].clone()).collect();
    (ways(search), ways(confirmation), format!("{}{}", tuned.stdout, tuned.stderr))
}

#[test]
fn the_search_starts_fast_and_the_confirmation_does_not() {
    let Some(workplace) = workplace("", "") else { return };
    let (search, confirmation, messages) = tune(&workplace);
    assert!(search.len() >= 2 && search.iter().all(|way| way == "fast_launch"), "{search:?} {messages}");
    assert!(!confirmation.is_empty() && confirmation.iter().all(|way| way == "plain_launch"), "{confirmation:?}");
    let shown = workplace.run(&["show", "0"]).stdout;
    assert!(shown.lines().any(|line| line.starts_with("measured by") && line.ends_with("a fast start")), "{shown}");
    let rows: Vec<(i64,)> = query(&workplace, "SELECT trial FROM v_trials WHERE measured_by = 'fast_launch'");
    assert_eq!(rows.len(), search.len());
    assert!(messages.contains("fast starts"), "{messages}");
}

#[test]
fn a_study_may_have_plain_starts_only() {
    let Some(workplace) = workplace("fast_starts = false", "") else { return };
    let (search, confirmation, messages) = tune(&workplace);
    assert!(search.iter().chain(&confirmation).all(|way| way == "plain_launch"), "{search:?}");
    assert!(!messages.contains("fast start"), "{messages}");
}

#[test]
fn a_wrapper_is_started_in_the_plain_way() {
    let Some(workplace) = workplace("", "") else { return };
    let text = std::fs::read_to_string(workplace.path("study.toml")).unwrap();
    workplace.write("study.toml", &text.replace("command = [", "command = [\"nice\", "));
    let (search, _, messages) = tune(&workplace);
    assert!(search.iter().all(|way| way == "plain_launch"), "{search:?}");
    assert!(!messages.contains("fast start"), "{messages}");
}

#[test]
fn an_engine_that_cannot_be_imported_early_is_started_in_the_plain_way_with_a_notice() {
    let Some(workplace) = workplace("", "env = { PYTHONPATH = \"packages\" }") else { return };
    std::fs::create_dir(workplace.path("packages")).unwrap();
    workplace.write("packages/setproctitle.py", "raise SystemExit('not so early')\n");
    let (search, _, messages) = tune(&workplace);
    assert!(search.iter().all(|way| way == "plain_launch"), "{search:?}");
    assert!(messages.contains("no fast starts: ") && messages.contains("not so early"), "{messages}");
    assert!(messages.contains("the study continues with plain starts"), "{messages}");
}

#[test]
fn a_first_fast_start_that_fails_is_repeated_in_the_plain_way() {
    let Some(workplace) = workplace("", "") else { return };
    // A fork has imported a module that the plain start has not.
    let script = std::fs::read_to_string(workplace.path("vllm")).unwrap();
    workplace.write(
        "vllm",
        &script.replace("print(", "if 'runpy' in sys.modules and 'socket' in sys.modules: sys.exit(1)\nprint("),
    );
    let (search, _, messages) = tune(&workplace);
    assert!(search.iter().all(|way| way == "plain_launch"), "{search:?}");
    assert!(messages.contains("no fast starts: the first one failed"), "{messages}");
    let trials = workplace.trials();
    assert!(trials.iter().all(|trial| trial["state"] == json!("measured")), "{trials:#?}");
}

#[test]
fn a_killed_tuner_leaves_servers_that_the_next_run_ends() {
    let Some(workplace) = workplace("", "") else { return };
    let text = std::fs::read_to_string(workplace.path("study.toml")).unwrap();
    workplace.write("study.toml", &text.replace("requests = 16", "requests = 400"));
    let script = std::fs::read_to_string(workplace.path("vllm")).unwrap();
    workplace.write("vllm", &script.replace("'200'", "'1'"));
    let mut tuner = workplace.start(&["tune", "study.toml", "--verbose"]);
    let stderr = || std::fs::read_to_string(workplace.path("stderr.txt")).unwrap_or_default();
    super::support::wait_until(std::time::Duration::from_mins(1), "a load", || stderr().contains("trial 0: measuring"));
    super::support::signal(&tuner, nix::sys::signal::Signal::SIGKILL);
    tuner.wait().unwrap();
    workplace.write("vllm", &script);
    let (search, ..) = tune(&workplace);
    assert!(search.iter().all(|way| way == "fast_launch"), "{search:?}");
}
