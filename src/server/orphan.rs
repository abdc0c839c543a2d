//! Processes whose parent has ended, and whom the kernel gives to the tuner (`PR_SET_CHILD_SUBREAPER`, `prctl(2)`).
//!
//! Without that they would go to `init`, and one that called `setsid` and wiped its environment between two looks at the
//! processes could not be told from any daemon of the machine.
//!
//! Whatever is orphaned to the tuner descends from a child of the tuner, because the kernel gives an orphan to the nearest
//! ancestor that asked for it. So it descends from a launch, a helper or a short command ([`super::run_short`]), and it is
//! ours, where three things hold. They are checked:
//!
//! - the tuner is not process 1, to which the kernel gives everybody's orphans;
//! - it had no children when it asked: a shell may have started some before it became the tuner (`exec`);
//! - the process is not of the tuner's own session, in which nothing is started, and carries no marker: what is marked is
//!   found by its marker.
//!
//! Which launch it belongs to, its log says: what an engine starts has its output there. A process without it belongs to a
//! launch that lives and is older than the process; while there are several, it is left until one remains. Where none
//! remains, because they ended at the same time, it is left to whoever ends last ([`strays`]).

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getsid};

use super::family::Family;
use super::process::{self, Entry};

/// What this process has started. There is one, because children are the whole process's.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// Whether the kernel was asked for orphans, and whether all of them are certain to be ours.
    asked: Option<bool>,
    /// Launches, helpers and short commands that live, by the number of their first process, for which somebody waits
    /// elsewhere. Whoever starts one holds the lock until it is here.
    families: BTreeMap<i32, Arc<Family>>,
    /// When the first of the launches that are over was started, in ticks since the machine's start.
    over: Option<u64>,
}

impl Children {
    /// A family is known for as long as somebody waits for it.
    pub(super) fn register(&mut self, family: &Arc<Family>) {
        self.families.insert(family.leader.pid, Arc::clone(family));
    }
}

static CHILDREN: LazyLock<Mutex<Children>> = LazyLock::new(Mutex::default);

/// Locks the list of children, having asked for orphans.
pub(super) fn children() -> MutexGuard<'static, Children> {
    let mut children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    if children.asked.is_none() {
        let own = process::own();
        let alone = own != 1 && !process::all().iter().any(|entry| entry.parent == own);
        // A kernel that refuses leaves orphans to init, as if nobody had asked.
        children.asked = Some(set_child_subreaper(true).is_ok() && alone);
    }
    children
}

/// Nobody waits for the first process of this family any more.
pub(super) fn forget(family: &Arc<Family>) {
    let mut children = children();
    // Its number may be another one's by now.
    if children.families.get(&family.leader.pid).is_some_and(|known| Arc::ptr_eq(known, family)) {
        children.families.remove(&family.leader.pid);
        if family.log.is_some() {
            children.over = Some(children.over.map_or(family.leader.started, |first| first.min(family.leader.started)));
        }
    }
}

/// Living orphans of the tuner, and those whose they may be.
struct Orphans {
    living: Vec<Entry>,
    families: Vec<Arc<Family>>,
    /// Whether all of them are certain to be ours.
    certain: bool,
    over: Option<u64>,
}

/// Looks for orphans among `entries`, which were read before. Collects those that have ended.
fn orphans(entries: &[Entry]) -> Orphans {
    let children = children();
    let own = process::own();
    let session = session();
    let orphans = entries
        .iter()
        .filter(|entry| entry.parent == own && entry.session != session && !children.families.contains_key(&entry.pid));
    let (dead, living): (Vec<Entry>, Vec<_>) = orphans.partition(|entry| entry.dead);
    for entry in dead {
        // Nobody else waits for it: it was not among those that the tuner has started.
        let _ = waitpid(Pid::from_raw(entry.pid), Some(WaitPidFlag::WNOHANG));
    }
    let (families, certain) = (children.families.values().cloned().collect(), children.asked == Some(true));
    Orphans { living, families, certain, over: children.over }
}

/// The processes that were orphaned to the tuner and are this family's. Collects those of all families that have ended.
pub(super) fn adopted(entries: &[Entry], family: &Arc<Family>) -> Vec<Entry> {
    let Orphans { living, families, certain, .. } = orphans(entries);
    let evidence = |entry: &Entry| {
        if entry.marker().is_some() {
            return Evidence::Marked;
        }
        let writes_to = |family: &&Arc<Family>| family.log.is_some_and(|log| entry.holds_file(log));
        families.iter().find(writes_to).map_or(Evidence::None, |family| Evidence::Log(family.leader.pid))
    };
    living.into_iter().filter(|entry| owner(entry, &families, certain, evidence) == Some(family.leader.pid)).collect()
}

