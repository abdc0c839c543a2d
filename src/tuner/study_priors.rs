//! Priors of a study's space: from the twin, and from earlier studies.
//!
//! They depend on the study file, the installed engine, finished studies, and the twin's calibration by the study's own
//! trials. All of these are stored, so that a resumed run begins with equal priors, and makes equal suggestions.

use crate::config::Config;
use crate::execution::ExecutionEnvironment;
use crate::job::{Job, JobSearch, TWIN_PRIOR, past_trial};
use crate::predict::{Knowledge, PredictedDevice, TwinQuestion};
use crate::prior::{PriorBelief, job_prior, study_prior};
use crate::sampler::{KnownOutcome, SamplerPrior};
use crate::store::{Store, StoreError, Study};
use crate::trial::Origin;
use crate::twin::{Calibration, StartupModel, WarmState};

/// Returns the priors that a study requests, the most trusted first, with notices about them. `calibration` is that of the
/// twin. Unavailable priors are left out with a notice, for example those of earlier studies if there is no database. The list is empty for samplers
/// that use no priors. The computation takes some seconds, so callers run it while nothing else runs.
///
/// # Errors
/// If the database cannot be read.
pub async fn read_priors(
    job: &Job,
    installed: &ExecutionEnvironment,
    store: Option<&Store>,
    search: &JobSearch<'_>,
    calibration: &Calibration,
) -> Result<(Vec<SamplerPrior>, Vec<String>), StoreError> {
    let (mut priors, mut told) = (Vec::new(), Vec::new());
    if !job.sampler.uses_priors() {
        return Ok((priors, told));
    }
    for name in &job.priors {
        let belief = match store {
            _ if name == TWIN_PRIOR => twin(job, installed, search, calibration),
            Some(store) => earlier_study_prior(job, store, name, search).await?,
            None => Err("earlier studies are not read without a database".to_owned()),
        };
        match belief {
            Ok(PriorBelief { prior, notes }) => {
                told.extend(notes.into_iter().map(|note| format!("prior {name}: {note}")));
                priors.push(prior);
            }
            Err(why) => told.push(format!("no prior {name}: {why}")),
        }
    }
    Ok((priors, told))
}

/// Returns the twin's predictions under the study's own load.
fn twin(
    job: &Job,
    installed: &ExecutionEnvironment,
    search: &JobSearch<'_>,
    calibration: &Calibration,
) -> Result<PriorBelief, String> {
    let question = twin_question(job, installed, search.space.fixed.clone(), calibration)?;
    let allowed = |config: &Config| search.rejection(config).is_none();
    let belief = job_prior(&question, &search.space, &job.aim(), &allowed, job.seed);
    if belief.prior.points().is_empty() {
        return Err("the twin can run no configuration of the space".to_owned());
    }
    Ok(belief)
}

/// Builds the question to the twin about a configuration under the study's own load.
///
/// # Errors
/// If the twin has no preset of the device.
pub(super) fn twin_question<'a>(
    job: &'a Job,
    installed: &ExecutionEnvironment,
    config: Config,
    calibration: &'a Calibration,
) -> Result<TwinQuestion<'a>, String> {
    let preset = installed.preset(job)?;
    Ok(TwinQuestion {
        job,
        load: &job.load,
        config,
        version: installed.version,
        device: PredictedDevice { preset, facts: installed.device },
        host: installed.host,
        knowledge: Knowledge::for_same_device(calibration),
        acceptance: None,
        startup_model: StartupModel::default(),
        warm: WarmState::default(),
    })
}

/// Returns whether the values of an earlier study have the meaning of this one's. Any two studies of one workload have
/// comparable metrics. Joint values need equal workloads, weights and metrics.
fn has_same_workloads(study: &Study, job: &Job) -> bool {
    let objective = study.objective();
    let joint = objective.as_ref().and_then(|objective| objective.joint.as_ref());
    let has_metric = objective.as_ref().is_some_and(|objective| objective.metric == job.objective.metric);
    let (theirs, ours) = (study.definition.get("workloads"), job.definition());
    joint == job.objective.joint.as_ref() && (joint.is_none() || has_metric && theirs == ours.get("workloads"))
}

/// Returns the measurements of an earlier study, rated by the objective and limits of this one.
async fn earlier_study_prior(
    job: &Job,
    store: &Store,
    name: &str,
    search: &JobSearch<'_>,
) -> Result<Result<PriorBelief, String>, StoreError> {
    let Some(study) = store.study(name).await? else {
        return Ok(Err("the database has no study of this name".to_owned()));
    };
    if !has_same_workloads(&study, job) {
        return Ok(Err("the two studies have different workloads, weights, objective.over or metrics".to_owned()));
    }
    let trials = store.present_trials(&study).await?.into_iter();
    // Interference trials share the host, so the defaults perform differently in them.
    let alone = trials.filter(|scored| scored.trial.proposal.origin != Origin::Interference);
    let past = alone.map(|scored| {
        // A joint value depends on the other launches of its study. Any other is that of this study's metric.
        let score = match job.objective.joint {
            None => job.objective.score(&scored.trial.outcome),
            Some(_) => scored.score,
        };
        let past = past_trial(&job.objective, scored.trial, score);
        (past.config, past.outcome)
    });
    let trials: Vec<_> = past.collect();
    let prior = study_prior(name, &trials, &search.space);
    if !prior.points().iter().any(|(_, known)| matches!(known, KnownOutcome::Measured(_))) {
        return Ok(Err("none of its measured trials is a point of this space".to_owned()));
    }
    let left_out = trials.len() - prior.points().len();
    let notes = (left_out > 0).then(|| {
        format!("{left_out} of {} trials are ignored: outside of this space, or without a result", trials.len())
    });
    Ok(Ok(PriorBelief { prior, notes: notes.into_iter().collect() }))
}
