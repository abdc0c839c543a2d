//! Settings of GPUs that change measurements, as the driver's management library (NVML) reports them.

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;

use super::conditions::{ConditionKind, MeasurementCondition};
use super::gpu_list::{GpuId, GpuList, GpuSelection};

/// The settings of one device; `None` if the driver does not report them.
#[derive(Clone, Debug, Default, PartialEq)]
struct DeviceSettings {
    index: u32,
    is_persistent: Option<bool>,
    has_fixed_clocks: Option<bool>,
    /// Milliwatts: the limit in force and the default one.
    power_limits: Option<(u32, u32)>,
    has_ecc: Option<bool>,
}

/// Reads the selected devices. Each condition describes all devices; one that no device reports is absent.
#[must_use]
pub fn read(nvml: &Nvml, selection: &GpuSelection) -> Vec<MeasurementCondition> {
    let selected = GpuList::read(nvml).and_then(|list| list.selected(selection)).unwrap_or_default();
    // An instance has the settings of its device.
    let device = |id: &GpuId| nvml.device_by_index(id.index).ok();
    let settings: Vec<_> = selected.iter().filter_map(|id| Some(settings(id.index, &device(id)?))).collect();
    derive_conditions(&settings)
}

fn settings(index: u32, device: &nvml_wrapper::Device<'_>) -> DeviceSettings {
    let fixed = ThrottleReasons::APPLICATIONS_CLOCKS_SETTING;
    DeviceSettings {
        index,
        is_persistent: device.is_in_persistent_mode().ok(),
        has_fixed_clocks: device.current_throttle_reasons().ok().map(|reasons| reasons.contains(fixed)),
        power_limits: device.enforced_power_limit().ok().zip(device.power_management_limit_default().ok()),
        has_ecc: device.is_ecc_enabled().ok().map(|ecc| ecc.currently_enabled),
    }
}

fn derive_conditions(devices: &[DeviceSettings]) -> Vec<MeasurementCondition> {
    let is_on = |value: &bool| if *value { "on" } else { "off" }.to_owned();
    let persistence = states(devices, |device| device.is_persistent.as_ref().map(is_on));
    let clocks = |fixed: &bool| if *fixed { "locked" } else { "free" }.to_owned();
    let clocks = states(devices, |device| device.has_fixed_clocks.as_ref().map(clocks));
    let power = states(devices, |device| {
        let (limit, default) = device.power_limits?;
        let usual = if limit == default { String::new() } else { format!(" instead of {} W", default / 1000) };
        Some(format!("{} W{usual}", limit / 1000))
    });
    let ecc = states(devices, |device| device.has_ecc.as_ref().map(is_on));

    let any = |holds: fn(&DeviceSettings) -> bool| devices.iter().any(holds);
    let is_transient = any(|device| device.is_persistent == Some(false));
    let is_limited = any(|device| device.power_limits.is_some_and(|(limit, default)| limit < default));
    let is_locked = any(|device| device.has_fixed_clocks == Some(true));
    let condition = |kind, state: Option<String>, problem: Option<(&str, &str)>, effect| {
        state.map(|state| match problem {
            Some((effect, remedy)) => MeasurementCondition::distorting(kind, state, effect, remedy),
            None => MeasurementCondition::harmless(kind, state, effect),
        })
    };
    let transient = (
        "the driver unloads between launches: each start is some seconds longer and settings are lost",
        "`nvidia-smi -pm 1` or nvidia-persistenced, as root",
    );
    let locked = (
        "results vary less, but are valid only with these clocks",
        "`nvidia-smi -rgc` and `nvidia-smi -rac`, as root, if production runs without locked clocks",
    );
    let limited = (
        "long loads run at a lower clock than with the default limit",
        "`nvidia-smi -pl WATTS`, as root, if production runs with another limit",
    );
    [
        condition(
            ConditionKind::GpuPersistence,
            persistence,
            is_transient.then_some(transient),
            "the driver stays loaded between launches",
        ),
        condition(
            ConditionKind::GpuClocks,
            clocks,
            is_locked.then_some(locked),
            "the clock depends on temperature and power: a cold device is a few per cent faster",
        ),
        condition(
            ConditionKind::GpuPowerLimit,
            power,
            is_limited.then_some(limited),
            "the default limit or a higher one",
        ),
        condition(ConditionKind::GpuEcc, ecc, None, "ECC takes some memory and bandwidth on devices without HBM"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the state of all devices, or of each if they differ; `None` if no device has one.
fn states(devices: &[DeviceSettings], state: impl Fn(&DeviceSettings) -> Option<String>) -> Option<String> {
    let known: Vec<_> = devices.iter().filter_map(|device| Some((device.index, state(device)?))).collect();
    let (_, first) = known.first()?;
    if known.len() == devices.len() && known.iter().all(|(_, state)| state == first) {
        return Some(first.clone());
    }
    Some(known.iter().map(|(index, state)| format!("{state} (GPU {index})")).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32) -> DeviceSettings {
        DeviceSettings {
            index,
            is_persistent: Some(true),
            has_fixed_clocks: Some(false),
            power_limits: Some((700_000, 700_000)),
            has_ecc: Some(true),
        }
    }

    fn states_of(devices: &[DeviceSettings]) -> Vec<(&'static str, String, bool)> {
        let named = |found: MeasurementCondition| (found.kind.name(), found.state, found.distorts);
        derive_conditions(devices).into_iter().map(named).collect()
    }

    #[test]
    fn devices_with_usual_settings_do_not_distort() {
        let expected = [("persistence", "on"), ("gpu-clocks", "free"), ("gpu-power", "700 W"), ("gpu-ecc", "on")];
        let expected: Vec<_> = expected.iter().map(|(name, state)| (*name, (*state).to_owned(), false)).collect();
        assert_eq!(states_of(&[device(0), device(1)]), expected);
        assert_eq!(states_of(&[]), []);
        assert_eq!(states_of(&[DeviceSettings::default()]), []);
    }

    #[test]
    fn a_device_with_another_setting_is_named() {
        let other = DeviceSettings {
            is_persistent: Some(false),
            has_fixed_clocks: Some(true),
            power_limits: Some((500_000, 700_000)),
            has_ecc: None,
            ..device(3)
        };
        let found = states_of(&[device(0), other]);
        let expected = [
            ("persistence", "on (GPU 0), off (GPU 3)", true),
            ("gpu-clocks", "free (GPU 0), locked (GPU 3)", true),
            ("gpu-power", "700 W (GPU 0), 500 W instead of 700 W (GPU 3)", true),
            ("gpu-ecc", "on (GPU 0)", false),
        ];
        let expected: Vec<_> = expected.iter().map(|(name, state, on)| (*name, (*state).to_owned(), *on)).collect();
        assert_eq!(found, expected);
    }
}
