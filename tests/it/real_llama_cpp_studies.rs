//! Studies of the real `llama-server`: a search, faults in each phase, and the preset of a winner.
//!
//! Needs an installation by `examples/setup-llama-cpp.sh`, which the environment variable `SETPOINT_LLAMA_CPP` names.

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::process::{Process, all_processes};

use crate::real_llama_cpp::{free_port, get, installation};
use crate::support::{Workplace, signal, wait_until};

/// The longest time that the remaining processes of a launch may take to end.
const GONE: Duration = Duration::from_secs(10);

/// A process that ends with the test.
struct EndedChild(Child);

impl Drop for EndedChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a study of the server. `engine` has further keys of the engine.
fn study(directory: &Path, engine: &str, warmup: u32, budget: &str) -> String {
    let directory = directory.display();
    format!(
        r#"
[study]
name = "llama"
seed = 1

[engine]
kind = "llama.cpp"
command = ["{directory}/bin/llama-server"]
startup_timeout = "60s"
stop_timeout = "5s"
retry_after = "100ms"
{engine}

[model]
path = "{directory}/model.gguf"

[space]
fixed = {{ ctx-size = 4096 }}

[space.parameters]
threads = {{ kind = "categorical", choices = [1, 2] }}
parallel = {{ kind = "int", scale = "pow2", low = 1, high = 8 }}
poll = {{ kind = "categorical", choices = [0, 50] }}

[workload]
kind = "random"
input_len = 32
output_len = 16

[load]
concurrency = 8
requests = 16
warmup = {warmup}
request_timeout = "60s"

[objective]
maximize = "output_throughput"

[budget]
{budget}
"#
    )
}

