//! The fault matrix: every way an engine can fail, each in a study that continues afterwards.
//!
//! Each row is a study of two launches on the simulated engine. The first launch, of the defaults, has the faults. The
//! second has none and is measured. Afterwards no process is left, and no log is large.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::support::{Workplace, study_with};

/// Rows that run at the same time. Most of a row is waiting.
const AT_ONCE: usize = 4;

/// Longest time that a row may take.
const ROW_LIMIT: Duration = Duration::from_secs(30);

/// The expected outcome of the launch with faults.
#[derive(Clone, Copy, Debug)]
enum Expect {
    /// It fails with one of these kinds, and the message contains this text.
    Failed(&'static [&'static str], &'static str),
    /// The environment fails. The trial is launched again and succeeds, and an incident of this kind with this text is
    /// stored.
    Again(&'static str, &'static str),
    /// It is measured despite the faults.
    Measured,
}
use Expect::{Again, Failed, Measured};

/// Faults, separated by blanks; the expected outcome; further lines of `[engine]`.
type Row = (&'static str, Expect, &'static str);

const NOTHING: &str = "";

/// Largest size of a launch's log at the end, in bytes: its beginning, its end and a line about the part left out.
const MAX_LOG: u64 = 16 << 20;

/// Limit for rows that end only by a timeout.
const SOON: &str = "startup_timeout = \"2500ms\"";

