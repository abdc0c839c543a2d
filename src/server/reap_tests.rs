//! Tests of the detection and termination of processes left behind.

use std::fs::File;
use std::process::Stdio;
use std::sync::Arc;

use proptest::prelude::*;
use tokio::process::{Child, Command};

use super::*;
use crate::server::{LaunchMembers, Marker, orphan, start};

fn launch(trial: &str) -> ProcessOrigin {
    ProcessOrigin { database: PathBuf::from("/data/a.db"), study: "chat".to_owned(), purpose: trial.to_owned() }
}

fn seen(pid: i32, parent: i32, session: i32, own_proof: Option<LeftoverProof>) -> UserProcess {
    let own_proof = own_proof.map(|proof| (launch("1"), proof));
    UserProcess { pid, parent, session, started: 7, has_terminal: false, name: format!("p{pid}"), own_proof }
}

/// Far above the largest process id of Linux, so that no such process exists.
const FREE: i32 = 1 << 24;

fn found(all: &[UserProcess], known: &ProvenProcesses) -> Vec<(i32, LeftoverProof)> {
    attribute_processes(all, known, FREE + 99)
        .into_iter()
        .map(|(index, (_, proof))| (all[index].pid - FREE, proof))
        .collect()
}

fn process(pid: i32, parent: i32, session: i32, proof: Option<LeftoverProof>) -> UserProcess {
    seen(FREE + pid, FREE + parent, FREE + session, proof)
}

#[test]
fn markers_and_logs_name_the_launch() {
    assert_eq!(ProcessOrigin::from_marker("/data/a|b.db|chat|12"), {
        Some(ProcessOrigin { database: "/data/a|b.db".into(), ..launch("12") })
    });
    assert_eq!(ProcessOrigin::from_marker("/data/a.db|chat|preflight"), Some(launch("preflight")));
    for wrong in ["", "|", "||", "chat|1", "|chat|1", "/data/a.db||1", "/data/a.db|chat|"] {
        assert_eq!(ProcessOrigin::from_marker(wrong), None, "{wrong}");
    }
    assert_eq!(ProcessOrigin::from_log(Path::new("/data/a.db.logs/chat/trial-0012.log")), Some(launch("12")));
    for wrong in ["/data/a.db.logs/chat/notes.log", "/data/logs/chat/trial-0012.log", "/trial-1.log", "trial-1.log"] {
        assert_eq!(ProcessOrigin::from_log(Path::new(wrong)), None, "{wrong}");
    }
    assert_eq!(launch("1").directory(), Path::new("/data/a.db.logs/chat"));
}

#[test]
fn a_proof_covers_kin_and_the_rest_of_its_session() {
    let all = [
        process(1, 0, 1, Some(LeftoverProof::Log)),
        process(2, 1, 1, None),
        process(3, 2, 3, None),
        // Its parent has ended; its session is the launch's.
        process(4, 0, 1, None),
        process(5, 0, 5, None),
    ];
    let expected = [
        (1, LeftoverProof::Log),
        (2, LeftoverProof::Descendant),
        (3, LeftoverProof::Descendant),
        (4, LeftoverProof::Session),
    ];
    assert_eq!(found(&all, &ProvenProcesses::new()), expected);
    // After the leader's end, the rest of its session still belongs to one launch.
    let orphans = [process(7, 0, 6, Some(LeftoverProof::Marker)), process(8, 0, 6, None)];
    assert_eq!(found(&orphans, &ProvenProcesses::new()), [(7, LeftoverProof::Marker), (8, LeftoverProof::Session)]);
}

#[test]
fn a_session_with_a_foreign_leader_is_not_taken() {
    let all = [process(1, 0, 1, None), process(2, 1, 1, Some(LeftoverProof::Marker)), process(3, 1, 1, None)];
    assert_eq!(found(&all, &ProvenProcesses::new()), [(2, LeftoverProof::Marker)]);
    let mut terminal = [process(7, 0, 6, Some(LeftoverProof::Marker)), process(8, 0, 6, None)];
    terminal[0].has_terminal = true;
    assert_eq!(found(&terminal, &ProvenProcesses::new()), [(7, LeftoverProof::Marker)]);
}

#[test]
fn the_caller_and_its_ancestors_are_never_found() {
    let all = [
        process(1, 0, 1, Some(LeftoverProof::Marker)),
        process(99, 1, 1, Some(LeftoverProof::Marker)),
        process(3, 1, 1, None),
    ];
    assert_eq!(found(&all, &ProvenProcesses::new()), []);
}

