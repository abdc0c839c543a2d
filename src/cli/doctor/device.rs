//! The GPUs, and who holds their memory.

use super::{Finding, gib};
use crate::facts::{Device, DeviceMemory, DeviceMemoryReader, Holder};
use crate::job::Job;
use crate::server::Owner;
use crate::tuner::Installed;

/// What a driver and a desktop take of an idle device.
const IDLE: u64 = 1 << 30;

pub(super) fn look(study: Option<(&Job, &Installed)>) -> Vec<Finding> {
    let needs_one =
        study.map(|(job, installed)| matches!(installed.device, Device::Cuda(_)) && job.engine.engine.kind() != "sim");
    match DeviceMemoryReader::open(None) {
        Ok(reader) => {
            let driver = reader.driver().unwrap_or_else(|| "unknown".to_owned());
            let tell = |(index, reading)| told(index, reading, &driver, &owner);
            reader.read().iter().enumerate().map(tell).collect()
        }
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

fn told(index: usize, reading: &DeviceMemory, driver: &str, owner: &dyn Fn(u32) -> String) -> Finding {
    let DeviceMemory { name, total, used, holders, .. } = reading;
    let text =
        format!("{index}: {name}, {} of {} free, driver {driver}", gib(total.saturating_sub(*used)), gib(*total));
    if *used <= IDLE && holders.is_empty() {
        return Finding::ok("device", text);
    }
    let holder = |Holder { pid, used }: &Holder| {
        let bytes = used.map(|bytes| format!(" ({})", gib(bytes))).unwrap_or_default();
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

/// Who a process is, in words.
fn owner(pid: u32) -> String {
    let owner = i32::try_from(pid).ok().and_then(Owner::of);
    owner.map_or_else(|| format!("process {pid}"), |owner| owner.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::State;

    #[test]
    fn who_holds_a_devices_memory_is_named() {
        let idle = DeviceMemory { name: "A100".into(), total: 80 << 30, used: 600 << 20, ..DeviceMemory::default() };
        let owner = |pid| format!("VLLM::EngineCore {pid} of user 7");
        let finding = told(0, &idle, "570.1", &owner);
        assert_eq!((finding.state, finding.text.as_str()), {
            (State::Ok, "0: A100, 79.4 GiB of 80.0 GiB free, driver 570.1")
        });
        let holders = [(42, Some(69 << 30)), (43, None)].map(|(pid, used)| Holder { pid, used }).to_vec();
        let held = DeviceMemory { used: 70 << 30, holders, ..idle.clone() };
        let finding = told(1, &held, "570.1", &owner);
        assert_eq!(finding.state, State::Warn);
        let holders = "held by VLLM::EngineCore 42 of user 7 (69.0 GiB), VLLM::EngineCore 43 of user 7";
        assert!(finding.text.ends_with(holders), "{}", finding.text);
        let unseen = told(1, &DeviceMemory { holders: Vec::new(), ..held }, "570.1", &owner);
        assert!(unseen.text.ends_with("held by a process that is not seen from here"), "{}", unseen.text);
    }

    #[test]
    fn a_missing_device_fails_only_a_study_that_needs_one() {
        let states = [None, Some(false), Some(true)].map(|needs| absent(needs, "no GPU").state);
        assert_eq!(states, [State::Warn, State::Ok, State::Fail]);
    }
}
