//! Engines that die, or live without doing anything: detected while the launch lives, and distinguished.

use std::process::Command;

use crate::support::{Workplace, all_pass, say_skipped, study_with};

/// Returns a study of one trial under this launcher script. The script has the simulated engine as `$engine` and its
/// arguments as `$@`.
fn study(script: &str) -> String {
    let script = script.replace("$engine", &format!("{} sim serve", env!("CARGO_BIN_EXE_setpoint")));
    let engine = format!("stall_timeout = \"1s\"\ncommand = [\"bash\", \"-c\", '''{script}''', \"bash\"]");
    study_with(&engine, "trials = 1").replace("stop_timeout = \"5s\"", "stop_timeout = \"500ms\"")
}

/// Runs the study and returns the first trial, which has failed.
fn failed(workplace: &Workplace) -> serde_json::Value {
    let tuned = workplace.run(&["tune", "study.toml"]);
    let trials = workplace.trials();
    assert_eq!(trials[0]["state"], "failed", "{}: {}", trials[0], tuned.stderr);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    trials[0].clone()
}

/// Shell code that waits until the server is ready and its load is in progress.
const UNTIL_LOADED: &str = "while ! grep -q complete /proc/$$/fd/1; do sleep 0.02; done; sleep 1";

fn a_start_without_a_sign_of_work_is_a_hang() {
    let workplace = Workplace::with_study(&study("echo INFO loading the weights; exec sleep 600"));
    let trial = failed(&workplace);
    assert_eq!(trial["reason_code"], "hang", "{trial}");
    let reason = trial["reason"].as_str().unwrap();
    assert!(reason.contains("no sign of work for ") && reason.ends_with("INFO loading the weights"), "{reason}");
}

fn a_start_that_only_reads_from_another_host_is_no_hang() {
    // Like a file on NFS, a file in memory adds only to the bytes that system calls have read.
    let read = "dd if=weights of=/dev/null bs=1M count=1 status=none; sleep 1";
    let script = format!("for shard in 1 2 3 4; do {read}; done; exec $engine \"$@\"");
    let workplace = Workplace::with_study(&study(&script));
    workplace.write("weights", &"0".repeat(1 << 20));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(workplace.trials()[0]["state"], "measured", "{}", tuned.stderr);
}

/// A program in the state of a process that waits for its storage: its child shares its memory for four seconds.
const WAITS: &str = "#include <unistd.h>\nint main(void) { if (!vfork()) { sleep(4); _exit(0); } return 0; }\n";

#[expect(clippy::disallowed_methods, reason = "the compiler")]
fn a_start_that_waits_for_its_storage_is_no_hang() {
    let workplace = Workplace::with_study(&study("./waits; exec $engine \"$@\""));
    workplace.write("waits.c", WAITS);
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let built = Command::new(compiler).args(["-w", "-o", "waits", "waits.c"]).current_dir(workplace.path("")).status();
    assert!(built.unwrap().success());
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(workplace.trials()[0]["state"], "measured", "{}", tuned.stderr);
}

/// Checks a server that is stopped one second after its start, while requests may take ten minutes.
fn stands_still(warmup: &str) {
    let script = format!("$engine \"$@\" & {UNTIL_LOADED}; kill -STOP $!; sleep 600");
    let text =
        study(&script).replace("\"200\"", "\"0.05\"").replace("\"10s\"", "\"10m\"").replace("warmup = 4", warmup);
    let workplace = Workplace::with_study(&text);
    let trial = failed(&workplace);
    assert_eq!(trial["reason_code"], "hang", "{trial}");
    let reason = trial["reason"].as_str().unwrap();
    assert!(reason.starts_with("no token for "), "{reason}");
    assert!(reason.contains(" requests in flight, ") && reason.ends_with("the health check fails"), "{reason}");
    assert!(trial["elapsed_s"].as_f64().unwrap() < 60.0, "{trial}");
    let seen = workplace.json(&["show", "0", "--format", "json"])["telemetry"].clone();
    assert!(seen["summary"]["server_rss_gib_max"].as_f64() > Some(0.0), "what led to it is kept: {seen}");
}

