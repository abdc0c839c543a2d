//! Checks the kernel's limits: files, processes, priority, memory, and the time to read the clock.

use procfs::process::{LimitValue, Process};
use sysinfo::{MemoryRefreshKind, System};

use super::{CheckResult, CheckState};
use crate::stats::{GIB, gib_text};

/// Least limit of open files. A load of a thousand streams has a socket for each stream, and so has the server.
const MIN_FILES: u64 = 4096;

/// Least limit of processes and threads. vLLM starts a process for each device, with a hundred threads in each.
const MIN_PROCESSES: u64 = 4096;

/// Bit of `CAP_SYS_NICE` (`linux/capability.h`).
const SYS_NICE: u64 = 1 << 23;

pub(super) fn check() -> Vec<CheckResult> {
    let mut findings = Vec::new();
    let process = Process::myself().ok();
    if let Some(limits) = process.as_ref().and_then(|process| process.limits().ok()) {
        findings.push(files(value(limits.max_open_files.soft_limit)));
        let group = std::fs::read_to_string("/sys/fs/cgroup/pids.max").ok();
        let group = group.and_then(|text| text.trim().parse().ok());
        findings.push(processes(value(limits.max_processes.soft_limit), group));
        let status = process.and_then(|process| process.status().ok());
        let capable = status.is_some_and(|status| status.capeff & SYS_NICE != 0);
        findings.push(priority(value(limits.max_realtime_priority.soft_limit), capable));
    }
    if let Ok(mut system) = System::new() {
        system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        findings.push(memory(system.available_memory(), system.total_memory()));
    }
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    findings.extend(source.ok().map(|source| clock(source.trim())));
    findings
}

/// Returns a limit; `None` if it is unlimited.
fn value(limit: LimitValue) -> Option<u64> {
    if let LimitValue::Value(value) = limit { Some(value) } else { None }
}

fn files(limit: Option<u64>) -> CheckResult {
    let Some(limit) = limit else { return CheckResult::ok("files", "no limit on open files") };
    let hint = "raise it: `ulimit -n 65535`, or `LimitNOFILE=65535` in systemd";
    CheckResult::expect(limit >= MIN_FILES, "files", format!("{limit} open files at most"), hint)
}

/// Checks the smaller of the user's limit and that of the control group.
fn processes(limit: Option<u64>, group: Option<u64>) -> CheckResult {
    let Some(least) = limit.into_iter().chain(group).min() else {
        return CheckResult::ok("processes", "no limit on processes and threads");
    };
    let hint = "raise it: `ulimit -u`, `TasksMax=` in systemd, `--pids-limit` of a container";
    CheckResult::expect(least >= MIN_PROCESSES, "processes", format!("{least} processes and threads at most"), hint)
}

/// Checks whether a real-time priority is allowed, because the load generator requests one. The check sets none.
fn priority(limit: Option<u64>, capable: bool) -> CheckResult {
    let allowed = capable || limit.is_none_or(|limit| limit > 0);
    let text = if allowed { "a real-time priority is allowed" } else { "no real-time priority is allowed" };
    let hint = "if the engine shares processors with the load generator, allow one: `LimitRTPRIO=1` in systemd, \
                `--ulimit rtprio=1` of a container";
    CheckResult::expect(allowed, "priority", text, hint)
}

fn memory(available: u64, total: u64) -> CheckResult {
    let text = format!("{} of {} available", gib_text(available), gib_text(total));
    let hint = "end processes that use it: an engine that loads weights needs several GiB of host memory";
    CheckResult::expect(available >= 4 * GIB, "memory", text, hint)
}

/// Checks the clock source. The load reads the clock at each token's arrival. With a slow source, each read is a system
/// call and takes microseconds.
fn clock(source: &str) -> CheckResult {
    let slow = ["hpet", "acpi_pm", "jiffies", "xen"].contains(&source);
    let state = if slow { CheckState::Warn } else { CheckState::Ok };
    let hint = slow.then(|| {
        "reading it is slow: select tsc or kvm-clock, if `available_clocksource` lists it in \
         /sys/devices/system/clocksource/clocksource0"
            .to_owned()
    });
    CheckResult { what: "clock", state, text: format!("the clock source is {source}"), hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_limits_are_warnings() {
        let states = |findings: [CheckResult; 3]| findings.map(|finding| finding.state);
        assert_eq!(
            states([files(Some(1024)), files(Some(65_535)), files(None)]),
            [CheckState::Warn, CheckState::Ok, CheckState::Ok]
        );
        assert_eq!(
            states([processes(Some(100_000), Some(512)), processes(Some(100_000), None), processes(None, None)]),
            [CheckState::Warn, CheckState::Ok, CheckState::Ok]
        );
        assert_eq!(
            states([priority(Some(0), false), priority(Some(1), false), priority(Some(0), true)]),
            [CheckState::Warn, CheckState::Ok, CheckState::Ok]
        );
        assert_eq!(states(["hpet", "tsc", "kvm-clock"].map(clock)), [CheckState::Warn, CheckState::Ok, CheckState::Ok]);
    }

    #[test]
    fn this_machine_is_looked_at() {
        let named: Vec<_> = check().iter().map(|finding| finding.what).collect();
        for what in ["files", "processes", "priority", "memory"] {
            assert!(named.contains(&what), "{named:?}");
        }
    }
}
