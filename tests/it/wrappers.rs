//! Launches through fake wrappers. They match the originals in everything that matters to a supervisor: parents,
//! listeners, environment and signals.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use setpoint::job::Job;

use crate::support::{Workplace, root, signal, study_with, wait_until};

/// The remote side of `docker` and `ssh`. It starts the requests in its folder, each in an environment and a session of
/// its own.
const DAEMON: &str = r#"
state=$1
cd /
while :; do
    for request in "$state"/*.request; do
        [ -e "$request" ] || continue
        name=$(basename "$request" .request)
        mv "$request" "$state/$name.taken"
        setsid sh "$state/$name.taken" >"$state/$name.log" 2>&1 </dev/null &
        echo $! >"$state/$name.new"
        mv "$state/$name.new" "$state/$name.pid"
    done
    sleep 0.02
done
"#;

/// Code of both clients: it sends a request to the daemon and shows the output until the end. The client passes no
/// signal on.
const CLIENT: &str = r#"
ask() {
    name=$1 variables=$2
    shift 2
    { printf 'exec env -i PATH=/usr/bin:/bin %s ' "$variables"; printf "'%s' " "$@"; } >"$state/$name.asked"
    mv "$state/$name.asked" "$state/$name.request"
    until [ -e "$state/$name.pid" ]; do sleep 0.02; done
    pid=$(cat "$state/$name.pid")
    tail -f -n +1 "--pid=$pid" -s 0.1 "$state/$name.log" &
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
}
"#;

const DOCKER: &str = r#"
case $1 in
run)
    shift
    variables=
    while :; do
        case $1 in
        --rm) shift ;;
        --name) container=$2; shift 2 ;;
        -p) shift 2 ;;
        # A process of another user shows its environment to nobody: as if the marker were not there.
        -e) [ "$2" = SETPOINT_LAUNCH ] || variables="$variables $2=$(printenv "$2")"; shift 2 ;;
        *) break ;;
        esac
    done
    shift
    echo "$container$variables" >>"$state/runs"
    ask "$container" "$variables" "$program" "$@"
    ;;
stop)
    pid=$(cat "$state/$2.pid" 2>/dev/null) || { echo "No such container: $2" >&2; exit 1; }
    echo "$2" >>"$state/stops"
    kill "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
    rm "$state/$2.pid"
    ;;
esac
"#;

/// The words after the host are one line for the remote shell.
const SSH: &str = r#"
while :; do
    case $1 in
    -tt) shift ;;
    -L | -o) shift 2 ;;
    *) break ;;
    esac
done
shift
case $1 in
pkill*) sh -c "$*" ;;
*) ask "remote$$" "" sh -c "$*" ;;
esac
"#;

const NUMACTL: &str = r#"shift 2; exec "$@""#;

/// Runs the command as a child and waits for it.
const CONDA: &str = r#"shift 4; "$@""#;

/// The task has another parent and a session of its own, and keeps the environment. `srun` passes TERM on.
const SRUN: &str = r#"
shift
(setsid "$@" & echo $! >"$state/task.new"; mv "$state/task.new" "$state/task")
pid=$(cat "$state/task")
trap 'kill "$pid"' TERM
while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
"#;

/// A workplace with the tools of this test, and the daemon that ends with it.
struct Tools {
    workplace: Workplace,
    daemon: Child,
}

impl Tools {
    #[expect(clippy::disallowed_methods, reason = "ended by the guard")]
    fn new() -> Self {
        let workplace = Workplace::new();
        let state = workplace.path("state");
        std::fs::create_dir(&state).unwrap();
        for (name, text) in [("docker", DOCKER), ("ssh", SSH), ("numactl", NUMACTL), ("conda", CONDA), ("srun", SRUN)] {
            let program = env!("CARGO_BIN_EXE_setpoint");
            let head = format!("#!/bin/sh\nstate='{}'\nprogram='{program}'\n", state.display());
            workplace.write(name, &format!("{head}{CLIENT}{text}\n"));
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(workplace.path(name), mode).unwrap();
        }
        let mut daemon = Command::new("sh");
        daemon.args(["-c", DAEMON, "sh"]).arg(&state).env_clear().env("PATH", "/usr/bin:/bin");
        let daemon = daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { workplace, daemon }
    }

    /// Writes a study whose `[engine]` has these lines. `@` stands for the folder of the tools.
    fn study(&self, engine: &str, trials: u32) {
        let folder = self.workplace.path("").display().to_string();
        let engine = engine.replace('@', folder.trim_end_matches('/'));
        let engine = engine.replace("PROGRAM", env!("CARGO_BIN_EXE_setpoint"));
        self.workplace.write("study.toml", &study_with(&engine, &format!("trials = {trials}\nconfirm = 0")));
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.workplace.path("state").join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the living processes that the daemon has started.
    fn remote(&self) -> Vec<i32> {
        let own = i32::try_from(self.daemon.id()).unwrap();
        let processes = procfs::process::all_processes().unwrap().flatten();
        let stats = processes.filter_map(|process| process.stat().ok());
        stats.filter(|stat| stat.ppid == own && stat.comm == "setpoint" && stat.state != 'Z').map(|s| s.pid).collect()
    }

    /// Checks that no process is left, here or on the remote side.
    fn assert_nothing_left(&self) {
        assert_eq!(self.remote(), [] as [i32; 0]);
        assert_eq!(self.workplace.processes_left(), [] as [i32; 0]);
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        for pid in self.remote() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

const IN_DOCKER: &str = r#"
command = ["@/docker", "run", "--rm", "--name", "{name}", "{env}", "-p", "127.0.0.1:{port}:{port}", "image", "sim", "serve"]
stop_command = ["@/docker", "stop", "{name}"]
listener = "forwarded"
env = { GREETING = "trial-{trial}" }
"#;

#[test]
fn an_engine_in_a_container_is_measured_and_ended_by_its_own_stop_command() {
    let tools = Tools::new();
    tools.study(IN_DOCKER, 2);
    let tuned = tools.workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    tools.assert_nothing_left();

    let (runs, stops) = (tools.lines("runs"), tools.lines("stops"));
    assert_eq!(runs.len(), 2, "{runs:?}");
    for (index, (run, trial)) in runs.iter().zip(tools.workplace.trials()).enumerate() {
        let (container, variables) = run.split_once(' ').unwrap();
        assert!(container.starts_with(&format!("setpoint-fast-{index}-")), "{run}");
        assert_eq!(variables, format!("GREETING=trial-{index}"));
        assert_eq!(stops[index], container);
        assert_eq!(trial["state"], "measured");
        let command = trial["command"].to_string();
        assert!(command.contains(r#""-e","GREETING","-e","SETPOINT_LAUNCH""#), "{command}");
        assert_eq!(trial["env"]["GREETING"], format!("trial-{index}"));
        let log = std::fs::read_to_string(trial["log"].as_str().unwrap()).unwrap();
        assert!(log.contains("Application startup complete."), "{log}");
    }
    let script = tools.workplace.run(&["export", "--format", "sh", "--trial", "0"]).stdout;
    assert!(script.contains("--host 127.0.0.1"), "what is exported listens where its container is reached: {script}");
}

/// Starts a tuner that drives its load at a container. The clock is slower than the simulated device, so the load takes
/// several seconds.
fn under_load(tools: &Tools) -> Child {
    tools.study(IN_DOCKER, 1);
    let study = std::fs::read_to_string(tools.workplace.path("study.toml")).unwrap();
    let slow = study.replace("\"200\"", "\"0.2\"").replace("max-model-len = 2048", "max-num-seqs = 1");
    tools.workplace.write("study.toml", &slow);
    let tuner = tools.workplace.start(&["tune", "study.toml", "--verbose"]);
    tools.workplace.wait_for("trial 0: warming up");
    tuner
}

#[test]
fn a_container_that_outlives_a_killed_tuner_is_ended_by_reap() {
    let tools = Tools::new();
    let mut tuner = under_load(&tools);
    signal(&tuner, Signal::SIGKILL);
    tuner.wait().unwrap();
    assert_eq!(tools.remote().len(), 1, "the container does not die with the tuner");

    let reaped = tools.workplace.json(&["reap", "--format", "json"]);
    assert_eq!(reaped["stop_commands"][0]["ended"], true, "{reaped}");
    assert_eq!(tools.lines("stops").len(), 1);
    tools.assert_nothing_left();
    let again = tools.workplace.json(&["reap", "--format", "json"]);
    assert_eq!(again, serde_json::json!({"processes": [], "stop_commands": []}));
}

#[test]
fn a_container_that_outlives_a_killed_tuner_is_ended_by_the_next_one() {
    let tools = Tools::new();
    let mut first = under_load(&tools);
    signal(&first, Signal::SIGKILL);
    first.wait().unwrap();
    let before = tools.remote();
    let mut second = under_load(&tools);
    let after = tools.remote();
    assert_eq!((tools.lines("stops").len(), after.len()), (1, 1));
    assert_ne!(before, after);
    // One signal ends the server cleanly, and the container with it.
    signal(&second, Signal::SIGTERM);
    assert_eq!(second.wait().unwrap().code(), Some(130));
    assert_eq!(tools.lines("stops").len(), 2);
    tools.assert_nothing_left();
}

#[test]
fn a_second_signal_still_stops_the_container() {
    let tools = Tools::new();
    let mut tuner = under_load(&tools);
    // Installs a stop command that hangs at its first run and works at its second.
    let docker = std::fs::read_to_string(tools.workplace.path("docker")).unwrap();
    let hang = "stop)\n    [ -e \"$state/hung\" ] || { touch \"$state/hung\"; sleep 60; }\n";
    tools.workplace.write("docker.new", &docker.replace("stop)\n", hang));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(tools.workplace.path("docker.new"), mode).unwrap();
    std::fs::rename(tools.workplace.path("docker.new"), tools.workplace.path("docker")).unwrap();

    signal(&tuner, Signal::SIGINT);
    let hung = tools.workplace.path("state").join("hung");
    wait_until(Duration::from_secs(10), "the first stop command", || hung.exists());
    signal(&tuner, Signal::SIGINT);
    assert_eq!(tuner.wait().unwrap().code(), Some(130));
    tools.assert_nothing_left();
    assert!(tools.workplace.json(&["reap", "--format", "json"])["stop_commands"].as_array().unwrap().is_empty());
}

#[test]
fn a_stop_command_that_stops_nothing_ends_the_tuner_and_loses_no_measurement() {
    let tools = Tools::new();
    tools.study(&IN_DOCKER.replace("[\"@/docker\", \"stop\", \"{name}\"]", "[\"true\"]"), 2);
    let tuned = tools.workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(1), "{}", tuned.stderr);
    assert!(tuned.stderr.contains("still answers"), "{}", tuned.stderr);
    assert!(tuned.stderr.contains("hint: engine.stop_command did not end the server"), "{}", tuned.stderr);
    let trials = tools.workplace.trials();
    assert_eq!((trials.len(), trials[0]["state"].as_str()), (1, Some("measured")));
    assert_eq!(tools.remote().len(), 1);
}

#[test]
fn an_engine_on_the_other_side_of_a_tunnel_is_ended_there() {
    let tools = Tools::new();
    tools.study(
        r#"
command = ["@/ssh", "-tt", "-L", "127.0.0.1:{port}:127.0.0.1:{port}", "gpu-host", "PROGRAM", "sim", "serve"]
stop_command = ["@/ssh", "gpu-host", "pkill -f -- '[-]-port {port}'"]
listener = "forwarded"
"#,
        1,
    );
    let tuned = tools.workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert_eq!(tools.workplace.trials()[0]["state"], "measured");
    tools.assert_nothing_left();
}

#[test]
fn wrappers_that_keep_the_environment_need_nothing_more() {
    for command in [
        r#"["@/numactl", "-N", "0", "PROGRAM", "sim", "serve"]"#,
        r#"["@/conda", "run", "-n", "engines", "--no-capture-output", "PROGRAM", "sim", "serve"]"#,
        r#"["@/srun", "--gres=gpu:1", "PROGRAM", "sim", "serve"]"#,
    ] {
        let tools = Tools::new();
        tools.study(&format!("command = {command}"), 1);
        let tuned = tools.workplace.run(&["tune", "study.toml"]);
        assert_eq!(tuned.code, Some(0), "{command}: {}", tuned.stderr);
        assert_eq!(tools.workplace.trials()[0]["state"], "measured", "{command}");
        tools.assert_nothing_left();
    }
}

#[test]
fn what_a_wrapper_cannot_be_told_is_refused_with_a_hint() {
    for (engine, messages) in [
        (
            "command = [\"docker\", \"run\", \"{nmae}\"]",
            ["engine.command: `{nmae}` is not a placeholder; there are {port}", "hint: did you mean `{name}`?"],
        ),
        (
            "command = [\"docker\", \"-v{env}\"]",
            ["engine.command: `{env}` becomes several arguments", "an argument of its own"],
        ),
        ("stop_command = [\"docker\", \"{env}\"]", ["engine.stop_command: `{env}` is only valid in", "[engine.env]"]),
        (
            "env = { A = \"{host}\" }",
            ["engine.env: `{host}` is not a placeholder", "hint: write `{{host}}` for literal braces"],
        ),
        ("stop_command = []", ["engine.stop_command: is empty", ""]),
        ("listener = \"foreign\"", ["engine.listener: \"foreign\" is not a kind of listener", "use \"forwarded\" if"]),
        ("listener = \"forwarded\"", ["engine.stop_command: is missing", "docker"]),
        ("stop_command = [\"no-such-tool\"]", ["engine.stop_command: the program \"no-such-tool\" is not on", "PATH"]),
    ] {
        let workplace = Workplace::with_study(&study_with(engine, "trials = 1"));
        let tuned = workplace.run(&["tune", "study.toml"]);
        assert_eq!(tuned.code, Some(3), "{engine}: {}", tuned.stderr);
        for message in messages {
            assert!(tuned.stderr.contains(message), "{engine}: {}", tuned.stderr);
        }
    }
}

#[test]
fn the_templates_are_studies_and_say_how_they_are_ended() {
    let folder = root().join("examples/wrappers");
    let mut files: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let names: Vec<_> = files.iter().map(|file| file.file_stem().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["conda", "docker", "numactl", "srun", "ssh"]);
    for file in &files {
        let job = Job::read(file).unwrap_or_else(|error| panic!("{error}"));
        let program = file.file_stem().unwrap().to_str().unwrap();
        assert_eq!(job.engine.command[0], program);
        let reached = !matches!(program, "docker" | "ssh");
        assert_eq!(
            (job.engine.has_forwarded_port, job.engine.stop_command.is_some()),
            (!reached, !reached),
            "{program}"
        );
    }
}

#[test]
fn a_dry_run_shows_placeholders_as_they_are() {
    let tools = Tools::new();
    tools.study(IN_DOCKER, 1);
    let dry = tools.workplace.run(&["tune", "study.toml", "--dry-run"]);
    assert_eq!(dry.code, Some(0), "{}", dry.stderr);
    assert!(dry.stdout.contains("--name '{name}' '{env}' -p '127.0.0.1:{port}:{port}'"), "{}", dry.stdout);
    wait_until(Duration::from_secs(1), "nothing is started", || tools.lines("runs").is_empty());
}
