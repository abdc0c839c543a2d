//! The GPUs, as the driver's management library (NVML) reports them: a thin layer of reads, and their interpretation.

use std::time::Duration;

use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};

use super::foreign_process::{ComputeProcesses, ForeignProcessDetector, compute};
use super::series::SeriesRow;
use super::{DeviceProcesses, WatchedDevices};
use crate::facts::{
    DeviceMemory, GpuError, GpuId, GpuSelection, NVML_TIMEOUT, call_nvml, listed_gpus, read_device, with_device,
};
use crate::stats::{gib, to_f64};

/// Reasons for which a device runs slower than it could, by the bits of NVML's clock event reasons (`nvml.h`). Idleness
/// and clocks set by a user are no slowdown.
pub(super) const SLOWDOWNS: &[(u64, &str)] = &[
    (0x04, "slowed_by_power_cap"),
    (0x08, "slowed_by_hardware"),
    (0x10, "slowed_by_sync_boost"),
    (0x20, "slowed_by_software_thermal"),
    (0x40, "slowed_by_hardware_thermal"),
    (0x80, "slowed_by_power_brake"),
];

/// One device at one instant. Unsupported values are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GpuInstant {
    /// Bytes.
    pub(super) memory_used: Option<u64>,
    /// Percent of the time that a kernel ran.
    pub(super) utilization: Option<u32>,
    pub(super) power_mw: Option<u32>,
    /// Energy since the driver was loaded.
    pub(super) energy_mj: Option<u64>,
    pub(super) temperature_c: Option<u32>,
    pub(super) sm_mhz: Option<u32>,
    pub(super) memory_mhz: Option<u32>,
    /// NVML's bits of clock event reasons.
    pub(super) reasons: Option<u64>,
}

/// Values that describe the engine only on devices of its own.
const ENGINE_ONLY_VALUES: [&str; 3] = ["utilization", "power_w", "energy_j"];

