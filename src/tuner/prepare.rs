//! Before the first trial: the engine's release, the study's row, its lock, and what an earlier run left behind.

use std::path::PathBuf;
use std::time::Duration;

use super::{Event, Lock, LockError, ReleaseSource, TuneError, Tuner, reap};
use crate::facts::{Device, EngineVersion, GpuError, GpuReport, GpuSelection, Host, HostLimits, readable_release};
use crate::flag::FlagTable;
use crate::job::{Job, differences};
use crate::private_files::{create_private_directory, restrict_files};
use crate::server::{self, Origin, Owed, Owner};
use crate::store::Study;

/// The engine as far as it can be known without a launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Installed {
    pub version: EngineVersion,
    pub device: Device,
    /// Of the host that the engine runs on.
    pub host: HostLimits,
    /// Why the device could not be read, where neither the study nor the driver describes it.
    pub undetected: Option<String>,
    /// The name of the engine's first GPU, as the driver reports it.
    pub gpu_name: Option<String>,
    /// Notices on the GPUs for the user, one line each.
    pub gpu_notices: Vec<String>,
    /// Whether the release is only assumed, because neither the study nor the engine says it.
    pub assumed: bool,
    pub release_from: ReleaseSource,
}

/// Python starts and reads one metadata file.
const PROBE_LIMIT: Duration = Duration::from_secs(20);

/// The release: as the study states it, as the installed engine reports it, or the newest one known. The device: as the
/// study describes it, as the engine's build and arguments tell, or as the driver reports it.
pub async fn detect(job: &Job) -> Installed {
    let engine = &job.engine;
    let reported = match (engine.version, engine.engine.version_probe(&engine.command)) {
        (None, Some(probe)) => server::output_of(&probe, PROBE_LIMIT).await,
        _ => None,
    };
    let parsed = reported.as_deref().and_then(readable_release);
    let known = engine.version.or(parsed);
    let computes = engine.engine.computes();
    let stated = engine.device.or_else(|| engine.engine.device(&engine.args, reported.as_deref()));
    let device = stated.unwrap_or(Device::UNKNOWN_GPU);
    let mut installed = Installed {
        version: known.unwrap_or_else(FlagTable::newest_release),
        device,
        // What the simulated engine runs on does not limit what it simulates.
        host: if computes { HostLimits::detect() } else { HostLimits::default() },
        undetected: None,
        gpu_name: None,
        gpu_notices: Vec::new(),
        assumed: known.is_none() && computes,
        release_from: match (engine.version, parsed) {
            (Some(_), _) => ReleaseSource::Stated,
            (None, Some(_)) => ReleaseSource::Probed,
            (None, None) => ReleaseSource::Assumed,
        },
    };
    if computes && device != Device::Cpu {
        let is_described = device != Device::UNKNOWN_GPU;
        match read_gpus(job).await {
            // The name leads to the preset of a described device as well.
            Ok(report) if is_described => installed.gpu_name = report.first_name().map(str::to_owned),
            Ok(report) => installed.take(&report),
            Err(error) => installed.undetected = (!is_described).then(|| error.to_string()),
        }
    }
    installed
}

impl Installed {
    fn take(&mut self, report: &GpuReport) {
        self.device = Device::Cuda(report.gpu(is_ours));
        self.gpu_name = report.first_name().map(str::to_owned);
        self.gpu_notices = report.notices();
    }
}

/// Whether the driver's process is one of a launch. In a container the ids are others'.
pub(super) fn is_ours(pid: u32) -> bool {
    i32::try_from(pid).ok().and_then(Owner::of).is_some_and(|owner| owner.ours)
}

/// The devices of a study's engine: those of its slots, or those that its environment leaves visible.
pub(super) fn selected_gpus(job: &Job) -> GpuSelection {
    match job.slots.as_ref().and_then(|slots| slots.devices.as_ref()) {
        Some(names) => GpuSelection::Slots(names.join(",")),
        None => GpuSelection::Visible(job.engine.environment.get("CUDA_VISIBLE_DEVICES").cloned()),
    }
}

pub(super) async fn read_gpus(job: &Job) -> Result<GpuReport, GpuError> {
    let selection = selected_gpus(job);
    // A driver may take seconds for each device, or for ever.
    let read = tokio::task::spawn_blocking(move || GpuReport::read(&selection)).await;
    read.unwrap_or_else(|error| Err(GpuError::Unreadable(error.to_string())))
}

impl Tuner<'_> {
    /// Finds or creates the study, locks it, and ends what a killed tuner left running.
    pub(super) async fn open_study(&self) -> Result<(Study, Lock), TuneError> {
        let directory = self.log_directory();
        let io = |source| LockError::Io { path: directory.clone(), source };
        // The folder of all studies' logs, then that of this one's.
        directory.parent().map_or(Ok(()), create_private_directory).map_err(io)?;
        create_private_directory(&directory).and_then(|()| restrict_files(&directory)).map_err(io)?;
        let lock = Lock::acquire(&directory.join("lock"))?;
        let definition = self.job.definition();
        let study = match self.store.study(&self.job.name).await? {
            None => self.store.create_study(&self.job.name, &definition, &Host::detect()).await?,
            Some(study) => {
                let differences = differences(&definition, &study.definition);
                if !differences.is_empty() {
                    return Err(TuneError::Differs { name: study.name, differences });
                }
                study
            }
        };
        self.enter_context(&study).await?;
        for owed in Owed::of(&directory) {
            if let Err(error) = owed.pay(reap::STOP_COMMAND_LIMIT).await {
                (self.observer)(Event::StopCommand { error });
            }
        }
        let of_study = |origin: &Origin| origin.study == self.job.name && origin.is_of(self.store.path());
        let processes = server::end(of_study, Duration::ZERO).await?.len();
        if processes > 0 {
            (self.observer)(Event::Swept { processes });
        }
        Ok((study, lock))
    }

    /// It is stored with each trial.
    pub(super) fn log_directory(&self) -> PathBuf {
        server::log_directory(self.store.path(), &self.job.name)
    }
}
