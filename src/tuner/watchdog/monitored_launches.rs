//! The choice of one launch to end when several run out of the memory that they share. Each of them notices that at the
//! same time, but the end of one is mostly enough.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::host_resources::AvailableMemory;

/// The time until the memory of an ended launch is released, page by page.
const RELEASE_TIME: Duration = Duration::from_secs(5);

/// The launches of this process that are monitored.
#[derive(Debug, Default)]
pub(super) struct MonitoredLaunches(Mutex<LaunchTable>);

#[derive(Debug, Default)]
struct LaunchTable {
    /// The resident bytes of each launch, and the names of the host and control groups that count them.
    launches: BTreeMap<u64, (u64, Vec<String>)>,
    latest: u64,
    /// The time at which a launch was last ended.
    ended: Option<Instant>,
}

/// All launches of this process that are monitored, of any study.
pub(super) static MONITORED_LAUNCHES: MonitoredLaunches =
    MonitoredLaunches(Mutex::new(LaunchTable { launches: BTreeMap::new(), latest: 0, ended: None }));

/// A launch among its neighbours, until it is dropped.
#[derive(Debug)]
pub(super) struct MonitoredLaunch<'n> {
    all: &'n MonitoredLaunches,
    number: u64,
}

impl MonitoredLaunches {
    /// Adds a launch, with no resident bytes yet.
    pub(super) fn enter(&self) -> MonitoredLaunch<'_> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.latest += 1;
        let number = table.latest;
        table.launches.insert(number, (0, Vec::new()));
        MonitoredLaunch { all: self, number }
    }
}

impl MonitoredLaunch<'_> {
    /// Updates the resident bytes and the rooms of this launch.
    pub(super) fn tell(&self, resident: u64, rooms: &[AvailableMemory]) {
        let mut table = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rooms = rooms.iter().map(|room| room.name.clone()).collect();
        table.launches.insert(self.number, (resident, rooms));
    }

    /// Returns whether this launch has to end because memory in `room` runs out. It is the largest there, as the kernel
    /// would choose. No launch has to end while the memory of another one is released.
    pub(super) fn is_to_end(&self, now: Instant, room: &str) -> bool {
        let mut table = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.ended.is_some_and(|ended| now.saturating_duration_since(ended) < RELEASE_TIME) {
            return false;
        }
        let there = |rooms: &[String]| rooms.iter().any(|other| other == room);
        let sizes = table.launches.iter().filter(|(_, (_, rooms))| there(rooms));
        let largest = sizes.max_by_key(|(number, (resident, _))| (*resident, **number)).map(|(number, _)| *number);
        let is_largest = largest.is_none_or(|largest| largest == self.number);
        if is_largest {
            table.ended = Some(now);
        }
        is_largest
    }
}

impl Drop for MonitoredLaunch<'_> {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).launches.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(names: &[&str]) -> Vec<AvailableMemory> {
        names.iter().map(|of| AvailableMemory { name: (*of).to_owned(), available: 1, total: 9 }).collect()
    }

    #[test]
    fn the_largest_of_several_launches_is_ended_and_the_next_one_only_if_that_did_not_help() {
        let all = MonitoredLaunches::default();
        let [small, large, elsewhere] = [(); 3].map(|()| all.enter());
        small.tell(10, &rooms(&["the host"]));
        large.tell(20, &rooms(&["the host"]));
        elsewhere.tell(90, &rooms(&["a container"]));
        let now = Instant::now();
        assert!(!small.is_to_end(now, "the host"));
        assert!(large.is_to_end(now, "the host"));
        drop(large);
        assert!(!small.is_to_end(now + RELEASE_TIME / 2, "the host"), "the memory comes back");
        assert!(small.is_to_end(now + RELEASE_TIME, "the host"));
        assert!(elsewhere.is_to_end(now + 2 * RELEASE_TIME, "a container"), "it is alone there");
    }

    #[test]
    fn of_launches_of_one_size_exactly_one_is_ended() {
        let all = MonitoredLaunches::default();
        let launches = [(); 8].map(|()| all.enter());
        for launch in &launches {
            launch.tell(7, &rooms(&["the host"]));
        }
        let now = Instant::now();
        assert_eq!(launches.iter().filter(|launch| launch.is_to_end(now, "the host")).count(), 1);
    }
}
