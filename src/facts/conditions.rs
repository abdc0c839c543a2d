//! Conditions of the host that change measurements: settings of processors and memory, and the load of other processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use procfs::{FromBufRead, MemoryPressure};
use serde::{Deserialize, Serialize};

use super::host_use::HostUse;
use crate::stats::{GIB, gib_text};

/// Limit of the wake-up time from an idle state, in microseconds. Longer wake-ups exceed the variation that a decode
/// step should have.
const LONG_WAKE_UP_US: u64 = 100;
/// Limit of the share of the last minute, in percent, during which some process waited for memory.
const MAX_PRESSURE_PERCENT: f32 = 1.0;
/// Limit of the busy share of all processors, in percent.
const MAX_LOAD_PERCENT: f32 = 20.0;
/// Distance from the critical temperature, in degrees Celsius. Closer to it, processors lower their clock.
const NEAR_CRITICAL: f32 = 5.0;

/// The kinds of conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConditionKind {
    Governor,
    Boost,
    IdleStates,
    ProcessorQuota,
    Numa,
    NumaBalancing,
    HugePages,
    MemoryPressure,
    Swap,
    ProcessorLoad,
    Temperature,
    OtherUsers,
    GpuPersistence,
    GpuClocks,
    GpuPowerLimit,
    GpuEcc,
}

/// A condition as it is now, with its effect on measurements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasurementCondition {
    pub kind: ConditionKind,
    /// The present setting or reading, as text.
    pub state: String,
    /// Whether the condition may make measurements differ from those of another time or another host.
    pub distorts: bool,
    /// The effect of this state on measurements, as text.
    pub effect: String,
    /// A command or an advice that ends the distortion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl ConditionKind {
    /// Returns the name in at most eleven characters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Governor => "governor",
            Self::Boost => "boost",
            Self::IdleStates => "idle",
            Self::ProcessorQuota => "quota",
            Self::Numa => "numa",
            Self::NumaBalancing => "balancing",
            Self::HugePages => "huge-pages",
            Self::MemoryPressure => "pressure",
            Self::Swap => "swap",
            Self::ProcessorLoad => "load",
            Self::Temperature => "temperature",
            Self::OtherUsers => "others",
            Self::GpuPersistence => "persistence",
            Self::GpuClocks => "gpu-clocks",
            Self::GpuPowerLimit => "gpu-power",
            Self::GpuEcc => "gpu-ecc",
        }
    }
}

impl MeasurementCondition {
    /// Returns the settings of this host and its memory use. Reading the files takes a few milliseconds.
    #[must_use]
    pub fn of_launch() -> Vec<Self> {
        Self::from_files(Path::new("/"), &HostUse::read_unsampled())
    }

    /// Like [`of_launch`](Self::of_launch), with the load of other processes, which takes a fifth of a second to
    /// sample.
    #[must_use]
    pub fn of_host() -> Vec<Self> {
        Self::from_files(Path::new("/"), &HostUse::read_sampled())
    }

    /// Returns the conditions that the files below `root` and the readings describe. Absent files give no condition.
    #[must_use]
    pub fn from_files(root: &Path, readings: &HostUse) -> Vec<Self> {
        let files = Files(root);
        let settings = [governor, boost, idle_states, processor_quota, numa, numa_balancing, huge_pages, pressure];
        let uses = [swap, processor_load, temperature, other_users];
        let settings = settings.iter().filter_map(|condition| condition(&files));
        settings.chain(uses.iter().filter_map(|condition| condition(readings))).collect()
    }

    pub(super) fn harmless(kind: ConditionKind, state: impl Into<String>, effect: &str) -> Self {
        Self { kind, state: state.into(), distorts: false, effect: effect.to_owned(), remedy: None }
    }

    pub(super) fn distorting(kind: ConditionKind, state: impl Into<String>, effect: &str, remedy: &str) -> Self {
        Self { distorts: true, remedy: Some(remedy.to_owned()), ..Self::harmless(kind, state, effect) }
    }
}

