//! The end of a launch: TERM, a grace period, KILL, until none of its processes is left.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::process::Process;

use super::{Marker, Server, process};

/// Processes that survived KILL, which happens while the kernel waits for a device.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("processes {pids:?} of trial {marker} are still there {waited:?} after SIGKILL")]
pub struct LeftBehind {
    pub pids: Vec<i32>,
    pub marker: String,
    pub waited: Duration,
}

const POLL: Duration = Duration::from_millis(20);

/// vLLM ignores a TERM that comes while it loads; a second one works.
const REPEAT_TERM: Duration = Duration::from_secs(3);

/// How long KILL may take: memory of a large process is returned page by page.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// How long an abandoned server may hold up who abandons it.
const DROP_LIMIT: Duration = Duration::from_secs(2);

impl Server {
    /// Ends every process of this launch.
    ///
    /// # Errors
    /// When a process survives SIGKILL.
    pub async fn stop(mut self, grace: Duration) -> Result<(), LeftBehind> {
        if let Some(command) = self.stop_command.take() {
            // Signals follow in any case; a launch that has already ended has nothing to stop.
            let _ = super::finish(&command, grace).await;
        }
        let begin = Instant::now();
        let mut termed: Option<Instant> = None;
        while begin.elapsed() < grace {
            let members = self.members();
            if members.is_empty() {
                break;
            }
            if termed.is_none_or(|last| last.elapsed() >= REPEAT_TERM) {
                signal(&members, Signal::SIGTERM);
                termed = Some(Instant::now());
            }
            self.reap_for(POLL).await;
        }
        let killed = Instant::now();
        loop {
            let members = self.members();
            if members.is_empty() {
                break;
            }
            if killed.elapsed() > KILL_LIMIT {
                let pids = members.iter().map(Process::pid).collect();
                return Err(LeftBehind { pids, marker: self.marker.value(), waited: KILL_LIMIT });
            }
            signal(&members, Signal::SIGKILL);
            self.reap_for(POLL).await;
        }
        // The leader is gone or a zombie: collect it.
        self.exited().await;
        Ok(())
    }

    fn members(&self) -> Vec<Process> {
        process::members(&[self.session], |marker| marker == self.marker.value().as_bytes())
    }

    /// Passes the time, and collects the leader when it ends.
    async fn reap_for(&mut self, time: Duration) {
        let wait = async {
            self.exited().await;
            // Others of the tree may still be there.
            tokio::time::sleep(time).await;
        };
        let _ = tokio::time::timeout(time, wait).await;
    }
}

impl Drop for Server {
    /// The last resort when a trial is abandoned, by a second Ctrl-C or a panic for instance. It blocks for a moment:
    /// what is forked between a look at the processes and the signal is seen by the next look.
    fn drop(&mut self) {
        kill_all(self.session, &self.marker);
    }
}

/// Kills every process of a launch, and blocks for a moment until none is left.
pub(super) fn kill_all(session: i32, marker: &Marker) {
    let begin = Instant::now();
    while begin.elapsed() < DROP_LIMIT {
        let members = process::members(&[session], |found| found == marker.value().as_bytes());
        if members.is_empty() {
            return;
        }
        signal(&members, Signal::SIGKILL);
        std::thread::sleep(POLL);
    }
}

/// Ends what earlier, killed tuners left behind of a study, and returns how many processes that were.
///
/// # Errors
/// When a process survives SIGKILL.
pub async fn sweep(study_prefix: &str) -> Result<usize, LeftBehind> {
    let marked = |marker: &[u8]| marker.starts_with(study_prefix.as_bytes());
    let sessions: Vec<_> =
        process::members(&[], marked).iter().filter_map(|process| Some(process.stat().ok()?.session)).collect();
    let left = || process::members(&sessions, marked);
    let found = left().len();
    let begin = Instant::now();
    loop {
        let members = left();
        if members.is_empty() {
            return Ok(found);
        }
        if begin.elapsed() > KILL_LIMIT {
            let pids = members.iter().map(Process::pid).collect();
            return Err(LeftBehind { pids, marker: study_prefix.to_owned(), waited: KILL_LIMIT });
        }
        signal(&members, Signal::SIGKILL);
        tokio::time::sleep(POLL).await;
    }
}

fn signal(processes: &[Process], signal: Signal) {
    for process in processes {
        // A process that has ended in the meantime is what is wanted.
        let _ = kill(Pid::from_raw(process.pid()), signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Spawn;
    use std::collections::BTreeMap;
    use std::path::Path;

    fn launch(directory: &Path, script: &str, trial: u32) -> Server {
        let marker = Marker::new(&directory.join("test.db"), "stop", trial);
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let spawn = Spawn {
            command,
            env: BTreeMap::new(),
            log: directory.join("log"),
            marker,
            port: 1,
            stop_command: None,
            forwarded: false,
        };
        Server::spawn(&spawn).unwrap()
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
    async fn children_of_a_dead_leader_are_ended() {
        let directory = tempfile::tempdir().unwrap();
        let mut server = launch(directory.path(), "sleep 600 & echo up", 2);
        server.exited().await;
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

    #[tokio::test]
    async fn a_sweep_finds_only_its_own_study() {
        let directory = tempfile::tempdir().unwrap();
        let server = launch(directory.path(), "echo up; exec sleep 600", 3);
        until(&server, "up").await;
        let prefix = |study| Marker::study_prefix(&directory.path().join("test.db"), study);
        assert_eq!(sweep(&prefix("sto")).await, Ok(0));
        assert_eq!(sweep(&prefix("stop")).await, Ok(1));
        server.stop(Duration::ZERO).await.unwrap();
    }
}
