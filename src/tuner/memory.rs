//! Memory figures of starts: stored after each launch, read before the next check.

use std::path::Path;

use crate::config::Config;
use crate::execution::ExecutionEnvironment;
use crate::facts::Device;
use crate::job::Job;
use crate::memory::{LearnedMemory, StartObservation};
use crate::rule::Facts;
use crate::server::read_log;
use crate::store::{StartKey, Store, StoreError, StoredStart};

/// The most starts that are read: further ones add no information.
const MAX_STARTS: u32 = 64;

/// Returns the memory model's observations from stored starts of this model, device and release.
///
/// # Errors
/// If the database cannot be read.
pub async fn read_learned_memory(
    job: &Job,
    installed: &ExecutionEnvironment,
    store: &Store,
) -> Result<LearnedMemory, StoreError> {
    let starts = store.starts(&start_key(job, installed), MAX_STARTS).await?;
    let facts = job.facts(installed.version, installed.device, installed.host);
    let observations = starts.into_iter().filter_map(|start| {
        let launch = Facts { env: &start.env, ..facts }.memory_launch(&start.config)?;
        Some(StartObservation { launch, observed: start.observed })
    });
    Ok(LearnedMemory::new(observations.collect()))
}

/// Returns the key of the stored starts that are comparable: engine, release, device class and shape of the model.
pub(super) fn start_key(job: &Job, installed: &ExecutionEnvironment) -> StartKey {
    StartKey {
        engine: job.engine.engine.kind().to_owned(),
        version: installed.version.to_string(),
        device: device_key(installed.device),
        fingerprint: job.model.shape.fingerprint(),
    }
}

/// Returns the memory figures in the log of a launch, also of a failed one; `None` if there are none.
pub(super) fn observed_start(job: &Job, config: &Config, log: &Path) -> Option<StoredStart> {
    let engine = &job.engine.engine;
    let observed = engine.log_reader()?.read_memory(&read_log(log));
    let decide = |name: &String| engine.memory_variables().contains(&name.as_str());
    let env = job.engine.environment.iter().filter(|(name, _)| decide(name));
    let env = env.map(|(name, value)| (name.clone(), value.clone())).collect();
    observed.is_useful().then(|| StoredStart { config: config.clone(), env, observed })
}

/// Returns the properties of a device that determine an engine's memory use.
fn device_key(device: Device) -> String {
    let Some(gpu) = device.gpu() else { return "cpu".to_owned() };
    let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let (major, minor) = gpu.capability.unzip();
    format!("cuda {} {}.{}", number(gpu.memory), number(major.map(u64::from)), number(minor.map(u64::from)))
}
