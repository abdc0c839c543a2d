//! The processes of one launch, however they try to leave it.
//!
//! A process belongs to a launch when one of these holds; it keeps belonging to it until it ends:
//!
//! - it is of the session that the launch began;
//! - the marker in its environment is the launch's;
//! - a process that belongs to the launch has started it, directly or through others;
//! - it was orphaned to the tuner and [`super::orphan`] knows whose it is.
//!
//! None would do alone: children call `setsid`, engines overwrite their environment when they set a title, and the chain
//! of parents breaks where one of them ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::process::{self, Entry};
use super::{Marker, orphan};

/// The processes of one launch, and what was seen of them so far.
#[derive(Debug)]
pub(super) struct Family {
    /// The first process; its number is the session's as well.
    pub(super) leader: Entry,
    marker: Marker,
    /// Device and inode of the file that it writes to. `None` for a helper, whose output is a pipe.
    pub(super) log: Option<(u64, u64)>,
    seen: Mutex<Seen>,
}

/// Starts by process number.
#[derive(Debug, Default)]
struct Seen {
    kin: BTreeMap<i32, u64>,
    /// Whose environment was read and has not the marker.
    strangers: BTreeMap<i32, u64>,
}

fn is_in(known: &BTreeMap<i32, u64>, entry: &Entry) -> bool {
    known.get(&entry.pid) == Some(&entry.started)
}

impl Family {
    pub(super) fn new(leader: Entry, marker: Marker, log: Option<(u64, u64)>) -> Arc<Self> {
        let seen = Seen { kin: BTreeMap::from([(leader.pid, leader.started)]), ..Seen::default() };
        Arc::new(Self { leader, marker, log, seen: Mutex::new(seen) })
    }

    /// Whether it was a member when one last looked.
    pub(super) fn has_seen(&self, entry: &Entry) -> bool {
        is_in(&self.seen.lock().unwrap_or_else(PoisonError::into_inner).kin, entry)
    }

    /// Who lives now. Reads every environment: a new process cannot hide behind an old one's number.
    pub(super) fn members(self: &Arc<Self>) -> Vec<Entry> {
        self.look(true)
    }

    /// The same with each environment read only once: for those who ask again and again.
    pub(super) fn members_quickly(self: &Arc<Self>) -> Vec<Entry> {
        self.look(false)
    }

    fn look(self: &Arc<Self>, thorough: bool) -> Vec<Entry> {
        let entries = process::all();
        let orphans = orphan::adopted(&entries, self);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Seen { kin, strangers } = &mut *seen;
        let mut unmarked = BTreeMap::new();
        let value = self.marker.value();
        let mut is_marked = |entry: &Entry| {
            let marked = (thorough || !is_in(strangers, entry))
                && entry.marker().is_some_and(|marker| marker == value.as_bytes());
            if !marked {
                unmarked.insert(entry.pid, entry.started);
            }
            marked
        };
        // The session's number is free for others once all of its processes have ended.
        let reused = entries.iter().any(|entry| entry.pid == self.leader.pid && entry.started != self.leader.started);
        let of_session =
            |entry: &Entry| !reused && entry.session == self.leader.pid && entry.started >= self.leader.started;
        let roots: BTreeMap<i32, u64> = entries
            .iter()
            .filter(|entry| {
                is_in(kin, entry)
                    || of_session(entry)
                    || orphans.contains(entry)
                    // Nobody who is older than a launch belongs to it.
                    || (!entry.dead && entry.started >= self.leader.started && is_marked(entry))
            })
            .map(|entry| (entry.pid, entry.started))
            .collect();
        let members = process::kin(&entries, |entry| is_in(&roots, entry));
        *kin = members.iter().map(|entry| (entry.pid, entry.started)).collect();
        *strangers = unmarked;
        members
    }
}
