//! The watchdog over real processes.

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::server::{Server, SpawnParameters};
use crate::tuner::launcher::alarm_failure;

/// An engine core with vLLM's title, below a leader that survives it. `exec -a` needs `bash` instead of `sh`.
const CORE_BELOW_A_LEADER: &str = "(exec -a VLLM::EngineCore sleep 600) & while :; do sleep 0.1; done";

fn launch(directory: &Path, script: &str, stall: Duration) -> (Server, WatchScope) {
    let spawn = SpawnParameters::of_script(directory, "bash", script, "watchdog", 0);
    let server = Server::spawn(&spawn).unwrap();
    let (processes, log) = (server.processes(), server.log_path().to_owned());
    let scope = WatchScope {
        processes,
        log,
        directories: vec![directory.to_owned()],
        stall,
        longest_step: StepEstimate::new(0, None, None),
        devices: None,
        elsewhere: false,
        page: Some(MetricsPage::usual()),
        title: crate::engines::default_engine().process_title(),
    };
    (server, scope)
}

/// Checks until this many processes are vital.
fn look_until_vital(look: &mut PeriodicChecks, count: usize) -> Vec<ProcessIdentity> {
    let begin = Instant::now();
    loop {
        look.searched = None;
        assert_eq!(look.check(), None);
        let vital = look.vital.lock().unwrap().clone();
        if vital.len() == count {
            return vital;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "not {count}: {vital:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn the_death_of_an_engine_core_is_noticed_at_once_although_its_leader_lives() {
    let directory = tempfile::tempdir().unwrap();
    let (mut server, scope) = launch(directory.path(), CORE_BELOW_A_LEADER, Duration::ZERO);
    let vital = Arc::new(Mutex::new(Vec::new()));
    let core = look_until_vital(&mut PeriodicChecks::new(scope, Arc::clone(&vital), Arc::default()), 1).remove(0);
    assert_eq!(core.name, "VLLM::EngineCore");
    let raised = watch::Sender::new(None);
    let (living, lives) = channel();
    let watching = std::thread::spawn({
        let raised = raised.clone();
        move || watch_deaths(&raised, &vital, &lives)
    });
    kill(Pid::from_raw(core.pid), Signal::SIGKILL).unwrap();
    let begin = Instant::now();
    let mut told = raised.subscribe();
    let alarm = tokio::time::timeout(Duration::from_secs(10), told.wait_for(Option::is_some)).await.unwrap();
    let (alarm, noticed) = (alarm.unwrap().clone(), begin.elapsed());
    let Some(WatchdogAlarm::Death { who, .. }) = alarm else { panic!("{alarm:?}") };
    assert_eq!(who, format!("VLLM::EngineCore (pid {})", core.pid));
    // The limit is 200 ms, but the machine of a test may be busy.
    assert!(noticed < Duration::from_secs(1), "noticed after {noticed:?}");
    let _ = writeln!(std::io::stderr(), "the death was noticed after {noticed:?}");
    drop(living);
    watching.join().unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(1), server.wait_for_exit()).await.is_err(), "the leader lives");
    server.stop(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn a_fork_that_runs_another_program_is_not_vital() {
    let directory = tempfile::tempdir().unwrap();
    // As when kernels are compiled: a copy of the process, with its title, soon becomes the compiler and then ends.
    let fork = "mkfifo $0; exec 3<>$0; while :; do (read -t 0.02 <&3; exec sleep 0.01); done";
    let fifo = directory.path().join("fifo");
    let script = format!("(exec -a VLLM::Worker bash -c '{fork}' {}) & exec sleep 600", fifo.display());
    let (server, scope) = launch(directory.path(), &script, Duration::ZERO);
    let vital = Arc::new(Mutex::new(Vec::new()));
    let mut look = PeriodicChecks::new(scope, Arc::clone(&vital), Arc::default());
    look_until_vital(&mut look, 1);
    for _ in 0..20 {
        look.searched = None;
        assert_eq!(look.check(), None);
    }
    let found = vital.lock().unwrap().clone();
    assert_eq!(found.len(), 1, "{found:?}");
    server.stop(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn the_signal_that_ended_a_process_is_its_reason_until_the_parent_collects_it() {
    let directory = tempfile::tempdir().unwrap();
    // `sleep` never collects the child that the shell before it had.
    let script = "(exec -a VLLM::Worker sleep 600) & exec sleep 600";
    let (mut server, scope) = launch(directory.path(), script, Duration::ZERO);
    let vital = Arc::new(Mutex::new(Vec::new()));
    let worker = look_until_vital(&mut PeriodicChecks::new(scope, Arc::clone(&vital), Arc::default()), 1).remove(0);
    assert_eq!(worker.end(), None);
    kill(Pid::from_raw(worker.pid), Signal::SIGKILL).unwrap();
    let (raised, (_living, lives)) = (watch::Sender::new(None), channel());
    watch_deaths(&raised, &vital, &lives);
    let Some(alarm) = raised.borrow().clone() else { panic!("no alarm") };
    assert!(
        matches!(&alarm, WatchdogAlarm::Death { status: Some(status), .. } if status.signal() == Some(9)),
        "{alarm:?}"
    );
    let failure = alarm_failure(&mut server, alarm, true).await;
    assert!(failure.message.contains(" ended; signal 9"), "{failure:?}");
    server.stop(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn the_watchdog_reports_a_death_with_its_cause_from_the_log() {
    let directory = tempfile::tempdir().unwrap();
    // The leader notices the death itself, a moment later, as vLLM does. It ignores SIGCHLD, so that no zombie remains:
    // a zombie would still show its signal.
    let script = "trap '' CHLD; (exec -a VLLM::EngineCore sh -c 'sleep 2; kill -9 $$') & \
                  wait; sleep 0.3; echo 'RuntimeError: Engine core initialization failed.'; exit 1";
    let (mut server, scope) = launch(directory.path(), script, Duration::ZERO);
    let watchdog = Watchdog::start(scope, server.base_url());
    let alarm = tokio::time::timeout(Duration::from_secs(20), watchdog.alarm()).await.unwrap();
    assert_eq!(watchdog.raised().as_ref(), Some(&alarm));
    let failure = alarm_failure(&mut server, alarm, false).await;
    assert!(failure.message.starts_with("VLLM::EngineCore (pid "), "{failure:?}");
    assert!(
        failure.message.ends_with(" ended; exit code 1; RuntimeError: Engine core initialization failed."),
        "{failure:?}"
    );
    assert_eq!(failure.kind, FailureKind::StartupExit);
    server.stop(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn a_start_that_sleeps_for_ever_hangs_and_one_that_works_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let stall = Duration::from_millis(1200);
    let (sleeping, scope) = launch(directory.path(), "echo loading; exec sleep 600", stall);
    let watchdog = Watchdog::start(scope, sleeping.base_url());
    let alarm = tokio::time::timeout(Duration::from_secs(20), watchdog.alarm()).await.unwrap();
    let WatchdogAlarm::EndLaunch { kind: FailureKind::Hang, message } = alarm else { panic!("{alarm:?}") };
    assert!(message.starts_with("the start shows no sign of work for "), "{message}");
    assert!(message.ends_with(" ago: loading"), "{message}");
    sleeping.stop(Duration::ZERO).await.unwrap();

    let directory = tempfile::tempdir().unwrap();
    let (working, scope) = launch(directory.path(), "while :; do :; done", stall);
    let watchdog = Watchdog::start(scope, working.base_url());
    assert_eq!(tokio::time::timeout(stall * 2, watchdog.alarm()).await.ok(), None, "no line, and busy");
    working.stop(Duration::ZERO).await.unwrap();
}

#[test]
fn clients_of_engines_that_run_elsewhere_are_known() {
    let elsewhere = |line: &str| computes_elsewhere(&shlex::split(line).unwrap());
    assert!(elsewhere("docker run --rm vllm/vllm-openai"));
    assert!(elsewhere("/usr/bin/ssh host vllm serve"));
    assert!(elsewhere("env srun -N 1 vllm serve"));
    assert!(!elsewhere("numactl -N 0 vllm serve"));
    assert!(!elsewhere("sh -c 'docker run x'"));
    assert!(!elsewhere("vllm serve --model docker"));
    let on_another_host = |line: &str| computes_on_another_host(&shlex::split(line).unwrap());
    assert!(on_another_host("sudo ssh host vllm serve") && !on_another_host("docker run --rm vllm/vllm-openai"));
}

#[tokio::test]
async fn the_first_alarm_counts_and_low_memory_allows_no_grace_period() {
    let directory = tempfile::tempdir().unwrap();
    let (server, scope) = launch(directory.path(), "exec sleep 600", Duration::ZERO);
    let (watchdog, grace) = (Watchdog::start(scope, server.base_url()), Duration::from_secs(30));
    assert_eq!((watchdog.raised(), watchdog.grace(grace)), (None, grace));
    let memory = WatchdogAlarm::EndLaunch { kind: FailureKind::HostMemory, message: "none left".to_owned() };
    raise(&watchdog.raised, memory.clone());
    raise(&watchdog.raised, WatchdogAlarm::Death { who: "a (pid 1)".to_owned(), status: None });
    assert_eq!((watchdog.alarm().await, watchdog.grace(grace)), (memory, Duration::ZERO));
    server.stop(Duration::ZERO).await.unwrap();
}
