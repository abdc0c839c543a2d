//! The part of a trial's context that the driver's management library (NVML) reports.

use nvml_wrapper::Nvml;

use super::TrialDevices;
use super::gpu_list::{GpuList, GpuSelection};
use super::nvml::memory;

/// The context of one device.
#[derive(Clone, Debug, Default, PartialEq)]
struct DeviceReading {
    name: Option<String>,
    /// Bytes as CUDA reports them: the total without the driver's reserve.
    memory: Option<u64>,
    compute_capability: Option<(i32, i32)>,
    power_limit_mw: Option<u32>,
    mig_profile: Option<String>,
}

/// Reads the selected devices. Values that the driver does not report are `None`.
#[must_use]
pub fn read(nvml: &Nvml, selection: &GpuSelection) -> TrialDevices {
    let driver = nvml.sys_driver_version().ok();
    let selected = GpuList::read(nvml).and_then(|list| list.selected(selection)).unwrap_or_default();
    let seen: Vec<_> = selected.iter().filter_map(|id| Some(reading(nvml, &id.open(nvml).ok()?))).collect();
    let context = summary(&seen);
    // A device that is temporarily unreadable must not look like a change of devices.
    let (name, count) = if seen.len() == selected.len() { (context.name, context.count) } else { (None, None) };
    TrialDevices { name, count, driver, ..context }
}

fn reading(nvml: &Nvml, device: &nvml_wrapper::Device<'_>) -> DeviceReading {
    let full_name = device.name().ok();
    let partition = full_name.as_deref().and_then(|name| name.split_once(" MIG "));
    let capability = device.cuda_compute_capability().ok();
    // An instance has no power limit of its own: that of its device applies.
    let parent = partition.and_then(|_| device.mig_parent_device().ok());
    let mig_profile = partition.map_or("none", |(_, profile)| profile.trim()).to_owned();
    let mig_profile = full_name.is_some().then_some(mig_profile);
    DeviceReading {
        name: partition.map(|(name, _)| name.to_owned()).or(full_name),
        memory: memory(nvml, device).ok().map(|memory| memory.usable),
        compute_capability: capability.map(|capability| (capability.major, capability.minor)),
        power_limit_mw: parent.as_ref().unwrap_or(device).power_management_limit().ok(),
        mig_profile,
    }
}

/// Combines the devices: kinds in the order of their first device, and the smallest of each number.
fn summary(seen: &[DeviceReading]) -> TrialDevices {
    let kinds = |value: fn(&DeviceReading) -> Option<&String>| {
        let mut kinds: Vec<&str> = Vec::new();
        for device in seen {
            let kind = value(device)?;
            if !kinds.contains(&kind.as_str()) {
                kinds.push(kind);
            }
        }
        (!kinds.is_empty()).then(|| kinds.join(" + "))
    };
    let least = |value: fn(&DeviceReading) -> Option<u64>| {
        let all: Option<Vec<u64>> = seen.iter().map(value).collect();
        all?.into_iter().min()
    };
    let capability = seen.iter().map(|device| device.compute_capability).collect::<Option<Vec<_>>>();
    let capability = capability.and_then(|all| all.into_iter().min());
    let milliwatts = least(|device| device.power_limit_mw.map(u64::from)).and_then(|limit| u32::try_from(limit).ok());
    TrialDevices {
        name: kinds(|device| device.name.as_ref()),
        memory: least(|device| device.memory),
        count: u32::try_from(seen.len()).ok().filter(|count| *count > 0),
        mig_profile: kinds(|device| device.mig_profile.as_ref()),
        compute_capability: capability.map(|(major, minor)| format!("{major}.{minor}")),
        power_limit_w: milliwatts.map(|limit| f64::from(limit) / 1000.0),
        driver: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, gib: u64, watts: u32) -> DeviceReading {
        DeviceReading {
            name: Some(name.to_owned()),
            memory: Some(gib << 30),
            compute_capability: Some((9, 0)),
            power_limit_mw: Some(watts * 1000),
            mig_profile: Some("none".to_owned()),
        }
    }

    #[test]
    fn several_devices_are_described_by_their_kinds_and_by_the_least_of_them() {
        let context = summary(&[device("H100", 80, 700), device("H100", 80, 650), device("L4", 24, 650)]);
        assert_eq!((context.name.as_deref(), context.count), (Some("H100 + L4"), Some(3)));
        assert_eq!((context.memory, context.power_limit_w), (Some(24 << 30), Some(650.0)));
        assert_eq!(
            (context.mig_profile.as_deref(), context.compute_capability.as_deref()),
            (Some("none"), Some("9.0"))
        );
    }

    #[test]
    fn a_number_that_one_device_does_not_report_is_unknown() {
        let silent = DeviceReading { memory: None, power_limit_mw: None, ..device("H100", 80, 700) };
        let context = summary(&[device("H100", 80, 700), silent]);
        assert_eq!((context.memory, context.power_limit_w, context.count), (None, None, Some(2)));
        assert_eq!(summary(&[]), TrialDevices::default());
    }
}
