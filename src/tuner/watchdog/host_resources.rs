//! The host's free memory and disk space, and the limits below which a launch is ended.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use procfs::Current;
use procfs::process::Process;

use crate::stats::{GIB, gib_text, to_f64};

const MIB: u64 = 1 << 20;

/// Available memory of the host or of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AvailableMemory {
    /// `the host`, or the control group.
    pub(super) name: String,
    pub(super) available: u64,
    pub(super) total: u64,
}

impl AvailableMemory {
    /// Reads the memory of the host, and of the control groups that limit process `pid`.
    pub(super) fn read(pid: Option<i32>) -> Vec<Self> {
        let Ok(memory) = procfs::Meminfo::current() else { return Vec::new() };
        let host = memory.mem_available.map(|available| {
            // Memory that can be swapped out counts as available.
            let (available, total) = (available + memory.swap_free, memory.mem_total + memory.swap_total);
            Self { name: "the host".to_owned(), available, total }
        });
        let groups = pid.map(|pid| groups(pid, memory.mem_total)).unwrap_or_default();
        host.into_iter().chain(groups).collect()
    }
}

/// The mount points of control groups: version 2, and the memory hierarchy of version 1.
const CGROUP_MOUNTS: [(&str, &str); 2] = [("", "/sys/fs/cgroup"), ("memory", "/sys/fs/cgroup/memory")];

fn groups(pid: i32, total: u64) -> Vec<AvailableMemory> {
    let Ok(found) = Process::new(pid).and_then(|process| process.cgroups()) else { return Vec::new() };
    let mut rooms = Vec::new();
    for group in found.0 {
        let controls = |name: &str| group.controllers.iter().any(|controller| controller == name);
        let mount = CGROUP_MOUNTS.iter().find(|(name, _)| controls(name) || name.is_empty() && group.hierarchy == 0);
        let Some((_, mount)) = mount else { continue };
        let mount = Path::new(mount);
        let own = mount.join(group.pathname.trim_start_matches('/'));
        // Each ancestor may limit the group. In a container the path may be one of the host; then the mount is the
        // group.
        let ancestors: Vec<_> = own.ancestors().take_while(|path| path.starts_with(mount)).collect();
        rooms.extend(ancestors.into_iter().filter_map(|path| group_room(path, total)));
    }
    rooms
}

/// Returns the room of one control group; `None` if it has no limit below the host's `total`.
fn group_room(group: &Path, total: u64) -> Option<AvailableMemory> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (limit, used) = match number("memory.max") {
        Some(limit) => (limit, number("memory.current")?),
        None => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes")?),
    };
    if limit == 0 || limit >= total {
        return None;
    }
    let text = read("memory.stat")?;
    let stat =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
    // File pages count as used, but are released first. In version 1 only `total_` includes the groups below.
    let files = ["inactive_file", "active_file"].map(|name| stat(&format!("total_{name}")).or_else(|| stat(name)));
    let given_back = files.into_iter().flatten().sum::<u64>() + stat("slab_reclaimable").unwrap_or(0);
    let available = limit.saturating_sub(used.saturating_sub(given_back));
    Some(AvailableMemory { name: format!("the control group {}", group.display()), available, total: limit })
}

/// Returns the least memory that must stay available.
///
/// It is 3 %, since a kernel with less spends its time on finding pages. It is at least 512 MiB, or an eighth of the
/// memory on machines below 4 GiB. It is at most 4 GiB, the most that can be filled between two observations on a
/// machine of any size.
fn least(total: u64) -> u64 {
    (total / 100 * 3).max((512 * MIB).min(total / 8)).min(4 * GIB)
}

/// A launch is ended if steadily shrinking memory would be exhausted within this time. During a start, weights fill
/// memory as fast as disks can read, but that ends. Under load nothing has a reason to grow for long.
const START_EXHAUSTION_LIMIT: Duration = Duration::from_secs(1);
const LOAD_EXHAUSTION_LIMIT: Duration = Duration::from_secs(30);

/// Growth is steady if it was seen over this time, at every observation.
const STEADY_GROWTH_TIME: Duration = Duration::from_secs(5);

/// Monitor of the host's memory.
#[derive(Clone, Debug, Default)]
pub(super) struct HostMemoryMonitor {
    /// The available memory of each room at the first observation. A machine that never had more is no reason to end an
    /// engine.
    first: BTreeMap<String, u64>,
    /// Observations: time, available memory of the tightest room, and resident bytes of the launch.
    looks: VecDeque<(Instant, u64, u64)>,
}