#[test]
#[ignore = "needs llama.cpp's server"]
fn a_study_of_the_real_server_ends_with_a_winner_and_its_preset_is_served() {
    let directory = installation();
    let workplace = Workplace::with_study(&study(&directory, "", 4, "trials = 10\nconfirm = 2"));
    let checked = workplace.run(&["check", "study.toml"]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(checked.stdout.contains("b11434"), "the release of the installed program: {}", checked.stdout);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let trials = workplace.trials();
    assert!(trials.iter().filter(|trial| trial["state"] == "measured").count() >= 8, "{}", tuned.stderr);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    // Counters of the metrics page, under the common names.
    let shown = workplace.json(&["show", "0", "--format", "json"]);
    let tokens = shown["telemetry"]["summary"]["server_generation_tokens"].as_f64();
    assert!(tokens.is_some_and(|tokens| tokens > 0.0), "{}", shown["telemetry"]["summary"]);

    let exported = workplace.run(&["export", "--format", "llama-preset", "-o", "models.ini"]);
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let port = free_port();
    let server = workplace.start_other(
        &directory.join("bin/llama-server"),
        &["--models-preset", "models.ini", "--host", "127.0.0.1", "--port", &port.to_string()],
    );
    let mut server = EndedChild(server);
    wait_until(Duration::from_mins(1), "the model of the preset", || {
        assert!(
            server.0.try_wait().unwrap().is_none(),
            "{}",
            std::fs::read_to_string(workplace.path("stderr.txt")).unwrap()
        );
        get(port, "/models").is_some_and(|body| body.contains("\"llama\"") && body.contains("loaded"))
    });
    // The router ends its own child when it is asked to end.
    signal(&server.0, Signal::SIGTERM);
    server.0.wait().unwrap();
    wait_until(GONE, "the end of the served model", || workplace.processes_left().is_empty());
}

fn find(workplace: &Workplace) -> Option<i32> {
    let here = workplace.path("").canonicalize().unwrap();
    let is = |process: &Process| {
        process.cwd().is_ok_and(|directory| directory == here)
            && process.cmdline().is_ok_and(|words| words.first().is_some_and(|word| word.ends_with("/llama-server")))
            && process.cmdline().is_ok_and(|words| words.iter().any(|word| word == "--port"))
    };
    all_processes().unwrap().flatten().find(|process| is(process)).map(|process| process.pid)
}

/// Kills the server three times in this phase. After three failures of the environment in a row, the study pauses.
fn killed_while(phase: &str, directory: &Path) {
    let warmup = if phase == "warming up" { 2000 } else { 4 };
    let text = study(directory, "preflight = false", warmup, "trials = 1\nconfirm = 0");
    // A large cache makes the start longer.
    let text = match phase {
        "starting" => text.replace("ctx-size = 4096", "ctx-size = 65536"),
        _ => text.replace("requests = 16", "requests = 2000"),
    };
    let workplace = Workplace::with_study(&text);
    let mut tuner = workplace.start(&["tune", "study.toml", "--verbose"]);
    let stderr = || std::fs::read_to_string(workplace.path("stderr.txt")).unwrap();
    for attempt in 0..3 {
        wait_until(Duration::from_mins(1), &format!("{phase}, attempt {attempt}"), || {
            stderr().matches(&format!("trial 0: {phase}")).count() > attempt
        });
        let mut pid = None;
        wait_until(Duration::from_secs(20), "the server", || {
            pid = find(&workplace);
            pid.is_some()
        });
        kill(Pid::from_raw(pid.unwrap()), Signal::SIGKILL).unwrap();
        wait_until(GONE, "the end of the killed server", || find(&workplace) != pid);
    }
    assert_eq!(tuner.wait().unwrap().code(), Some(5), "{}", stderr());
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    let shown = workplace.run(&["show", "0"]);
    let text = format!("{}{}", shown.stdout, shown.stderr);
    assert_eq!(text.matches(", killed: ").count(), 3, "{}\n{text}", stderr());
    let studies = workplace.json(&["studies", "--format", "json"]);
    assert_eq!((&studies[0]["running"], &studies[0]["failed"]), (&1.into(), &0.into()), "it is to be tried again");
}

#[test]
#[ignore = "needs llama.cpp's server"]
fn a_server_that_is_killed_in_any_phase_is_no_fault_of_the_configuration() {
    let directory = installation();
    for phase in ["starting", "warming up", "measuring"] {
        killed_while(phase, &directory);
    }
}

#[test]
#[ignore = "needs llama.cpp's server"]
fn starts_that_fail_have_their_kind_and_their_blame() {
    let directory = installation();
    let budget = "trials = 1\nconfirm = 0";
    let run = |text: &str| {
        let workplace = Workplace::with_study(text);
        let tuned = workplace.run(&["tune", "study.toml"]);
        assert_eq!(workplace.processes_left(), [] as [i32; 0]);
        tuned
    };
    let scripted = |script: &str| {
        let text = study(&directory, "", 4, budget);
        let command = format!("command = [\"{}/bin/llama-server\"]", directory.display());
        let script = script.replace("$server", &format!("{}/bin/llama-server", directory.display()));
        text.replace(&command, &format!("command = [\"sh\", \"-c\", \'\'\'{script}\'\'\', \"sh\"]\ndevice = \"cpu\""))
    };
    // The configuration is refused: it fails at once, without another try.
    let refused = run(&study(&directory, "args = [\"--max-num-seqs\", \"8\"]\npreflight = false", 4, budget));
    assert_eq!(refused.stderr.matches("invalid_argument").count(), 1, "{}", refused.stderr);
    let too_large = study(&directory, "preflight = false", 4, budget).replace("ctx-size = 4096", "ctx-size = 20000000");
    let rejected = run(&too_large);
    assert!(rejected.stderr.contains("L12"), "a rule predicts it: {}", rejected.stderr);
    // The environment is at fault: it is tried again, and then the study pauses.
    let missing = run(&scripted(r#"shift 2; exec $server -m /none/such.gguf "$@""#));
    assert_eq!(missing.code, Some(5), "{}", missing.stderr);
    assert_eq!(missing.stderr.matches("model_unavailable").count(), 3, "{}", missing.stderr);
}
