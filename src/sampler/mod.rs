//! Proposal of the next configuration to try.
//!
//! A sampler holds no state: it maps a history to a configuration. Resuming a study, a dry run and a preview of the
//! next trial are therefore the same call. Every sampler is one file and one line in [`SAMPLERS`].

mod ask;
mod auto;
mod explanation;
mod grid;
mod judgement;
mod live;
mod modelled;
mod random;
mod sequence;
mod sobol;
mod tpe;

pub use ask::{
    KnownOutcome, MeasuredNumbers, NumberReading, ObjectiveTarget, PastTrial, SamplerAsk, SamplerPrior, SearchAim,
    Suggestion,
};
pub use explanation::{
    Expectation, ExplainedNumber, Explanation, Interaction, NumberKind, ParameterImportance, VarianceShare,
};
pub use judgement::{Judgement, Pick};
pub use live::{KnobBias, LiveLooks};
pub(crate) use modelled::is_modelled;
pub use sobol::point as sobol_point;

use crate::config::Config;
use crate::trial::Origin;

/// A method that proposes configurations. Some methods also assess the measurements (`judge`) and the parameters
/// (`explain`).
pub trait Sampler: Sync {
    /// The name in study files and on the command line.
    fn name(&self) -> &'static str;

    /// One line that describes the method.
    fn summary(&self) -> &'static str;

    /// Returns an allowed configuration that is not in the history, or `None` if there is none left.
    fn ask(&self, ask: &SamplerAsk<'_>) -> Option<Suggestion>;

    /// Returns whether this sampler uses [`SamplerAsk::priors`], which take some seconds to compute.
    fn uses_priors(&self) -> bool {
        false
    }

    /// Returns whether this sampler proposes live looks.
    fn uses_live_looks(&self) -> bool {
        false
    }

    /// Returns the next configuration to look at on a running server that was launched with `server`. `None` if a launch
    /// is worth more for its cost, or if the server accepts no further configuration.
    fn look(&self, _ask: &SamplerAsk<'_>, _server: &Config) -> Option<Suggestion> {
        None
    }

    /// Returns the best measured configuration and the remaining gain. `None` if the sampler has no model of the
    /// measurements.
    fn judge(&self, _ask: &SamplerAsk<'_>) -> Option<Judgement> {
        None
    }

    /// Returns the expected value of the first objective for each configuration, in the unit of the user. `None` for one
    /// that the model cannot place, and from samplers without a model.
    fn expect(&self, _ask: &SamplerAsk<'_>, configs: &[Config]) -> Vec<Option<f64>> {
        vec![None; configs.len()]
    }

    /// Returns the importance of each parameter by the measurements so far. `None` if the sampler has no model of the
    /// measurements, or if no estimate is possible.
    fn explain(&self, _ask: &SamplerAsk<'_>) -> Option<Explanation> {
        None
    }
}

/// The samplers that a study can name; the first is the default.
pub const SAMPLERS: [&dyn Sampler; 5] =
    [&auto::Auto, &sobol::Sobol, &grid::GridSampler, &tpe::Tpe, &random::RandomSampler];

/// Returns the sampler with this name, or `None` if there is none.
#[must_use]
pub fn find(name: &str) -> Option<&'static dyn Sampler> {
    SAMPLERS.into_iter().find(|sampler| sampler.name() == name)
}

/// Returns the next configuration and its origin. With an empty history it is the baseline: the engine's defaults with
/// the fixed flags of the space, whether allowed or not. After that `sampler` proposes.
#[must_use]
pub fn next(sampler: &dyn Sampler, ask: &SamplerAsk<'_>) -> Option<(Origin, Suggestion)> {
    if ask.history.is_empty() {
        let why = "the baseline of all comparisons".to_owned();
        return Some((Origin::Baseline, Suggestion::new(ask.space.fixed.clone(), why)));
    }
    sampler.ask(ask).map(|suggestion| (Origin::Sampler(sampler.name().into()), suggestion))
}

/// Returns the importance of each parameter by `sampler`'s model. A sampler without a model is replaced by the default
/// sampler, whose explanation depends on the measurements only, not on the sampler that proposed them.
#[must_use]
pub fn explain(sampler: &dyn Sampler, ask: &SamplerAsk<'_>) -> Option<Explanation> {
    sampler.explain(ask).or_else(|| SAMPLERS[0].explain(ask))
}

#[cfg(test)]
mod tests;