impl HostMemoryMonitor {
    /// Returns the reason to end the launch, if there is one. `resident` is the memory of all its processes.
    /// `is_to_end` decides for a room with too little memory whether this launch has to end.
    pub(super) fn check(
        &mut self,
        now: Instant,
        rooms: &[AvailableMemory],
        resident: u64,
        serving: bool,
        is_to_end: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let mut low = None;
        for room in rooms {
            let first = *self.first.entry(room.name.clone()).or_insert(room.available);
            let least = least(room.total).min(first / 2);
            if room.available < least && low.is_none() && is_to_end(&room.name) {
                let (available, total, least) = (size(room.available), size(room.total), size(least));
                low = Some(format!("{} has {available} of {total} memory left, less than {least}", room.name));
            }
        }
        let tightest = rooms.iter().min_by_key(|room| room.available)?;
        self.looks.push_back((now, tightest.available, resident));
        while self.looks.get(1).is_some_and(|(at, ..)| now.saturating_duration_since(*at) >= STEADY_GROWTH_TIME) {
            self.looks.pop_front();
        }
        low.or_else(|| self.shrinks(tightest, if serving { LOAD_EXHAUSTION_LIMIT } else { START_EXHAUSTION_LIMIT }))
    }

    /// Returns a reason if the available memory will soon be exhausted because the launch grows.
    fn shrinks(&self, room: &AvailableMemory, soon: Duration) -> Option<String> {
        let ((first, before, small), (last, now, large)) = (self.looks.front()?, self.looks.back()?);
        let passed = last.saturating_duration_since(*first);
        let pairs = || self.looks.iter().zip(self.looks.iter().skip(1));
        let steady = pairs().all(|((_, _, before), (_, _, after))| after > before);
        let (lost, grown) = (before.saturating_sub(*now), large.saturating_sub(*small));
        // File pages enlarge a process but can be released. Memory that others take is not the launch's fault.
        if passed < STEADY_GROWTH_TIME || !steady || lost == 0 || grown < lost / 2 {
            return None;
        }
        let left = passed.mul_f64(to_f64(*now) / to_f64(lost));
        (left < soon).then(|| {
            let (available, total, grown) = (size(*now), size(room.total), size(grown));
            format!(
                "{} has {available} of {total} memory left, enough for {left:.0?}: the engine has grown by {grown} \
                 in {passed:.0?}",
                room.name
            )
        })
    }
}

/// The least free space of a disk: for the log, the database with its journal, and the engine's files.
pub(in crate::tuner) const MIN_DISK_SPACE: u64 = 64 * MIB;

/// Describes the first of these directories that has too little free space.
pub(super) fn full_disk(directories: &[PathBuf]) -> Option<String> {
    directories.iter().find_map(|path| full(path, free(path)?))
}

/// Returns the bytes that a user may still write there; `None` if they are unknown.
fn free(path: &Path) -> Option<u64> {
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    // A file system without blocks does not count them.
    (stat.blocks() > 0).then(|| stat.blocks_available() * stat.fragment_size())
}

fn full(path: &Path, free: u64) -> Option<String> {
    (free < MIN_DISK_SPACE)
        .then(|| format!("{} has {} bytes free, less than {}", path.display(), free, size(MIN_DISK_SPACE)))
}

