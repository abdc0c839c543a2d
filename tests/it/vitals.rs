//! Engines that die, or live and do nothing: seen while the launch lives, and told apart.

use std::process::Command;

use crate::support::{Workplace, say_skipped, study_with};

/// A study of one trial under this launcher; it has the simulated engine as `$engine` and its arguments as `$@`.
fn study(script: &str) -> String {
    let script = script.replace("$engine", &format!("{} sim serve", env!("CARGO_BIN_EXE_setpoint")));
    let engine = format!("stall_timeout = \"1s\"\ncommand = [\"bash\", \"-c\", '''{script}''', \"bash\"]");
    study_with(&engine, "trials = 1").replace("stop_timeout = \"5s\"", "stop_timeout = \"500ms\"")
}

/// Runs the study; gives the first trial, which has failed.
fn failed(workplace: &Workplace) -> serde_json::Value {
    let tuned = workplace.run(&["tune", "study.toml"]);
    let trials = workplace.trials();
    assert_eq!(trials[0]["state"], "failed", "{}: {}", trials[0], tuned.stderr);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    trials[0].clone()
}

/// Waits in a script until the server is ready and its load is under way.
const UNTIL_LOADED: &str = "while ! grep -q complete /proc/$$/fd/1; do sleep 0.02; done; sleep 1";

#[test]
fn a_start_without_a_sign_of_work_is_a_hang() {
    let workplace = Workplace::with_study(&study("echo INFO loading the weights; exec sleep 600"));
    let trial = failed(&workplace);
    assert_eq!(trial["reason_code"], "hang", "{trial}");
    let reason = trial["reason"].as_str().unwrap();
    assert!(reason.contains("no sign of work for ") && reason.ends_with("INFO loading the weights"), "{reason}");
}

/// A server that is stopped a second after its start, under requests that may take ten minutes.
fn stands_still(warmup: &str) {
    let script = format!("$engine \"$@\" & {UNTIL_LOADED}; kill -STOP $!; sleep 600");
    let text =
        study(&script).replace("\"200\"", "\"0.05\"").replace("\"10s\"", "\"10m\"").replace("warmup = 4", warmup);
    let workplace = Workplace::with_study(&text);
    let trial = failed(&workplace);
    assert_eq!(trial["reason_code"], "hang", "{trial}");
    let reason = trial["reason"].as_str().unwrap();
    assert!(reason.starts_with("no token for "), "{reason}");
    assert!(
        reason.contains(" requests in flight, ") && reason.ends_with("the health check does not answer"),
        "{reason}"
    );
    assert!(trial["elapsed_s"].as_f64().unwrap() < 60.0, "{trial}");
    let seen = workplace.json(&["show", "0", "--format", "json"])["telemetry"].clone();
    assert!(seen["summary"]["server_rss_gib_max"].as_f64() > Some(0.0), "what led to it is kept: {seen}");
}

#[test]
fn a_server_that_stands_still_in_the_warm_up_is_a_hang_long_before_requests_time_out() {
    stands_still("warmup = 4");
}

#[test]
fn a_server_that_stands_still_in_the_measured_window_is_a_hang_long_before_requests_time_out() {
    stands_still("warmup = 0");
}

/// A server that is stopped under load beside a process of its launch that spins, and what follows. The longest step is
/// estimated at 3.2 s: eight requests of 40 tokens at 100 tokens per second.
fn spins(then: &str) -> Workplace {
    let script = format!("$engine \"$@\" & server=$!; {UNTIL_LOADED}; kill -STOP $server; {then}");
    let text = study(&script).replace("\"200\"", "\"0.05\"").replace("\"10s\"", "\"10m\"");
    Workplace::with_study(&text)
}

#[test]
fn a_long_step_of_a_busy_server_is_no_hang() {
    let spin = "until=$((SECONDS + 3)); while ((SECONDS < until)); do :; done; kill -CONT $server; wait";
    let workplace = spins(spin);
    let tuned = workplace.run(&["tune", "study.toml"]);
    let trial = workplace.trials()[0].clone();
    assert_eq!(trial["state"], "measured", "{trial}: {}", tuned.stderr);
}

