//! Counters of the processes that the kernel has killed because memory ran out. No other record is readable for every
//! user.

use std::path::Path;

/// The kernel's counters at one moment; `None` if one cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomKills {
    /// Kills in the tuner's control group and those below it.
    group: Option<u64>,
    /// Kills on the host.
    host: Option<u64>,
}

impl OomKills {
    #[must_use]
    pub fn read() -> Self {
        Self::read_below(Path::new("/"))
    }

    /// Returns the kills since `earlier`: those of the group if its counter moved, else those of the host. The host's
    /// counter includes processes of others.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        let moved = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?)).filter(|more| *more > 0);
        moved(self.group, earlier.group).or_else(|| moved(self.host, earlier.host)).unwrap_or(0)
    }

    /// Reads `memory.events` of version 2 and `memory.oom_control` of version 1 of the kernel's control groups, and
    /// `/proc/vmstat`, which has the counter since Linux 4.13.
    fn read_below(root: &Path) -> Self {
        let text = |path: &str| std::fs::read_to_string(root.join(path.trim_start_matches('/'))).ok();
        let counter = |path: &str| {
            text(path)?.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok())
        };
        let groups = text("/proc/self/cgroup").unwrap_or_default();
        let group = groups.lines().find_map(|line| {
            let [_, controllers, path] = *line.splitn(3, ':').collect::<Vec<_>>() else { return None };
            match controllers {
                // Within a container the path may be that of the host, and the files are at the top.
                "" => counter(&format!("/sys/fs/cgroup{path}/memory.events"))
                    .or_else(|| counter("/sys/fs/cgroup/memory.events")),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    counter(&format!("/sys/fs/cgroup/memory{path}/memory.oom_control"))
                        .or_else(|| counter("/sys/fs/cgroup/memory/memory.oom_control"))
                }
                _ => None,
            }
        });
        Self { group, host: counter("/proc/vmstat") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_counters_of_both_versions_and_of_the_host_are_read() {
        let two = host(&[
            ("proc/self/cgroup", "0::/user.slice/a:b\n"),
            ("sys/fs/cgroup/user.slice/a:b/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 9\n"),
            ("proc/vmstat", "nr_free_pages 1\noom_kill 7\n"),
        ]);
        assert_eq!(OomKills::read_below(two.path()), OomKills { group: Some(3), host: Some(7) });
        let one = host(&[
            ("proc/self/cgroup", "4:cpu,memory:/docker/x\n1:name=systemd:/\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ]);
        assert_eq!(OomKills::read_below(one.path()), OomKills { group: Some(2), host: None });
        assert_eq!(OomKills::read_below(host(&[]).path()), OomKills::default());
    }

    #[test]
    fn kills_count_for_the_group_first_and_never_backwards() {
        let at = |group, host| OomKills { group, host };
        assert_eq!(at(Some(5), Some(9)).since(at(Some(3), Some(1))), 2);
        assert_eq!(at(Some(3), Some(9)).since(at(Some(3), Some(8))), 1);
        assert_eq!(at(None, Some(1)).since(at(Some(3), Some(8))), 0);
        assert_eq!(OomKills::read().since(OomKills::read()), 0);
    }
}
