//! Disturbances of a measurement window: other processes on the engine's devices, and devices that are slowed down.
//!
//! A power cap is normal at full load, and no disturbance.

use std::collections::BTreeMap;

use super::{ForeignProcess, LoadSpan, Telemetry};
use crate::server::ResourceHolder;
use crate::stats::to_f64;

/// Slowdowns that come from the machine and not from the load.
const SLOWDOWNS: [(&str, &str); 4] = [
    ("slowed_by_hardware", "by the hardware"),
    ("slowed_by_software_thermal", "because of its temperature, by the driver"),
    ("slowed_by_hardware_thermal", "because of its temperature, by the hardware"),
    ("slowed_by_power_brake", "by the power supply"),
];

/// A slowdown counts if it holds in more than this share of a window's samples.
const SLOWDOWN_SHARE: f64 = 0.05;

/// Returns one line for each disturbance.
pub(super) fn find_disturbances(telemetry: &Telemetry, window: &LoadSpan) -> Vec<String> {
    let mut found = Vec::new();
    let mut processes: BTreeMap<(&str, u32), &ForeignProcess> = BTreeMap::new();
    for (at, process) in &telemetry.foreign {
        if window.range.contains(at) {
            processes.insert((&process.device, process.pid), process);
        }
    }
    found.extend(processes.values().map(|process| named(process)));
    for (place, gpu) in telemetry.gpus.iter().enumerate() {
        let (all, of) = (to_f64(gpu.within("throttled", window).len()), |name| to_f64(gpu.within(name, window).len()));
        for (name, words) in SLOWDOWNS {
            let share = of(name) / all.max(1.0);
            if share > SLOWDOWN_SHARE {
                found.push(format!(
                    "device {place} of the engine was slowed down {words}, in {:.0} % of the samples",
                    share * 100.0
                ));
            }
        }
    }
    found
}

fn named(process: &ForeignProcess) -> String {
    let ForeignProcess { device, pid, memory, is_new } = process;
    let who = i32::try_from(*pid)
        .ok()
        .and_then(ResourceHolder::of)
        .map_or_else(|| format!("process {pid}"), |owner| owner.to_string());
    let memory = memory.map(|bytes| format!(", {} MiB,", bytes >> 20)).unwrap_or_default();
    let does = if *is_new { "appeared on" } else { "computes on" };
    format!("{who}{memory} {does} {device}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::SeriesTable;
    use std::time::{Duration, Instant};

    #[test]
    fn only_the_window_counts_and_a_cap_on_power_does_not() {
        let began = Instant::now();
        let at = |second| began + Duration::from_secs(second);
        let window = LoadSpan { range: at(10)..at(110), ends_load: true };
        let mut telemetry = Telemetry::empty(began, Duration::from_secs(1));
        let mut table = SeriesTable::default();
        for second in 0..120 {
            let mut row = vec![("throttled", 1.0), ("slowed_by_power_cap", 1.0)];
            // All the time before the window, and in a twentieth of it.
            if second < 15 {
                row.push(("slowed_by_hardware_thermal", 1.0));
            }
            if second >= 100 {
                row.push(("slowed_by_hardware", 1.0));
            }
            table.push(at(second), &row);
        }
        telemetry.gpus = vec![table];
        let process = |pid| ForeignProcess { device: "GPU 3".to_owned(), pid, memory: Some(5 << 30), is_new: pid == 0 };
        telemetry.foreign = vec![(at(5), process(4_000_001)), (at(20), process(0)), (at(21), process(0))];
        telemetry.foreign.push((at(30), process(4_000_002)));
        let expected = [
            "process 0, 5120 MiB, appeared on GPU 3",
            "process 4000002, 5120 MiB, computes on GPU 3",
            "device 0 of the engine was slowed down by the hardware, in 11 % of the samples",
        ];
        assert_eq!(find_disturbances(&telemetry, &window), expected);
    }
}
