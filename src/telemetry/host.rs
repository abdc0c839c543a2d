//! Processor time and memory of the server's processes and of the host, read from `/proc`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use procfs::process::Process;
use procfs::{Current, CurrentSI};

use super::series::SeriesRow;
use crate::server::LaunchProcesses;
use crate::stats::{gib, to_f64};

/// Interval between searches for processes. Known processes are read every time, but a search reads the whole of
/// `/proc`.
const SEARCH_INTERVAL: Duration = Duration::from_secs(5);

/// The processes of a launch and their processor time, including that of processes that have ended.
#[derive(Debug)]
pub(super) struct ProcessTree {
    processes: LaunchProcesses,
    searched: Option<Instant>,
    pids: Vec<i32>,
    /// Processor ticks by process id and start, since an id may be used again.
    ticks: BTreeMap<(i32, u64), u64>,
}

impl ProcessTree {
    pub(super) fn new(processes: LaunchProcesses) -> Self {
        Self { processes, searched: None, pids: Vec::new(), ticks: BTreeMap::new() }
    }

    /// Returns the ids of the processes. Searches for them again if the last search is too old.
    pub(super) fn pids(&mut self) -> &[i32] {
        if self.searched.is_none_or(|last| last.elapsed() >= SEARCH_INTERVAL) {
            self.pids = self.processes.pids();
            self.searched = Some(Instant::now());
        }
        &self.pids
    }

    /// Searches for the processes and returns their ids.
    pub(super) fn searched_pids(&mut self) -> Vec<i32> {
        self.searched = None;
        self.pids().to_vec()
    }

    /// Reads `cpu_s`, a counter, and `rss_gib`. Memory that processes share counts in each of them.
    ///
    /// With `exactly`, searches for the processes again and reads `pss_gib`, which divides shared memory among its
    /// users. This walks the page tables and holds the process's memory lock, so it must not run on a server under
    /// load.
    pub(super) fn read(&mut self, exactly: bool) -> SeriesRow {
        if exactly {
            self.searched = None;
        }
        let pids = self.pids().to_vec();
        let (mut pages, mut shared_out) = (0, 0);
        for process in pids.into_iter().filter_map(|pid| Process::new(pid).ok()) {
            let Ok(stat) = process.stat() else { continue };
            self.ticks.insert((stat.pid, stat.starttime), stat.utime + stat.stime);
            pages += stat.rss;
            if exactly {
                shared_out += pss(&process).unwrap_or(0);
            }
        }
        let seconds = to_f64(self.ticks.values().sum::<u64>()) / to_f64(procfs::ticks_per_second());
        let mut row = vec![("cpu_s", seconds), ("rss_gib", gib(pages * procfs::page_size()))];
        if exactly && shared_out > 0 {
            row.push(("pss_gib", gib(shared_out)));
        }
        row
    }
}

fn pss(process: &Process) -> Option<u64> {
    let rollup = process.smaps_rollup().ok()?.memory_map_rollup;
    rollup.0.first()?.extension.map.get("Pss").copied()
}

/// Reads `cpu_busy_s` and `cpu_all_s`, counters over all processors, and `memory_available_gib`. Unreadable values are
/// left out.
pub(super) fn read() -> SeriesRow {
    let mut row = SeriesRow::new();
    if let Ok(stats) = procfs::KernelStats::current() {
        let cpu = stats.total;
        let idle = cpu.idle_ms() + cpu.iowait_ms().unwrap_or(0);
        let busy = cpu.user_ms()
            + cpu.nice_ms()
            + cpu.system_ms()
            + cpu.irq_ms().unwrap_or(0)
            + cpu.softirq_ms().unwrap_or(0)
            + cpu.steal_ms().unwrap_or(0);
        row.push(("cpu_busy_s", to_f64(busy) / 1000.0));
        row.push(("cpu_all_s", to_f64(busy + idle) / 1000.0));
    }
    if let Some(available) = procfs::Meminfo::current().ok().and_then(|memory| memory.mem_available) {
        row.push(("memory_available_gib", gib(available)));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Server, SpawnParameters};

    fn value(row: &SeriesRow, name: &str) -> f64 {
        row.iter().find(|(found, _)| *found == name).map(|(_, value)| *value).unwrap()
    }

    fn launch(directory: &std::path::Path, script: &str) -> Server {
        Server::spawn(&SpawnParameters::of_script(directory, "sh", script, "telemetry", 0)).unwrap()
    }

    #[tokio::test]
    async fn the_whole_tree_counts_with_what_its_dead_have_used() {
        let directory = tempfile::tempdir().unwrap();
        // The child works, the leader waits.
        let server = launch(directory.path(), "sh -c 'while :; do :; done' & wait");
        let mut tree = ProcessTree::new(server.processes());
        let begin = Instant::now();
        let used = loop {
            tree.searched = None;
            let row = tree.read(false);
            if value(&row, "cpu_s") >= 0.05 {
                break value(&row, "cpu_s");
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "the child's time is not seen: {row:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let exact = tree.read(true);
        assert!(value(&exact, "rss_gib") > 0.0 && value(&exact, "pss_gib") > 0.0, "{exact:?}");
        assert!(value(&exact, "pss_gib") <= value(&exact, "rss_gib"), "{exact:?}");
        server.stop(Duration::from_secs(5)).await.unwrap();
        let after = tree.read(true);
        assert!(tree.pids.is_empty());
        assert!(value(&after, "cpu_s") >= used, "{after:?}");
        assert!(value(&after, "rss_gib").abs() < 1e-12, "{after:?}");
    }

    #[test]
    fn the_machine_has_processors_and_memory() {
        let row = read();
        assert!(value(&row, "cpu_all_s") >= value(&row, "cpu_busy_s"), "{row:?}");
        assert!(value(&row, "cpu_busy_s") > 0.0 && value(&row, "memory_available_gib") > 0.0, "{row:?}");
    }
}
