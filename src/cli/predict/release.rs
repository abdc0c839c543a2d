//! Choice of the engine's release for a prediction, from the first source that has one.

use std::time::Duration;

use crate::cli::GlobalOptions;
use crate::cli::failure::CommandFailure;
use crate::engine::SimulatedLaunch;
use crate::facts::EngineVersion;
use crate::job::Job;
use crate::server;
use crate::store::{Store, StoreError, Study};

/// Limit of the release probe: Python starts and reads one metadata file.
const PROBE_LIMIT: Duration = Duration::from_secs(20);

/// The release that a prediction assumes, with its source.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReleaseChoice {
    pub(super) version: EngineVersion,
    pub(super) origin: ReleaseOrigin,
}

/// The source of a release.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ReleaseOrigin {
    /// The command line, the study file, or the flags of a simulated engine, which has the newest release by default.
    Stated,
    /// The trials of this study ran it.
    Trials(String),
    /// The installed engine reports it.
    Installed,
    /// No source states it. The newest known release is assumed.
    Assumed,
}

impl ReleaseChoice {
    /// Returns the stated release. Without one, the first known of these counts: that of the calibrating study's trials,
    /// of the study's own trials, and of the installed engine. The last resort is the newest known release.
    pub(super) async fn find(
        stated: Option<EngineVersion>,
        job: &Job,
        simulated: Option<SimulatedLaunch>,
        calibrating_study: Option<&str>,
        global: &GlobalOptions,
    ) -> Result<Self, CommandFailure> {
        let simulated = simulated.map(|simulated| simulated.version);
        if let Some(version) = stated.or(job.engine.version).or(simulated) {
            return Ok(Self { version, origin: ReleaseOrigin::Stated });
        }
        if let Some((version, study)) = release_of_trials(job, calibrating_study, global).await? {
            return Ok(Self { version, origin: ReleaseOrigin::Trials(study) });
        }
        let reported = match job.engine.engine.version_probe(&job.engine.command) {
            Some(probe) => server::output_of(&probe, PROBE_LIMIT).await,
            None => None,
        };
        Ok(match reported.and_then(|text| job.engine.engine.read_release(&text)) {
            Some(version) => Self { version, origin: ReleaseOrigin::Installed },
            None => Self { version: job.engine.engine.newest_release(), origin: ReleaseOrigin::Assumed },
        })
    }
}

impl std::fmt::Display for ReleaseChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let version = self.version;
        match &self.origin {
            ReleaseOrigin::Stated => write!(f, "{version}"),
            ReleaseOrigin::Trials(study) => write!(f, "{version} (from the trials of study {study:?})"),
            ReleaseOrigin::Installed => write!(f, "{version} (installed)"),
            ReleaseOrigin::Assumed => {
                write!(
                    f,
                    "{version} (assumed: no study, trial or installed engine states it; --engine-version sets it)"
                )
            }
        }
    }
}

/// Returns the release of the last launch, with the study's name. The calibrating study comes first, then the study of
/// the job's own name.
async fn release_of_trials(
    job: &Job,
    calibrating_study: Option<&str>,
    global: &GlobalOptions,
) -> Result<Option<(EngineVersion, String)>, CommandFailure> {
    let store = match Store::open(&global.db, false).await {
        Ok(store) => store,
        // Predictions need no database. `--calibrate` reports a missing one.
        Err(StoreError::Missing(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let own = Some(&*job.name).filter(|own| calibrating_study != Some(own));
    let mut found = None;
    for name in calibrating_study.into_iter().chain(own) {
        let Some(study) = store.study(name).await? else { continue };
        if let Some(version) = release_of_last_launch(&store, &study).await? {
            found = Some((version, study.name));
            break;
        }
    }
    store.close().await;
    Ok(found)
}

async fn release_of_last_launch(store: &Store, study: &Study) -> Result<Option<EngineVersion>, StoreError> {
    let trials = store.trials(study).await?;
    Ok(trials.iter().rev().find_map(|scored| scored.trial.engine_version.as_ref()?.parse().ok()))
}
