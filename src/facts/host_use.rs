//! Use of the host's processors and memory by all processes, read through `sysinfo`.

use std::collections::HashMap;
use std::time::Instant;

use sysinfo::{
    Components, CpuRefreshKind, MINIMUM_CPU_UPDATE_INTERVAL, MemoryRefreshKind, Pid, ProcessRefreshKind,
    ProcessesToUpdate, System, UpdateKind, Users, get_current_pid,
};

use crate::stats::to_f64;

/// Limit of processor use: a process of another user that keeps at least half a processor busy is named.
const MIN_NAMED_PROCESSORS: f64 = 0.5;
/// The divisor of the host's memory: a process of another user with at least a tenth of it is named.
const NAMED_MEMORY_DIVISOR: u64 = 10;
/// The largest number of such processes that are named.
const MAX_NAMED: usize = 3;

/// Readings at one moment; `None` if they were not taken or are not available here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostUse {
    /// Bytes in use and in total.
    pub swap: Option<(u64, u64)>,
    /// The busy share of all processors.
    pub busy_percent: Option<f32>,
    /// The kernel's load average over the last minute.
    pub load_average: Option<f64>,
    /// The lowest and the highest present clock of the processors.
    pub clock_mhz: Option<(u64, u64)>,
    /// The sensor that is nearest to its critical temperature.
    pub hottest: Option<HostSensor>,
    /// Processes of other users above the limits, those with the most processor time first.
    pub others: Option<Vec<ProcessUse>>,
}

/// A temperature in degrees Celsius.
#[derive(Clone, Debug, PartialEq)]
pub struct HostSensor {
    pub label: String,
    pub now: f32,
    pub critical: f32,
}

/// A process and its share of the host.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessUse {
    pub pid: u32,
    pub name: String,
    pub user: String,
    /// Processors that it keeps busy.
    pub processors: f64,
    /// Resident bytes.
    pub memory: u64,
}

impl HostUse {
    /// Reads the values that need no sampling.
    #[must_use]
    pub fn read_unsampled() -> Self {
        let Ok(mut system) = System::new() else { return Self::default() };
        system.refresh_memory_specifics(MemoryRefreshKind::everything());
        Self { swap: Some((system.used_swap(), system.total_swap())), ..Self::default() }
    }

    /// Reads everything. Blocks for a fifth of a second, during which busy shares are measured.
    #[must_use]
    pub fn read_sampled() -> Self {
        let Ok(mut system) = System::new() else { return Self::default() };
        system.refresh_memory_specifics(MemoryRefreshKind::everything());
        system.refresh_cpu_specifics(CpuRefreshKind::everything());
        let kind = ProcessRefreshKind::nothing().with_cpu().with_memory().with_user(UpdateKind::Always).without_tasks();
        system.refresh_processes_specifics(ProcessesToUpdate::All, true, kind);
        let times = |system: &System| -> HashMap<Pid, u64> {
            system.processes().iter().map(|(pid, process)| (*pid, process.accumulated_cpu_time())).collect()
        };
        let (before, begin) = (times(&system), Instant::now());
        std::thread::sleep(MINIMUM_CPU_UPDATE_INTERVAL);
        system.refresh_cpu_usage();
        system.refresh_processes_specifics(ProcessesToUpdate::All, true, kind);
        let clocks = system.cpus().iter().map(sysinfo::Cpu::frequency).filter(|clock| *clock > 0);
        Self {
            swap: Some((system.used_swap(), system.total_swap())),
            busy_percent: Some(system.global_cpu_usage()),
            load_average: System::load_average().ok().map(|load| load.one),
            clock_mhz: clocks.clone().min().zip(clocks.max()),
            hottest: hottest(),
            others: others(&system, &before, begin.elapsed().as_secs_f64()),
        }
    }
}

fn hottest() -> Option<HostSensor> {
    let components = Components::new_with_refreshed_list().ok()?;
    let sensors = components.iter().filter_map(|component| {
        let (now, critical) = (component.temperature()?, component.critical()?);
        // Sensors that are not connected report 0 or less.
        (now > 0.0 && critical > 0.0).then(|| HostSensor { label: component.label().to_owned(), now, critical })
    });
    sensors.min_by(|a, b| (a.critical - a.now).total_cmp(&(b.critical - b.now)))
}

/// Returns the processes of other users. `before` contains the milliseconds of processor time that each process had
/// used `seconds` ago.
fn others(system: &System, before: &HashMap<Pid, u64>, seconds: f64) -> Option<Vec<ProcessUse>> {
    let own = system.process(get_current_pid().ok()?)?.user_id()?.clone();
    let users = Users::new_with_refreshed_list().ok();
    let total = system.total_memory();
    let processes = system.processes().iter().filter(|(_, process)| process.user_id().is_some_and(|user| *user != own));
    let mut uses: Vec<_> = processes
        .filter_map(|(pid, process)| {
            let used = process.accumulated_cpu_time().saturating_sub(*before.get(pid)?);
            let user = process.user_id()?;
            let name = users.as_ref().and_then(|users| users.get_user_by_id(user)).map(|user| user.name().to_owned());
            Some(ProcessUse {
                pid: pid.as_u32(),
                name: process.name().to_string_lossy().into_owned(),
                user: name.unwrap_or_else(|| user.to_string()),
                processors: to_f64(used) / 1000.0 / seconds,
                memory: process.memory(),
            })
        })
        .filter(|other| exceeds_limits(other, total))
        .collect();
    uses.sort_by(|a, b| b.processors.total_cmp(&a.processors).then(b.memory.cmp(&a.memory)));
    uses.truncate(MAX_NAMED);
    Some(uses)
}

fn exceeds_limits(process: &ProcessUse, total_memory: u64) -> bool {
    process.processors >= MIN_NAMED_PROCESSORS || process.memory >= total_memory / NAMED_MEMORY_DIVISOR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_read_and_memory_alone_without_a_sample() {
        let readings = HostUse::read_sampled();
        assert!(readings.busy_percent.is_some_and(|busy| (0.0..=100.0).contains(&busy)), "{readings:?}");
        assert!(readings.load_average.is_some_and(|load| load >= 0.0), "{readings:?}");
        assert!(readings.others.as_ref().is_some_and(|others| others.len() <= MAX_NAMED), "{readings:?}");
        let quick = HostUse::read_unsampled();
        assert!(quick.swap.is_some_and(|(used, total)| used <= total), "{quick:?}");
        assert_eq!((quick.busy_percent, quick.others), (None, None));
    }

    #[test]
    fn a_process_with_much_memory_or_half_a_processor_is_greedy() {
        let process =
            |processors, memory| ProcessUse { pid: 1, name: "a".to_owned(), user: "b".to_owned(), processors, memory };
        let greedy = [process(0.6, 0), process(0.0, 10), process(0.4, 9)].map(|process| exceeds_limits(&process, 100));
        assert_eq!(greedy, [true, true, false]);
    }
}