const FAULTS: &[Row] = &[
    // The start is refused or ends, at each phase.
    (
        "exit@parse:cause=invalid-argument",
        Failed(&["invalid_argument"], "unrecognized arguments: --no-such-flag"),
        NOTHING,
    ),
    (
        "exit@config:cause=invalid-value",
        Failed(&["invalid_argument"], "must be greater than or equal to max_num_seqs"),
        NOTHING,
    ),
    ("exit@parse:cause=silent,code=3", Failed(&["startup_exit"], "exit code 3; its log is empty"), NOTHING),
    ("exit@parse:cause=silent,code=0", Failed(&["startup_exit"], "exit code 0; its log is empty"), NOTHING),
    (
        "exit@config:code=1",
        Failed(&["startup_exit"], "exit code 1; KeyError: 'layers.0.mlp.gate_up_proj.weight'"),
        NOTHING,
    ),
    ("exit@bind:code=134", Failed(&["startup_exit"], "exit code 134; KeyError: "), NOTHING),
    ("exit@weights:code=0", Failed(&["startup_exit"], "exit code 0; KeyError: "), NOTHING),
    ("exit@profile:code=255", Failed(&["startup_exit"], "exit code 255; KeyError: "), NOTHING),
    ("exit@kv", Failed(&["startup_exit"], "exit code 1; KeyError: "), NOTHING),
    ("exit@graphs:signal=11,cause=silent", Failed(&["startup_exit", "crash"], "signal 11"), NOTHING),
    ("exit@graphs:signal=6", Failed(&["startup_exit", "crash"], "signal 6; KeyError: "), NOTHING),
    ("exit@ready:code=2", Failed(&["startup_exit"], "exit code 2; KeyError: "), NOTHING),
    ("exit@weights:cause=oom-weights", Failed(&["out_of_memory"], "Tried to allocate 1.16 GiB"), NOTHING),
    ("exit@bind:cause=port-in-use", Measured, NOTHING),
    // The start hangs or is slow, at each phase.
    ("hang@parse", Failed(&["startup_timeout"], "not ready within 2.5s"), SOON),
    ("hang@weights", Failed(&["startup_timeout"], "Starting to load model"), SOON),
    ("hang@graphs", Failed(&["startup_timeout"], "KV cache size: "), SOON),
    ("hang@ready", Failed(&["startup_timeout"], "Application startup complete."), SOON),
    ("slow@weights:seconds=30", Failed(&["startup_timeout"], "Loading safetensors checkpoint shards"), SOON),
    ("slow@weights:seconds=0.5", Measured, NOTHING),
    // The engine ignores signals, or its processes leave the session.
    (
        "hang@kv ignore-term ignore-int",
        Failed(&["startup_timeout"], "not ready within 2.5s"),
        "startup_timeout = \"2500ms\"\nstop_timeout = \"300ms\"",
    ),
    ("ignore-term", Measured, "stop_timeout = \"300ms\""),
    ("escape", Measured, NOTHING),
    ("escape:orphan=yes", Measured, NOTHING),
    ("escape:orphan=yes exit@kv:signal=11", Failed(&["startup_exit", "crash"], "signal 11"), NOTHING),
    // Child processes without anything that identifies their launch.
    ("escape:bare=yes", Measured, NOTHING),
    ("escape:bare=yes,orphan=yes", Measured, NOTHING),
    ("escape:bare=yes exit@kv:signal=11", Failed(&["startup_exit", "crash"], "signal 11"), NOTHING),
    ("engine-core", Measured, NOTHING),
    // Faults of the log, alone and with others.
    ("close-log@config", Measured, NOTHING),
    ("close-log@weights exit@kv:cause=oom-kv", Failed(&["startup_exit"], "exit code 1; "), NOTHING),
    ("flood@kv:mb=1000", Measured, NOTHING),
    ("flood@weights:mb=100 exit@kv:code=7", Failed(&["startup_exit"], "exit code 7; KeyError: "), NOTHING),
    // The server is another one, does not answer, or answers late.
    ("other-model:name=somebody", Failed(&["wrong_server"], "somebody"), NOTHING),
    ("mute", Failed(&["hang"], ""), SOON),
    ("unhealthy", Failed(&["startup_timeout"], "not ready within 2.5s"), SOON),
    ("late-bind", Measured, NOTHING),
    ("late-listen:seconds=0.4", Measured, NOTHING),
    ("late-listen:seconds=30", Failed(&["startup_timeout"], "Application startup complete."), SOON),
    // Faults under load. The first requests are the warm-up.
    ("die:request=12,code=1", Failed(&["crash"], "exit code 1; KeyError: "), NOTHING),
    ("die:request=12,code=0", Failed(&["crash"], "exit code 0; KeyError: "), NOTHING),
    ("die:request=2,cause=silent,signal=11", Failed(&["crash"], "signal 11"), NOTHING),
    ("die:request=12,cause=illegal-access", Failed(&["crash"], "illegal memory access"), NOTHING),
    ("errors:from=8", Failed(&["request_errors"], "http status 500"), NOTHING),
    ("end-early:from=8", Failed(&["request_errors"], "stream ended without [DONE]"), NOTHING),
    ("end-early:after=2,from=8", Failed(&["request_errors"], "stream ended without "), NOTHING),
    ("error-event:after=3,from=8", Failed(&["request_errors"], "EngineCore encountered an issue"), NOTHING),
    ("leak:mb-per-s=200,cap-mb=64", Measured, NOTHING),
];

/// Limits that turn a stall into a hang after one second.
const STALL: &str = "stall_timeout = \"1s\"\nstop_timeout = \"1s\"";

