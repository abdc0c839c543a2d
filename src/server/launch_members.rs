//! The processes of one launch, including those that try to leave it.
//!
//! A process belongs to a launch if one of these conditions holds. It then belongs to the launch until it ends.
//!
//! - It is in the session of the launch's first process.
//! - The marker in its environment is the launch's.
//! - Its standard output or error is the launch's log. A waiting process of [`super::starter`] forks such processes.
//! - It was started by a process of the launch, directly or through others.
//! - It was orphaned to the tuner, and [`super::orphan`] assigns it to the launch.
//!
//! No condition is sufficient alone: children call `setsid`, engines overwrite their environment when they set a title,
//! and the chain of parents breaks when a parent ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::process::{self, ProcessEntry};
use super::{Marker, orphan};

/// The processes of one launch, with the observations of earlier readings of `/proc`.
#[derive(Debug)]
pub(super) struct LaunchMembers {
    /// The first process; its number is also that of the session.
    pub(super) leader: ProcessEntry,
    marker: Marker,
    /// Device and inode of the log file. `None` for a helper, whose output is a pipe.
    pub(super) log: Option<(u64, u64)>,
    earlier: Mutex<EarlierReadings>,
}

/// Earlier observations: start times by process number.
#[derive(Debug, Default)]
struct EarlierReadings {
    /// Members.
    members: BTreeMap<i32, u64>,
    /// Processes that lack the marker and do not write to the log.
    foreign: BTreeMap<i32, u64>,
    /// Those among them that lacked both in the reading before as well. A process that was forked a moment ago gets both
    /// within milliseconds.
    surely_foreign: BTreeMap<i32, u64>,
}

fn is_in(known: &BTreeMap<i32, u64>, entry: &ProcessEntry) -> bool {
    known.get(&entry.pid) == Some(&entry.started)
}

impl LaunchMembers {
    pub(super) fn new(leader: ProcessEntry, marker: Marker, log: Option<(u64, u64)>) -> Arc<Self> {
        let seen =
            EarlierReadings { members: BTreeMap::from([(leader.pid, leader.started)]), ..EarlierReadings::default() };
        Arc::new(Self { leader, marker, log, earlier: Mutex::new(seen) })
    }

    /// Returns whether the process was a member when `/proc` was last read.
    pub(super) fn has_seen(&self, entry: &ProcessEntry) -> bool {
        is_in(&self.earlier.lock().unwrap_or_else(PoisonError::into_inner).members, entry)
    }

    /// Returns the living members. Reads every environment, because a new process may have the number of an earlier
    /// one.
    pub(super) fn members(self: &Arc<Self>) -> Vec<ProcessEntry> {
        self.read_members(true)
    }

    /// Like `members`, but reads the environment of each process only once, for frequent calls.
    pub(super) fn members_quickly(self: &Arc<Self>) -> Vec<ProcessEntry> {
        self.read_members(false)
    }

    fn read_members(self: &Arc<Self>, thorough: bool) -> Vec<ProcessEntry> {
        let entries = process::all();
        let orphans = orphan::orphans_of_launch(&entries, self);
        let mut seen = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let EarlierReadings { members: earlier, foreign: earlier_foreign, surely_foreign } = &mut *seen;
        let (mut foreign, mut now_surely_foreign) = (BTreeMap::new(), BTreeMap::new());
        let value = self.marker.value();
        let mut is_marked = |entry: &ProcessEntry| {
            let has_evidence = || {
                entry.marker().is_some_and(|marker| marker == value.as_bytes())
                    || self.log.is_some_and(|log| entry.writes_to(log))
            };
            let is_marked = (thorough || !is_in(surely_foreign, entry)) && has_evidence();
            if !is_marked {
                if is_in(earlier_foreign, entry) {
                    now_surely_foreign.insert(entry.pid, entry.started);
                }
                foreign.insert(entry.pid, entry.started);
            }
            is_marked
        };
        // The kernel may reuse the session's number once all of its processes have ended.
        let reused = entries.iter().any(|entry| entry.pid == self.leader.pid && entry.started != self.leader.started);
        let of_session =
            |entry: &ProcessEntry| !reused && entry.session == self.leader.pid && entry.started >= self.leader.started;
        let roots: BTreeMap<i32, u64> = entries
            .iter()
            .filter(|entry| {
                is_in(earlier, entry)
                    || of_session(entry)
                    || orphans.contains(entry)
                    // A process that is older than the launch cannot belong to it.
                    || (!entry.dead && entry.started >= self.leader.started && is_marked(entry))
            })
            .map(|entry| (entry.pid, entry.started))
            .collect();
        let members = process::living_descendants(&entries, |entry| is_in(&roots, entry));
        *earlier = members.iter().map(|entry| (entry.pid, entry.started)).collect();
        *earlier_foreign = foreign;
        *surely_foreign = now_surely_foreign;
        members
    }
}
