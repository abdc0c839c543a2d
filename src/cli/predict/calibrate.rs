//! Learns the twin's calibration from a study's trials.

use std::collections::BTreeMap;

use crate::cli::failure::{CommandFailure, INVALID};
use crate::cost::{LaunchContext, ObservedLaunch, StartHistory};
use crate::job::Job;
use crate::predict::{LaunchNoise, MAX_TRIALS, MeasuredTrial, TwinQuestion, calibrate_from_trials};
use crate::stats::f64_to_u64;
use crate::store::{ScoredTrial, Store, Study};
use crate::trial::{Measurement, Outcome, Startup};
use crate::twin::{Calibration, TermFactor};

/// Everything that a prediction takes from the trials of a study.
pub(super) struct LearnedCalibration {
    pub(super) calibration: Calibration,
    /// Start-up times of the launches, and the caches that they filled.
    pub(super) starts: StartHistory,
    /// Number of trials that the calibration is based on.
    pub(super) trials: usize,
    /// The noise between launches. `None` without a calibration.
    pub(super) noise: Option<LaunchNoise>,
}

impl LearnedCalibration {
    pub(super) fn nothing() -> Self {
        Self { calibration: Calibration::none(), starts: StartHistory::default(), trials: 0, noise: None }
    }
}

/// Learns from the measured trials of the study `name`. The model, engine and device are those of `question`.
///
/// # Errors
/// If there is no such study, its engine or model differs, or its trials do not suffice for a calibration.
pub(super) async fn calibrate(
    store: &Store,
    name: &str,
    question: &TwinQuestion<'_>,
) -> Result<LearnedCalibration, CommandFailure> {
    let Some(study) = store.study(name).await? else {
        return Err(CommandFailure::new(INVALID, format!("there is no study {name:?} in {}", store.path().display()))
            .with_hint("`setpoint studies` lists the studies of the database"));
    };
    same_engine(&study, question.job)?;
    let (mut all, mut started) = (Vec::new(), Vec::new());
    let mut repeated: BTreeMap<String, Vec<Measurement>> = BTreeMap::new();
    let mut startups = store.startups(&study).await?;
    for scored in store.present_trials(&study).await? {
        let startup = startups.remove(&scored.trial.proposal.number);
        started.extend(startup.clone().map(|startup| ObservedLaunch::new(&scored.trial, startup)));
        let measurement = scored.trial.outcome.measurement().cloned();
        let key = scored.trial.proposal.config.key();
        if let Some(tried) = measured_trial(store, &study, scored, startup).await? {
            repeated.entry(key).or_default().extend(measurement);
            all.push(tried);
        }
    }
    if all.is_empty() {
        let problem = format!("no measured trial of study {name} has stored reply times");
        return Err(CommandFailure::new(INVALID, problem)
            .with_hint("run the study further: `setpoint tune` stores the reply times of every new trial"));
    }
    let calibration = calibrate_from_trials(question, &all).map_err(|error| {
        CommandFailure::new(INVALID, format!("study {name} cannot calibrate the prediction: {error}"))
            .with_hint("omit --calibrate; the ranges are then as wide as for an unknown machine")
    })?;
    let starts = StartHistory::learn(&launch_context(question), &started);
    let simulated = !question.job.engine.engine.runs_model();
    let noise = Some(LaunchNoise::of(repeated.values().map(Vec::as_slice), simulated));
    Ok(LearnedCalibration { calibration, starts, trials: all.len().min(MAX_TRIALS), noise })
}

/// Returns the facts that start-up times depend on: model, release, device, host and arguments.
pub(super) fn launch_context<'a>(question: &TwinQuestion<'a>) -> LaunchContext<'a> {
    let TwinQuestion { job, version, device, host, .. } = question;
    LaunchContext {
        facts: job.facts(*version, device.facts, *host),
        preset: device.preset,
        arguments: job.engine.arguments(*version),
    }
}

/// Describes the calibration in one line: each factor with its standard deviation in percent.
pub(super) fn calibration_text(learned: &LearnedCalibration, study: &str) -> String {
    let LearnedCalibration { calibration, trials, .. } = learned;
    let factor = |factor: TermFactor| {
        let (value, spread) = (calibration.factors[factor], calibration.spread[factor] * 100.0);
        format!("{} {value:.2} +- {spread:.0} %", factor.name())
    };
    let factors: Vec<_> = TermFactor::ALL.into_iter().map(factor).collect();
    let trials = if *trials == 1 { "one trial".to_owned() } else { format!("{trials} trials") };
    format!("calibrated on {trials} of {study}; times as multiples of the preset's: {}", factors.join(", "))
}

/// Checks that model, engine kind, arguments and environment are equal. The twin takes them from the study file.
fn same_engine(study: &Study, job: &Job) -> Result<(), CommandFailure> {
    let (theirs, ours) = (&study.definition, job.definition());
    for pointer in ["/model", "/engine/kind", "/engine/args", "/engine/env"] {
        let (there, here) = (theirs.pointer(pointer), ours.pointer(pointer));
        if there != here {
            let key = pointer.trim_start_matches('/').replace('/', ".");
            let show =
                |value: Option<&serde_json::Value>| value.map_or_else(|| "nothing".to_owned(), ToString::to_string);
            let problem = format!(
                "{key} of study {} is {}, but in this study file it is {}",
                study.name,
                show(there),
                show(here)
            );
            return Err(CommandFailure::new(INVALID, problem)
                .with_hint("calibrate with a study of the same engine and model; load and space may differ"));
        }
    }
    Ok(())
}

/// Returns a trial for the calibration. `None` if it was not measured, was not alone on the host, or has no stored
/// replies.
async fn measured_trial(
    store: &Store,
    study: &Study,
    scored: ScoredTrial,
    startup: Option<Startup>,
) -> Result<Option<MeasuredTrial>, CommandFailure> {
    let trial = scored.trial;
    let Outcome::Measured(measurement) = &trial.outcome else { return Ok(None) };
    if store.placement(study, trial.proposal.number).await?.is_some_and(|placement| !placement.alone) {
        return Ok(None);
    }
    let Some(replies) = store.replies(study, trial.proposal.number).await? else { return Ok(None) };
    let blocks = startup.as_ref().and_then(|startup| startup.resolved.get("num-gpu-blocks"));
    let steps = measurement.server.get("engine_steps").map(|steps| f64_to_u64(steps.round()));
    let blocks = blocks.and_then(|blocks| blocks.parse().ok());
    Ok(Some(MeasuredTrial { config: trial.proposal.config, replies, steps, blocks }))
}
