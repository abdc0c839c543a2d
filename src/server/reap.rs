//! Detection and termination of processes that a killed tuner left behind.
//!
//! A new tuner has no memory of earlier launches. A process is therefore attributed to a launch by one of these proofs:
//!
//! - **Marker.** Its environment names database, study and trial. Engines that set a process title overwrite their
//!   environment (vLLM does). This proof alone therefore misses the processes that hold the device.
//! - **Log.** Its standard output or error is the log file of a trial in `DATABASE.logs/STUDY/`, the directory of the
//!   tuner's lock. This proof survives a title, a cleared environment and `setsid`.
//! - **Kin.** It descends from a process with a proof.
//! - **Session.** It shares the launch's own session with a process that has a proof. A session id alone is no proof,
//!   because numbers are reused. But the kernel does not reuse a number while a process has it as its session
//!   (`free_pid` in `kernel/pid.c` waits for the last of them). While a proven process lives in a session, all
//!   processes of that session therefore go back to one call of `setsid`. For this reason session ids are read from
//!   living proven processes at each look, and never stored. The call was the launch's own if the leader is proven or
//!   has ended, and there is no terminal. The last condition protects the shell of a user who has set the marker
//!   variable by hand.
//!
//! A process that was proven once is recognised by its id and start time, which no two processes share.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::process::{FDPermissions, FDTarget, Process, all_processes};
use procfs::{Current, Uptime};

use super::{LeftBehind, Marker};
use crate::private_files::user;
use crate::stats::to_f64;

const POLL: Duration = Duration::from_millis(20);

/// The interval of repeated TERMs as in [`Server::stop`](super::Server::stop): vLLM ignores a TERM during its start-up,
/// but a later one works.
const REPEAT_TERM: Duration = Duration::from_secs(3);

/// The time that processes may take to end after KILL. The kernel releases the memory of a large process page by page.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// The launch or other purpose that a process was started for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessOrigin {
    pub database: PathBuf,
    pub study: String,
    /// The number of a trial, or another purpose within the study, for instance `preflight`.
    pub purpose: String,
}

impl ProcessOrigin {
    /// Parses the value of a marker.
    #[must_use]
    pub fn from_marker(value: &str) -> Option<Self> {
        // Split from the right, because only the database may contain `|`.
        let mut parts = value.rsplitn(3, '|');
        let (purpose, study, database) = (parts.next()?, parts.next()?, parts.next()?);
        let whole = ![purpose, study, database].contains(&"");
        whole.then(|| Self { database: database.into(), study: study.to_owned(), purpose: purpose.to_owned() })
    }

    /// Parses the path of a log: `DATABASE.logs/STUDY/trial-0007.log`.
    #[must_use]
    pub fn from_log(path: &Path) -> Option<Self> {
        let number = path.file_name()?.to_str()?.strip_prefix("trial-")?.strip_suffix(".log")?;
        let number: u32 = number.parse().ok()?;
        let study = path.parent()?;
        let logs = study.parent()?.as_os_str().as_bytes();
        let database = PathBuf::from(OsStr::from_bytes(logs.strip_suffix(b".logs")?));
        Some(Self { database, study: study.file_name()?.to_str()?.to_owned(), purpose: number.to_string() })
    }

    /// Returns whether it belongs to a study of this database.
    #[must_use]
    pub fn is_of(&self, database: &Path) -> bool {
        self.database == resolved(database)
    }

    /// Returns the directory of the study's lock and logs.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        log_directory(&self.database, &self.study)
    }
}

/// Returns the database's path with the links of its directory resolved, as the kernel shows paths of neighbouring
/// files.
fn resolved(database: &Path) -> PathBuf {
    let absolute = std::path::absolute(database).unwrap_or_else(|_| database.to_owned());
    let parent = absolute.parent().and_then(|parent| parent.canonicalize().ok());
    match (parent, absolute.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => absolute,
    }
}

/// Returns the absolute path of `DATABASE.logs/STUDY`, beside the database.
#[must_use]
pub fn log_directory(database: &Path, study: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".logs");
    let directory = PathBuf::from(name).join(study);
    std::path::absolute(&directory).unwrap_or(directory)
}

/// Returns the path of the log of a trial's launch.
#[must_use]
pub fn trial_log(database: &Path, study: &str, number: u32) -> PathBuf {
    log_directory(database, study).join(format!("trial-{number:04}.log"))
}

