//! What to try next.
//!
//! A sampler holds no state: history in, configuration out. Resuming a study, a dry run and "what would you try next?"
//! are therefore the same call. Every sampler is one file and one line in [`SAMPLERS`].

mod ask;
mod auto;
mod explanation;
mod grid;
mod judgement;
mod random;
mod sequence;
mod sobol;
mod tpe;

pub use ask::{Aim, Ask, Known, Measured, Past, Prior, Reading, Suggestion, Target};
pub use explanation::{About, Expectation, Explanation, Importance, Interaction, Kind, Share};
pub use judgement::{Judgement, Pick};
pub use sobol::point as sobol_point;

use crate::trial::Origin;

pub trait Sampler: Sync {
    /// The name in study files and on the command line.
    fn name(&self) -> &'static str;

    /// One line on what it does.
    fn summary(&self) -> &'static str;

    /// An allowed configuration that the history does not hold, or `None` when there is none left.
    fn ask(&self, ask: &Ask<'_>) -> Option<Suggestion>;

    /// Whether it looks at [`Ask::priors`], which take some seconds to compute.
    fn believes(&self) -> bool {
        false
    }

    /// What the measurements say so far; `None` of a sampler that has no model of them.
    fn judge(&self, _ask: &Ask<'_>) -> Option<Judgement> {
        None
    }

    /// Which parameters matter, by the measurements so far; `None` of a sampler that has no model of them, and where nothing
    /// can be said.
    fn explain(&self, _ask: &Ask<'_>) -> Option<Explanation> {
        None
    }
}

/// The samplers that a study can name; the first is the default.
pub const SAMPLERS: [&dyn Sampler; 5] = [&auto::Auto, &sobol::Sobol, &grid::Grid, &tpe::Tpe, &random::Random];

#[must_use]
pub fn find(name: &str) -> Option<&'static dyn Sampler> {
    SAMPLERS.into_iter().find(|sampler| sampler.name() == name)
}

/// Returns the next configuration and its origin: the engine's defaults first, allowed or not, then `sampler`'s.
#[must_use]
pub fn next(sampler: &dyn Sampler, ask: &Ask<'_>) -> Option<(Origin, Suggestion)> {
    if ask.history.is_empty() {
        let why = "what the engine does by itself: everything else is compared with it".to_owned();
        return Some((Origin::Baseline, Suggestion { config: ask.space.fixed.clone(), why }));
    }
    sampler.ask(ask).map(|suggestion| (Origin::Sampler(sampler.name().into()), suggestion))
}

/// Which parameters matter: by `sampler`'s model, or where it has none by that of the default sampler, which looks at nothing
/// but the measurements, whoever proposed them.
#[must_use]
pub fn explain(sampler: &dyn Sampler, ask: &Ask<'_>) -> Option<Explanation> {
    sampler.explain(ask).or_else(|| SAMPLERS[0].explain(ask))
}

#[cfg(test)]
mod tests;
