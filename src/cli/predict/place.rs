//! What the engine of a study runs on, as a preset of the twin.

use crate::cli::failure::{Failure, INVALID, USAGE};
use crate::facts::{Device, Gpu, GpuReport, GpuSelection, HostLimits};
use crate::job::Job;
use crate::predict::{On, preset_of};
use crate::twin::DevicePreset;

/// The preset of this name.
pub(super) fn preset(name: &str) -> Result<&'static DevicePreset, Failure> {
    DevicePreset::find(name)
        .ok_or_else(|| Failure::new(USAGE, format!("{name:?} is no device that the twin knows; there are {}", names())))
}

fn names() -> String {
    DevicePreset::names().collect::<Vec<_>>().join(", ")
}

/// The device of the study's engine and the limits of its host. What the study says of its devices holds for a named
/// preset as well: how many there are.
pub(super) fn place(job: &Job, named: Option<&str>) -> Result<(On, HostLimits), Failure> {
    let engine = &job.engine;
    let invalid = |message: String| Failure::new(INVALID, message).with_hint("name the nearest one with --device");
    if let Some(name) = named {
        return Ok((counted(On::preset(preset(name)?), job), HostLimits::default()));
    }
    if !engine.engine.computes() {
        let problem = || invalid(format!("engine.args name no simulated device; there are {}", names()));
        let simulated = engine.engine.simulated(&engine.args).ok_or_else(problem)?;
        return Ok((counted(On::preset(simulated.device), job), HostLimits::default()));
    }
    let stated = engine.device.or_else(|| engine.engine.device(&engine.args, None));
    let host = HostLimits::detect();
    if stated == Some(Device::Cpu) {
        return Ok((On { preset: preset("cpu")?, facts: Device::Cpu }, host));
    }
    let visible = engine.environment.get("CUDA_VISIBLE_DEVICES").cloned();
    match (GpuReport::read(&GpuSelection::Visible(visible)), stated) {
        (Ok(report), _) => {
            let name = report.first_name().unwrap_or("a GPU without a name");
            let preset = preset_of(name)
                .ok_or_else(|| invalid(format!("the twin has no preset for {name}; there are {}", names())))?;
            let facts = Device::Cuda(report.gpu(|_| true));
            Ok((On { preset, facts: stated.filter(|device| is_described(*device)).unwrap_or(facts) }, host))
        }
        // A machine without a GPU, for an engine of which nobody says that it needs one.
        (Err(_), None) => Ok((On { preset: preset("cpu")?, facts: Device::Cpu }, host)),
        (Err(error), Some(_)) => {
            Err(invalid(format!("the engine's GPU is not known ({error}); the twin knows {}", names())))
        }
    }
}

fn is_described(device: Device) -> bool {
    device.gpu().is_some_and(|gpu| gpu.memory.is_some())
}

/// With as many devices as the study says.
pub(super) fn counted(on: On, job: &Job) -> On {
    let engine = &job.engine;
    let simulated = engine.engine.simulated(&engine.args);
    let described = engine.device.and_then(Device::gpu).and_then(|gpu| gpu.count);
    let count = simulated.map(|simulated| simulated.devices).or(described);
    match (on.facts, count) {
        (Device::Cuda(gpu), Some(_)) => On { facts: Device::Cuda(Gpu { count, ..gpu }), ..on },
        _ => on,
    }
}
