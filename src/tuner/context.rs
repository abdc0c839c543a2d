//! The context of a run. It is compared with the study's context before the first launch, and with each server that
//! starts.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::TuneError;
use super::run::StudyRun;
use super::watchdog::computes_elsewhere;
use crate::engine::normalized_message;
use crate::execution::{ExecutionEnvironment, ReleaseSource, selected_gpus};
use crate::facts::{
    ContextChange, Device, Host, NVML_TIMEOUT, TrialContext, TrialDevices, call_nvml_async, parse_reported_release,
    read_gpu_context,
};
use crate::job::Job;
use crate::trial::Trial;

/// Owner of the context of a run. It checks the release of each server, and provides the context of each trial.
pub(super) struct RunContext<'r> {
    run: &'r StudyRun<'r>,
    /// Whether the user accepts a context that differs from the study's.
    accepts_change: bool,
    /// The context without its release: each server reports that.
    present: TrialContext,
    /// The first release that a server of this run has reported. It equals the expected one except for its patch,
    /// because any other release ends the run.
    reported: OnceLock<String>,
    /// Notices that were already shown.
    noticed: Mutex<BTreeSet<String>>,
}

/// Reads the devices of a study's engine from the driver. If the driver does not answer or is not the source, the
/// devices are those of `installed`.
async fn devices(job: &Job, installed: &ExecutionEnvironment) -> TrialDevices {
    let described = TrialDevices::described(installed.device);
    let engine = &job.engine;
    let is_here = engine.engine.runs_model() && !computes_elsewhere(&engine.command);
    // The driver is not the source for a device that the study describes, for a CPU, or for an engine elsewhere.
    if !is_here || engine.device.is_some() || installed.device == Device::Cpu {
        return described;
    }
    let selection = selected_gpus(job);
    let read = call_nvml_async(NVML_TIMEOUT, "reading the devices", move |nvml| Ok(read_gpu_context(nvml, &selection)));
    let Ok(context) = read.await else { return described };
    TrialContext { device: context, ..TrialContext::default() }
        .fill_unknown_from(&TrialContext { device: described, ..TrialContext::default() })
        .device
}

