//! The context of a study: release, device and host of its trials, and the effects of a change.

use serde_json::Value as Json;

use crate::support::{Workplace, study_with};

/// Runs a statement on the database of a workplace.
fn execute(workplace: &Workplace, sql: &'static str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(workplace.path("setpoint.db"));
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        sqlx::query(sql).execute(&pool).await.unwrap();
        pool.close().await;
    });
}

/// Returns a study on the simulated engine of this release.
fn study(release: &str, trials: u32) -> String {
    study_with(&format!("version = \"{release}\""), &format!("trials = {trials}\nconfirm = 0"))
}

/// Creates a study whose engine reports the release in the file `release`. `engine` contains further lines of
/// `[engine]`, which may state another release.
fn wrapped(engine: &str, trials: u32) -> Workplace {
    use std::os::unix::fs::PermissionsExt;
    let workplace = Workplace::new();
    let program = workplace.path("engine.sh");
    let text = format!(
        "#!/bin/sh\nexec '{}' sim \"$@\" --sim-vllm-version \"$(cat '{}')\"\n",
        env!("CARGO_BIN_EXE_setpoint"),
        workplace.path("release").display()
    );
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let engine = format!(
        "command = [\"{}\", \"serve\"]\ndevice = \"cuda\"\ngpus = 1\ngpu_memory_gib = 80\ncompute_capability = \"9.0\"\n{engine}",
        program.display()
    );
    let text =
        study_with(&engine, &format!("trials = {trials}\nconfirm = 0")).replace("kind = \"sim\"", "kind = \"vllm\"");
    workplace.write("study.toml", &text);
    workplace
}

fn numbers(trials: &[Json], is_earlier: bool) -> Vec<i64> {
    let which = trials.iter().filter(|trial| trial["earlier_context"] == is_earlier);
    which.map(|trial| trial["trial"].as_i64().unwrap()).collect()
}