/// Formats bytes for people.
pub(super) fn size(bytes: u64) -> String {
    if bytes < GIB {
        return format!("{} MiB", bytes / MIB);
    }
    gib_text(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn room(available: u64, total: u64) -> [AvailableMemory; 1] {
        [AvailableMemory { name: "the host".to_owned(), available, total }]
    }

    /// Returns the first reason, and its second, for available memory and resident bytes that follow `at`.
    fn said(total: u64, serving: bool, seconds: u32, at: impl Fn(u64) -> (u64, u64)) -> Option<(u64, String)> {
        let (begin, mut memory) = (Instant::now(), HostMemoryMonitor::default());
        (0..seconds).find_map(|second| {
            let (available, resident) = at(u64::from(second));
            let now = begin + Duration::from_secs(1) * second;
            Some((u64::from(second), memory.check(now, &room(available, total), resident, serving, |_| true)?))
        })
    }

    #[test]
    fn low_memory_is_reported_with_its_numbers() {
        assert_eq!(
            [1, 8, 24, 64, 2048].map(|gib| size(least(gib * GIB))),
            ["128 MiB", "512 MiB", "737 MiB", "1.9 GiB", "4.0 GiB"]
        );
        let (second, text) = said(24 * GIB, false, 9, |s| (if s < 4 { 20 * GIB } else { 600 * MIB }, 3)).unwrap();
        assert_eq!(second, 4);
        assert_eq!(text, "the host has 600 MiB of 24.0 GiB memory left, less than 737 MiB");
        assert_eq!(said(24 * GIB, false, 9, |_| (600 * MIB, 3)), None, "it never had more");
        assert!(said(24 * GIB, false, 9, |s| ((600 * MIB) >> s, 3)).is_some(), "and now has far less");
    }

    #[test]
    fn a_spared_launch_survives_low_memory_unless_it_takes_the_rest_itself() {
        let (begin, mut memory) = (Instant::now(), HostMemoryMonitor::default());
        let mut at = |second: u32, available, resident| {
            let now = begin + Duration::from_secs(1) * second;
            memory.check(now, &room(available, 24 * GIB), resident, true, |_| false)
        };
        assert_eq!((0..9).find_map(|second| at(second, (600 * MIB) >> second, 3)), None);
        let (begin, mut memory) = (Instant::now(), HostMemoryMonitor::default());
        let said = (0..9_u32).find_map(|second| {
            let now = begin + Duration::from_secs(1) * second;
            let grown = u64::from(second) * GIB;
            memory.check(now, &room(10 * GIB - grown, 24 * GIB), grown, true, |_| false)
        });
        assert!(said.is_some_and(|said| said.contains("the engine has grown by")));
    }

    #[test]
    fn steady_growth_under_load_is_reported_before_the_memory_is_exhausted() {
        let leak = |s: u64| ((20 - s) * GIB, (4 + s) * GIB);
        let (second, text) = said(24 * GIB, true, 19, leak).unwrap();
        assert_eq!(second, 5);
        let expected = "the host has 15.0 GiB of 24.0 GiB memory left, enough for 15s: the engine has grown by \
                        5.0 GiB in 5s";
        assert_eq!(text, expected);
        // Weights that are loaded grow as fast, and stop.
        let load = |s: u64| ((20 - s.min(12)) * GIB, (4 + s.min(12)) * GIB);
        assert_eq!(said(24 * GIB, false, 60, load), None);
        // Memory that another program takes is not the engine's.
        assert_eq!(said(24 * GIB, true, 18, |s| ((20 - s) * GIB, 4 * GIB + s)), None);
        // A pause interrupts steady growth.
        assert_eq!(said(24 * GIB, true, 40, |s| ((20 - s / 4) * GIB, (4 + s / 4) * GIB)), None);
        // Slow growth has time.
        assert_eq!(said(24 * GIB, true, 60, |s| (20 * GIB - s * MIB, 4 * GIB + s * MIB)), None);
    }

    #[test]
    fn a_control_group_limits_memory_and_its_file_pages_are_available() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        assert_eq!(group_room(directory.path(), GIB), None);
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.usage_in_bytes", "900\n");
        write("memory.stat", "inactive_file 1\nactive_file 1\ntotal_inactive_file 300\ntotal_active_file 100\n");
        assert_eq!(group_room(directory.path(), GIB), None, "no limit");
        write("memory.limit_in_bytes", "1000\n");
        let found = |room: Option<AvailableMemory>| room.map(|room| (room.available, room.total));
        assert_eq!(found(group_room(directory.path(), GIB)), Some((500, 1000)));
        write("memory.max", "2000\n");
        write("memory.current", "1900\n");
        write("memory.stat", "file 9\ninactive_file 100\nactive_file 50\nslab_reclaimable 7\n");
        assert_eq!(found(group_room(directory.path(), GIB)), Some((257, 2000)));
    }

    #[test]
    fn a_full_disk_is_reported_with_its_path() {
        let path = Path::new("/data");
        assert_eq!(full(path, 64 * MIB), None);
        assert_eq!(full(path, 5), Some("/data has 5 bytes free, less than 64 MiB".to_owned()));
        assert!(free(Path::new("/")).is_some());
        assert_eq!(full_disk(&[PathBuf::from("/no/such/directory")]), None);
    }

    #[test]
    fn this_machine_has_room() {
        let rooms = AvailableMemory::read(i32::try_from(std::process::id()).ok());
        assert!(rooms.iter().any(|room| room.name == "the host" && room.available > 0), "{rooms:?}");
        assert!(rooms.iter().all(|room| room.available <= room.total), "{rooms:?}");
    }

    proptest! {
        /// As long as memory neither shrinks nor is too little, no launch is ended for it.
        #[test]
        fn memory_that_does_not_shrink_ends_nothing(total in GIB..4096 * GIB, steps in prop::collection::vec(0u64..GIB, 1..40), serving: bool) {
            let (begin, mut memory, mut available) = (Instant::now(), HostMemoryMonitor::default(), 0);
            for (second, step) in (0u32..).zip(steps) {
                available += step;
                let now = begin + Duration::from_secs(1) * second;
                prop_assert_eq!(memory.check(now, &room(available.min(total), total), u64::from(second) * GIB, serving, |_| true), None);
            }
        }
    }
}
