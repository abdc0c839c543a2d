//! The device that a prediction is for, as a preset of the twin.

use super::simulated_preset;
use crate::facts::{Device, Gpu, GpuError, GpuReport, GpuSelection, HostLimits};
use crate::job::Job;
use crate::predict::{PredictedDevice, preset_of};
use crate::twin::DevicePreset;

/// A device without a preset of the twin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PresetError {
    #[error("{name:?} is not a preset of the twin; there are {}", preset_names())]
    UnknownName { name: String },
    #[error("engine.args name no simulated device; there are {}", preset_names())]
    NoSimulatedDevice,
    #[error("the twin has no preset for {gpu}; there are {}", preset_names())]
    NoPreset { gpu: String },
    #[error("the engine's GPU is unknown ({source}); the twin's presets are {}", preset_names())]
    UnknownGpu { source: GpuError },
}

fn preset_names() -> String {
    DevicePreset::names().collect::<Vec<_>>().join(", ")
}

/// Returns the preset of this name.
///
/// # Errors
/// If there is none.
pub(crate) fn preset_named(name: &str) -> Result<&'static DevicePreset, PresetError> {
    DevicePreset::find(name).ok_or_else(|| PresetError::UnknownName { name: name.to_owned() })
}

/// Returns the device for a prediction and the limits of its host. The device is the preset `named`, else that of the
/// study's engine. The number of devices that the study states applies to a named preset as well. A machine without a
/// GPU computes on its processor, unless the study states a GPU.
///
/// # Errors
/// If the twin has no preset of the device.
pub(crate) fn prediction_device(job: &Job, named: Option<&str>) -> Result<(PredictedDevice, HostLimits), PresetError> {
    let engine = &job.engine;
    if let Some(name) = named {
        return Ok((with_stated_count(PredictedDevice::preset(preset_named(name)?), job), HostLimits::default()));
    }
    if !engine.engine.runs_model() {
        let preset = simulated_preset(job).ok_or(PresetError::NoSimulatedDevice)?;
        return Ok((with_stated_count(PredictedDevice::preset(preset), job), HostLimits::default()));
    }
    let stated = engine.device.or_else(|| engine.engine.device(&engine.args, None));
    let host = HostLimits::detect();
    if stated == Some(Device::Cpu) {
        return Ok((PredictedDevice { preset: preset_named("cpu")?, facts: Device::Cpu }, host));
    }
    let visible = engine.environment.get("CUDA_VISIBLE_DEVICES").cloned();
    match (GpuReport::read(&GpuSelection::Visible(visible)), stated) {
        (Ok(report), _) => {
            let name = report.first_name().unwrap_or("a GPU without a name");
            let preset = preset_of(name).ok_or_else(|| PresetError::NoPreset { gpu: name.to_owned() })?;
            let facts = Device::Cuda(report.gpu(|_| true));
            Ok((
                PredictedDevice { preset, facts: stated.filter(|device| is_described(*device)).unwrap_or(facts) },
                host,
            ))
        }
        (Err(_), None) => Ok((PredictedDevice { preset: preset_named("cpu")?, facts: Device::Cpu }, host)),
        (Err(error), Some(_)) => Err(PresetError::UnknownGpu { source: error }),
    }
}

fn is_described(device: Device) -> bool {
    device.gpu().is_some_and(|gpu| gpu.memory.is_some())
}

/// Returns `on` with the number of devices that the study states or simulates.
pub(crate) fn with_stated_count(on: PredictedDevice, job: &Job) -> PredictedDevice {
    let engine = &job.engine;
    let simulated = engine.engine.simulated(&engine.args);
    let described = engine.device.and_then(Device::gpu).and_then(|gpu| gpu.count);
    let count = simulated.map(|simulated| simulated.devices).or(described);
    match (on.facts, count) {
        (Device::Cuda(gpu), Some(_)) => PredictedDevice { facts: Device::Cuda(Gpu { count, ..gpu }), ..on },
        _ => on,
    }
}
