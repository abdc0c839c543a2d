//! A snapshot of `/proc`: processes, their parents, and the evidence that one belongs to a launch.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::process::{FDTarget, Process, Stat, all_processes};

use super::Marker;

/// A process at the time of a snapshot. Number and start time together identify it until the machine is rebooted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessEntry {
    pub(super) pid: i32,
    /// Start time in ticks since boot.
    pub(super) started: u64,
    pub(super) parent: i32,
    pub(super) session: i32,
    /// Whether it has ended and its parent has not yet collected it.
    pub(super) dead: bool,
}

impl From<&Stat> for ProcessEntry {
    fn from(stat: &Stat) -> Self {
        // If the first thread of a process ends before the others, the process looks like a zombie but is alive.
        let dead = matches!(stat.state, 'X' | 'x') || (stat.state == 'Z' && stat.num_threads <= 1);
        Self { pid: stat.pid, started: stat.starttime, parent: stat.ppid, session: stat.session, dead }
    }
}

impl ProcessEntry {
    /// Reads the process that has this number now.
    pub(super) fn read(pid: i32) -> Option<Self> {
        Some(Self::from(&Process::new(pid).ok()?.stat().ok()?))
    }

    /// Returns the value of the marker in its environment, if it can be read and has not been overwritten.
    pub(super) fn marker(&self) -> Option<Vec<u8>> {
        marker_of(&Process::new(self.pid).ok()?)
    }

    /// Returns whether it holds this file (device and inode) open.
    pub(super) fn holds_file(&self, file: (u64, u64)) -> bool {
        let Ok(descriptors) = std::fs::read_dir(format!("/proc/{}/fd", self.pid)) else { return false };
        descriptors.flatten().any(|descriptor| {
            // `metadata` follows the link to the file itself, so that the file is found under any name.
            std::fs::metadata(descriptor.path()).is_ok_and(|found| (found.dev(), found.ino()) == file)
        })
    }

    /// Returns whether its standard output or error is this file (device and inode).
    pub(super) fn writes_to(&self, file: (u64, u64)) -> bool {
        [1, 2].into_iter().any(|output| {
            let found = std::fs::metadata(format!("/proc/{}/fd/{output}", self.pid));
            found.is_ok_and(|found| (found.dev(), found.ino()) == file)
        })
    }