#[test]
fn a_hang_that_spins_is_ended_after_three_times_the_longest_step() {
    let trial = failed(&spins("while :; do :; done"));
    assert_eq!(trial["reason_code"], "hang", "{trial}");
    let reason = trial["reason"].as_str().unwrap();
    assert!(reason.contains("its processes are busy, and the limit is ") && reason.contains("3 times"), "{reason}");
    assert!(trial["elapsed_s"].as_f64().unwrap() < 60.0, "{trial}");
}

#[test]
fn a_server_that_is_slow_and_at_work_is_no_hang() {
    // The first token comes after sixteen steps of a tenth of a second; meanwhile only the cache is seen to fill.
    let text = study("exec $engine \"$@\" --max-num-batched-tokens 64").replace("\"200\"", "\"0.1\"");
    let text = text.replace("input_len = 32", "input_len = 1024").replace("output_len = 8", "output_len = 2");
    let text = text.replace("requests = 16", "requests = 2").replace("warmup = 4", "warmup = 0");
    let workplace = Workplace::with_study(&text);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let trial = workplace.trials()[0].clone();
    assert_eq!(trial["state"], "measured", "{trial}");
    assert!(trial["metrics"]["p99_ttft_ms"].as_f64().unwrap() > 1200.0, "longer than the limit: {trial}");
}

#[test]
fn the_death_of_what_serves_is_a_crash_although_its_launcher_lives_on() {
    let script = format!("$engine \"$@\" & {UNTIL_LOADED}; kill -9 $!; sleep 600");
    let workplace = Workplace::with_study(&study(&script).replace("\"200\"", "\"0.05\""));
    // A signal from outside is no fault of the configuration: the trial is launched again, and then the study pauses.
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    let told = format!("{}{}", tuned.stderr, workplace.run(&["show", "0"]).stderr);
    // Which signal it was can be seen only until its launcher has asked.
    assert!(told.contains("crash: ") || told.contains("killed: "), "{told}");
    assert!(told.contains(" ended; "), "{told}");
}

/// Runs in a file system of its own of 128 MiB, which the engine fills up under load. `None` where this user may not mount
/// one.
#[expect(clippy::disallowed_methods, reason = "the program under test")]
fn on_a_small_disk(workplace: &Workplace) -> Option<String> {
    let mount = "mkdir disk && mount -t tmpfs -o size=128m none disk && cp study.toml disk && cd disk";
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script]).current_dir(workplace.path(""));
        command.env_remove("SETPOINT_DB").env("NO_COLOR", "1").output().ok()
    };
    if !unshare(&format!("{mount} && cd .. && umount disk && rmdir disk")).is_some_and(|tried| tried.status.success()) {
        return None;
    }
    let program = env!("CARGO_BIN_EXE_setpoint");
    let script =
        format!("{mount}; {program} tune study.toml; echo exit $?; rm fill; {program} tune study.toml; echo exit $?");
    let output = unshare(&format!("{{ {script}; }} 2>&1")).unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_disk_that_fills_up_under_load_pauses_the_study_before_it_is_full() {
    // Only the first run fills it.
    let script = format!(
        "$engine \"$@\" & [ -e full ] || {{ {UNTIL_LOADED}; head -c 80M /dev/zero > fill; touch full; }}; wait"
    );
    let text = study(&script).replace("\"200\"", "\"0.05\"");
    let workplace = Workplace::with_study(&text);
    let Some(told) = on_a_small_disk(&workplace) else {
        return say_skipped("a disk that fills up: this user may not mount a file system");
    };
    let (full, freed) = told.split_once("exit 5\n").unwrap_or_else(|| panic!("{told}"));
    assert_eq!(full.matches("trial 0: not its fault, disk: ").count(), 2, "{told}");
    assert!(full.contains(" bytes free, less than 64 MiB"), "{told}");
    assert!(full.contains("hint: free some space: "), "{told}");
    assert!(freed.contains("1 measured, 0 failed") && freed.ends_with("exit 0\n"), "the same trial goes on: {told}");
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}