/// The files of `/sys` and `/proc` below a root.
struct Files<'a>(&'a Path);

impl Files<'_> {
    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// Returns the text of a file without white space at its ends; `None` if it is absent, unreadable or empty.
    fn text(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Returns the numbers of those entries of a directory that are named by `prefix` and a number, in ascending order.
    fn numbered(&self, directory: &str, prefix: &str) -> Vec<u32> {
        let entries = std::fs::read_dir(self.path(directory)).into_iter().flatten().flatten();
        let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix(prefix)?.parse().ok();
        let mut numbers: Vec<u32> = entries.filter_map(|entry| number(entry.file_name())).collect();
        numbers.sort_unstable();
        numbers
    }
}

const CPU: &str = "sys/devices/system/cpu";

fn governor(files: &Files<'_>) -> Option<MeasurementCondition> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for number in files.numbered(CPU, "cpu") {
        let of = |name| files.text(&format!("{CPU}/cpu{number}/cpufreq/{name}"));
        let Some(governor) = of("scaling_governor") else { continue };
        // The drivers of Intel and AMD call their own control `powersave`; its behaviour depends on the preference.
        let preference = of("energy_performance_preference").filter(|_| governor == "powersave");
        let lowered = of("scaling_max_freq").zip(of("cpuinfo_max_freq")).filter(|(limit, most)| limit != most);
        let preference = preference.map(|name| format!(", preference {name}")).unwrap_or_default();
        let lowered = lowered.map(|(limit, most)| format!(", at most {limit} of {most} kHz")).unwrap_or_default();
        *counts.entry(format!("{governor}{preference}{lowered}")).or_default() += 1;
    }
    let steady = |state: &String| matches!(state.as_str(), "performance" | "powersave, preference performance");
    let is_steady = !counts.is_empty() && counts.keys().all(steady);
    let state = |(state, count): (&String, &usize)| match count {
        1 => format!("{state} on 1 processor"),
        count => format!("{state} on {count} processors"),
    };
    let states: Vec<_> = counts.iter().map(state).collect();
    let state = (!states.is_empty()).then(|| states.join("; "))?;
    let kind = ConditionKind::Governor;
    Some(if is_steady {
        MeasurementCondition::harmless(kind, state, "the clock does not follow the load")
    } else {
        let effect = "the clock follows the load or is limited: short loads and the first seconds are slower";
        MeasurementCondition::distorting(kind, state, effect, "`cpupower frequency-set -g performance`, as root")
    })
}

fn boost(files: &Files<'_>) -> Option<MeasurementCondition> {
    let intel = files.number(&format!("{CPU}/intel_pstate/no_turbo")).map(|off| off == 0);
    let is_on = intel.or_else(|| files.number(&format!("{CPU}/cpufreq/boost")).map(|on| on != 0))?;
    let kind = ConditionKind::Boost;
    Some(if is_on {
        let effect = "the clock depends on temperature and on busy processors: a cold host is a few per cent faster";
        MeasurementCondition::harmless(kind, "on", effect)
    } else {
        let effect = "processors stay at their base clock: results are valid only while boost is off";
        MeasurementCondition::distorting(
            kind,
            "off",
            effect,
            "switch it on in `cpufreq/boost`, `no_turbo` or the firmware",
        )
    })
}

