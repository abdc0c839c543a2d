//! The GPUs of this machine that a launch computes on, and their memory that other processes use.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::execution::{is_ours, read_gpus};
use crate::facts::{
    Device, DeviceMemory, Gpu, GpuSelection, MeasurementCondition, call_nvml_async, read_gpu_conditions,
};
use crate::server::{holders_text, is_held};
use crate::telemetry::WatchedDevices;
use crate::tuner::run::StudyRun;
use crate::tuner::slots::SlotPlace;
use crate::tuner::watchdog::computes_elsewhere;

/// Returns the GPUs that a launch of this configuration computes on; `None` for the simulated engine and for engines on
/// a CPU.
pub(super) fn launch_devices(run: &StudyRun<'_>, place: &SlotPlace, config: &Config) -> Option<WatchedDevices> {
    let visible = visible_devices(run, place)?;
    // A container may have other devices under equal numbers.
    let is_here = place.devices.is_some() || !computes_elsewhere(&run.job.engine.command);
    let used = if is_here { run.facts().devices_needed(&run.with_engine_args(config)) } else { u64::MAX };
    Some(WatchedDevices { is_exclusive: is_here && visible.is_some(), visible, used, known: Vec::new() })
}

/// Returns the engine's `CUDA_VISIBLE_DEVICES`, if it computes on GPUs.
#[expect(clippy::option_option, reason = "an engine on GPUs may have no such variable")]
pub(super) fn visible_devices(run: &StudyRun<'_>, place: &SlotPlace) -> Option<Option<String>> {
    let engine = &run.job.engine;
    let on_gpu = matches!(run.installed.device, Device::Cuda(_)) && engine.engine.runs_model();
    let given = || engine.environment.get("CUDA_VISIBLE_DEVICES").cloned();
    on_gpu.then(|| place.devices.clone().or_else(given))
}

/// Returns the settings of the engine's GPUs that may distort measurements. The list is empty if the engine computes
/// elsewhere or the driver does not answer. The telemetry of the load reports a silent driver.
pub(super) async fn gpu_conditions(run: &StudyRun<'_>, place: &SlotPlace) -> Vec<MeasurementCondition> {
    let Some(visible) = visible_devices(run, place) else { return Vec::new() };
    if place.devices.is_none() && computes_elsewhere(&run.job.engine.command) {
        return Vec::new();
    }
    let selection = GpuSelection::Visible(visible);
    let read = call_nvml_async(CONDITIONS_LIMIT, "reading the devices' settings", move |nvml| {
        Ok(read_gpu_conditions(nvml, &selection))
    });
    read.await.unwrap_or_default()
}

/// Reads the devices again, and reports the memory that other processes use. Waits for memory of processes that have
/// just ended: it is in use, but belongs to no process. Returns `None` without GPUs or if they cannot be read.
pub(in crate::tuner) async fn device_without_leftovers(run: &StudyRun<'_>) -> Option<Device> {
    let Device::Cuda(gpu) = run.installed.device else { return None };
    let begin = Instant::now();
    let (device, memories) = loop {
        let report = read_gpus(run.job).await.ok().filter(|_| !gpu.units.is_empty())?;
        let memories: Vec<_> = report.readings.iter().filter_map(|reading| reading.memory.clone()).collect();
        let is_settled = !memories.iter().any(|memory| unowned_bytes(memory) > MAX_UNOWNED_BYTES);
        if is_settled || begin.elapsed() >= RELEASE_LIMIT {
            let now = report.gpu(is_ours);
            let now = if run.slots.describe().is_some() { now.interchangeable() } else { now };
            break (Device::Cuda(Gpu { count: gpu.count, ..now }), memories);
        }
        tokio::time::sleep(POLL).await;
    };
    for memory in memories.iter().filter(|memory| is_held(memory)) {
        let (held, usable) = (memory.usable.saturating_sub(memory.free) >> 20, memory.usable >> 20);
        run.notice(format!("{}: {held} of {usable} MiB are held by {}", memory.id, holders_text(memory)));
    }
    Some(device)
}

/// The time limit for reading the settings of a trial's devices.
const CONDITIONS_LIMIT: Duration = Duration::from_secs(2);

/// The time limit for memory of ended processes.
const RELEASE_LIMIT: Duration = Duration::from_secs(20);

const POLL: Duration = Duration::from_millis(500);

/// Bytes that may be in use without an owner: the driver does not count all memory of a living process's context as its
/// own.
const MAX_UNOWNED_BYTES: u64 = 2 << 30;

/// Returns the bytes in use that belong to no process.
fn unowned_bytes(memory: &DeviceMemory) -> u64 {
    memory.used.saturating_sub(memory.holders.iter().filter_map(|holder| holder.used).sum())
}