/// The orphans that launches have left which are over: no launch that lives can have started them.
pub(super) fn strays() -> Vec<Entry> {
    let Orphans { living, families, certain, over } = orphans(&process::all());
    let over = over.filter(|_| certain);
    living.into_iter().filter(|entry| is_stray(entry, &families, over, || entry.marker().is_some())).collect()
}

/// `over`: when the first of the launches that are over was started, where all orphans are certain to be ours.
fn is_stray(entry: &Entry, families: &[Arc<Family>], over: Option<u64>, is_marked: impl FnOnce() -> bool) -> bool {
    let is_ones = |family: &Arc<Family>| {
        let may_be = family.log.is_some() && family.leader.started <= entry.started;
        may_be || family.leader.pid == entry.session || family.has_seen(entry)
    };
    over.is_some_and(|first| first <= entry.started) && !families.iter().any(is_ones) && !is_marked()
}

/// The session that the tuner itself is of.
pub(super) fn session() -> i32 {
    getsid(None).map_or(0, Pid::as_raw)
}

/// What a process itself tells of its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    Marked,
    /// It writes to the log of the family with this leader.
    Log(i32),
    None,
}

/// Whose orphan it is, by the leader's number; `None` where that is not certain, or not to be found out here.
fn owner(
    entry: &Entry,
    families: &[Arc<Family>],
    certain: bool,
    evidence: impl FnOnce(&Entry) -> Evidence,
) -> Option<i32> {
    if families.iter().any(|family| family.leader.pid == entry.session || family.has_seen(entry)) {
        return None;
    }
    match evidence(entry) {
        Evidence::Marked => None,
        Evidence::Log(leader) => Some(leader),
        Evidence::None if !certain => None,
        Evidence::None => {
            // What a helper starts is not missed: a helper that breaks is replaced.
            let mut able =
                families.iter().filter(|family| family.log.is_some() && family.leader.started <= entry.started);
            able.next().filter(|_| able.next().is_none()).map(|family| family.leader.pid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Marker;
    use crate::server::process::tests::entry;
    use std::path::Path;

    fn family(pid: i32, started: u64, log: bool) -> Arc<Family> {
        let marker = Marker::helper(Path::new("/none.db"), "orphan", &pid.to_string());
        Family::new(entry(pid, 1, pid, started), marker, log.then_some((1, u64::from(pid.unsigned_abs()))))
    }

    #[test]
    fn an_orphan_without_a_trace_is_the_only_launchs_that_can_have_started_it() {
        let orphan = entry(900, 1, 900, 50);
        let none = |_: &Entry| Evidence::None;
        let (one, two, later) = (family(10, 40, true), family(20, 45, true), family(30, 60, true));
        let helper = family(40, 1, false);
        assert_eq!(owner(&orphan, &[Arc::clone(&one), Arc::clone(&helper), Arc::clone(&later)], true, none), Some(10));
        assert_eq!(owner(&orphan, &[Arc::clone(&one), two], true, none), None, "it may be either's");
        assert_eq!(owner(&orphan, &[later, helper], true, none), None);
        assert_eq!(owner(&orphan, &[one], false, none), None, "it may be somebody else's");
    }

    #[test]
    fn an_orphan_that_writes_to_a_log_is_that_launchs_and_a_marked_one_is_found_by_its_marker() {
        let orphan = entry(900, 1, 900, 50);
        let both = [family(10, 40, true), family(20, 45, true)];
        assert_eq!(owner(&orphan, &both, false, |_| Evidence::Log(20)), Some(20));
        assert_eq!(owner(&orphan, &both[..1], true, |_| Evidence::Marked), None);
    }

    #[test]
    fn an_orphan_that_no_living_launch_can_have_started_is_a_stray_of_those_that_are_over() {
        let orphan = entry(900, 1, 900, 50);
        let (older, later, helper) = (family(10, 40, true), family(30, 60, true), family(40, 1, false));
        let marked = || true;
        assert!(is_stray(&orphan, &[Arc::clone(&later), Arc::clone(&helper)], Some(40), || false));
        assert!(!is_stray(&orphan, &[Arc::clone(&later), older], Some(40), || false), "it may be the older one's");
        assert!(!is_stray(&orphan, &[], Some(40), marked), "it is found by its marker");
        assert!(!is_stray(&orphan, &[], Some(51), || false), "it is older than every launch that is over");
        assert!(!is_stray(&orphan, &[], None, || false), "it may be somebody else's");
        assert!(!is_stray(&entry(901, 1, 40, 50), &[helper], Some(40), || false), "it is of a helper's session");
    }

    #[test]
    fn an_orphan_of_a_known_session_needs_no_other_owner() {
        let one = [family(10, 40, true)];
        assert_eq!(owner(&entry(900, 1, 10, 50), &one, true, |_| Evidence::None), None);
        assert_eq!(owner(&entry(10, 1, 10, 40), &one, true, |_| Evidence::None), None);
    }
}
