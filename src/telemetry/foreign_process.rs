//! Foreign processes that compute on the engine's devices during a measurement.
//!
//! A process is foreign if it does not belong to the server, and if one of these holds:
//! - It appears during the measurement.
//! - It existed before and is at work: its utilization of the device is at least `MIN_WORKING_UTILIZATION`.
//!
//! In a container the driver's process ids can differ from the container's. The server's processes are then unknown.
//! Only the first criterion applies, because a server that is ready starts no further processes.

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;

use super::{DeviceProcesses, ForeignProcess};
use crate::facts::{GpuId, with_device};

/// Lowest utilization of a device's multiprocessors by a process at work, in percent. Monitors and idle contexts use
/// less.
const MIN_WORKING_UTILIZATION: u32 = 5;

/// The processes that compute on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ComputeProcesses {
    /// Device memory in bytes by process id. `None` if the driver does not report it.
    processes: BTreeMap<u32, Option<u64>>,
    /// The highest utilization of the multiprocessors since the previous reading, in percent, by process id.
    shares: BTreeMap<u32, u32>,
    /// The driver's timestamp of the newest utilization sample, in microseconds.
    last: u64,
}

impl ComputeProcesses {
    /// Returns the ids of the processes that compute on the device.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }
}

/// Reads the processes of one device, with the utilization samples after the timestamp `seen`. The result is empty if
/// the device cannot be opened.
pub(super) fn compute(nvml: &Nvml, id: &GpuId, seen: u64) -> ComputeProcesses {
    let read = |device: &nvml_wrapper::Device<'_>| {
        let mut compute = ComputeProcesses { last: seen, ..ComputeProcesses::default() };
        for process in device.running_compute_processes().unwrap_or_default() {
            let used = match process.used_gpu_memory {
                nvml_wrapper::enums::device::UsedGpuMemory::Used(bytes) => Some(bytes),
                nvml_wrapper::enums::device::UsedGpuMemory::Unavailable => None,
            };
            compute.processes.insert(process.pid, used);
        }
        // NVML reports no utilization per process for MIG instances and for devices before Maxwell.
        for sample in device.process_utilization_stats(seen).unwrap_or_default() {
            compute.last = compute.last.max(sample.timestamp);
            let share = compute.shares.entry(sample.pid).or_default();
            *share = (*share).max(sample.sm_util);
        }
        compute
    };
    with_device(nvml, id, read).unwrap_or_default()
}

/// Detector of foreign processes, with its state between readings.
#[derive(Debug)]
pub(super) struct ForeignProcessDetector {
    /// Each device with the ids of the processes that computed on it before the measurement.
    pub(super) initial_processes: Vec<DeviceProcesses>,
    /// For each device of `known`, the driver's timestamp of the newest utilization sample.
    last_timestamps: Vec<u64>,
    /// Whether the driver's process ids include one of the server's. This is usually false in a container.
    sees_server_pids: bool,
}

impl ForeignProcessDetector {
    /// Creates the detector. `now` is the current reading of each device of `known`. `pids` are the server's.
    pub(super) fn new(known: Vec<DeviceProcesses>, now: &[ComputeProcesses], pids: &[i32]) -> Self {
        let has_our_ids = now.iter().any(|compute| compute.processes.keys().any(|pid| is_in(*pid, pids)));
        Self {
            last_timestamps: now.iter().map(|compute| compute.last).collect(),
            initial_processes: known,
            sees_server_pids: has_our_ids,
        }
    }

    /// Returns the timestamps to continue from, one for each device.
    pub(super) fn last_timestamps(&self) -> Vec<u64> {
        self.last_timestamps.clone()
    }

    /// Returns the foreign processes of the reading `now`. `pids` lists the server's processes. It searches the whole
    /// process table, so it is called only if a process may be foreign.
    pub(super) fn find(&mut self, now: Vec<ComputeProcesses>, pids: impl FnOnce() -> Vec<i32>) -> Vec<ForeignProcess> {
        let mut found = Vec::new();
        for ((compute, (id, known)), seen) in
            now.into_iter().zip(&self.initial_processes).zip(&mut self.last_timestamps)
        {
            *seen = compute.last;
            for (pid, memory) in compute.processes {
                let is_new = !known.contains(&pid);
                let share = compute.shares.get(&pid).copied();
                let is_at_work = self.sees_server_pids && share.is_some_and(|share| share >= MIN_WORKING_UTILIZATION);
                if is_new || is_at_work {
                    found.push(ForeignProcess { device: id.to_string(), pid, memory, is_new });
                }
            }
        }
        if self.sees_server_pids && !found.is_empty() {
            let pids = pids();
            found.retain(|process| !is_in(process.pid, &pids));
        }
        found
    }
}

fn is_in(pid: u32, pids: &[i32]) -> bool {
    i32::try_from(pid).is_ok_and(|pid| pids.contains(&pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(processes: &[u32], shares: &[(u32, u32)]) -> ComputeProcesses {
        let processes = processes.iter().map(|pid| (*pid, Some(1 << 30))).collect();
        ComputeProcesses { processes, shares: shares.iter().copied().collect(), last: 5 }
    }

    fn found(before: &ComputeProcesses, now: ComputeProcesses, pids: &[i32]) -> Vec<(u32, bool)> {
        let known = vec![(GpuId::default(), before.pids())];
        let found =
            ForeignProcessDetector::new(known, std::slice::from_ref(before), pids).find(vec![now], || pids.to_vec());
        found.iter().map(|process| (process.pid, process.is_new)).collect()
    }

    #[test]
    fn a_process_disturbs_if_it_appears_or_is_at_work() {
        let before = with(&[7, 8], &[]);
        assert_eq!(found(&before, with(&[7, 8], &[(7, 90), (8, 1)]), &[7]), [], "8 is idle");
        assert_eq!(found(&before, with(&[7, 8], &[(7, 90), (8, 5)]), &[7]), [(8, false)]);
        assert_eq!(found(&before, with(&[7, 8, 9], &[]), &[7]), [(9, true)]);
        assert_eq!(found(&before, with(&[7, 8, 9], &[]), &[7, 9]), [], "a child of the server");
    }

    #[test]
    fn in_a_container_only_a_new_process_is_known_to_be_foreign() {
        let before = with(&[70_007, 70_008], &[]);
        assert_eq!(found(&before, with(&[70_007, 70_008], &[(70_007, 90), (70_008, 90)]), &[7]), []);
        assert_eq!(found(&before, with(&[70_007, 70_008, 70_009], &[]), &[7]), [(70_009, true)]);
    }
}
