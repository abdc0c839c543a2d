//! One look at `/proc`: which processes there are, who started whom, and what tells that one belongs to a launch.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::process::{FDTarget, Process, Stat, all_processes};

use super::Marker;

/// A process at the instant of a look. Number and start together identify it, for as long as the machine is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) pid: i32,
    /// In ticks since the machine was started.
    pub(super) started: u64,
    pub(super) parent: i32,
    pub(super) session: i32,
    /// Ended, and not yet collected by its parent.
    pub(super) dead: bool,
}

impl From<&Stat> for Entry {
    fn from(stat: &Stat) -> Self {
        // The first thread of a process may end before the others: it looks like a zombie and is none.
        let dead = matches!(stat.state, 'X' | 'x') || (stat.state == 'Z' && stat.num_threads <= 1);
        Self { pid: stat.pid, started: stat.starttime, parent: stat.ppid, session: stat.session, dead }
    }
}

impl Entry {
    /// The process of this number now.
    pub(super) fn read(pid: i32) -> Option<Self> {
        Some(Self::from(&Process::new(pid).ok()?.stat().ok()?))
    }

    /// The value of the marker in its environment, where it can be read and has not been overwritten.
    pub(super) fn marker(&self) -> Option<Vec<u8>> {
        marker_of(&Process::new(self.pid).ok()?)
    }

    /// Whether it holds this file (device and inode) open.
    pub(super) fn holds_file(&self, file: (u64, u64)) -> bool {
        let Ok(descriptors) = std::fs::read_dir(format!("/proc/{}/fd", self.pid)) else { return false };
        descriptors.flatten().any(|descriptor| {
            // Follows the link to the file itself, so that it is found under any name.
            std::fs::metadata(descriptor.path()).is_ok_and(|found| (found.dev(), found.ino()) == file)
        })
    }

    /// Whether its standard output or standard error is appended to a file whose path satisfies `is_log`, as those of an
    /// engine are.
    pub(super) fn appends_to(&self, is_log: impl Fn(&Path) -> bool) -> bool {
        ["1", "2"].iter().any(|descriptor| {
            let at = |what: &str| PathBuf::from(format!("/proc/{}/{what}/{descriptor}", self.pid));
            std::fs::read_link(at("fd")).is_ok_and(|file| is_log(&file))
                && std::fs::read_to_string(at("fdinfo")).is_ok_and(|text| is_appending(&text))
        })
    }

    /// Signals the process, unless another one has its number by now.
    pub(super) fn signal(&self, signal: Signal) {
        if Self::read(self.pid).is_some_and(|now| now.started == self.started) {
            // A process that has ended in the meantime is what is wanted.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }
}

/// Reads a text of `/proc/PID/fdinfo` (`proc(5)`); the flags are octal.
fn is_appending(text: &str) -> bool {
    let flags = text.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| OFlag::from_bits_retain(flags).contains(OFlag::O_APPEND))
}

/// All processes, the dead among them.
pub(super) fn all() -> Vec<Entry> {
    let Ok(processes) = all_processes() else { return Vec::new() };
    processes.flatten().filter_map(|process| Some(Entry::from(&process.stat().ok()?))).collect()
}

/// This process's own number.
pub(super) fn own() -> i32 {
    Pid::this().as_raw()
}

/// The living processes that satisfy `is_root`, and all that descend from them. Neither this process nor `init` is ever
/// among them.
pub(super) fn kin(entries: &[Entry], is_root: impl Fn(&Entry) -> bool) -> Vec<Entry> {
    let own = own();
    let mut children: BTreeMap<i32, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        children.entry(entry.parent).or_default().push(entry);
    }
    let may_be = |entry: &Entry| entry.pid > 1 && entry.pid != own;
    // The dead count as parents: their children may not yet have been given to another one.
    let mut open: Vec<&Entry> = entries.iter().filter(|entry| may_be(entry) && is_root(entry)).collect();
    let mut found = BTreeSet::new();
    while let Some(parent) = open.pop() {
        if found.insert(*parent) {
            let below = children.get(&parent.pid).into_iter().flatten();
            // Nobody is older than who started it, unless the number means another process by now.
            open.extend(below.filter(|child| may_be(child) && child.started >= parent.started));
        }
    }
    found.into_iter().filter(|entry| !entry.dead).collect()
}

