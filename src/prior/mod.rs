//! Predictions for a space before any measurement: by the twin, or from another study's trials.
//!
//! The twin is used as in `predict`, with one run for each configuration. A sampler begins with the best configurations
//! of the prior, so they must be among those that are run. The space is first covered evenly, then densely around the
//! best ones (`explore`). The limit of the work counts simulated steps, not seconds, so that equal questions have equal
//! answers. Numbers are rounded to five significant digits, which are equal on all machines.
//!
//! A metric that the twin does not model, or a parameter without effect in it, is left out and reported in
//! [`PriorBelief::notes`].

mod context;
mod explore;
mod parameter_reader;
mod context_job;
mod spelling;
mod study;
#[cfg(test)]
mod tests;
mod twin_predictor;

pub use context::{DeviceContext, LoadContext, ModelContext, OptimizeContext};
pub use context_job::ContextError;
pub use study::study_prior;

use crate::config::Config;
use crate::objective::Constraint;
use crate::predict::{ForecastSpan, TwinQuestion};
use crate::sampler::{SamplerPrior, SearchAim};
use crate::space::Space;
use context_job::ContextJob;
use explore::explore;
use parameter_reader::ParameterReader;
use twin_predictor::{TwinPredictor, WantedMetrics};

/// Name of the twin as the source of a prior.
pub const TWIN_SOURCE: &str = "the twin";

/// A prior, and notes on it for the user.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PriorBelief {
    pub prior: SamplerPrior,
    /// Gaps in the twin's predictions, in whole lines.
    pub notes: Vec<String>,
}

/// Predicts a study's space under the study's own load: one run for each of at most about 320 configurations. The
/// number of requests is limited, so that a run is computed quickly. `question` contains job, load, release, device and
/// calibration; its configuration is not used. `allowed` is the sampler's: configurations that it refuses are left out.
///
/// `aim` is that of the study's objective: one target, and its constraints in their order. Without a known acceptance rate
/// of drafts, those of [`context_prior`] are assumed.
#[must_use]
pub fn job_prior(
    question: &TwinQuestion<'_>,
    space: &Space,
    aim: &SearchAim,
    allowed: &dyn Fn(&Config) -> bool,
    seed: u64,
) -> PriorBelief {
    let objective = &question.job.objective;
    let wanted = WantedMetrics {
        objectives: vec![Some(objective.metric.clone())],
        constraints: objective.constraints.iter().cloned().map(Some).collect(),
    };
    let twin = question.job.engine.engine.twin();
    let names = space.parameters.iter().map(|parameter| parameter.name.clone());
    let ignored: Vec<String> = names.filter(|name| !twin.is_some_and(|twin| twin.has_effect(name))).collect();
    let notes = ignored_note(&ignored);
    let load = twin_predictor::shortened(question.load, &question.job.workload, 1);
    let question = TwinQuestion { load: &load, ..question.clone() };
    let speculates = |config: &Config| parameter_reader::acceptance(config).is_some();
    let read = |config: &Config| (config.clone(), speculates(config));
    let view = TwinPredictor::new(question, ForecastSpan::Own, wanted, read);
    let mut view = view.with_acceptance(parameter_reader::acceptance);
    let first = vec![space.fixed.clone()];
    let points = explore(space, aim, allowed, seed, first, &ignored, &mut |configs| view.predict_batch(configs));
    finish(&view, points, notes)
}

/// Predicts a space of a caller without a study file. Parameters have the caller's names: those of flags, with dashes
/// or underscores, or common abbreviations. All others have no effect in the twin.
///
/// - The engine is the newest known vLLM unless the context names another. A flag that the release lacks has no effect.
/// - Under a closed load as many data-parallel replicas serve as fit on the devices, unless their number is set. Under
///   an open load one replica serves unless their number is set.
/// - Lengths are uniform from half of the mean to one and a half, as far as `max_model_len` allows.
/// - The accepted share of drafts is 0.4 for n-grams and suffix decoding, and 0.7 for all other methods. This is
///   uncertain, so speculating points have a wide deviation.
/// - A block size that the kernels of that release do not take counts as the nearest that they take. The set of kernels
///   depends on much that a context does not contain.
/// - Metrics of a closed load are those of its steady state: every user has begun a second request.
///
/// # Errors
/// If a field is missing or unusable; the error names it. No number causes a panic.
pub fn context_prior(
    context: &OptimizeContext,
    space: &Space,
    aim: &SearchAim,
    allowed: &dyn Fn(&Config) -> bool,
    seed: u64,
) -> Result<PriorBelief, ContextError> {
    let scene = ContextJob::new(context, aim)?;
    let reader = ParameterReader::new(context, space, &scene);
    let mut notes = ignored_note(reader.ignored());
    notes.extend(unknown_note(&scene.wanted, aim));
    let calibration = crate::twin::Calibration::none();
    let view = TwinPredictor::new(scene.question(&calibration), scene.span, scene.wanted.clone(), |config| {
        reader.read(config)
    });
    let mut view = view.with_acceptance(parameter_reader::acceptance);
    let first = reader.defaults(space).into_iter().collect();
    let points =
        explore(space, aim, allowed, seed, first, reader.ignored(), &mut |configs| view.predict_batch(configs));
    Ok(finish(&view, points, notes))
}

fn finish(
    view: &TwinPredictor<'_>,
    mut points: Vec<(Config, crate::sampler::KnownOutcome)>,
    mut notes: Vec<String>,
) -> PriorBelief {
    view.update(&mut points);
    view.add_deviations(&mut points);
    notes.extend(view.notes());
    PriorBelief { prior: SamplerPrior::from_computation(TWIN_SOURCE, points), notes }
}

fn ignored_note(names: &[String]) -> Vec<String> {
    let note = || format!("the twin does not model the effect of {}", names.join(", "));
    if names.is_empty() { Vec::new() } else { vec![note()] }
}

fn unknown_note(wanted: &WantedMetrics, aim: &SearchAim) -> Option<String> {
    let objectives =
        aim.objectives.iter().map(|target| &target.name).zip(wanted.objectives.iter().map(Option::is_none));
    let is_none = |constraint: &Option<Constraint>| constraint.is_none();
    let constraints = aim.constraints.iter().zip(wanted.constraints.iter().map(is_none));
    let unknown = objectives.chain(constraints).filter(|(_, unknown)| *unknown);
    let names: Vec<&str> = unknown.map(|(name, _)| name.as_str()).collect();
    (!names.is_empty()).then(|| format!("the twin does not model {}, or the limit is unknown", names.join(", ")))
}