#[test]
fn a_proven_process_is_recognised_by_its_start_time_and_not_by_its_id() {
    let known = |started| ProvenProcesses::from([((FREE + 2, started), launch("1"))]);
    let all = [process(2, 0, 6, None), process(3, 0, 6, None)];
    assert_eq!(found(&all, &known(7)), [(2, LeftoverProof::SeenEarlier), (3, LeftoverProof::Session)]);
    assert_eq!(found(&all, &known(6)), []);
}

proptest! {
    #[test]
    fn nothing_is_found_without_a_proof_among_its_ancestors_or_in_its_session(
        shape in prop::collection::vec((0..12_i32, 0..12_i32, prop::option::weighted(0.2, Just(LeftoverProof::Marker)), any::<bool>()), 0..12)
    ) {
        let all: Vec<UserProcess> = shape.iter().enumerate().map(|(index, (parent, session, proof, terminal))| {
            let pid = i32::try_from(index).unwrap();
            let mut seen = process(pid, *parent, *session, *proof);
            seen.has_terminal = *terminal;
            seen
        }).collect();
        let proven = attribute_processes(&all, &ProvenProcesses::new(), FREE + 99);
        for (index, (_, proof)) in &proven {
            let seen = &all[*index];
            let others = || proven.keys().filter(|other| *other != index).map(|other| &all[*other]);
            let holds = match proof {
                LeftoverProof::Marker => seen.own_proof.is_some(),
                LeftoverProof::Descendant => others().any(|other| other.pid == seen.parent),
                LeftoverProof::Session => others().any(|other| other.session == seen.session && !other.has_terminal),
                LeftoverProof::Log | LeftoverProof::SeenEarlier => false,
            };
            prop_assert!(holds, "{seen:?} by {proof:?}");
        }
        let marked = all.iter().enumerate().filter(|(_, seen)| seen.own_proof.is_some());
        for (index, _) in marked {
            prop_assert!(proven.contains_key(&index));
        }
    }
}

/// A child that is killed with its test. It is registered, because servers of other tests adopt unregistered orphans.
struct Ended(Child, Arc<LaunchMembers>);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.start_kill();
        orphan::forget(&self.1);
    }
}

/// Starts a script without a marker in a session of its own, with its output in a file.
fn script(text: &str, out: File) -> Ended {
    let mut command = Command::new("env");
    command.args(["-i", "PATH=/usr/bin:/bin", "sh", "-c", text]).stdin(Stdio::null());
    command.stdout(out).stderr(Stdio::null()).kill_on_drop(true);
    let marker = Marker::helper(Path::new("/none"), "a test", "script");
    let (child, family) = start(&mut command, marker, None).unwrap();
    Ended(child, family)
}

fn wait_for(path: &Path, text: &str) {
    let begin = Instant::now();
    while !std::fs::read_to_string(path).is_ok_and(|read| read.contains(text)) {
        assert!(begin.elapsed() < Duration::from_secs(10), "the script never wrote {text:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn a_process_without_marker_is_known_by_its_log_and_ended_with_a_child_that_has_no_proof_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let database = directory.path().canonicalize().unwrap().join("a.db");
    let logs = log_directory(&database, "chat");
    std::fs::create_dir_all(&logs).unwrap();
    let log = logs.join("trial-0002.log");
    let text = "trap '' TERM; sleep 600 >/dev/null & echo up; while :; do sleep 0.1; done";
    let mut running = script(text, File::create(&log).unwrap());
    let other = script("echo up; exec sleep 600", File::create(directory.path().join("trial-0002.log")).unwrap());
    wait_for(&log, "up");
    let ours = |of: &ProcessOrigin| of.is_of(&database);
    assert_eq!(leftovers(ours), [], "without the lock of a tuner the folder is nobody's");

    std::fs::write(logs.join("lock"), "1\n").unwrap();
    // The log also identifies the child until its output is redirected.
    let begin = Instant::now();
    let left = loop {
        let left = leftovers(ours);
        if left.iter().any(|left| left.proof == LeftoverProof::Descendant) || begin.elapsed() > Duration::from_secs(10)
        {
            break left;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(left.iter().all(|left| left.origin.study == "chat" && left.origin.purpose == "2"), "{left:?}");
    let proofs: BTreeSet<_> = left.iter().map(|left| left.proof).collect();
    assert!(proofs.contains(&LeftoverProof::Log) && proofs.contains(&LeftoverProof::Descendant), "{left:?}");

    let ended = end_processes(ours, Duration::from_millis(200)).await.unwrap();
    assert!(ended.len() >= left.len());
    assert_eq!(leftovers(ours), []);
    assert!(!running.0.wait().await.unwrap().success());
    let others = i32::try_from(other.0.id().unwrap()).unwrap();
    assert!(Process::new(others).unwrap().is_alive(), "a log elsewhere proves nothing");
}
