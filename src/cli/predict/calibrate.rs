//! Learns the twin's calibration from a study's trials.

use std::collections::BTreeMap;

use crate::cli::failure::{CommandFailure, INVALID};
use crate::cost::{LaunchContext, ObservedLaunch, StartHistory};
use crate::execution::{UnusableTrials, measured_trial};
use crate::job::Job;
use crate::predict::{LaunchNoise, MAX_TRIALS, TwinQuestion, calibrate_from_trials};
use crate::store::{Store, Study};
use crate::trial::Measurement;
use crate::twin::Calibration;

/// The knowledge that a prediction takes from the trials of a study.
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
    pub(super) fn none() -> Self {
        Self { calibration: Calibration::none(), starts: StartHistory::default(), trials: 0, noise: None }
    }
}

/// Learns from the measured trials of the study `name` in its present context: its release, device and host. The
/// question's study must have an equal model and engine.
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
    check_same_engine(&study, question.job)?;
    if study.objective().is_some_and(|objective| objective.joint.is_some()) {
        let problem = format!("study {name} has several workloads, and its trials keep no times of single requests");
        return Err(CommandFailure::new(INVALID, problem)
            .with_hint("calibrate with a study of one workload; load and space may differ"));
    }
    let (mut usable, mut launches, mut unusable) = (Vec::new(), Vec::new(), UnusableTrials::default());
    let mut measurements_by_config: BTreeMap<String, Vec<Measurement>> = BTreeMap::new();
    let mut startups = store.startups(&study).await?;
    let trials_of_present_context = store.present_trials(&study).await?;
    for scored in trials_of_present_context {
        let startup = startups.remove(&scored.trial.proposal.number);
        launches.extend(startup.clone().map(|startup| ObservedLaunch::new(&scored.trial, startup)));
        let measurement = scored.trial.outcome.measurement().cloned();
        let key = scored.trial.proposal.config.key();
        if let Some(trial) = measured_trial(store, &study, &scored.trial, startup.as_ref(), &mut unusable).await? {
            measurements_by_config.entry(key).or_default().extend(measurement);
            usable.push(trial);
        }
    }
    if usable.is_empty() {
        return Err(no_usable_trial(unusable, name));
    }
    let calibration = calibrate_from_trials(question, &usable, MAX_TRIALS).map_err(|error| {
        CommandFailure::new(INVALID, format!("study {name} cannot calibrate the prediction: {error}"))
            .with_hint("omit --calibrate; the ranges are then as wide as for an unknown machine")
    })?;
    let starts = StartHistory::learn(&launch_context(question), &launches);
    let simulated = !question.job.engine.engine.runs_model();
    let noise = Some(LaunchNoise::of(measurements_by_config.values().map(Vec::as_slice), simulated));
    Ok(LearnedCalibration { calibration, starts, trials: usable.len().min(MAX_TRIALS), noise })
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
    let trials = if *trials == 1 { "one trial".to_owned() } else { format!("{trials} trials") };
    format!(
        "calibrated on {trials} of study {study}; measured step times relative to the device's default: {}",
        calibration.factors_text()
    )
}

/// Checks that model, engine kind, arguments and environment are equal. The twin takes them from the study file.
fn check_same_engine(study: &Study, job: &Job) -> Result<(), CommandFailure> {
    let (calibrating, own) = (&study.definition, job.definition());
    for pointer in ["/model", "/engine/kind", "/engine/args", "/engine/env"] {
        let (calibrating, own) = (calibrating.pointer(pointer), own.pointer(pointer));
        if calibrating != own {
            let key = pointer.trim_start_matches('/').replace('/', ".");
            let show =
                |value: Option<&serde_json::Value>| value.map_or_else(|| "nothing".to_owned(), ToString::to_string);
            let problem = format!(
                "{key} of study {} is {}, but in this study file it is {}",
                study.name,
                show(calibrating),
                show(own)
            );
            return Err(CommandFailure::new(INVALID, problem)
                .with_hint("calibrate with a study of the same engine and model; load and space may differ"));
        }
    }
    Ok(())
}

/// Returns the failure of a calibration without a usable trial.
fn no_usable_trial(unusable: UnusableTrials, study: &str) -> CommandFailure {
    let UnusableTrials { not_measured, not_alone, without_replies } = unusable;
    let problem = format!(
        "no trial of study {study} can calibrate: {not_measured} not measured, {not_alone} measured beside other \
         trials, {without_replies} without stored reply times"
    );
    let hint = if not_alone > 0 {
        "run the study further with `setpoint tune --parallel 1`: a calibration needs trials that ran alone"
    } else {
        "run the study further: `setpoint tune` stores the reply times of every new trial"
    };
    CommandFailure::new(INVALID, problem).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::{UnusableTrials, no_usable_trial};

    #[test]
    fn trials_that_ran_beside_others_are_named_as_the_reason_and_not_missing_reply_times() {
        let beside = UnusableTrials { not_measured: 1, not_alone: 4, without_replies: 0 };
        let beside = no_usable_trial(beside, "night");
        let problem = "no trial of study night can calibrate: 1 not measured, 4 measured beside other trials, 0 without \
                       stored reply times";
        let beside = format!("{beside:?}");
        assert!(beside.contains(problem) && beside.contains("--parallel 1"), "{beside}");
        let old = no_usable_trial(UnusableTrials { without_replies: 2, ..UnusableTrials::default() }, "night");
        assert!(format!("{old:?}").contains("stores the reply times of every new trial"), "{old:?}");
    }
}