/// The evidence that a process belongs to a launch, as the head of this file defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftoverProof {
    Marker,
    Log,
    Descendant,
    Session,
    /// It was proven when `/proc` was read before, by any of the other proofs.
    SeenEarlier,
}

impl LeftoverProof {
    /// Returns the name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Marker => "marker",
            Self::Log => "log",
            Self::Descendant => "kin",
            Self::Session => "session",
            Self::SeenEarlier => "seen",
        }
    }
}

/// A living process of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub pid: i32,
    /// The process's title, or the name of its program.
    pub name: String,
    pub origin: ProcessOrigin,
    pub proof: LeftoverProof,
    /// Time since its start; zero if the clock cannot be read.
    pub age: Duration,
    /// Start time in ticks since boot.
    started: u64,
}

/// Finds living processes of this user that belong to launches accepted by `of`, sorted by id, whether or not their
/// tuner is alive. Reads the whole of `/proc`. This process and its ancestors are never included.
#[must_use]
pub fn leftovers(of: impl Fn(&ProcessOrigin) -> bool) -> Vec<Leftover> {
    find_proven(&BTreeMap::new(), of)
}

/// Processes that were proven before, by id and start time.
type ProvenProcesses = BTreeMap<(i32, u64), ProcessOrigin>;

fn find_proven(known: &ProvenProcesses, of: impl Fn(&ProcessOrigin) -> bool) -> Vec<Leftover> {
    let all = snapshot();
    let uptime = Uptime::current().map_or(0.0, |uptime| uptime.uptime);
    let ticks = procfs::ticks_per_second().max(1);
    let own = i32::try_from(std::process::id()).unwrap_or(-1);
    let proven = attribute_processes(&all, known, own).into_iter().filter(|(_, (origin, _))| of(origin));
    let leftover = |(index, (origin, proof)): (usize, (ProcessOrigin, LeftoverProof))| {
        let seen = &all[index];
        let age = uptime - to_f64(seen.started) / to_f64(ticks);
        let age = Duration::try_from_secs_f64(age).unwrap_or_default();
        Leftover { pid: seen.pid, name: seen.name.clone(), origin, proof, age, started: seen.started }
    };
    proven.map(leftover).collect()
}