/// These launches wait and use no processor, unlike the busy ones below.
#[test]
fn idle_launches_are_told_from_hung_and_dead_ones() {
    let courses: [(&str, fn()); 7] = [
        ("no sign of work", a_start_without_a_sign_of_work_is_a_hang),
        ("reads", a_start_that_only_reads_from_another_host_is_no_hang),
        ("storage", a_start_that_waits_for_its_storage_is_no_hang),
        ("warm-up", || stands_still("warmup = 4")),
        ("measured window", || stands_still("warmup = 0")),
        ("idle step", the_same_step_of_an_idle_server_is_a_hang_after_the_stall_timeout),
        ("death", the_death_of_what_serves_is_a_crash_although_its_launcher_lives_on),
    ];
    all_pass(courses.len(), courses.into_iter());
}

/// Like [`study`], but for a program that the twin does not know, on a device that is not read.
fn unknown_engine(script: &str, budget: &str) -> String {
    let arguments = "\"$@\" --sim-time-scale 200 --sim-startup-s 0.02 --sim-noise 0";
    let text = study(&script.replace("\"$@\"", arguments)).replace("kind = \"sim\"", "kind = \"vllm\"");
    let args = r#"args = ["--sim-time-scale", "200", "--sim-startup-s", "0.02", "--sim-noise", "0"]"#;
    assert!(text.contains(args));
    let known = "version = \"0.33.0\"\npreflight = false\ndevice = \"cuda\"";
    text.replace(args, known).replace("trials = 1", budget).replace("\"10s\"", "\"10m\"")
}

/// Two batch sizes, which the study launches after the defaults.
const TWO_BATCHES: &str = "[space.parameters.max-num-seqs]\nkind = \"categorical\"\nchoices = [8, 16]";

/// Returns a study of the defaults and two batch sizes.
fn with_two_batches(text: &str) -> String {
    let (before, rest) = text.split_once("[space.parameters.max-num-seqs]").unwrap();
    let (_, after) = rest.split_once("\n[workload]").unwrap();
    format!("{before}{TWO_BATCHES}\n\n[workload]{after}").replace("\"sobol\"", "\"grid\"")
}

/// Runs one trial with this fault. Its longest step is assumed to take 1.6 s: four requests of 40 tokens at 100 tokens
/// per second.
fn with_step(fault: &str) -> serde_json::Value {
    let script = format!("exec $engine \"$@\" --sim-fault {fault}");
    let text = unknown_engine(&script, "trials = 1").replace("concurrency = 8", "concurrency = 4");
    let workplace = Workplace::with_study(&text);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    let trials = workplace.trials();
    assert_eq!(trials.len(), 1, "{}", tuned.stderr);
    trials[0].clone()
}

#[test]
fn a_long_step_of_a_busy_server_is_no_hang() {
    let trial = with_step("long-step:seconds=2.5,request=3");
    assert_eq!(trial["state"], "measured", "{trial}");
}

fn the_same_step_of_an_idle_server_is_a_hang_after_the_stall_timeout() {
    let trial = with_step("long-step:seconds=600,busy=no,request=3");
    assert_eq!(trial["reason_code"], "hang", "{trial}");
    let reason = trial["reason"].as_str().unwrap();
    assert!(
        reason.contains("; its processes have been idle for ") && reason.contains("stall_timeout, 1.0s"),
        "{reason}"
    );
    assert!(reason.ends_with("the health check passes"), "{reason}");
}

#[test]
fn a_hang_that_spins_is_ended_after_three_times_the_longest_step() {
    let trial = with_step("spin:request=3");
    assert_eq!(trial["reason_code"], "hang", "{trial}");
    let reason = trial["reason"].as_str().unwrap();
    let limit = "; its processes are busy, and the limit is 4.8s, the larger of stall_timeout (1.0s) and 3 times the \
                 longest step (1.6s, assumed 100 tokens/s); the health check passes";
    assert!(reason.ends_with(limit), "{reason}");
    let silent = reason.strip_prefix("no token for ").and_then(|rest| rest.split_once("s with ")).unwrap().0;
    assert!((4.8..8.0).contains(&silent.parse::<f64>().unwrap()), "{reason}");
}