/// Reads the states of the first processor, which stand for those of all.
fn idle_states(files: &Files<'_>) -> Option<MeasurementCondition> {
    let first = files.numbered(CPU, "cpu").into_iter().next()?;
    let directory = format!("{CPU}/cpu{first}/cpuidle");
    let states = files.numbered(&directory, "state").into_iter().filter_map(|state| {
        let of = |name| format!("{directory}/state{state}/{name}");
        let is_used = files.number(&of("disable")).unwrap_or(0) == 0;
        is_used.then(|| Some((files.number(&of("latency"))?, files.text(&of("name"))?))).flatten()
    });
    let (latency, name) = states.max()?;
    let state = format!("deepest state {name}, {latency} µs to wake up");
    let kind = ConditionKind::IdleStates;
    Some(if latency > LONG_WAKE_UP_US {
        let effect = "idle processors wake up slowly: latencies at low load are longer and vary more";
        MeasurementCondition::distorting(kind, state, effect, "`cpupower idle-set -D 100` disables them, as root")
    } else {
        MeasurementCondition::harmless(kind, state, "wake-ups are short compared with a decode step")
    })
}

/// Reads the quota of version 2 of the control groups. Within a container its own group is at the top.
fn processor_quota(files: &Files<'_>) -> Option<MeasurementCondition> {
    let own = files.text("proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let text = files.text(&format!("sys/fs/cgroup/{own}/cpu.max")).or_else(|| files.text("sys/fs/cgroup/cpu.max"))?;
    let (quota, period) = text.split_once(' ')?;
    let kind = ConditionKind::ProcessorQuota;
    let Ok(quota) = quota.parse::<f64>() else {
        return Some(MeasurementCondition::harmless(kind, "none", "the control group does not limit the processors"));
    };
    let state = format!("limited to {:.1} processors by the control group", quota / period.parse::<f64>().ok()?);
    let effect = "once the quota is used up, processes stop for the rest of each period: latencies have gaps";
    let remedy = "assign whole processors instead (`--cpuset-cpus` of a container)";
    Some(MeasurementCondition::distorting(kind, state, effect, remedy))
}

fn numa(files: &Files<'_>) -> Option<MeasurementCondition> {
    let nodes = files.numbered("sys/devices/system/node", "node").len();
    let kind = ConditionKind::Numa;
    match nodes {
        0 => None,
        1 => Some(MeasurementCondition::harmless(kind, "1 node", "all processors access all memory equally fast")),
        nodes => {
            let effect = "speed depends on the placement of processes and memory, which may differ between launches";
            let remedy = "bind the engine with numactl (examples/wrappers), or use slots";
            Some(MeasurementCondition::distorting(kind, format!("{nodes} nodes"), effect, remedy))
        }
    }
}

fn numa_balancing(files: &Files<'_>) -> Option<MeasurementCondition> {
    let is_on = files.number("proc/sys/kernel/numa_balancing")? != 0;
    let kind = ConditionKind::NumaBalancing;
    Some(if is_on {
        let effect = "the kernel unmaps and moves pages during a measurement, which pauses the processes that use them";
        MeasurementCondition::distorting(kind, "on", effect, "`sysctl kernel.numa_balancing=0`, as root")
    } else {
        MeasurementCondition::harmless(kind, "off", "the kernel does not move pages between nodes")
    })
}

fn huge_pages(files: &Files<'_>) -> Option<MeasurementCondition> {
    let chosen = |name| {
        let text = files.text(&format!("sys/kernel/mm/transparent_hugepage/{name}"))?;
        Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
    };
    let enabled = chosen("enabled")?;
    let defrag = chosen("defrag").map(|defrag| format!(", defrag {defrag}")).unwrap_or_default();
    let (kind, state) = (ConditionKind::HugePages, format!("{enabled}{defrag}"));
    Some(match enabled.as_str() {
        "madvise" => MeasurementCondition::harmless(kind, state, "only memory that requests huge pages gets them"),
        "never" => {
            let effect = "address translation takes longer, above all for engines that run on the CPU";
            MeasurementCondition::distorting(
                kind,
                state,
                effect,
                "set transparent_hugepage/enabled to `madvise`, as root",
            )
        }
        _ => {
            let effect = "the kernel merges pages in the background, which pauses processes and depends on earlier use";
            MeasurementCondition::distorting(
                kind,
                state,
                effect,
                "set transparent_hugepage/enabled to `madvise`, as root",
            )
        }
    })
}

fn pressure(files: &Files<'_>) -> Option<MeasurementCondition> {
    let text = files.text("proc/pressure/memory")?;
    let share = MemoryPressure::from_buf_read(text.as_bytes()).ok()?.some.avg60;
    let (kind, state) =
        (ConditionKind::MemoryPressure, format!("processes waited for memory {share:.1} % of the last minute"));
    Some(if share >= MAX_PRESSURE_PERCENT {
        let effect = "memory is short: pages are written out and read again during a measurement";
        MeasurementCondition::distorting(kind, state, effect, "end processes that use much memory")
    } else {
        MeasurementCondition::harmless(kind, state, "memory is not short")
    })
}

fn swap(readings: &HostUse) -> Option<MeasurementCondition> {
    let (used, total) = readings.swap?;
    let kind = ConditionKind::Swap;
    if total == 0 {
        return Some(MeasurementCondition::harmless(kind, "none", "the host never swaps"));
    }
    let state = format!("{} of {} in use", gib_text(used), gib_text(total));
    Some(if used >= GIB || used >= total / 4 {
        let effect = "swapped pages are read back from the disk, so measurements include its latency";
        MeasurementCondition::distorting(
            kind,
            state,
            effect,
            "free some memory, then `swapoff -a && swapon -a`, as root",
        )
    } else {
        MeasurementCondition::harmless(kind, state, "too little to affect measurements")
    })
}

fn processor_load(readings: &HostUse) -> Option<MeasurementCondition> {
    let busy = readings.busy_percent?;
    let average = readings.load_average.map(|load| format!(", load average {load:.1}")).unwrap_or_default();
    let clock = readings.clock_mhz.map(|(low, high)| {
        let range = if low == high { low.to_string() } else { format!("{low} to {high}") };
        format!(", clock {range} MHz")
    });
    let state = format!("{busy:.0} % of the processors busy{average}{}", clock.unwrap_or_default());
    let kind = ConditionKind::ProcessorLoad;
    Some(if busy >= MAX_LOAD_PERCENT {
        let effect =
            "this load competes with engine and load generator for processors: results are lower and vary more";
        MeasurementCondition::distorting(kind, state, effect, "wait for it or end it; `top` lists the processes")
    } else {
        MeasurementCondition::harmless(kind, state, "the processors are free")
    })
}

fn temperature(readings: &HostUse) -> Option<MeasurementCondition> {
    let hottest = readings.hottest.as_ref()?;
    let (now, critical) = (hottest.now, hottest.critical);
    let state = format!("{}: {now:.0} °C, critical at {critical:.0} °C", hottest.label);
    let kind = ConditionKind::Temperature;
    Some(if now >= critical - NEAR_CRITICAL {
        let effect = "a hot processor lowers its clock: later launches are slower than earlier ones";
        MeasurementCondition::distorting(kind, state, effect, "improve the cooling")
    } else {
        MeasurementCondition::harmless(kind, state, "the temperature does not lower the clock")
    })
}

fn other_users(readings: &HostUse) -> Option<MeasurementCondition> {
    let others = readings.others.as_ref()?;
    let kind = ConditionKind::OtherUsers;
    if others.is_empty() {
        return Some(MeasurementCondition::harmless(kind, "none with much load", "no other user loads the host"));
    }
    let one = |other: &super::host_use::ProcessUse| {
        let (processors, memory) = (other.processors, gib_text(other.memory));
        format!("{} {} of {} ({processors:.1} processors, {memory})", other.name, other.pid, other.user)
    };
    let state = others.iter().map(one).collect::<Vec<_>>().join(", ");
    let effect = "they take processors, caches and memory from a launch while it is measured";
    Some(MeasurementCondition::distorting(
        kind,
        state,
        effect,
        "wait for these processes, or measure while no one else uses the host",
    ))
}

#[cfg(test)]
#[path = "conditions_tests.rs"]
mod tests;