/// Ends every process of the launches accepted by `of`: TERM, repeated, then KILL after `grace`. Returns the ended
/// processes. The caller must hold the locks of their studies, so that no tuner starts a launch meanwhile.
///
/// # Errors
/// If a process survives SIGKILL.
pub async fn end_processes(of: impl Fn(&ProcessOrigin) -> bool, grace: Duration) -> Result<Vec<Leftover>, LeftBehind> {
    let (mut ended, mut known) = (Vec::new(), ProvenProcesses::new());
    let (begin, mut termed) = (Instant::now(), None::<Instant>);
    loop {
        let left = find_proven(&known, &of);
        if left.is_empty() {
            return Ok(ended);
        }
        for leftover in &left {
            if known.insert((leftover.pid, leftover.started), leftover.origin.clone()).is_none() {
                ended.push(leftover.clone());
            }
        }
        if begin.elapsed() > grace + KILL_LIMIT {
            let (pids, marker) = (left.iter().map(|leftover| leftover.pid).collect(), left[0].origin.study.clone());
            return Err(LeftBehind::Processes { pids, marker, waited: KILL_LIMIT });
        }
        if begin.elapsed() >= grace {
            signal(&left, Signal::SIGKILL);
        } else if termed.is_none_or(|last| last.elapsed() >= REPEAT_TERM) {
            signal(&left, Signal::SIGTERM);
            termed = Some(Instant::now());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Signals the processes whose number has not been reused.
fn signal(leftovers: &[Leftover], signal: Signal) {
    for leftover in leftovers {
        let started = Process::new(leftover.pid).and_then(|process| process.stat()).map(|stat| stat.starttime);
        if started.is_ok_and(|started| started == leftover.started) {
            // The process may have ended in the meantime, which is the purpose anyway.
            let _ = kill(Pid::from_raw(leftover.pid), signal);
        }
    }
}

/// One living process of this user.
#[derive(Clone, Debug)]
struct UserProcess {
    pid: i32,
    parent: i32,
    session: i32,
    started: u64,
    has_terminal: bool,
    name: String,
    /// The proof from its environment or its output.
    own_proof: Option<(ProcessOrigin, LeftoverProof)>,
}

fn snapshot() -> Vec<UserProcess> {
    let user = user();
    let read = |process: Process| {
        let stat = process.stat().ok().filter(|stat| !matches!(stat.state, 'Z' | 'X'))?;
        if process.uid().ok() != user {
            return None;
        }
        let own_proof = origin_from_marker(&process)
            .map(|of| (of, LeftoverProof::Marker))
            .or_else(|| origin_from_output(&process).map(|of| (of, LeftoverProof::Log)));
        // A title overwrites the arguments.
        let title = process.cmdline().unwrap_or_default().first().map(|word| word.trim().to_owned());
        Some(UserProcess {
            pid: stat.pid,
            parent: stat.ppid,
            session: stat.session,
            started: stat.starttime,
            has_terminal: stat.tty_nr != 0,
            name: title.filter(|title| !title.is_empty()).unwrap_or(stat.comm),
            own_proof,
        })
    };
    all_processes().into_iter().flatten().flatten().filter_map(read).collect()
}

fn origin_from_marker(process: &Process) -> Option<ProcessOrigin> {
    let environment = process.environ().ok()?;
    let origin = ProcessOrigin::from_marker(environment.get(OsStr::new(Marker::VARIABLE))?.to_str()?)?;
    Some(ProcessOrigin { database: resolved(&origin.database), ..origin })
}

/// Returns the launch whose log is this process's output.
fn origin_from_output(process: &Process) -> Option<ProcessOrigin> {
    let of = |descriptor| {
        let info = process.fd_from_fd(descriptor).ok()?;
        let FDTarget::Path(path) = &info.target else { return None };
        let path = path.to_str()?;
        // A process that follows a log only reads it, and proves nothing.
        let is_written = info.mode().contains(FDPermissions::WRITE);
        let origin = ProcessOrigin::from_log(Path::new(path.strip_suffix(" (deleted)").unwrap_or(path)));
        // The tuner creates its lock there before any launch. Without the lock, the directory may have this name by
        // chance.
        origin.filter(|origin| is_written && origin.directory().join("lock").exists())
    };
    of(1).or_else(|| of(2))
}

/// Returns the processes that belong to a launch, by their index in `all`.
fn attribute_processes(
    all: &[UserProcess],
    known: &ProvenProcesses,
    own: i32,
) -> BTreeMap<usize, (ProcessOrigin, LeftoverProof)> {
    let place: BTreeMap<i32, usize> = all.iter().enumerate().map(|(index, seen)| (seen.pid, index)).collect();
    let mut excluded = BTreeSet::new();
    let mut ancestor = Some(own);
    while let Some(pid) = ancestor.filter(|pid| excluded.insert(*pid)) {
        ancestor = place.get(&pid).map(|index| all[*index].parent);
    }
    let own_session = place.get(&own).map(|index| all[*index].session);
    let mut found: BTreeMap<usize, (ProcessOrigin, LeftoverProof)> = BTreeMap::new();
    for (index, seen) in all.iter().enumerate().filter(|(_, seen)| !excluded.contains(&seen.pid)) {
        let before = || known.get(&(seen.pid, seen.started)).map(|launch| (launch.clone(), LeftoverProof::SeenEarlier));
        found.extend(seen.own_proof.clone().or_else(before).map(|proof| (index, proof)));
    }
    loop {
        // The session of a leader that has ended is accepted. A living leader that is missing in `all` belongs to
        // another user, and its session is rejected.
        let is_own = |session: i32| match place.get(&session) {
            Some(leader) => found.contains_key(leader),
            None => Process::new(session).is_err(),
        };
        let sessions: BTreeMap<i32, &ProcessOrigin> = found
            .iter()
            .filter(|(index, _)| !all[**index].has_terminal && Some(all[**index].session) != own_session)
            .filter(|(index, _)| is_own(all[**index].session))
            .map(|(index, (launch, _))| (all[*index].session, launch))
            .collect();
        let mut more = Vec::new();
        for (index, seen) in all.iter().enumerate() {
            if found.contains_key(&index) || excluded.contains(&seen.pid) {
                continue;
            }
            let parent = place.get(&seen.parent).and_then(|parent| found.get(parent));
            if let Some((launch, _)) = parent {
                more.push((index, (launch.clone(), LeftoverProof::Descendant)));
            } else if let Some(launch) = sessions.get(&seen.session) {
                more.push((index, ((*launch).clone(), LeftoverProof::Session)));
            }
        }
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

#[cfg(test)]
#[path = "reap_tests.rs"]
mod tests;
