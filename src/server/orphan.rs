//! Orphans: processes that the kernel gives to the tuner after their parent has ended (`PR_SET_CHILD_SUBREAPER`,
//! `prctl(2)`).
//!
//! Without this setting they would become children of `init`. A process that called `setsid` and wiped its environment
//! between two looks could then not be distinguished from a daemon of the machine.
//!
//! The kernel gives an orphan to the nearest ancestor with this setting. Every orphan of the tuner therefore descends
//! from one of its children: a launch, a helper or a short command (`run_short`). The code checks the four conditions
//! of this conclusion.
//!
//! - The tuner is not process 1, because the kernel gives all orphans of the system to that one.
//! - The tuner had no children when it applied the setting. A shell may have started some before it became the tuner
//!   (`exec`).
//! - The orphan is not in the tuner's own session, because the tuner starts no process there.
//! - The orphan carries no marker. Processes with a marker are found by it.
//!
//! The orphan's log identifies its launch, because the processes of an engine write there. An orphan without a log
//! belongs to a living launch that is older than itself. If there are several, the decision is postponed until one
//! remains. If none remains because they ended at the same time, the last one that ends also ends the orphan
//! ([`orphans_of_ended_launches`]).

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getsid};

use super::launch_members::LaunchMembers;
use super::process::{self, ProcessEntry};

/// The children of this process. There is one such list, because children belong to the process as a whole.
#[derive(Debug, Default)]
pub(super) struct AdoptedChildren {
    /// Whether the kernel gives orphans to the tuner and all of them are certain to be ours; `None` before the request.
    owns_orphans: Option<bool>,
    /// Living launches, helpers and short commands, by the number of their first process. Other code waits for these
    /// processes. A caller that starts one holds the lock until it is registered here.
    families: BTreeMap<i32, Arc<LaunchMembers>>,
    /// The earliest start of the launches that have ended, in ticks since boot.
    over: Option<u64>,
}

impl AdoptedChildren {
    /// Registers a family until `forget` is called for it.
    pub(super) fn register(&mut self, family: &Arc<LaunchMembers>) {
        self.families.insert(family.leader.pid, Arc::clone(family));
    }
}

static CHILDREN: LazyLock<Mutex<AdoptedChildren>> = LazyLock::new(Mutex::default);

/// Locks the list of children. The first call also requests orphans from the kernel.
pub(super) fn children() -> MutexGuard<'static, AdoptedChildren> {
    let mut children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    if children.owns_orphans.is_none() {
        let own = process::own();
        let alone = own != 1 && !process::all().iter().any(|entry| entry.parent == own);
        // If the kernel refuses, orphans go to `init` as usual.
        children.owns_orphans = Some(set_child_subreaper(true).is_ok() && alone);
    }
    children
}

/// Removes a family because its first process is no longer waited for.
pub(super) fn forget(family: &Arc<LaunchMembers>) {
    let mut children = children();
    // The number may belong to another process by now.
    if children.families.get(&family.leader.pid).is_some_and(|known| Arc::ptr_eq(known, family)) {
        children.families.remove(&family.leader.pid);
        if family.log.is_some() {
            children.over = Some(children.over.map_or(family.leader.started, |first| first.min(family.leader.started)));
        }
    }
}

/// Living orphans of the tuner, and the families that they may belong to.
struct Orphans {
    living: Vec<ProcessEntry>,
    families: Vec<Arc<LaunchMembers>>,
    /// Whether all of them are certain to be ours.
    certain: bool,
    /// As in `AdoptedChildren`.
    over: Option<u64>,
}

/// Finds orphans in `entries`, an earlier reading of `/proc`. Collects those that have ended.
fn orphans(entries: &[ProcessEntry]) -> Orphans {
    let children = children();
    let own = process::own();
    let session = session();
    let orphans = entries
        .iter()
        .filter(|entry| entry.parent == own && entry.session != session && !children.families.contains_key(&entry.pid));
    let (dead, living): (Vec<ProcessEntry>, Vec<_>) = orphans.partition(|entry| entry.dead);
    for entry in dead {
        // No other code waits for it, because the tuner did not start it.
        let _ = waitpid(Pid::from_raw(entry.pid), Some(WaitPidFlag::WNOHANG));
    }
    let (families, certain) = (children.families.values().cloned().collect(), children.owns_orphans == Some(true));
    Orphans { living, families, certain, over: children.over }
}