impl GpuInstant {
    /// Returns the values by name.
    pub(super) fn row(&self) -> SeriesRow {
        let mut row = SeriesRow::new();
        let mut add = |name, value: Option<f64>| row.extend(value.map(|value| (name, value)));
        add("memory_gib", self.memory_used.map(gib));
        add("utilization", self.utilization.map(|percent| f64::from(percent) / 100.0));
        add("power_w", self.power_mw.map(|power| f64::from(power) / 1000.0));
        add("energy_j", self.energy_mj.map(|energy| to_f64(energy) / 1000.0));
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

/// Time limit of a reading. It is short, because the host and the processes are read together with the devices.
const READING_LIMIT: Duration = Duration::from_secs(1);

/// The watched devices.
#[derive(Debug)]
pub(super) struct WatchedGpus {
    ids: Vec<GpuId>,
    /// The reason for which the devices are not known to be the engine's, if they are not.
    unattributed_reason: Option<String>,
    foreign: ForeignProcessDetector,
}

/// A reading of all devices.
#[derive(Debug, Default)]
pub(super) struct GpuRows {
    /// One for each device, in order; none if the driver does not answer.
    pub(super) devices: Vec<SeriesRow>,
    /// Foreign processes that compute on the engine's devices.
    pub(super) foreign: Vec<super::ForeignProcess>,
    /// Reasons for absent values.
    pub(super) notes: Vec<String>,
}

impl WatchedGpus {
    /// Opens the devices that these processes compute on. If they are not visible (process ids in a container differ),
    /// opens the visible devices that the server uses. Returns `None` without a driver or such a device, which is no
    /// error.
    ///
    /// # Errors
    /// If the driver hangs.
    pub(super) fn open(devices: &WatchedDevices, pids: &[i32]) -> Result<Option<Self>, GpuError> {
        let variable = devices.visible.clone();
        let listed = call_nvml(NVML_TIMEOUT.min(READING_LIMIT * 5), "listing the devices", move |nvml| {
            let all = listed_gpus(nvml, None)?;
            let visible = listed_gpus(nvml, Some(&GpuSelection::Visible(variable))).unwrap_or_default();
            let computes: Vec<_> = all.iter().map(|id| compute(nvml, id, 0)).collect();
            Ok((all, visible, computes))
        });
        let (all, visible, computes) = match listed {
            Ok(listed) => listed,
            Err(error @ GpuError::Hangs { .. }) => return Err(error),
            Err(_) => return Ok(None),
        };
        let used: Vec<_> = computes.iter().map(ComputeProcesses::pids).collect();
        let (ids, doubt) = chosen(&all, &used, &visible, devices, pids);
        let known = |id: &GpuId| all.iter().position(|one| one == id);
        let before: Vec<_> =
            ids.iter().map(|id| known(id).map(|at| computes[at].clone()).unwrap_or_default()).collect();
        let first = |(id, now): (&GpuId, &ComputeProcesses)| {
            let earlier = devices.known.iter().find(|(known, _)| known == id);
            (id.clone(), earlier.map_or_else(|| now.pids(), |(_, pids)| pids.clone()))
        };
        let known = ids.iter().zip(&before).map(first).collect();
        let foreign = ForeignProcessDetector::new(known, &before, pids);
        Ok((!ids.is_empty()).then_some(Self { ids, unattributed_reason: doubt, foreign }))
    }

    /// Returns the reason for absent values, if there is one.
    pub(super) fn absence_note(&self) -> Option<String> {
        let doubt = self.unattributed_reason.as_ref()?;
        Some(format!("energy and utilization of the GPUs are absent: {doubt}"))
    }

    /// Returns the processes that initially computed on the devices.
    pub(super) fn initial_processes(&self) -> Vec<DeviceProcesses> {
        self.foreign.initial_processes.clone()
    }

    /// Reads the highest utilization of the devices, in percent.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub(super) fn highest_utilization(&self) -> Result<Option<u32>, GpuError> {
        let ids = self.ids.clone();
        call_nvml(READING_LIMIT, "reading the utilization", move |nvml| {
            Ok(ids.iter().filter_map(|id| reading(nvml, id).utilization).max())
        })
    }

    /// Reads the devices. `pids` finds the server's processes anew.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub(super) fn read(&mut self, pids: impl FnOnce() -> Vec<i32>) -> Result<GpuRows, GpuError> {
        let (ids, seen) = (self.ids.clone(), self.foreign.last_timestamps());
        let readings = call_nvml(READING_LIMIT, "reading the devices", move |nvml| {
            let read = |(id, seen): (&GpuId, &u64)| (reading(nvml, id), compute(nvml, id, *seen));
            Ok(ids.iter().zip(&seen).map(read).collect::<Vec<_>>())
        })?;
        let (readings, computes): (Vec<_>, Vec<_>) = readings.into_iter().unzip();
        let is_known = self.unattributed_reason.is_none();
        let kept = |row: SeriesRow| {
            row.into_iter().filter(|(name, _)| is_known || !ENGINE_ONLY_VALUES.contains(name)).collect()
        };
        let rows = readings.iter().map(|reading| kept(reading.row())).collect();
        // On a device that may be another engine's, every process may be that engine's.
        let foreign = if is_known { self.foreign.find(computes, pids) } else { Vec::new() };
        let silent = |(_, reading): &(&GpuId, &GpuInstant)| reading.energy_mj.is_none() && reading.power_mw.is_none();
        let silent: Vec<_> = self.ids.iter().zip(&readings).filter(silent).map(|(id, _)| id.to_string()).collect();
        let note = || format!("energy is absent: {} report neither energy nor power of their own", silent.join(", "));
        let notes = if is_known && !silent.is_empty() { vec![note()] } else { Vec::new() };
        Ok(GpuRows { devices: rows, foreign, notes })
    }
}

