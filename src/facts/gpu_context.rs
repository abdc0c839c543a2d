//! The part of a trial's context that the driver's management library (NVML) reports.

use nvml_wrapper::Nvml;

use super::{DeviceContext, visible_devices};

/// One device as far as its context goes.
#[derive(Clone, Debug, Default, PartialEq)]
struct DeviceReading {
    name: Option<String>,
    /// Bytes as CUDA reports them: the total without what the driver reserves.
    memory: Option<u64>,
    compute_capability: Option<(i32, i32)>,
    power_limit_mw: Option<u32>,
    mig_profile: Option<String>,
}

/// Reads the devices that an engine started with this `CUDA_VISIBLE_DEVICES` would see. Values that the driver does not
/// report are `None`.
#[must_use]
pub fn read(nvml: &Nvml, visible: Option<&str>) -> DeviceContext {
    let driver = nvml.sys_driver_version().ok();
    let mut seen = Vec::new();
    let mut all_read = true;
    if let Some(list) = visible.filter(|list| list.trim_start().starts_with("MIG-")) {
        for uuid in list.split(',').map(str::trim) {
            match nvml.device_by_uuid(uuid) {
                Ok(device) => seen.push(reading(&device)),
                Err(_) => all_read = false,
            }
        }
    } else {
        let count = nvml.device_count().unwrap_or(0);
        let devices: Vec<_> = (0..count).map(|index| nvml.device_by_index(index).ok()).collect();
        let uuid = |device: &Option<nvml_wrapper::Device<'_>>| device.as_ref()?.uuid().ok();
        let uuids: Vec<String> = devices.iter().map(|device| uuid(device).unwrap_or_default()).collect();
        let uuids: Vec<&str> = uuids.iter().map(String::as_str).collect();
        for index in visible_devices(&uuids, visible) {
            match &devices[index] {
                Some(device) => seen.push(reading(device)),
                None => all_read = false,
            }
        }
    }
    let context = summary(&seen);
    // A device that cannot be read at the moment is no other device.
    let (name, count) = if all_read { (context.name, context.count) } else { (None, None) };
    DeviceContext { name, count, driver, ..context }
}

fn reading(device: &nvml_wrapper::Device<'_>) -> DeviceReading {
    let full_name = device.name().ok();
    let partition = full_name.as_deref().and_then(|name| name.split_once(" MIG "));
    let is_divided = || device.mig_mode().ok().is_some_and(|mode| mode.current != 0);
    // CUDA uses the first instance of a device that is divided.
    let first = || device.mig_device_by_index(0).ok();
    if partition.is_none()
        && is_divided()
        && let Some(instance) = first()
    {
        return DeviceReading { power_limit_mw: device.power_management_limit().ok(), ..reading(&instance) };
    }
    let memory = device.memory_info().ok();
    let capability = device.cuda_compute_capability().ok();
    // An instance has no power limit of its own.
    let parent = partition.and_then(|_| device.mig_parent_device().ok());
    let mig_profile = partition.map_or("none", |(_, profile)| profile.trim()).to_owned();
    let mig_profile = full_name.is_some().then_some(mig_profile);
    DeviceReading {
        name: partition.map(|(name, _)| name.to_owned()).or(full_name),
        memory: memory.map(|memory| memory.total.saturating_sub(memory.reserved)),
        compute_capability: capability.map(|capability| (capability.major, capability.minor)),
        power_limit_mw: parent.as_ref().unwrap_or(device).power_management_limit().ok(),
        mig_profile,
    }
}

/// Combines the devices: kinds in the order of their first device, and the smallest of each number.
fn summary(seen: &[DeviceReading]) -> DeviceContext {
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
    DeviceContext {
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
        assert_eq!(summary(&[]), DeviceContext::default());
    }
}
