//! Tests with launches of small scripts that try to survive their end.

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::facts::Processors;
use crate::server::process;
use crate::server::{SpawnError, SpawnParameters, read_log};

fn spawn(directory: &Path, script: &str, trial: u32) -> SpawnParameters {
    SpawnParameters::of_script(directory, "sh", script, "stop", trial)
}

fn launch(directory: &Path, script: &str, trial: u32) -> Server {
    Server::spawn(&spawn(directory, script, trial)).unwrap()
}

/// Returns the number that the script has printed after `word`.
fn number(server: &Server, word: &str) -> i32 {
    let text = server.log_text();
    text.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok()).unwrap()
}

async fn until(server: &Server, text: &str) {
    let begin = Instant::now();
    while !server.log_text().contains(text) {
        assert!(begin.elapsed() < Duration::from_secs(10), "the script never printed {text:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_tree_that_ignores_term_and_left_the_session_is_ended_whole() {
    let directory = tempfile::tempdir().unwrap();
    let script = "trap '' TERM; setsid sh -c \"trap '' TERM; echo up; while :; do sleep 0.1; done\" & \
                  while :; do sleep 0.1; done";
    let server = launch(directory.path(), script, 1);
    until(&server, "up").await;
    let marker = server.marker.value();
    server.stop(Duration::from_millis(200)).await.unwrap();
    assert!(process::members(&[], |m| m == marker.as_bytes()).is_empty());
}

#[tokio::test]
async fn a_launch_and_what_it_starts_run_on_the_processors_that_it_got() {
    let directory = tempfile::tempdir().unwrap();
    let last = Processors::allowed().iter().last().unwrap();
    let processors = Some(last.to_string().parse().unwrap());
    let script = "sh -c 'grep Cpus_allowed_list /proc/self/status'; exec sleep 600";
    let server = Server::spawn(&SpawnParameters { processors, ..spawn(directory.path(), script, 14) }).unwrap();
    until(&server, "Cpus_allowed_list").await;
    assert_eq!(number(&server, "Cpus_allowed_list:"), i32::try_from(last).unwrap());
    server.stop(Duration::ZERO).await.unwrap();
    // A processor that this machine does not have.
    let processors = Some("1023".parse().unwrap());
    let refused = Server::spawn(&SpawnParameters { processors, ..spawn(directory.path(), script, 15) }).unwrap_err();
    assert!(matches!(refused, SpawnError::Program { .. }), "{refused}");
}

#[tokio::test]
async fn children_of_a_dead_leader_are_ended() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = launch(directory.path(), "sleep 600 & echo up", 2);
    server.wait_for_exit().await;
    assert!(!server.members().is_empty(), "the child outlives its leader");
    let marker = server.marker.value();
    server.stop(Duration::from_secs(5)).await.unwrap();
    assert!(process::members(&[], |m| m == marker.as_bytes()).is_empty());
}

#[tokio::test]
async fn an_abandoned_server_that_keeps_forking_is_ended_whole() {
    let directory = tempfile::tempdir().unwrap();
    let server = launch(directory.path(), "echo up; while :; do sleep 600 & sleep 0.001; done", 4);
    until(&server, "up").await;
    let marker = server.marker.value();
    drop(server);
    assert_eq!(process::members(&[], |m| m == marker.as_bytes()).len(), 0);
}

/// Starts a daemon in the usual way: forked twice, in a session of its own, without environment. It prints its number.
const DAEMON: &str = "(env -i setsid sh -c 'echo daemon $$; while :; do sleep 0.05; done' &) ; ";

#[tokio::test]
async fn a_daemon_that_has_left_session_environment_and_parents_is_ended() {
    let directory = tempfile::tempdir().unwrap();
    let server = launch(directory.path(), &format!("{DAEMON} echo up; exec sleep 600"), 5);
    until(&server, "up").await;
    until(&server, "daemon").await;
    let daemon = ProcessEntry::read(number(&server, "daemon")).unwrap();
    assert_eq!((daemon.parent, daemon.session), (process::own(), daemon.pid), "the kernel gave it to the tuner");
    assert_eq!(daemon.marker(), None);
    server.stop(Duration::from_secs(5)).await.unwrap();
    let now = ProcessEntry::read(daemon.pid);
    assert!(now.is_none_or(|now| now.dead || now.started != daemon.started), "{now:?}");
}

#[tokio::test]
async fn a_process_that_was_seen_once_is_ended_after_any_escape() {
    let directory = tempfile::tempdir().unwrap();
    // The process also redirects its output, after a look at the processes.
    let quiet = directory.path().join("quiet");
    let script = format!(
        "env -i sh -c 'echo early $$; while [ ! -e {0} ]; do sleep 0.01; done; exec setsid sleep 600 >{0} 2>&1' & \
         echo up; wait",
        quiet.display()
    );
    let server = launch(directory.path(), &script, 6);
    until(&server, "early").await;
    let early = number(&server, "early");
    assert!(server.processes().pids().contains(&early));
    std::fs::write(&quiet, "").unwrap();
    let begin = Instant::now();
    let escaped = loop {
        // `setsid` forks if the process leads its group.
        match server.members().into_iter().find(|member| member.session != server.members.leader.pid) {
            Some(member) => break member,
            None => assert!(begin.elapsed() < Duration::from_secs(10), "nobody left the session"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    server.stop(Duration::from_secs(5)).await.unwrap();
    assert!(ProcessEntry::read(escaped.pid).is_none_or(|now| now.dead || now.started != escaped.started));
}

#[tokio::test]
async fn zombies_that_the_tuner_adopts_are_collected() {
    let directory = tempfile::tempdir().unwrap();
    let script = "(setsid sh -c 'echo orphan $$; sleep 0.2' &) ; echo up; exec sleep 600";
    let server = launch(directory.path(), script, 7);
    until(&server, "orphan").await;
    let orphan = number(&server, "orphan");
    let begin = Instant::now();
    while ProcessEntry::read(orphan).is_some_and(|entry| entry.parent == process::own()) {
        assert!(begin.elapsed() < Duration::from_secs(10), "the orphan stays a zombie");
        assert!(!server.processes().pids().is_empty());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.stop(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn two_servers_do_not_touch_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let script = format!("{DAEMON} setsid sleep 600 & echo up; wait");
    let (one, two) = (launch(directory.path(), &script, 8), launch(directory.path(), &script, 9));
    for server in [&one, &two] {
        until(server, "up").await;
        until(server, "daemon").await;
    }
    let daemons = [number(&one, "daemon"), number(&two, "daemon")];
    let of = |server: &Server| server.members().iter().map(|member| member.pid).collect::<Vec<_>>();
    let (ones, twos) = (of(&one), of(&two));
    assert!(ones.contains(&daemons[0]) && twos.contains(&daemons[1]), "{daemons:?} {ones:?} {twos:?}");
    assert!(ones.iter().all(|pid| !twos.contains(pid)));
    one.stop(Duration::from_secs(5)).await.unwrap();
    let still = |pid: &i32| ProcessEntry::read(*pid).is_some_and(|entry| !entry.dead);
    assert!(!ones.iter().any(still), "the first is gone");
    assert!(still(&daemons[1]) && still(&two.members.leader.pid), "the second lives");
    two.stop(Duration::from_secs(5)).await.unwrap();
    assert!(!twos.iter().any(still));
}

#[tokio::test]
async fn orphans_without_a_trace_are_ended_with_the_last_of_the_launches_that_may_have_started_them() {
    let directory = tempfile::tempdir().unwrap();
    let with_a_daemon = |trial: u32| {
        let script = format!(
            "(env -i setsid sh -c 'echo $$ > {}; while :; do sleep 0.05; done' >/dev/null 2>&1 &) ; echo up; exec sleep 600",
            directory.path().join(format!("daemon-{trial}")).display()
        );
        launch(directory.path(), &script, trial)
    };
    let (mut one, mut two) = (with_a_daemon(15), with_a_daemon(16));
    let mut daemons = Vec::new();
    for (server, trial) in [(&one, 15), (&two, 16)] {
        until(server, "up").await;
        let file = directory.path().join(format!("daemon-{trial}"));
        daemons.push(loop {
            match std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<i32>().ok()) {
                Some(pid) => break pid,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        });
    }
    // Both end at the same time: during the last look of either one, the other one still exists.
    for server in [&mut one, &mut two] {
        kill_all(&server.members);
        server.stopped = true;
    }
    drop((one, two));
    // Launches of other tests may have started the orphans as well; they also end.
    let begin = Instant::now();
    while daemons.iter().any(|pid| ProcessEntry::read(*pid).is_some_and(|entry| !entry.dead)) {
        assert!(begin.elapsed() < Duration::from_mins(1), "{daemons:?} are left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_stop_command_is_run_first_and_its_failure_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let with = |script: &str, trial| {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let env = BTreeMap::from([("FLAG".to_owned(), directory.path().join("flag").display().to_string())]);
        // Within the grace period, only the stop command ends the script.
        let engine = "trap '' TERM; echo up; while [ ! -e $FLAG ]; do sleep 0.01; done; echo stopped";
        let spawn = spawn(directory.path(), engine, trial);
        SpawnParameters { stop_command: Some(command), env, ..spawn }
    };
    let good = with("touch $FLAG; echo done", 10);
    let server = Server::spawn(&good).unwrap();
    until(&server, "up").await;
    server.stop(Duration::from_secs(20)).await.unwrap();
    assert_eq!(read_log(&good.log), "up\nstopped\n");

    std::fs::remove_file(directory.path().join("flag")).unwrap();
    let bad = with("echo 'no such container' >&2; exit 1", 11);
    let server = Server::spawn(&bad).unwrap();
    until(&server, "up").await;
    server.stop(Duration::from_millis(50)).await.unwrap();
    let told = "[setpoint: the stop command failed: \"sh\" ended with exit code 1: no such container]\n";
    assert_eq!(read_log(&bad.log), format!("up\n{told}"));
}

#[tokio::test]
async fn a_held_port_is_noted_and_is_an_error_only_after_a_stop_command() {
    let directory = tempfile::tempdir().unwrap();
    let listen = || std::net::TcpListener::bind((crate::server::HOST, 0)).unwrap();
    let stale = listen();
    let port = stale.local_addr().unwrap().port();
    let before = SpawnParameters { port, ..spawn(directory.path(), "echo up; exec sleep 600", 12) };
    Server::spawn(&before).unwrap().stop(Duration::from_secs(5)).await.unwrap();
    assert!(!read_log(&before.log).contains("port"), "it was there before");
    drop(stale);

    let late = SpawnParameters { port, ..spawn(directory.path(), "exec sleep 600", 13) };
    let server = Server::spawn(&late).unwrap();
    let other = std::net::TcpListener::bind((crate::server::HOST, port)).unwrap();
    server.stop(Duration::from_secs(5)).await.unwrap();
    let told = format!("[setpoint: port {port} is now held by process {} (", std::process::id());
    assert!(read_log(&late.log).starts_with(&told), "{}", read_log(&late.log));
    drop(other);

    let stopped = SpawnParameters { port, stop_command: Some(vec!["true".to_owned()]), ..late };
    let server = Server::spawn(&stopped).unwrap();
    let _container = std::net::TcpListener::bind((crate::server::HOST, port)).unwrap();
    let error = server.stop(Duration::from_secs(5)).await.unwrap_err();
    assert!(matches!(&error, LeftBehind::Port { holder: Some(_), failure: None, .. }), "{error:?}");
    assert!(error.to_string().ends_with("not started by setpoint; the stop command succeeded"), "{error}");
}

#[tokio::test]
async fn a_flooded_log_stays_bounded_without_requests_to_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let script = "echo first; yes 'a line of the flood' | head -c 80000000; echo last; exec sleep 600";
    let server = launch(directory.path(), script, 14);
    until(&server, "last").await;
    let path = directory.path().join("log-14");
    let allocated = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap()) * 512;
    let begin = Instant::now();
    while allocated() > 18 << 20 {
        assert!(begin.elapsed() < Duration::from_secs(10), "{} bytes on disk", allocated());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.stop(Duration::from_secs(5)).await.unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.len() < 9 << 20 && text.starts_with("first\n") && text.ends_with("last\n"));
    assert!(text.contains("bytes are left out here]"));
}