/// Causes that the log names, failures of the environment (which are launched again), and hangs.
const TOLD_APART: &[Row] = &[
    ("exit@config:cause=unsupported", Failed(&["unsupported"], "compute capability"), NOTHING),
    ("exit@profile:cause=oom-profile", Failed(&["out_of_memory_profile"], "Tried to allocate 9.27 GiB"), NOTHING),
    ("exit@kv:cause=oom-kv", Failed(&["out_of_memory_kv_cache"], "Tried to allocate 3.51 GiB"), NOTHING),
    ("exit@graphs:cause=oom-sampler", Failed(&["out_of_memory_sampler"], "out of memory"), NOTHING),
    ("exit@graphs:cause=oom-graphs", Failed(&["out_of_memory_graphs"], "Tried to allocate 64.00 MiB"), NOTHING),
    ("die:request=12,cause=oom-load", Failed(&["out_of_memory_load"], "Tried to allocate 748.00 MiB"), NOTHING),
    ("exit@kv:cause=no-kv", Failed(&["no_kv_memory"], "No available memory for the cache blocks"), NOTHING),
    ("exit@kv:cause=kv-too-small", Failed(&["no_kv_memory"], "To serve at least one request"), NOTHING),
    ("flood@weights:mb=300 exit@kv:cause=no-kv", Failed(&["no_kv_memory"], "No available memory"), NOTHING),
    ("exit@kv:cause=step-timeout", Failed(&["hang", "startup_exit"], "execute_model timed out"), NOTHING),
    // Failures of the environment, and similar ones that the configuration causes.
    ("exit@config:cause=model-missing", Again("model_unavailable", "is not a valid model identifier"), NOTHING),
    ("exit@config:cause=model-gated", Again("model_unavailable", "gated repo"), NOTHING),
    ("exit@profile:cause=device-busy", Again("device_busy", "Free memory on device cuda:0 (5.11/79.11 GiB)"), NOTHING),
    ("exit@weights:cause=nccl", Again("network", "NCCL error"), NOTHING),
    ("exit@weights:cause=nccl-oom", Failed(&["out_of_memory"], "last error: Cuda failure 2 'out of memory'"), NOTHING),
    ("exit@config:cause=no-device", Again("device_lost", "Failed to infer device type"), NOTHING),
    ("exit@config:cause=driver-mismatch", Again("device_lost", "NVMLError_LibRmVersionMismatch"), NOTHING),
    ("exit@kv:cause=device-lost", Again("device_lost", "CUDA error: unknown error"), NOTHING),
    ("exit@weights:cause=stale-file", Again("device_lost", "Stale file handle"), NOTHING),
    ("die:request=12,cause=link-lost", Again("device_lost", "uncorrectable NVLink error"), NOTHING),
    ("exit@config:cause=read-timeout", Again("network", "httpx.ReadTimeout"), NOTHING),
    ("exit@config:cause=network", Again("network", "Temporary failure in name resolution"), NOTHING),
    ("exit@graphs:cause=disk-full", Again("disk", "No space left on device"), NOTHING),
    ("exit@bind:cause=too-many-files", Again("disk", "Too many open files"), NOTHING),
    ("exit@weights:cause=silent,signal=9", Again("killed", "signal 9"), NOTHING),
    ("die:request=12,cause=silent,signal=9", Again("killed", "signal 9"), NOTHING),
    ("exit@weights:cause=silent,signal=15", Again("killed", ""), NOTHING),
    ("exit@kv:cause=worker-killed", Again("killed", ""), NOTHING),
    ("exit@weights:cause=silent,code=137", Again("killed", ""), NOTHING),
    ("exit@kv:cause=no-kv,code=137", Failed(&["no_kv_memory"], "No available memory"), NOTHING),
    ("engine-core:request=12", Again("killed", "EngineCore"), NOTHING),
    ("engine-core:phase=weights", Again("killed", "EngineCore"), NOTHING),
    ("engine-core:phase=ready", Again("killed", "EngineCore"), NOTHING),
    // The engine makes no more progress, or is slow.
    ("hang@config", Failed(&["hang"], ""), STALL),
    ("hang@kv", Failed(&["hang"], ""), STALL),
    ("close-log@config hang@profile", Failed(&["hang"], ""), STALL),
    ("slow@weights:seconds=2.5", Measured, STALL),
    ("stall:after=3,from=8", Failed(&["hang"], ""), STALL),
    ("stall:after=3,from=8 ignore-term", Failed(&["hang"], ""), STALL),
    ("long-step:seconds=0.5,request=8", Measured, NOTHING),
    (
        "long-step:seconds=600,busy=no,request=8",
        Failed(&["hang"], "the server's counters stand still; its processes "),
        STALL,
    ),
    ("spin:request=8", Failed(&["hang"], "its processes are busy, and the limit is "), STALL),
];

#[test]
fn every_fault_ends_in_its_class_and_the_study_goes_on() {
    assert!(FAULTS.len() >= 40);
    all_hold(FAULTS);
}

#[test]
fn every_further_fault_ends_in_its_class_and_the_study_goes_on() {
    all_hold(TOLD_APART);
}

