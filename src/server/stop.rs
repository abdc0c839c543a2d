//! The end of a launch: its stop command, TERM, a grace period, KILL, until none of its processes is left.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::process::{self, Entry};
use super::short::{run_short, run_unattended};
use super::{Family, Owner, Server, orphan, port};

/// What of a launch is still there after its end.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LeftBehind {
    /// Processes that survived KILL, which happens while the kernel waits for a device.
    #[error("processes {pids:?} of trial {marker} are still there {waited:?} after SIGKILL")]
    Processes { pids: Vec<i32>, marker: String, waited: Duration },
    /// The stop command did not end what answers on the port.
    #[error(
        "port {port} still answers {waited:?} after trial {marker} was stopped: {}; the stop command {}",
        holder.as_ref().map_or_else(|| "its holder cannot be seen".to_owned(), Owner::to_string),
        failure.as_ref().map_or_else(|| "succeeded".to_owned(), |failure| format!("failed: {failure}"))
    )]
    Port { port: u16, marker: String, waited: Duration, holder: Option<Owner>, failure: Option<String> },
}

const POLL: Duration = Duration::from_millis(20);

/// vLLM ignores a TERM that comes while it loads; a second one works.
const REPEAT_TERM: Duration = Duration::from_secs(3);

/// How long KILL may take: memory of a large process is returned page by page.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// How long an abandoned server may hold up who abandons it.
const DROP_LIMIT: Duration = Duration::from_secs(2);

/// What a stop command may take beyond the grace period. `docker stop` gives a container 10 s before it kills it.
const STOP_COMMAND_LIMIT: Duration = Duration::from_secs(20);

/// How long a port may stay open once a stop command has returned: a container's proxy ends after the container.
const PORT_LIMIT: Duration = Duration::from_secs(5);

impl Server {
    /// Runs the stop command, where there is one, and ends every process of this launch. Then nothing of it listens on its
    /// port any more. A stop command that fails is told in the log, and in the error where it matters.
    ///
    /// # Errors
    /// When a process survives SIGKILL, or a stop command leaves something behind that listens on the port.
    pub async fn stop(mut self, grace: Duration) -> Result<(), LeftBehind> {
        let stop_command = self.run_stop_command(grace).await;
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
                self.stopped = true;
                let pids = members.iter().map(|member| member.pid).collect();
                return Err(LeftBehind::Processes { pids, marker: self.marker.value(), waited: KILL_LIMIT });
            }
            signal(&members, Signal::SIGKILL);
            self.reap_for(POLL).await;
        }
        // The leader is gone or a zombie: collect it.
        self.exited().await;
        self.stopped = true;
        let closed = self.closed(stop_command).await;
        self.compact();
        closed
    }

    /// How the stop command ended, where there is one.
    async fn run_stop_command(&mut self, grace: Duration) -> Option<Result<(), String>> {
        let (command, env) = self.stop_command.as_ref()?;
        let ran = run_short(command, env, grace + STOP_COMMAND_LIMIT).await;
        self.stop_command = None;
        let ended = ran.map(drop).map_err(|error| error.to_string());
        if let Err(failure) = &ended {
            self.log.note(&format!("the stop command failed: {failure}"));
        }
        Some(ended)
    }

    /// Waits until nobody listens on the port who did not before the launch. `stop_command`: how one ended, where there was
    /// one.
    ///
    /// Without a stop command, whoever listens now is somebody else: the processes of the launch have ended. That is told and
    /// no error, since the next launch takes another port.
    async fn closed(&self, stop_command: Option<Result<(), String>>) -> Result<(), LeftBehind> {
        let begin = Instant::now();
        loop {
            let mut listeners = port::listeners(self.port);
            listeners.retain(|inode| !self.stale.contains(inode));
            if listeners.is_empty() {
                return Ok(());
            }
            if stop_command.is_some() && begin.elapsed() < PORT_LIMIT {
                tokio::time::sleep(POLL).await;
                continue;
            }
            let holder = Owner::of_socket(&listeners);
            let Some(ended) = stop_command else {
                let holder =
                    holder.map_or_else(|| "a process that cannot be seen".to_owned(), |owner| owner.to_string());
                self.log.note(&format!("port {} is now held by {holder}", self.port));
                return Ok(());
            };
            let (port, marker, waited) = (self.port, self.marker.value(), PORT_LIMIT);
            return Err(LeftBehind::Port { port, marker, waited, holder, failure: ended.err() });
        }
    }

    /// The living processes of this launch.
    pub(super) fn members(&self) -> Vec<Entry> {
        self.family.members()
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

    fn compact(&self) {
        if let Err(error) = self.log.compact() {
            self.log.note(&format!("this log cannot be compacted: {error}"));
        }
    }
}

impl Drop for Server {
    /// The last resort when a trial is abandoned, by a second Ctrl-C or a panic for instance. It blocks for a moment:
    /// what is forked between a look at the processes and the signal is seen by the next look. A stop command is started
    /// and not waited for.
    fn drop(&mut self) {
        if !self.stopped {
            if let Some((command, env)) = &self.stop_command {
                run_unattended(command, env);
            }
            kill_all(&self.family);
            self.compact();
        }
        orphan::forget(&self.family);
    }
}

