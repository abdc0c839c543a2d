//! The execution environment of a study's engine: its release, its device and the host.
//!
//! A run detects it ([`detect`]). The study's statements take precedence over the installed engine, and the engine over
//! the driver. A prediction may be for a device that is not present. It then needs only the twin's preset of the device
//! (`prediction_device`).

mod device_preset;
mod measured_trials;

use std::time::Duration;

pub(crate) use device_preset::{PresetError, prediction_device, preset_named, with_stated_count};
pub use measured_trials::{UnusableTrials, measured_trial};

use crate::facts::{Device, EngineVersion, GpuError, GpuReport, GpuSelection, HostLimits, parse_reported_release};
use crate::job::Job;
use crate::predict::preset_of;
use crate::server::{self, ResourceHolder};
use crate::store::{Store, StoreError};
use crate::twin::DevicePreset;

/// The source of the release for which flags, rules and memory are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseSource {
    /// `engine.version` of the study file.
    Stated,
    /// The installed package.
    Probed,
    /// The servers of the study's earlier trials.
    EarlierTrials,
    /// The first server of this run.
    FirstServer,
    /// No source: it is the newest known release.
    Assumed,
    /// No source is needed: the engine's flags and rules are not known, so nothing depends on the release.
    Unversioned,
}

impl std::fmt::Display for ReleaseSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Stated => "set by engine.version",
            Self::Probed => "reported by the installed package",
            Self::EarlierTrials => "reported by the servers of earlier trials",
            Self::FirstServer => "reported by the first server of this run",
            Self::Assumed => "assumed: the newest known release",
            Self::Unversioned => "nothing depends on it",
        })
    }
}

/// The execution environment of a study's engine, as far as it can be known without a launch.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutionEnvironment {
    /// The release for which flags, rules and memory are computed.
    pub version: EngineVersion,
    pub device: Device,
    /// The limits of the host that the engine runs on.
    pub host: HostLimits,
    /// The reason why the device could not be read, if neither the study nor the driver describes it.
    pub detection_error: Option<String>,
    /// The name of the engine's first GPU, as the driver reports it.
    pub gpu_name: Option<String>,
    /// Notices on the GPUs for the user, one line each.
    pub gpu_notices: Vec<String>,
    /// Whether the release is only assumed, because neither the study nor the engine states it. False for the simulated
    /// engine.
    pub assumed: bool,
    pub release_from: ReleaseSource,
}

/// Time limit of the release probe: Python starts and reads one metadata file.
const PROBE_LIMIT: Duration = Duration::from_secs(20);

/// Detects the release, the device and the host of a study's engine.
///
/// - Release: stated in the study, else reported by the installed engine, else the newest one known.
/// - Device: described in the study, else given by the engine's build and arguments, else reported by the driver.
pub async fn detect(job: &Job) -> ExecutionEnvironment {
    let engine = &job.engine;
    let reported = match (engine.version, engine.engine.version_probe(&engine.command)) {
        (None, Some(probe)) => server::output_of(&probe, PROBE_LIMIT).await,
        _ => None,
    };
    let parsed = reported.as_deref().and_then(|text| engine.engine.read_release(text));
    let known = engine.version.or(parsed);
    let computes = engine.engine.runs_model();
    let has_releases = engine.engine.flags().is_some();
    let stated = engine.device.or_else(|| engine.engine.device(&engine.args, reported.as_deref()));
    let device = stated.unwrap_or(Device::UNKNOWN_GPU);
    let mut installed = ExecutionEnvironment {
        version: known.unwrap_or_else(|| engine.engine.newest_release()),
        device,
        // The limits of this host do not apply to the simulated engine.
        host: if computes { HostLimits::detect() } else { HostLimits::default() },
        detection_error: None,
        gpu_name: None,
        gpu_notices: Vec::new(),
        assumed: known.is_none() && computes && has_releases,
        release_from: match (engine.version, parsed) {
            _ if !has_releases => ReleaseSource::Unversioned,
            (Some(_), _) => ReleaseSource::Stated,
            (None, Some(_)) => ReleaseSource::Probed,
            (None, None) => ReleaseSource::Assumed,
        },
    };
    if computes && device != Device::Cpu {
        let is_described = device != Device::UNKNOWN_GPU;
        match read_gpus(job).await {
            // A described device has no name. Its preset is found by the driver's name.
            Ok(report) if is_described => installed.gpu_name = report.first_name().map(str::to_owned),
            Ok(report) => installed.adopt_gpus(&report),
            // An engine whose flags are not known uses the CPU if no device is stated and the driver finds no GPU.
            Err(_) if !is_described && !has_releases => installed.device = Device::Cpu,
            Err(error) => installed.detection_error = (!is_described).then(|| error.to_string()),
        }
    }
    installed
}