/// Runs the study. Returns the reason or the state for each batch size.
fn by_batch(text: &str) -> Vec<(String, String)> {
    let workplace = Workplace::with_study(text);
    // The second run uses the measurements of the first.
    workplace.run(&["tune", "study.toml", "--trials", "2"]);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    let outcome = |trial: &serde_json::Value| {
        let text = trial["reason"].as_str().or(trial["state"].as_str()).unwrap();
        (trial["config"]["max-num-seqs"].to_string(), text.to_owned())
    };
    let mut outcomes: Vec<_> = workplace.trials().iter().map(outcome).collect();
    outcomes.sort();
    assert_eq!(outcomes.len(), 3, "{}", tuned.stderr);
    outcomes
}

#[test]
fn the_limit_of_an_engine_that_the_twin_knows_is_the_twins_estimate() {
    // Four requests of 514 tokens in one step, on a clock that is slower than the device's.
    let text = study("exec $engine \"$@\" --sim-fault spin:request=3").replace("\"200\"", "\"0.05\"");
    let text = text.replace("input_len = 32", "input_len = 512").replace("output_len = 8", "output_len = 2");
    let text = text.replace("concurrency = 8", "concurrency = 4").replace("\"10s\"", "\"10m\"");
    let trial = failed(&Workplace::with_study(&text));
    let reason = trial["reason"].as_str().unwrap();
    assert!(reason.contains("its processes are busy, and the limit is "), "{reason}");
    assert!(reason.ends_with("s, estimated by the twin); the health check passes"), "{reason}");
    let limit = reason.split_once("the limit is ").and_then(|(_, rest)| rest.split_once("s, ")).unwrap().0;
    assert!((2.0..12.0).contains(&limit.parse::<f64>().unwrap()), "more than the stall timeout: {reason}");
}

#[test]
fn a_hang_that_spins_fails_only_its_configuration_and_what_was_measured_replaces_an_assumed_speed() {
    let script = "exec $engine \"$@\" --sim-fault spin:request=3 --sim-fault-if max-num-seqs=16";
    let text = with_two_batches(&unknown_engine(script, "trials = 3\nconfirm = 0"));
    let outcomes = by_batch(&text);
    assert_eq!((&*outcomes[1].1, &*outcomes[2].1), ("measured", "measured"), "{outcomes:?}");
    let reason = &outcomes[0].1;
    assert!(reason.contains("its processes are busy, and the limit is 1.0s, "), "{outcomes:?}");
    assert!(reason.contains("s, measured); the health check passes"), "{outcomes:?}");
}

#[test]
fn a_server_that_is_slow_and_at_work_is_no_hang() {
    // The first token comes after sixteen steps of 0.1 s. Until then, only the use of the cache changes.
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

fn the_death_of_what_serves_is_a_crash_although_its_launcher_lives_on() {
    // SIGABRT is a signal that a program sends to itself, so the trial is not launched again.
    let script = format!("$engine \"$@\" & {UNTIL_LOADED}; kill -ABRT $!; sleep 600");
    let trial = failed(&Workplace::with_study(&study(&script).replace("\"200\"", "\"0.05\"")));
    assert_eq!(trial["reason_code"], "crash", "{trial}");
    // The signal is known only until the launcher has waited for the process.
    assert!(trial["reason"].as_str().unwrap().contains(" ended; "), "{trial}");
}

/// Runs the study in a file system of 128 MiB, which the engine fills up under load. Returns `None` if this user may
/// not mount one.
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
    assert_eq!(full.matches("trial 0: environment failure, disk: ").count(), 2, "{told}");
    assert!(full.contains(" bytes free, less than 64 MiB"), "{told}");
    assert!(full.contains("hint: free some space: "), "{told}");
    assert!(freed.contains("1 measured, 0 failed") && freed.ends_with("exit 0\n"), "the same trial goes on: {told}");
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}