/// Kills every process of a launch, and blocks for a moment until none is left.
pub(super) fn kill_all(family: &Arc<Family>) {
    let begin = Instant::now();
    while begin.elapsed() < DROP_LIMIT {
        let members = family.members();
        if members.is_empty() {
            return;
        }
        signal(&members, Signal::SIGKILL);
        std::thread::sleep(POLL);
    }
}

/// Ends what earlier, killed tuners left behind of a study, and returns how many processes that were.
///
/// A process is ended that carries the study's marker, is of the session of one that does, or was started by such a one;
/// and nobody else.
///
/// # Errors
/// When a process survives SIGKILL.
pub async fn sweep(study_prefix: &str) -> Result<usize, LeftBehind> {
    sweep_with_logs(study_prefix, |_| false).await
}

/// The same, and those as well whose output is appended to a file for which `is_log` holds: the study's logs, into which
/// only a launch of it writes. They are all that tells of a process that has wiped its environment and lost its parents.
///
/// `is_log` gets absolute paths without symbolic links.
///
/// # Errors
/// When a process survives SIGKILL.
pub async fn sweep_with_logs(study_prefix: &str, is_log: impl Fn(&Path) -> bool) -> Result<usize, LeftBehind> {
    let mut known: BTreeMap<i32, u64> = BTreeMap::new();
    let mut ended = BTreeMap::new();
    let begin = Instant::now();
    loop {
        let members = marked(study_prefix, &is_log, &known);
        if members.is_empty() {
            return Ok(ended.len());
        }
        // Who was seen is ended, also when the marked process by which it was found is gone.
        known = members.iter().map(|member| (member.pid, member.started)).collect();
        ended.extend(known.clone());
        if begin.elapsed() > KILL_LIMIT {
            let (pids, marker) = (known.into_keys().collect(), study_prefix.to_owned());
            return Err(LeftBehind::Processes { pids, marker, waited: KILL_LIMIT });
        }
        signal(&members, Signal::SIGKILL);
        tokio::time::sleep(POLL).await;
    }
}

/// The living processes of a study's launches, whoever has launched them.
fn marked(study_prefix: &str, is_log: &impl Fn(&Path) -> bool, known: &BTreeMap<i32, u64>) -> Vec<Entry> {
    let entries = process::all();
    let own = orphan::session();
    let is_marked = |entry: &&Entry| {
        entry.marker().is_some_and(|marker| marker.starts_with(study_prefix.as_bytes()))
            || (entry.session != own && entry.appends_to(is_log))
    };
    let marked: Vec<_> = entries.iter().filter(|entry| !entry.dead).filter(is_marked).collect();
    let begun = |session: i32| marked.iter().any(|entry| entry.session == session);
    process::kin(&entries, |entry| {
        known.get(&entry.pid) == Some(&entry.started)
            || marked.contains(&entry)
            || (entry.session != own && begun(entry.session))
    })
}

