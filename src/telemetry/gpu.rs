//! The GPUs, as the driver's management library (NVML) reports them: a thin layer that reads, and what readings mean.

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};

use super::host::{GIB, float};
use super::series::Row;
use crate::facts::visible_devices;

/// Reasons for which a device runs slower than it could, by the bits of NVML's clock event reasons (`nvml.h`). Idleness
/// and clocks that somebody has set are no slowdown.
pub(super) const SLOWDOWNS: &[(u64, &str)] = &[
    (0x04, "slowed_by_power_cap"),
    (0x08, "slowed_by_hardware"),
    (0x10, "slowed_by_sync_boost"),
    (0x20, "slowed_by_software_thermal"),
    (0x40, "slowed_by_hardware_thermal"),
    (0x80, "slowed_by_power_brake"),
];

/// One device at one instant; what it does not support is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// Bytes.
    pub(super) memory_used: Option<u64>,
    /// Percent of the time in which a kernel ran.
    pub(super) utilization: Option<u32>,
    pub(super) power_mw: Option<u32>,
    /// Since the driver was loaded.
    pub(super) energy_mj: Option<u64>,
    pub(super) temperature_c: Option<u32>,
    pub(super) sm_mhz: Option<u32>,
    pub(super) memory_mhz: Option<u32>,
    /// NVML's bits.
    pub(super) reasons: Option<u64>,
}

impl Reading {
    /// The values by name.
    pub(super) fn row(&self) -> Row {
        let mut row = Row::new();
        let mut add = |name, value: Option<f64>| row.extend(value.map(|value| (name, value)));
        add("memory_gib", self.memory_used.map(|bytes| float(bytes) / GIB));
        add("utilization", self.utilization.map(|percent| f64::from(percent) / 100.0));
        add("power_w", self.power_mw.map(|power| f64::from(power) / 1000.0));
        add("energy_j", self.energy_mj.map(|energy| float(energy) / 1000.0));
        add("temperature_c", self.temperature_c.map(f64::from));
        add("sm_clock_mhz", self.sm_mhz.map(f64::from));
        add("memory_clock_mhz", self.memory_mhz.map(f64::from));
        let set = |mask: u64| self.reasons.map(|bits| f64::from(u8::from(bits & mask != 0)));
        add("throttled", set(SLOWDOWNS.iter().map(|(bit, _)| bit).sum()));
        for (bit, name) in SLOWDOWNS {
            // A reason that does not hold needs no column.
            add(name, set(*bit).filter(|value| *value > 0.0));
        }
        row
    }
}

/// The devices that are watched.
pub(super) struct Gpus {
    nvml: Nvml,
    indices: Vec<u32>,
}

impl std::fmt::Debug for Gpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpus").field("indices", &self.indices).finish_non_exhaustive()
    }
}

impl Gpus {
    /// The devices that these processes compute on; where that cannot be seen (process ids in a container are others),
    /// those that `CUDA_VISIBLE_DEVICES` leaves. `None` where there is no driver or no such device: nothing is wrong then.
    pub(super) fn open(visible: Option<&str>, pids: &[i32]) -> Option<Self> {
        let nvml = Nvml::init().ok()?;
        let count = nvml.device_count().ok()?;
        let (mut uuids, mut used) = (Vec::new(), Vec::new());
        for index in 0..count {
            let device = nvml.device_by_index(index).ok()?;
            uuids.push(device.uuid().unwrap_or_default());
            let processes = device.running_compute_processes().unwrap_or_default();
            used.push(processes.into_iter().map(|process| process.pid).collect());
        }
        let indices = chosen(&uuids, &used, visible, pids);
        (!indices.is_empty()).then_some(Self { nvml, indices })
    }

    /// One reading for each device, in order.
    pub(super) fn read(&self) -> Vec<Reading> {
        let read = |index: &u32| {
            let Ok(device) = self.nvml.device_by_index(*index) else { return Reading::default() };
            Reading {
                memory_used: device.memory_info().ok().map(|memory| memory.used),
                utilization: device.utilization_rates().ok().map(|rates| rates.gpu),
                power_mw: device.power_usage().ok(),
                energy_mj: device.total_energy_consumption().ok(),
                temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
                sm_mhz: device.clock_info(Clock::SM).ok(),
                memory_mhz: device.clock_info(Clock::Memory).ok(),
                reasons: device.current_throttle_reasons().ok().map(|reasons| reasons.bits()),
            }
        };
        self.indices.iter().map(read).collect()
    }
}

/// Which devices to watch: `used` holds the process ids that compute on each.
fn chosen(uuids: &[String], used: &[Vec<u32>], visible: Option<&str>, pids: &[i32]) -> Vec<u32> {
    let ours = |pid: &u32| i32::try_from(*pid).is_ok_and(|pid| pids.contains(&pid));
    let mut places: Vec<usize> = (0..used.len()).filter(|index| used[*index].iter().any(ours)).collect();
    if places.is_empty() {
        places = visible_devices(&uuids.iter().map(String::as_str).collect::<Vec<_>>(), visible);
    }
    places.into_iter().filter_map(|place| u32::try_from(place).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_becomes_values_in_units_and_says_why_it_is_slow() {
        let reading = Reading {
            memory_used: Some(3 << 29),
            utilization: Some(97),
            power_mw: Some(412_500),
            energy_mj: Some(5_000),
            temperature_c: Some(71),
            sm_mhz: Some(1410),
            memory_mhz: None,
            reasons: Some(0x04 | 0x40 | 0x02),
        };
        let expected = [
            ("memory_gib", 1.5),
            ("utilization", 0.97),
            ("power_w", 412.5),
            ("energy_j", 5.0),
            ("temperature_c", 71.0),
            ("sm_clock_mhz", 1410.0),
            ("throttled", 1.0),
            ("slowed_by_power_cap", 1.0),
            ("slowed_by_hardware_thermal", 1.0),
        ];
        assert_eq!(reading.row(), expected);
        let idle = Reading { reasons: Some(0x01 | 0x02 | 0x100), ..Reading::default() };
        assert_eq!(idle.row(), [("throttled", 0.0)]);
        assert_eq!(Reading::default().row(), []);
    }

    #[test]
    fn the_devices_of_the_servers_processes_are_watched_or_else_the_visible_ones() {
        let uuids = ["GPU-11", "GPU-22", "GPU-33"].map(str::to_owned);
        let used = [vec![7], vec![8, 9], vec![9]];
        assert_eq!(chosen(&uuids, &used, None, &[9]), [1, 2]);
        assert_eq!(chosen(&uuids, &used, Some("2,0"), &[1]), [2, 0]);
        assert_eq!(chosen(&uuids, &used, None, &[]), [0, 1, 2]);
        assert_eq!(chosen(&uuids, &used, Some(""), &[1]), [0; 0]);
    }

    #[test]
    fn a_machine_without_a_gpu_is_no_error_and_one_with_a_gpu_is_read() {
        let Some(gpus) = Gpus::open(None, &[]) else { return };
        let readings = gpus.read();
        assert_eq!(readings.len(), gpus.indices.len());
        assert!(readings.iter().all(|reading| !reading.row().is_empty()), "{readings:?}");
    }
}
