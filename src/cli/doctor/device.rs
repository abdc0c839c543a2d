//! The GPUs, and who holds their memory.

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use procfs::process::Process;

use super::{Finding, gib};
use crate::facts::Device;
use crate::job::Job;
use crate::tuner::Installed;

/// What a driver and a desktop take of an idle device.
const IDLE: u64 = 1 << 30;

/// One device as the driver reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reading {
    name: String,
    driver: String,
    /// Bytes.
    total: u64,
    used: u64,
    /// Who computes on it, with bytes where the driver tells.
    holders: Vec<(u32, Option<u64>)>,
}

pub(super) fn look(study: Option<(&Job, &Installed)>) -> Vec<Finding> {
    let needs_one =
        study.map(|(job, installed)| matches!(installed.device, Device::Cuda(_)) && job.engine.engine.kind() != "sim");
    match read() {
        Ok(readings) if !readings.is_empty() => {
            let tell = |(index, reading)| told(index, reading, &owner);
            readings.iter().enumerate().map(tell).collect()
        }
        Ok(_) => vec![absent(needs_one, "the driver reports no device")],
        Err(error) => vec![absent(needs_one, &format!("no GPU: {error}"))],
    }
}

/// `needs_one` says whether the study's engine computes on a GPU, where there is a study.
fn absent(needs_one: Option<bool>, text: &str) -> Finding {
    match needs_one {
        Some(false) => Finding::ok("device", format!("{text}; the study needs none")),
        Some(true) => Finding::fail("device", text, "check `nvidia-smi`; in a container give it the devices"),
        None => Finding::warn("device", text, "without one, trials need vLLM for the CPU or the simulated engine"),
    }
}

fn told(index: usize, reading: &Reading, owner: &dyn Fn(u32) -> String) -> Finding {
    let Reading { name, driver, total, used, holders } = reading;
    let text =
        format!("{index}: {name}, {} of {} free, driver {driver}", gib(total.saturating_sub(*used)), gib(*total));
    if *used <= IDLE && holders.is_empty() {
        return Finding::ok("device", text);
    }
    let holder = |(pid, bytes): &(u32, Option<u64>)| {
        let bytes = bytes.map(|bytes| format!(" ({})", gib(bytes))).unwrap_or_default();
        format!("{}{bytes}", owner(*pid))
    };
    let holders = match holders.as_slice() {
        // In a container the driver names no processes of the host.
        [] => "a process that is not seen from here".to_owned(),
        holders => holders.iter().map(holder).collect::<Vec<_>>().join(", "),
    };
    let hint = "wait for them or end them: a trial would get less memory; `setpoint reap` ends its own";
    Finding::warn("device", format!("{text}; held by {holders}"), hint)
}

fn read() -> Result<Vec<Reading>, NvmlError> {
    let nvml = Nvml::init()?;
    let driver = nvml.sys_driver_version()?;
    let reading = |index| {
        let device = nvml.device_by_index(index)?;
        let (name, memory) = (device.name()?, device.memory_info()?);
        let bytes = |used| if let UsedGpuMemory::Used(bytes) = used { Some(bytes) } else { None };
        let processes = device.running_compute_processes().unwrap_or_default();
        let holders = processes.into_iter().map(|process| (process.pid, bytes(process.used_gpu_memory))).collect();
        Ok(Reading { name, driver: driver.clone(), total: memory.total, used: memory.used, holders })
    };
    (0..nvml.device_count()?).map(reading).collect()
}

/// Who a process is, in words.
fn owner(pid: u32) -> String {
    let process = i32::try_from(pid).ok().and_then(|pid| Process::new(pid).ok());
    let Some(process) = process else { return format!("process {pid}") };
    let name = process.stat().map_or_else(|_| "unknown".to_owned(), |stat| stat.comm);
    process.uid().map_or_else(|_| format!("{name} {pid}"), |user| format!("{name} {pid} of user {user}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::State;

    #[test]
    fn who_holds_a_devices_memory_is_named() {
        let idle = Reading {
            name: "A100".into(),
            driver: "570.1".into(),
            total: 80 << 30,
            used: 600 << 20,
            ..Reading::default()
        };
        let owner = |pid| format!("VLLM::EngineCore {pid} of user 7");
        let finding = told(0, &idle, &owner);
        assert_eq!((finding.state, finding.text.as_str()), {
            (State::Ok, "0: A100, 79.4 GiB of 80.0 GiB free, driver 570.1")
        });
        let held = Reading { used: 70 << 30, holders: vec![(42, Some(69 << 30)), (43, None)], ..idle.clone() };
        let finding = told(1, &held, &owner);
        assert_eq!(finding.state, State::Warn);
        let holders = "held by VLLM::EngineCore 42 of user 7 (69.0 GiB), VLLM::EngineCore 43 of user 7";
        assert!(finding.text.ends_with(holders), "{}", finding.text);
        let unseen = told(1, &Reading { holders: Vec::new(), ..held }, &owner);
        assert!(unseen.text.ends_with("held by a process that is not seen from here"), "{}", unseen.text);
    }

    #[test]
    fn a_missing_device_fails_only_a_study_that_needs_one() {
        let states = [None, Some(false), Some(true)].map(|needs| absent(needs, "no GPU").state);
        assert_eq!(states, [State::Warn, State::Ok, State::Fail]);
    }
}