#[test]
fn each_trial_stores_its_context_and_the_same_context_goes_on_without_a_word() {
    let workplace = Workplace::with_study(&study("0.32.0", 2));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    let shown = workplace.json(&["show", "1", "--format", "json"]);
    assert_eq!(shown["context"]["release"], "0.32.0");
    assert!(shown["context"]["device"]["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 30), "{shown}");
    assert!(shown["context"]["host"]["processors"].as_u64().is_some_and(|count| count > 0), "{shown}");
    assert!(shown["context"]["host"]["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 26), "{shown}");
    assert_eq!(shown["earlier_context"], false);
    let text = workplace.run(&["show", "1"]).stdout;
    assert!(text.contains(" processors, ") && text.contains(" MiB\n"), "{text}");
    let again = workplace.run(&["tune", "study.toml", "--trials", "3"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert!(!again.stderr.contains("context"), "{}", again.stderr);
    assert_eq!(numbers(&workplace.trials(), false), [0, 1, 2]);
}

#[test]
fn another_release_is_refused_with_both_ways_out_and_an_accepted_one_begins_with_the_defaults() {
    let workplace = Workplace::with_study(&study("0.32.0", 3));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    let before = workplace.trials();
    workplace.write("study.toml", &study("0.31.0", 3));
    let refused = workplace.run(&["tune", "study.toml", "--trials", "6"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    for text in ["engine release (stored: 0.32.0, now: 0.31.0)", "prior = [\"fast\"]", "--accept-change"] {
        assert!(refused.stderr.contains(text), "{text}: {}", refused.stderr);
    }
    assert_eq!(workplace.trials(), before);

    let accepted = workplace.run(&["tune", "study.toml", "--trials", "6", "--accept-change"]);
    assert_eq!(accepted.code, Some(0), "{}", accepted.stderr);
    assert!(accepted.stderr.contains("the change is accepted: engine release"), "{}", accepted.stderr);
    let trials = workplace.trials();
    assert_eq!((numbers(&trials, true), numbers(&trials, false)), (vec![0, 1, 2], vec![3, 4, 5]));
    assert_eq!(trials[3]["proposed_by"], "baseline");
    assert_eq!(trials[3]["config"], trials[0]["config"]);
    assert_eq!(trials[3]["context"]["release"], "0.31.0");
    // The sampler starts again, and only the new trials are ranked.
    assert_eq!(trials[4]["config"], trials[1]["config"]);
    let best = workplace.json(&["best", "--format", "json"]);
    assert!(best["trial"].as_i64().unwrap() >= 3, "{best}");
    assert_eq!(best["baseline"]["trial"], 3);
    let table = workplace.run(&["trials"]).stdout;
    assert_eq!(table.matches("earlier context: ").count(), 3, "{table}");

    // Without the flag, the study continues in the accepted context. A return to the first context needs the flag
    // again.
    let again = workplace.run(&["tune", "study.toml", "--trials", "7"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    workplace.write("study.toml", &study("0.32.0", 3));
    assert_eq!(workplace.run(&["tune", "study.toml", "--trials", "8"]).code, Some(3));
    let back = workplace.run(&["tune", "study.toml", "--trials", "8", "--accept-change"]);
    assert_eq!(back.code, Some(0), "{}", back.stderr);
    let trials = workplace.trials();
    assert_eq!(numbers(&trials, false), [7]);
    assert_eq!(trials[7]["proposed_by"], "baseline");
    assert_eq!(workplace.json(&["best", "--format", "json"])["trial"], 7);
}

#[test]
fn an_accepted_change_measures_the_defaults_and_confirms_in_the_new_context() {
    let confirming = |release| study(release, 3).replace("confirm = 0", "confirm = 1");
    let workplace = Workplace::with_study(&confirming("0.32.0"));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    workplace.write("study.toml", &confirming("0.31.0"));
    let accepted = workplace.run(&["tune", "study.toml", "--trials", "8", "--accept-change"]);
    assert_eq!(accepted.code, Some(0), "{}", accepted.stderr);
    let trials = workplace.trials();
    let present = &trials[3..];
    let confirmed: Vec<_> = present.iter().filter(|trial| trial["proposed_by"] == "confirmation").collect();
    assert_eq!((trials.len(), confirmed.len()), (8, 2), "{trials:?}");
    assert!(confirmed.iter().any(|trial| trial["config"] == trials[0]["config"]), "the defaults: {trials:?}");
    for trial in confirmed {
        let launches = present.iter().filter(|other| other["config"] == trial["config"]).count();
        assert_eq!(launches, 2, "each is the second launch of its configuration in this context: {trials:?}");
    }
    // On a busy machine a slow confirmation may make another configuration the best.
    let best = workplace.json(&["best", "--format", "json"]);
    assert_eq!(best["baseline"]["measurements"], 2);
}

#[test]
fn another_host_or_device_is_refused_and_details_are_reported_in_one_line() {
    let workplace = Workplace::with_study(&study("0.32.0", 1));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    execute(&workplace, "UPDATE contexts SET context = json_set(context, '$.host.name', 'another')");
    execute(
        &workplace,
        "UPDATE contexts SET context = json_set(context, '$.host.memory', json_extract(context, '$.host.memory') * 101 / 100)",
    );
    let renamed = workplace.run(&["tune", "study.toml"]);
    assert_eq!(renamed.code, Some(0), "{}", renamed.stderr);
    assert_eq!(renamed.stderr.matches("context has changed in details").count(), 1, "{}", renamed.stderr);
    assert!(renamed.stderr.contains("host (stored: another, now: "), "{}", renamed.stderr);
    let told = workplace.run(&["tune", "study.toml"]);
    assert!(!told.stderr.contains("context"), "told once: {}", told.stderr);

    for (sql, text) in [
        ("UPDATE contexts SET context = json_set(context, '$.host.cpu', 'Z80')", "processor model (stored: Z80, now: "),
        ("UPDATE contexts SET context = json_set(context, '$.host.cpus', 4095)", "processors (stored: 4095, now: "),
        (
            "UPDATE contexts SET context = json_set(context, '$.host.memory', 1048576)",
            "host memory (stored: 1 MiB, now: ",
        ),
        (
            "UPDATE contexts SET context = json_set(context, '$.device.memory', 1048576)",
            "device memory (stored: 1 MiB, ",
        ),
    ] {
        execute(&workplace, sql);
        let refused = workplace.run(&["tune", "study.toml", "--trials", "2"]);
        assert_eq!(refused.code, Some(3), "{sql}: {}", refused.stderr);
        assert!(refused.stderr.contains(text), "{text}: {}", refused.stderr);
    }
    assert_eq!(workplace.trials().len(), 1);
}

#[test]
fn a_study_without_a_stored_context_adopts_the_present_one() {
    let workplace = Workplace::with_study(&study("0.32.0", 2));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    execute(&workplace, "UPDATE trials SET context = NULL");
    execute(&workplace, "UPDATE studies SET context = NULL");
    let adopted = workplace.run(&["tune", "study.toml", "--trials", "3"]);
    assert_eq!(adopted.code, Some(0), "{}", adopted.stderr);
    assert_eq!(adopted.stderr.matches("has no stored context").count(), 1, "{}", adopted.stderr);
    let trials = workplace.trials();
    assert_eq!(numbers(&trials, false), [0, 1, 2]);
    assert_eq!((&trials[0]["context"], &trials[2]["context"]["release"]), (&Json::Null, &"0.32.0".into()));
    workplace.write("study.toml", &study("0.31.0", 3));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(3), "it is stored now");
}

#[test]
fn an_unfinished_trial_is_launched_again_in_an_accepted_context() {
    let workplace = Workplace::with_study(&study("0.32.0", 3));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    execute(&workplace, "DELETE FROM measurements WHERE number = 2");
    execute(&workplace, "UPDATE trials SET state = 'running', value = NULL WHERE number = 2");
    workplace.write("study.toml", &study("0.31.0", 5));
    let accepted = workplace.run(&["tune", "study.toml", "--accept-change"]);
    assert_eq!(accepted.code, Some(0), "{}", accepted.stderr);
    let trials = workplace.trials();
    assert_eq!((numbers(&trials, true), numbers(&trials, false)), (vec![0, 1], vec![2, 3, 4]));
    assert_eq!((&trials[2]["state"], &trials[3]["proposed_by"]), (&"measured".into(), &"baseline".into()));
    assert!(trials[3]["started_at"].as_str() < trials[2]["started_at"].as_str(), "the defaults come first");
}

#[test]
fn a_server_of_another_release_than_the_stated_one_ends_the_first_launch() {
    let workplace = wrapped("version = \"0.32.0\"", 2);
    workplace.write("release", "0.31.0");
    let ended = workplace.run(&["tune", "study.toml"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    for text in ["reports release 0.31.0", "computed for 0.32.0 (set by engine.version)", "engine.version = \"0.31.0\""]
    {
        assert!(ended.stderr.contains(text), "{text}: {}", ended.stderr);
    }
    assert_eq!(workplace.json(&["studies", "--format", "json"])[0]["running"], 1);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    // A patch or a suffix does not make another release.
    workplace.write("release", "0.32.1");
    let patched = workplace.run(&["tune", "study.toml"]);
    assert_eq!(patched.code, Some(0), "{}", patched.stderr);
    assert_eq!(patched.stderr.matches("reports release 0.32.1; flags, rules").count(), 1, "{}", patched.stderr);
    assert_eq!(workplace.trials().len(), 2);
    // An upgrade between two runs, which only the server reports.
    workplace.write("release", "0.33.0");
    let upgraded = workplace.run(&["tune", "study.toml", "--trials", "3"]);
    assert_eq!(upgraded.code, Some(3), "{}", upgraded.stderr);
    assert_eq!(workplace.trials().len(), 2);
    // Devices that the study describes are not part of its definition.
    let text = std::fs::read_to_string(workplace.path("study.toml")).unwrap();
    workplace.write("study.toml", &text.replace("gpus = 1", "gpus = 2"));
    let moved = workplace.run(&["tune", "study.toml", "--trials", "3"]);
    assert_eq!(moved.code, Some(3), "{}", moved.stderr);
    assert!(moved.stderr.contains("devices (stored: 1, now: 2)"), "{}", moved.stderr);
}

#[test]
fn an_assumed_release_is_adopted_from_the_server_and_kept_for_later_runs() {
    let workplace = wrapped("", 2);
    workplace.write("release", "0.31.0");
    let adopted = workplace.run(&["tune", "study.toml"]);
    assert_eq!(adopted.code, Some(0), "{}", adopted.stderr);
    assert_eq!(
        adopted.stderr.matches("the server reports release 0.31.0 instead of the assumed ").count(),
        1,
        "{}",
        adopted.stderr
    );
    assert_eq!(workplace.trials().len(), 2);
    let kept = workplace.run(&["tune", "study.toml", "--trials", "3"]);
    assert_eq!(kept.code, Some(0), "{}", kept.stderr);
    assert!(!kept.stderr.contains("release"), "{}", kept.stderr);

    workplace.write("release", "0.32.0");
    let refused = workplace.run(&["tune", "study.toml", "--trials", "5"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("engine release (stored: 0.31.0, now: 0.32.0)"), "{}", refused.stderr);
    let accepted = workplace.run(&["tune", "study.toml", "--trials", "5", "--accept-change"]);
    assert_eq!(accepted.code, Some(0), "{}", accepted.stderr);
    let trials = workplace.trials();
    assert_eq!(numbers(&trials, false), [3, 4]);
    assert_eq!(trials.iter().filter(|trial| trial["proposed_by"] == "baseline").count(), 2);
}