/// Processes, zombies left out, of these sessions or whose marker satisfies `matches`.
///
/// Engines that set their process title overwrite their environment, so that neither criterion would do alone.
pub(super) fn members(sessions: &[i32], matches: impl Fn(&[u8]) -> bool) -> Vec<Process> {
    let Ok(processes) = all_processes() else { return Vec::new() };
    let own = own();
    processes
        .flatten()
        .filter(|process| process.pid != own)
        .filter(|process| {
            let Ok(stat) = process.stat() else { return false };
            !Entry::from(&stat).dead
                && (sessions.contains(&stat.session) || marker_of(process).is_some_and(|marker| matches(&marker)))
        })
        .collect()
}

fn marker_of(process: &Process) -> Option<Vec<u8>> {
    let environment = process.environ().ok()?;
    environment.get(OsStr::new(Marker::VARIABLE)).map(|value| value.as_bytes().to_vec())
}

/// Whether one of these processes holds the socket with this inode.
pub(super) fn holds_socket(processes: &[Process], inode: u64) -> bool {
    processes.iter().any(|process| {
        process.fd().is_ok_and(|descriptors| {
            descriptors.flatten().any(|descriptor| matches!(descriptor.target, FDTarget::Socket(i) if i == inode))
        })
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::server) fn entry(pid: i32, parent: i32, session: i32, started: u64) -> Entry {
        Entry { pid, started, parent, session, dead: false }
    }

    fn pids(entries: &[Entry]) -> Vec<i32> {
        entries.iter().map(|entry| entry.pid).collect()
    }

    #[test]
    fn children_are_kin_whatever_session_they_went_to_and_strangers_are_not() {
        let me = own();
        let entries = [
            entry(me, 1, 1, 5),
            entry(-2, me, -2, 10),
            Entry { pid: me + 1, ..entry(0, me, me + 1, 10) },
            entry(me + 2, me + 1, me + 2, 11),
            entry(me + 3, me + 2, me + 3, 12),
            // Older than its parent: the number was used again.
            entry(me + 4, me + 3, 7, 9),
            entry(me + 5, me, me + 5, 12),
        ];
        assert_eq!(pids(&kin(&entries, |entry| entry.pid == me + 1)), [me + 1, me + 2, me + 3]);
        assert_eq!(pids(&kin(&entries, |entry| entry.pid == me)), [0; 0], "this process is nobody's kin");
    }

    #[test]
    fn the_living_children_of_a_dead_process_are_kin() {
        let me = own();
        let dead = Entry { dead: true, ..entry(me + 1, me, me + 1, 10) };
        let entries = [dead, entry(me + 2, me + 1, me + 2, 11)];
        assert_eq!(pids(&kin(&entries, |entry| entry.session == me + 1)), [me + 2]);
    }

    #[test]
    fn a_descriptor_that_appends_is_told_from_one_that_reads() {
        assert!(is_appending("pos:\t0\nflags:\t0102001\nmnt_id:\t29\n"));
        assert!(!is_appending("pos:\t0\nflags:\t0100000\nmnt_id:\t29\n"));
        assert!(!is_appending("flags:\tnone\n") && !is_appending(""));
    }

    proptest! {
        #[test]
        fn kin_is_exactly_whoever_has_a_root_above(parents in prop::collection::vec(0..40_i32, 1..40), root in 0..40_i32) {
            // Numbers far above those that the kernel gives.
            let base = 1 << 28;
            let entries: Vec<_> =
                (0..).zip(&parents).map(|(i, parent)| entry(base + i, base + parent, 0, 1)).collect();
            let found = pids(&kin(&entries, |entry| entry.pid == base + root));
            for entry in &entries {
                let (mut at, mut below) = (entry.pid, false);
                for _ in 0..=entries.len() {
                    below |= at == base + root;
                    let Some(up) = entries.iter().find(|other| other.pid == at) else { break };
                    at = up.parent;
                }
                // A root that does not exist has nobody below it.
                below &= usize::try_from(root).unwrap() < entries.len();
                prop_assert_eq!(found.contains(&entry.pid), below, "{} in {:?}", entry.pid, entries);
            }
        }
    }
}
