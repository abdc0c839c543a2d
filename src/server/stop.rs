//! The end of a launch: stop command, TERM, grace period, KILL, until no process of it is left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::process::ProcessEntry;
use super::short_command::run_short;
use super::{LaunchMembers, ResourceHolder, Server, orphan, port};

/// A part of a launch that still exists after its end.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LeftBehind {
    /// Processes that survived KILL. This happens while the kernel waits for a device.
    #[error("processes {pids:?} of trial {marker} still exist {waited:?} after SIGKILL")]
    Processes { pids: Vec<i32>, marker: String, waited: Duration },
    /// A program still listens on the port after the stop command and the end of all processes.
    #[error(
        "port {port} still answers {waited:?} after trial {marker} was stopped: {}; the stop command {}",
        holder.as_ref().map_or_else(|| "its holder is not visible".to_owned(), ToString::to_string),
        failure.as_ref().map_or_else(|| "succeeded".to_owned(), |failure| format!("failed: {failure}"))
    )]
    Port { port: u16, marker: String, waited: Duration, holder: Option<Box<ResourceHolder>>, failure: Option<String> },
}

const POLL: Duration = Duration::from_millis(20);

/// The interval of repeated TERMs: vLLM ignores a TERM during its start-up, but a later one works.
const REPEAT_TERM: Duration = Duration::from_secs(3);

/// The time that processes may take to end after KILL. The kernel releases the memory of a large process page by page.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// The longest time that dropping an abandoned server may block its caller.
const DROP_LIMIT: Duration = Duration::from_secs(2);

/// The time that a stop command may take beyond the grace period. `docker stop` waits 10 s before it kills a container.
const STOP_COMMAND_LIMIT: Duration = Duration::from_secs(20);

/// The time that a port may stay open after a stop command: a container's proxy ends later than the container.
const PORT_LIMIT: Duration = Duration::from_secs(3);

impl Server {
    /// Runs the stop command, if there is one, and ends every process of this launch. Afterwards no process of the
    /// launch listens on its port. A failed stop command is recorded in the log, and in the error if the port stays
    /// open.
    ///
    /// # Errors
    /// If a process survives SIGKILL, or if a listener remains on the port after the stop command.
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
        // The leader has ended; this collects it if it is a zombie.
        self.wait_for_exit().await;
        self.stopped = true;
        let closed = self.wait_for_closed_port(stop_command).await;
        self.compact();
        closed
    }

    /// Runs the stop command, if there is one, and returns its result.
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

    /// Waits until no new listener is on the port; listeners from before the launch are ignored. `stop_command` is the
    /// result of the stop command, if there was one.
    ///
    /// Without a stop command, a new listener is foreign, because all processes of the launch have ended. It is noted
    /// in the log and is no error, since the next launch takes another port.
    async fn wait_for_closed_port(&self, stop_command: Option<Result<(), String>>) -> Result<(), LeftBehind> {
        let begin = Instant::now();
        loop {
            let mut listeners = port::listening_inodes(self.port);
            listeners.retain(|inode| !self.stale_sockets.contains(inode));
            if listeners.is_empty() {
                return Ok(());
            }
            if stop_command.is_some() && begin.elapsed() < PORT_LIMIT {
                tokio::time::sleep(POLL).await;
                continue;
            }
            let holder = ResourceHolder::of_socket(&listeners);
            let Some(ended) = stop_command else {
                let holder =
                    holder.map_or_else(|| "a process that is not visible".to_owned(), |owner| owner.to_string());
                self.log.note(&format!("port {} is now held by {holder}", self.port));
                return Ok(());
            };
            let (port, marker, waited) = (self.port, self.marker.value(), PORT_LIMIT);
            let holder = holder.map(Box::new);
            return Err(LeftBehind::Port { port, marker, waited, holder, failure: ended.err() });
        }
    }

    /// Returns the living processes of this launch.
    pub(super) fn members(&self) -> Vec<ProcessEntry> {
        self.members.members()
    }

    /// Waits for `time`. Collects the leader's exit status if it ends meanwhile.
    async fn reap_for(&mut self, time: Duration) {
        let wait = async {
            self.wait_for_exit().await;
            // Other processes of the launch may still be alive.
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
    /// Kills an abandoned launch, for instance after a second Ctrl-C or a panic. It blocks briefly: a process that is
    /// forked between a look and the signal is found by the next look. The stop command is left to the caller
    /// ([`PendingStop`](super::PendingStop)).
    fn drop(&mut self) {
        if !self.stopped {
            kill_all(&self.members);
            self.compact();
        }
        orphan::forget(&self.members);
        kill_until_none(orphan::orphans_of_ended_launches);
    }
}

/// Kills every process of a launch, and blocks until none is left or `DROP_LIMIT` has passed.
pub(super) fn kill_all(family: &Arc<LaunchMembers>) {
    kill_until_none(|| family.members());
}

fn kill_until_none(look: impl Fn() -> Vec<ProcessEntry>) {
    let begin = Instant::now();
    while begin.elapsed() < DROP_LIMIT {
        let found = look();
        if found.is_empty() {
            return;
        }
        signal(&found, Signal::SIGKILL);
        std::thread::sleep(POLL);
    }
}

fn signal(entries: &[ProcessEntry], signal: Signal) {
    for entry in entries {
        entry.signal(signal);
    }
}

#[cfg(test)]
mod tests;