impl ExecutionEnvironment {
    /// Adopts the release that the servers of the study's earlier trials have reported, if it is otherwise only
    /// assumed.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn recall_release(&mut self, store: &Store, study: &str) -> Result<(), StoreError> {
        if self.release_from != ReleaseSource::Assumed {
            return Ok(());
        }
        let Some(study) = store.study(study).await? else { return Ok(()) };
        let release = store.context(&study).await?.and_then(|context| context.release);
        if let Some(version) = release.as_deref().and_then(parse_reported_release) {
            self.adopt(version, ReleaseSource::EarlierTrials);
        }
        Ok(())
    }

    /// Replaces the release. All values that depend on it have to be computed again.
    pub fn adopt(&mut self, version: EngineVersion, release_from: ReleaseSource) {
        (self.version, self.release_from, self.assumed) = (version, release_from, false);
    }

    /// Returns the twin's preset of the device.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn preset(&self, job: &Job) -> Result<&'static DevicePreset, String> {
        let engine = &job.engine.engine;
        if engine.twin().is_none() {
            return Err(format!("the twin does not simulate an engine of kind {:?}", engine.kind()));
        }
        if !engine.runs_model() {
            return simulated_preset(job).ok_or_else(|| "engine.args name no simulated device".to_owned());
        }
        let name = match self.device {
            Device::Cpu => {
                return DevicePreset::find("cpu").ok_or_else(|| "the twin has no preset for a CPU".to_owned());
            }
            Device::Cuda(_) => {
                let reason =
                    || self.detection_error.clone().unwrap_or_else(|| "the driver does not report its name".to_owned());
                self.gpu_name.as_deref().ok_or_else(|| format!("the device is unknown: {}", reason()))?
            }
        };
        preset_of(name).ok_or_else(|| format!("the twin has no preset for {name}"))
    }

    /// Adopts the GPUs that the driver has reported.
    fn adopt_gpus(&mut self, report: &GpuReport) {
        self.device = Device::Cuda(report.gpu(is_ours));
        self.gpu_name = report.first_name().map(str::to_owned);
        self.gpu_notices = report.notices();
    }
}

/// Returns whether a process that the driver lists belongs to a launch. In a container the driver's process ids may be
/// those of another namespace.
pub(crate) fn is_ours(pid: u32) -> bool {
    i32::try_from(pid).ok().and_then(ResourceHolder::of).is_some_and(|owner| owner.ours)
}

/// Returns the selection of the engine's devices: those of its slots, or those that its environment leaves visible.
pub(crate) fn selected_gpus(job: &Job) -> GpuSelection {
    match job.slots.as_ref().and_then(|slots| slots.devices.as_ref()) {
        Some(names) => GpuSelection::Slots(names.join(",")),
        None => GpuSelection::Visible(job.engine.environment.get("CUDA_VISIBLE_DEVICES").cloned()),
    }
}

/// Reads the engine's GPUs from the driver, on a thread of its own.
///
/// # Errors
/// If the driver finds no such GPU, or cannot be read.
pub(crate) async fn read_gpus(job: &Job) -> Result<GpuReport, GpuError> {
    let selection = selected_gpus(job);
    // A driver may take seconds for each device, or hang.
    let read = tokio::task::spawn_blocking(move || GpuReport::read(&selection)).await;
    read.unwrap_or_else(|error| Err(GpuError::Unreadable(error.to_string())))
}

/// Returns the device that the study's engine simulates.
fn simulated_preset(job: &Job) -> Option<&'static DevicePreset> {
    let engine = &job.engine;
    engine.engine.simulated(&engine.args).map(|simulated| simulated.device)
}