/// Runs rows at the same time and reports all that do not hold.
fn all_hold(rows: &[Row]) {
    let (next, wrong) = (Mutex::new(rows.iter()), Mutex::new(Vec::new()));
    let work = || {
        while let Some(row) = { next.lock().unwrap().next() } {
            let begin = Instant::now();
            let held = tried(row).and_then(|()| match begin.elapsed() {
                took if took > ROW_LIMIT => Err(format!("it took {took:?}")),
                _ => Ok(()),
            });
            if let Err(problem) = held {
                wrong.lock().unwrap().push(format!("{}: {problem}", row.0));
            }
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

/// Checks a row, up to three times if the machine is too busy to measure. The study reports that case as
/// `client_bound`.
fn tried(row: &Row) -> Result<(), String> {
    for _ in 0..2 {
        match holds(row) {
            Err(problem) if problem.contains("client_bound") => {}
            held => return held,
        }
    }
    holds(row)
}

/// Returns the study of a row. Only the defaults, which set no `--max-num-seqs`, are launched with the faults. Faults
/// of the environment happen once.
fn study((faults, expect, engine): &Row) -> String {
    let mut arguments: Vec<_> = faults.split(' ').map(|fault| format!("\"--sim-fault\", \"{fault}\"")).collect();
    arguments.push("\"--sim-fault-if\", \"max-num-seqs=\"".to_owned());
    if matches!(expect, Again(..)) || faults.contains("port-in-use") {
        arguments.push("\"--sim-fault-once\", \"happened\"".to_owned());
    }
    let text = study_with(engine, "trials = 2\nconfirm = 0");
    let stated = |key: &str| engine.contains(key);
    let line = |line: &str| !stated(line.split(' ').next().unwrap_or_default());
    let kept: Vec<_> =
        ["startup_timeout = \"20s\"", "stop_timeout = \"5s\""].into_iter().filter(|default| line(default)).collect();
    text.replace("startup_timeout = \"20s\"\nstop_timeout = \"5s\"", &kept.join("\n"))
        .replace("\"--sim-noise\", \"0\"", &format!("\"--sim-noise\", \"0\", {}", arguments.join(", ")))
}

fn holds(row: &Row) -> Result<(), String> {
    let workplace = Workplace::with_study(&study(row));
    let tuned = workplace.run(&["tune", "study.toml"]);
    let left = workplace.processes_left();
    for pid in &left {
        // These processes belong to the row, because they work in its directory.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), nix::sys::signal::Signal::SIGKILL);
    }
    if tuned.code != Some(0) {
        return Err(format!("exit code {:?}: {}", tuned.code, tuned.stderr));
    }
    if !left.is_empty() {
        return Err(format!("processes {left:?} are left"));
    }
    let trials = workplace.trials();
    let [first, second] = trials.as_slice() else { return Err(format!("{} trials", trials.len())) };
    if second["state"] != "measured" {
        return Err(format!("the study did not go on: {second}"));
    }
    let log = first["log"].as_str().and_then(|log| std::fs::metadata(workplace.path(log)).ok());
    match log.map(|log| log.len()) {
        Some(0..=MAX_LOG) => {}
        length => return Err(format!("its log has {length:?} bytes")),
    }
    let told = |trial: &Json| format!("{} {} {}", trial["state"], trial["reason_code"], trial["reason"]);
    let says = |value: &Json, text: &str| value.as_str().is_some_and(|value| value.contains(text));
    let holds = match row.1 {
        Failed(kinds, text) => {
            first["state"] == "failed"
                && kinds.iter().any(|kind| first["reason_code"] == *kind)
                && says(&first["reason"], text)
        }
        Measured => first["state"] == "measured",
        Again(kind, text) => {
            let incidents = workplace.json(&["show", "0", "--format", "json"])["incidents"].clone();
            let incident = &incidents[0];
            if first["state"] == "measured" && !(incident["kind"] == kind && says(&incident["message"], text)) {
                return Err(format!("its incidents are {incidents}"));
            }
            first["state"] == "measured"
        }
    };
    if holds { Ok(()) } else { Err(format!("{}; expected {:?}", told(first), row.1)) }
}