/// Returns the orphans of the tuner that belong to this family. Collects the ended orphans of all families.
pub(super) fn orphans_of_launch(entries: &[ProcessEntry], family: &Arc<LaunchMembers>) -> Vec<ProcessEntry> {
    let Orphans { living, families, certain, .. } = orphans(entries);
    let evidence = |entry: &ProcessEntry| {
        if entry.marker().is_some() {
            return OriginEvidence::Marked;
        }
        let writes_to = |family: &&Arc<LaunchMembers>| family.log.is_some_and(|log| entry.holds_file(log));
        families.iter().find(writes_to).map_or(OriginEvidence::None, |family| OriginEvidence::Log(family.leader.pid))
    };
    living.into_iter().filter(|entry| owner(entry, &families, certain, evidence) == Some(family.leader.pid)).collect()
}

/// Returns the orphans of launches that have ended, which no living launch can have started.
pub(super) fn orphans_of_ended_launches() -> Vec<ProcessEntry> {
    let Orphans { living, families, certain, over } = orphans(&process::all());
    let over = over.filter(|_| certain);
    living.into_iter().filter(|entry| is_of_ended_launch(entry, &families, over, || entry.marker().is_some())).collect()
}

/// Returns whether an orphan belongs to a launch that has ended. `over` is the earliest start of those launches; `None`
/// if orphans are not certain to be ours.
fn is_of_ended_launch(
    entry: &ProcessEntry,
    families: &[Arc<LaunchMembers>],
    over: Option<u64>,
    is_marked: impl FnOnce() -> bool,
) -> bool {
    let is_ones = |family: &Arc<LaunchMembers>| {
        let may_be = family.log.is_some() && family.leader.started <= entry.started;
        may_be || family.leader.pid == entry.session || family.has_seen(entry)
    };
    over.is_some_and(|first| first <= entry.started) && !families.iter().any(is_ones) && !is_marked()
}

/// Returns the tuner's own session.
pub(super) fn session() -> i32 {
    getsid(None).map_or(0, Pid::as_raw)
}

/// The evidence of a process itself for its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OriginEvidence {
    Marked,
    /// It writes to the log of the family that has this leader.
    Log(i32),
    None,
}

/// Returns the family that an orphan belongs to, by the leader's number. Returns `None` if that is uncertain or if
/// other evidence decides it.
fn owner(
    entry: &ProcessEntry,
    families: &[Arc<LaunchMembers>],
    certain: bool,
    evidence: impl FnOnce(&ProcessEntry) -> OriginEvidence,
) -> Option<i32> {
    if families.iter().any(|family| family.leader.pid == entry.session || family.has_seen(entry)) {
        return None;
    }
    match evidence(entry) {
        OriginEvidence::Marked => None,
        OriginEvidence::Log(leader) => Some(leader),
        OriginEvidence::None if !certain => None,
        OriginEvidence::None => {
            // Helpers do not count: orphans of a helper are harmless, because a helper that breaks is replaced.
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

    fn family(pid: i32, started: u64, log: bool) -> Arc<LaunchMembers> {
        let marker = Marker::helper(Path::new("/none.db"), "orphan", &pid.to_string());
        LaunchMembers::new(entry(pid, 1, pid, started), marker, log.then_some((1, u64::from(pid.unsigned_abs()))))
    }

    #[test]
    fn an_orphan_without_a_trace_is_the_only_launchs_that_can_have_started_it() {
        let orphan = entry(900, 1, 900, 50);
        let none = |_: &ProcessEntry| OriginEvidence::None;
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
        assert_eq!(owner(&orphan, &both, false, |_| OriginEvidence::Log(20)), Some(20));
        assert_eq!(owner(&orphan, &both[..1], true, |_| OriginEvidence::Marked), None);
    }

    #[test]
    fn an_orphan_that_no_living_launch_can_have_started_is_a_stray_of_those_that_are_over() {
        let orphan = entry(900, 1, 900, 50);
        let (older, later, helper) = (family(10, 40, true), family(30, 60, true), family(40, 1, false));
        let marked = || true;
        assert!(is_of_ended_launch(&orphan, &[Arc::clone(&later), Arc::clone(&helper)], Some(40), || false));
        assert!(
            !is_of_ended_launch(&orphan, &[Arc::clone(&later), older], Some(40), || false),
            "it may be the older one's"
        );
        assert!(!is_of_ended_launch(&orphan, &[], Some(40), marked), "it is found by its marker");
        assert!(!is_of_ended_launch(&orphan, &[], Some(51), || false), "it is older than every launch that is over");
        assert!(!is_of_ended_launch(&orphan, &[], None, || false), "it may be somebody else's");
        assert!(
            !is_of_ended_launch(&entry(901, 1, 40, 50), &[helper], Some(40), || false),
            "it is of a helper's session"
        );
    }

    #[test]
    fn an_orphan_of_a_known_session_needs_no_other_owner() {
        let one = [family(10, 40, true)];
        assert_eq!(owner(&entry(900, 1, 10, 50), &one, true, |_| OriginEvidence::None), None);
        assert_eq!(owner(&entry(10, 1, 10, 40), &one, true, |_| OriginEvidence::None), None);
    }
}