fn signal(entries: &[Entry], signal: Signal) {
    for entry in entries {
        entry.signal(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Marker, Spawn, read_log};

    fn spawn(directory: &Path, script: &str, trial: u32) -> Spawn {
        let marker = Marker::new(&directory.join("test.db"), "stop", trial);
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let log = directory.join(format!("log-{trial}"));
        Spawn { command, env: BTreeMap::new(), log, marker, port: 1, stop_command: None }
    }

    fn launch(directory: &Path, script: &str, trial: u32) -> Server {
        Server::spawn(&spawn(directory, script, trial)).unwrap()
    }

    /// The number that the script has printed behind `word`.
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

    /// Starts a daemon as daemons start: forked twice, in a session of its own, without environment. Prints its number.
    const DAEMON: &str = "(env -i setsid sh -c 'echo daemon $$; while :; do sleep 0.05; done' &) ; ";

    #[tokio::test]
    async fn a_daemon_that_has_left_session_environment_and_parents_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let server = launch(directory.path(), &format!("{DAEMON} echo up; exec sleep 600"), 5);
        until(&server, "up").await;
        until(&server, "daemon").await;
        let daemon = Entry::read(number(&server, "daemon")).unwrap();
        assert_eq!((daemon.parent, daemon.session), (process::own(), daemon.pid), "the kernel gave it to the tuner");
        assert_eq!(daemon.marker(), None);
        server.stop(Duration::from_secs(5)).await.unwrap();
        let now = Entry::read(daemon.pid);
        assert!(now.is_none_or(|now| now.dead || now.started != daemon.started), "{now:?}");
    }

    #[tokio::test]
    async fn who_was_seen_once_is_ended_whatever_it_does_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        // Its output goes elsewhere too, after a look at the processes.
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
            // `setsid` forks where it would have to leave a group that it leads.
            match server.members().into_iter().find(|member| member.session != server.session) {
                Some(member) => break member,
                None => assert!(begin.elapsed() < Duration::from_secs(10), "nobody left the session"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        server.stop(Duration::from_secs(5)).await.unwrap();
        assert!(Entry::read(escaped.pid).is_none_or(|now| now.dead || now.started != escaped.started));
    }

    #[tokio::test]
    async fn a_daemon_that_only_writes_to_a_log_of_the_study_is_swept() {
        let directory = tempfile::tempdir().unwrap();
        let server = launch(directory.path(), &format!("{DAEMON} echo up; exec sleep 600"), 15);
        until(&server, "up").await;
        until(&server, "daemon").await;
        let daemon = Entry::read(number(&server, "daemon")).unwrap();
        let log = directory.path().canonicalize().unwrap().join("log-15");
        // A reader of the log is nobody's business.
        let follow = format!("exec tail -f {} >/dev/null 2>&1", log.display());
        let reader = launch(directory.path(), &follow, 16);
        let nobody = Marker::study_prefix(&directory.path().join("test.db"), "no such study");
        // The leader writes to the log as well.
        assert!(sweep_with_logs(&nobody, |path| path == log).await.unwrap() >= 2);
        assert!(Entry::read(daemon.pid).is_none_or(|now| now.dead || now.started != daemon.started));
        assert!(!reader.members().is_empty());
        reader.stop(Duration::from_secs(5)).await.unwrap();
        server.stop(Duration::ZERO).await.unwrap();
    }

    #[tokio::test]
    async fn zombies_that_come_to_the_tuner_are_collected() {
        let directory = tempfile::tempdir().unwrap();
        let script = "(setsid sh -c 'echo orphan $$; sleep 0.2' &) ; echo up; exec sleep 600";
        let server = launch(directory.path(), script, 7);
        until(&server, "orphan").await;
        let orphan = number(&server, "orphan");
        let begin = Instant::now();
        while Entry::read(orphan).is_some_and(|entry| entry.parent == process::own()) {
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
        let still = |pid: &i32| Entry::read(*pid).is_some_and(|entry| !entry.dead);
        assert!(!ones.iter().any(still), "the first is gone");
        assert!(still(&daemons[1]) && still(&two.session), "the second lives");
        two.stop(Duration::from_secs(5)).await.unwrap();
        assert!(!twos.iter().any(still));
    }

    #[tokio::test]
    async fn a_stop_command_is_run_first_and_its_failure_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let with = |script: &str, trial| {
            let command = ["sh", "-c", script].map(str::to_owned).to_vec();
            let env = BTreeMap::from([("FLAG".to_owned(), directory.path().join("flag").display().to_string())]);
            // Only the stop command ends it within the grace period.
            let engine = "trap '' TERM; echo up; while [ ! -e $FLAG ]; do sleep 0.01; done; echo stopped";
            let spawn = spawn(directory.path(), engine, trial);
            Spawn { stop_command: Some(command), env, ..spawn }
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
    async fn the_stop_command_of_an_abandoned_server_is_run_and_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let flag = directory.path().join("flag");
        let command = vec!["touch".to_owned(), flag.display().to_string()];
        let spawn = Spawn { stop_command: Some(command), ..spawn(directory.path(), "echo up; exec sleep 600", 17) };
        let server = Server::spawn(&spawn).unwrap();
        until(&server, "up").await;
        drop(server);
        let begin = Instant::now();
        while !flag.exists() {
            assert!(begin.elapsed() < Duration::from_secs(10), "it was never run");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_port_that_others_hold_is_told_and_an_error_only_where_the_stop_command_should_have_closed_it() {
        let directory = tempfile::tempdir().unwrap();
        let listen = || std::net::TcpListener::bind((crate::server::HOST, 0)).unwrap();
        let stale = listen();
        let port = stale.local_addr().unwrap().port();
        let before = Spawn { port, ..spawn(directory.path(), "echo up; exec sleep 600", 12) };
        Server::spawn(&before).unwrap().stop(Duration::from_secs(5)).await.unwrap();
        assert!(!read_log(&before.log).contains("port"), "it was there before");
        drop(stale);

        let late = Spawn { port, ..spawn(directory.path(), "exec sleep 600", 13) };
        let server = Server::spawn(&late).unwrap();
        let other = std::net::TcpListener::bind((crate::server::HOST, port)).unwrap();
        server.stop(Duration::from_secs(5)).await.unwrap();
        let told = format!("[setpoint: port {port} is now held by process {} (", std::process::id());
        assert!(read_log(&late.log).starts_with(&told), "{}", read_log(&late.log));
        drop(other);

        let stopped = Spawn { port, stop_command: Some(vec!["true".to_owned()]), ..late };
        let server = Server::spawn(&stopped).unwrap();
        let _container = std::net::TcpListener::bind((crate::server::HOST, port)).unwrap();
        let error = server.stop(Duration::from_secs(5)).await.unwrap_err();
        assert!(matches!(&error, LeftBehind::Port { holder: Some(_), failure: None, .. }), "{error:?}");
        assert!(error.to_string().ends_with("not started by setpoint; the stop command succeeded"), "{error}");
    }

    #[tokio::test]
    async fn a_log_that_an_engine_floods_stays_bounded_while_nobody_asks() {
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
}