fn reading(nvml: &nvml_wrapper::Nvml, id: &GpuId) -> GpuInstant {
    let memory = read_device(nvml, id).ok();
    let read = |device: &nvml_wrapper::Device<'_>| GpuInstant {
        memory_used: memory.as_ref().map(|memory: &DeviceMemory| memory.used),
        utilization: device.utilization_rates().ok().map(|rates| rates.gpu),
        power_mw: device.power_usage().ok(),
        energy_mj: device.total_energy_consumption().ok(),
        temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
        sm_mhz: device.clock_info(Clock::SM).ok(),
        memory_mhz: device.clock_info(Clock::Memory).ok(),
        reasons: device.current_throttle_reasons().ok().map(|reasons| reasons.bits()),
    };
    let reading = with_device(nvml, id, read).unwrap_or_default();
    match id.instance {
        None => reading,
        // The device's values cover all its instances.
        Some(_) => GpuInstant { utilization: None, power_mw: None, energy_mj: None, ..reading },
    }
}

/// Returns the devices to watch, and the reason for which they may not be the engine's. `used` contains the process ids
/// that compute on each of `all`.
fn chosen(
    all: &[GpuId],
    used: &[Vec<u32>],
    visible: &[GpuId],
    devices: &WatchedDevices,
    pids: &[i32],
) -> (Vec<GpuId>, Option<String>) {
    let ours = |pid: &u32| i32::try_from(*pid).is_ok_and(|pid| pids.contains(&pid));
    let mine: Vec<_> =
        all.iter().zip(used).filter(|(_, used)| used.iter().any(ours)).map(|(id, _)| id.clone()).collect();
    if !mine.is_empty() {
        return (mine, None);
    }
    let most = usize::try_from(devices.used).unwrap_or(usize::MAX);
    let ids: Vec<_> = visible.iter().take(most).cloned().collect();
    // An unknown number of devices is stored as unlimited.
    let uses_all = devices.used != u64::MAX && visible.len() <= most;
    if devices.is_exclusive || uses_all || all.len() == 1 {
        return (ids, None);
    }
    let doubt =
        "the driver lists none of the server's processes (in a container they have other ids), and neither slots nor \
                 CUDA_VISIBLE_DEVICES identify its GPUs"
            .to_owned();
    (ids, Some(doubt))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_becomes_values_with_units_and_reasons_of_a_slowdown() {
        let reading = GpuInstant {
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
        let idle = GpuInstant { reasons: Some(0x01 | 0x02 | 0x100), ..GpuInstant::default() };
        assert_eq!(idle.row(), [("throttled", 0.0)]);
        assert_eq!(GpuInstant::default().row(), []);
    }

    fn id(index: u32) -> GpuId {
        GpuId { index, uuid: format!("GPU-{index}"), instance: None }
    }

    #[test]
    fn the_devices_of_the_servers_processes_are_watched_or_else_the_visible_ones() {
        let all = [id(0), id(1), id(2)];
        let used = [vec![7], vec![8, 9], vec![9]];
        let look = |visible: &[GpuId], used_count, is_given, pids: &[i32]| {
            let devices = WatchedDevices { visible: None, used: used_count, is_exclusive: is_given, known: Vec::new() };
            let (ids, doubt) = chosen(&all, &used, visible, &devices, pids);
            (ids.iter().map(|id| id.index).collect::<Vec<_>>(), doubt.is_none())
        };
        assert_eq!(look(&all, 1, false, &[9]), (vec![1, 2], true), "by its processes");
        assert_eq!(look(&[id(2), id(0)], 1, true, &[1]), (vec![2], true), "by the variable");
        assert_eq!(look(&all, 3, false, &[1]), (vec![0, 1, 2], true), "it uses all there are");
        assert_eq!(look(&all, 2, false, &[1]), (vec![0, 1], false), "they may be others' as well");
        assert_eq!(look(&all, u64::MAX, false, &[]), (vec![0, 1, 2], false));
        let devices = WatchedDevices { visible: None, used: u64::MAX, is_exclusive: false, known: Vec::new() };
        assert_eq!(chosen(&all[..1], &used[..1], &all[..1], &devices, &[]).1, None, "there is no other");
    }
}