/// Lists changes in one line.
fn changes_text(changes: &[ContextChange]) -> String {
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Compares the present context with that of the study's trials, stores it, and returns it.
///
/// # Errors
/// If the release, device class or host differs from that of the study's trials, and the user has not accepted the
/// change.
pub(super) async fn reconcile_context(run: &StudyRun<'_>, accepts_change: bool) -> Result<TrialContext, TuneError> {
    let (store, study, installed) = (run.store, &run.study, &run.installed);
    let device = devices(run.job, installed).await;
    let mut now = TrialContext { release: None, device, host: Host::detect().into() };
    let notice = |text| run.notice(text);
    let Some(stored) = store.context(study).await? else {
        store.set_context(study.id, &now).await?;
        if let Some(text) = adopted_text(run, &now).await? {
            notice(text);
        }
        return Ok(now);
    };
    let is_same_minor = stored.release.as_deref().and_then(parse_reported_release);
    let is_same_minor = is_same_minor.is_some_and(|release| release.is_same_minor(installed.version));
    now.release = match installed.release_from {
        ReleaseSource::Assumed | ReleaseSource::EarlierTrials | ReleaseSource::Unversioned => None,
        // A release in the study file stands for all of its patches, so another patch is no change.
        ReleaseSource::Stated if is_same_minor => None,
        _ => Some(installed.version.to_string()),
    };
    let (reported, refused): (Vec<_>, Vec<_>) =
        stored.changes(&now).into_iter().partition(|change| change.is_comparable);
    let release = stored.release.clone().filter(|_| now.release.is_none() || is_same_minor);
    let now = TrialContext { release: None, ..now };
    if !refused.is_empty() {
        if !accepts_change {
            return Err(TuneError::ContextDiffers { name: study.name.clone(), changes: refused });
        }
        store.accept_context(study.id, &TrialContext { release, ..now.clone() }).await?;
        notice(format!(
            "the context has changed, and the change is accepted: {}; the defaults are measured again, and only trials \
             from now on are compared",
            changes_text(&refused)
        ));
        return Ok(now);
    }
    // A release from these sources is not certain: the server may still report another one.
    let is_release_known = !matches!(installed.release_from, ReleaseSource::Assumed | ReleaseSource::EarlierTrials);
    if accepts_change && is_release_known {
        notice("--accept-change has no effect: the context is still that of the study's trials".to_owned());
    }
    if !reported.is_empty() {
        notice(format!("the context has changed in details, and the study goes on: {}", changes_text(&reported)));
    }
    let present = now.fill_unknown_from(&TrialContext { release: None, ..stored });
    store.set_context(study.id, &TrialContext { release, ..present.clone() }).await?;
    Ok(present)
}

/// Describes the context that a study adopts if an older version of this program created it and stored no context.
/// Returns `None` if the study has no trial.
async fn adopted_text(run: &StudyRun<'_>, now: &TrialContext) -> Result<Option<String>, TuneError> {
    let trials = run.store.trials(&run.study).await?;
    if trials.is_empty() {
        return Ok(None);
    }
    let releases: BTreeSet<_> = trials.iter().filter_map(|scored| scored.trial.engine_version.as_deref()).collect();
    let releases: Vec<_> = releases.into_iter().collect();
    let reported = match releases.as_slice() {
        [] => String::new(),
        releases => format!("; release reported by its servers: {}", releases.join(", ")),
    };
    let unknown = || "unknown".to_owned();
    Ok(Some(format!(
        "study {} has no stored context and adopts the present one: device {}, processor {}{reported}",
        run.study.name,
        now.device.name.clone().or(now.device.compute_capability.clone()).unwrap_or_else(unknown),
        now.host.cpu.clone().unwrap_or_else(unknown),
    )))
}

impl<'r> RunContext<'r> {
    /// Creates a keeper of the context that `enter` has returned.
    pub(super) fn new(run: &'r StudyRun<'r>, accepts_change: bool, present: TrialContext) -> Self {
        Self { run, accepts_change, present, reported: OnceLock::new(), noticed: Mutex::default() }
    }

    /// Reports a notice once instead of with each launch. Texts with equal root lines count as equal: they differ only
    /// in numbers, times or identifiers.
    pub(super) fn notice_once(&self, text: String) {
        let class = normalized_message(&text);
        let is_new = self.noticed.lock().unwrap_or_else(PoisonError::into_inner).insert(class);
        if is_new {
            self.run.notice(text);
        }
    }

    /// Compares the release that a server reports with the one for which flags, rules and memory were computed.
    ///
    /// # Errors
    /// If they differ by more than a patch. The trial is then not measured.
    pub(super) fn check_reported_release(&self, number: u32, reported: Option<&str>) -> Result<(), TuneError> {
        if self.run.installed.release_from == ReleaseSource::Unversioned {
            return Ok(());
        }
        let Some((reported, version)) = reported.and_then(|text| Some((text, parse_reported_release(text)?))) else {
            return Ok(());
        };
        let (expected, from) = (self.run.installed.version, self.run.installed.release_from);
        let Self { accepts_change, reported: first, .. } = self;
        if version.is_same_minor(expected) {
            let is_first = first.set(reported.to_owned()).is_ok();
            if is_first && version != expected {
                let text = format!(
                    "the server reports release {reported}; flags, rules and memory are those of {expected}, which \
                     differs in the patch only"
                );
                self.run.notice(text);
            }
            return Ok(());
        }
        let is_first = first.get().is_none();
        Err(match from {
            ReleaseSource::Assumed if is_first => TuneError::ReleaseAdopted { version, reported: reported.to_owned() },
            ReleaseSource::EarlierTrials if is_first && *accepts_change => {
                TuneError::ReleaseAdopted { version, reported: reported.to_owned() }
            }
            ReleaseSource::EarlierTrials if is_first => TuneError::ContextDiffers {
                name: self.run.job.name.clone(),
                changes: vec![ContextChange {
                    field: "engine release",
                    stored: expected.to_string(),
                    now: reported.to_owned(),
                    is_comparable: false,
                }],
            },
            from => TuneError::OtherRelease {
                number,
                reported: reported.to_owned(),
                expected: first.get().cloned().unwrap_or_else(|| expected.to_string()),
                from: if is_first { from } else { ReleaseSource::FirstServer },
            },
        })
    }

    /// Returns the context of a launched trial.
    pub(super) fn of_trial(&self, trial: &Trial) -> TrialContext {
        TrialContext { release: trial.engine_version.clone(), ..self.present.clone() }
    }
}
