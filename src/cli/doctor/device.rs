//! Checks the GPUs and names the processes that hold their memory.

use super::CheckResult;
use crate::execution::ExecutionEnvironment;
use crate::facts::{Device, DeviceMemory, GpuError, GpuReading, GpuReport, MemoryHolder, NVML_TIMEOUT, call_nvml};
use crate::job::Job;
use crate::server::ResourceHolder;
use crate::stats::gib_text;

/// Largest use of an idle device's memory, in bytes. The driver and a desktop need some.
const MAX_IDLE_BYTES: u64 = 1 << 30;

pub(super) fn check(study: Option<(&Job, &ExecutionEnvironment)>) -> Vec<CheckResult> {
    let needs_one =
        study.map(|(job, installed)| matches!(installed.device, Device::Cuda(_)) && job.engine.engine.runs_model());
    match GpuReport::of_machine() {
        Ok(report) => {
            let driver = call_nvml(NVML_TIMEOUT, "reading its release", |nvml| Ok(nvml.sys_driver_version()?));
            let driver = driver.unwrap_or_else(|_| "unknown".to_owned());
            report.readings.iter().map(|reading| device_result(reading, &driver, &owner)).collect()
        }
        Err(error @ GpuError::Hangs { .. }) => {
            let text = error.to_string();
            let hint = "look for Xid lines in `dmesg`; reset the device, or restart the machine";
            vec![if needs_one == Some(true) {
                CheckResult::fail("device", text, hint)
            } else {
                CheckResult::warn("device", text, hint)
            }]
        }
        Err(error) => vec![no_gpu_result(needs_one, &format!("no GPU: {error}"))],
    }
}

fn device_result(reading: &GpuReading, driver: &str, owner: &dyn Fn(u32) -> String) -> CheckResult {
    let GpuReading { id, name, memory, problem, .. } = reading;
    let name = name.as_deref().unwrap_or("unknown");
    match (problem, memory) {
        (Some(problem), _) => {
            let hint = "see `nvidia-smi` and `dmesg`, or exclude the device with CUDA_VISIBLE_DEVICES";
            CheckResult::warn("device", format!("{id}: {name}, cannot be read: {problem}, driver {driver}"), hint)
        }
        (None, None) => CheckResult::ok("device", format!("{id}: {name}, memory is not reported, driver {driver}")),
        (None, Some(memory)) => memory_result(memory, driver, owner),
    }
}

/// Returns the finding for a machine without a readable GPU. `needs_one` states whether the study's engine computes on
/// one. `None` means that there is no study.
fn no_gpu_result(needs_one: Option<bool>, text: &str) -> CheckResult {
    match needs_one {
        Some(false) => CheckResult::ok("device", format!("{text}; the study needs none")),
        Some(true) => CheckResult::fail("device", text, "check `nvidia-smi`; in a container, pass the devices to it"),
        None => CheckResult::warn("device", text, "without one, trials need vLLM for the CPU or the simulated engine"),
    }
}

fn memory_result(reading: &DeviceMemory, driver: &str, owner: &dyn Fn(u32) -> String) -> CheckResult {
    let DeviceMemory { id, name, usable, used, free, holders, .. } = reading;
    let text = format!("{id}: {name}, {} of {} free, driver {driver}", gib_text(*free), gib_text(*usable));
    if *used <= MAX_IDLE_BYTES && holders.is_empty() {
        return CheckResult::ok("device", text);
    }
    let holder = |MemoryHolder { pid, used }: &MemoryHolder| {
        let bytes = used.map(|bytes| format!(" ({})", gib_text(bytes))).unwrap_or_default();
        format!("{}{bytes}", owner(*pid))
    };
    let holders = match holders.as_slice() {
        // In a container the driver lists no processes of the host.
        [] => "a process that is not visible from here".to_owned(),
        holders => holders.iter().map(holder).collect::<Vec<_>>().join(", "),
    };
    let hint = "wait for these processes or end them, because a trial would have less memory; `setpoint reap` ends \
                those of killed runs";
    CheckResult::warn("device", format!("{text}; held by {holders}"), hint)
}

/// Describes a process.
fn owner(pid: u32) -> String {
    let owner = i32::try_from(pid).ok().and_then(ResourceHolder::of);
    owner.map_or_else(|| format!("process {pid}"), |owner| owner.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::CheckState;

    #[test]
    fn processes_that_hold_a_devices_memory_are_named() {
        let (usable, used, free) = (80 << 30, 600 << 20, (80 << 30) - (600 << 20));
        let idle = DeviceMemory { name: "A100".into(), usable, used, free, ..DeviceMemory::default() };
        let owner = |pid| format!("VLLM::EngineCore {pid} of user 7");
        let finding = memory_result(&idle, "570.1", &owner);
        assert_eq!((finding.state, finding.text.as_str()), {
            (CheckState::Ok, "GPU 0: A100, 79.4 GiB of 80.0 GiB free, driver 570.1")
        });
        let holders = [(42, Some(69 << 30)), (43, None)].map(|(pid, used)| MemoryHolder { pid, used }).to_vec();
        let held = DeviceMemory { used: 70 << 30, holders, ..idle.clone() };
        let finding = memory_result(&held, "570.1", &owner);
        assert_eq!(finding.state, CheckState::Warn);
        let holders = "held by VLLM::EngineCore 42 of user 7 (69.0 GiB), VLLM::EngineCore 43 of user 7";
        assert!(finding.text.ends_with(holders), "{}", finding.text);
        let unseen = memory_result(&DeviceMemory { holders: Vec::new(), ..held }, "570.1", &owner);
        assert!(unseen.text.ends_with("held by a process that is not visible from here"), "{}", unseen.text);
    }

    #[test]
    fn a_missing_device_fails_only_a_study_that_needs_one() {
        let states = [None, Some(false), Some(true)].map(|needs| no_gpu_result(needs, "no GPU").state);
        assert_eq!(states, [CheckState::Warn, CheckState::Ok, CheckState::Fail]);
    }
}