    /// Signals the process, unless another one has its number by now.
    pub(super) fn signal(&self, signal: Signal) {
        if Self::read(self.pid).is_some_and(|now| now.started == self.started) {
            // The process may have ended in the meantime, which is the purpose anyway.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }
}

/// Reads all processes, including dead ones.
pub(super) fn all() -> Vec<ProcessEntry> {
    let Ok(processes) = all_processes() else { return Vec::new() };
    processes.flatten().filter_map(|process| Some(ProcessEntry::from(&process.stat().ok()?))).collect()
}

/// Returns this process's own number.
pub(super) fn own() -> i32 {
    Pid::this().as_raw()
}

/// Returns the living processes that satisfy `is_root`, and all of their descendants. This process and `init` are never
/// included.
pub(super) fn living_descendants(
    entries: &[ProcessEntry],
    is_root: impl Fn(&ProcessEntry) -> bool,
) -> Vec<ProcessEntry> {
    let own = own();
    let mut children: BTreeMap<i32, Vec<&ProcessEntry>> = BTreeMap::new();
    for entry in entries {
        children.entry(entry.parent).or_default().push(entry);
    }
    let may_be = |entry: &ProcessEntry| entry.pid > 1 && entry.pid != own;
    // Dead processes count as parents, because their children may not yet have been given to another parent.
    let mut open: Vec<&ProcessEntry> = entries.iter().filter(|entry| may_be(entry) && is_root(entry)).collect();
    let mut found = BTreeSet::new();
    while let Some(parent) = open.pop() {
        if found.insert(*parent) {
            let below = children.get(&parent.pid).into_iter().flatten();
            // A child cannot be older than its parent. If it is, the parent's number has been reused.
            open.extend(below.filter(|child| may_be(child) && child.started >= parent.started));
        }
    }
    found.into_iter().filter(|entry| !entry.dead).collect()
}

/// Returns the living processes that are in one of these sessions or whose marker satisfies `matches`.
///
/// Neither criterion is sufficient alone: engines that set their process title overwrite their environment.
#[cfg(test)]
pub(super) fn members(sessions: &[i32], matches: impl Fn(&[u8]) -> bool) -> Vec<Process> {
    let Ok(processes) = all_processes() else { return Vec::new() };
    let own = own();
    processes
        .flatten()
        .filter(|process| process.pid != own)
        .filter(|process| {
            let Ok(stat) = process.stat() else { return false };
            !ProcessEntry::from(&stat).dead
                && (sessions.contains(&stat.session) || marker_of(process).is_some_and(|marker| matches(&marker)))
        })
        .collect()
}

fn marker_of(process: &Process) -> Option<Vec<u8>> {
    let environment = process.environ().ok()?;
    environment.get(OsStr::new(Marker::VARIABLE)).map(|value| value.as_bytes().to_vec())
}

/// Returns whether one of these processes holds the socket with this inode.
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

    pub(in crate::server) fn entry(pid: i32, parent: i32, session: i32, started: u64) -> ProcessEntry {
        ProcessEntry { pid, started, parent, session, dead: false }
    }

    fn pids(entries: &[ProcessEntry]) -> Vec<i32> {
        entries.iter().map(|entry| entry.pid).collect()
    }

    #[test]
    fn children_in_any_session_are_kin_and_foreign_processes_are_not() {
        let me = own();
        let entries = [
            entry(me, 1, 1, 5),
            entry(-2, me, -2, 10),
            ProcessEntry { pid: me + 1, ..entry(0, me, me + 1, 10) },
            entry(me + 2, me + 1, me + 2, 11),
            entry(me + 3, me + 2, me + 3, 12),
            // Older than its parent, because the number was reused.
            entry(me + 4, me + 3, 7, 9),
            entry(me + 5, me, me + 5, 12),
        ];
        assert_eq!(pids(&living_descendants(&entries, |entry| entry.pid == me + 1)), [me + 1, me + 2, me + 3]);
        assert_eq!(
            pids(&living_descendants(&entries, |entry| entry.pid == me)),
            [0; 0],
            "this process is nobody's kin"
        );
    }

    #[test]
    fn the_living_children_of_a_dead_process_are_kin() {
        let me = own();
        let dead = ProcessEntry { dead: true, ..entry(me + 1, me, me + 1, 10) };
        let entries = [dead, entry(me + 2, me + 1, me + 2, 11)];
        assert_eq!(pids(&living_descendants(&entries, |entry| entry.session == me + 1)), [me + 2]);
    }

    proptest! {
        #[test]
        fn kin_are_exactly_the_descendants_of_a_root(parents in prop::collection::vec(0..40_i32, 1..40), root in 0..40_i32) {
            // Numbers far above those that the kernel assigns.
            let base = 1 << 28;
            let entries: Vec<_> =
                (0..).zip(&parents).map(|(i, parent)| entry(base + i, base + parent, 0, 1)).collect();
            let found = pids(&living_descendants(&entries, |entry| entry.pid == base + root));
            for entry in &entries {
                let (mut at, mut below) = (entry.pid, false);
                for _ in 0..=entries.len() {
                    below |= at == base + root;
                    let Some(up) = entries.iter().find(|other| other.pid == at) else { break };
                    at = up.parent;
                }
                // A root that does not exist has no descendants.
                below &= usize::try_from(root).unwrap() < entries.len();
                prop_assert_eq!(found.contains(&entry.pid), below, "{} in {:?}", entry.pid, entries);
            }
        }
    }
}
