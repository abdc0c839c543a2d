//! Bayesian optimization for launch parameters.

mod acquisition;
mod explain;
mod knob;
mod models;
mod opinion;
mod search;
mod table;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use self::acquisition::Acquisition;
use self::models::Models;
pub use self::opinion::Opinion;
use self::search::Search;
use self::table::{Table, logarithmic};
use super::{Ask, Explanation, Sampler, Suggestion, sequence, sobol};
use crate::surrogate::Encoding;

pub(super) struct Auto;

/// Measured points around which is searched.
const AROUND: usize = 6;

impl Sampler for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn summary(&self) -> &'static str {
        "Bayesian optimization"
    }

    fn believes(&self) -> bool {
        true
    }

    fn explain(&self, ask: &Ask<'_>) -> Option<Explanation> {
        explain::explain(ask)
    }

    fn ask(&self, ask: &Ask<'_>) -> Option<Suggestion> {
        let encoding = Encoding::new(ask.space, ask.defaults);
        let known = ask.history.iter().map(|past| (&past.config, &past.known));
        let table = Table::new(ask.aim, &encoding, &logarithmic(ask), known);
        let opinions: Vec<_> = ask.priors.iter().map(|prior| Opinion::of(prior, ask, &encoding)).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(ask.seed);
        rng.set_stream(ask.history.len() as u64);
        let search = Search { ask, encoding: &encoding, seen: ask.seen() };
        if opinions.is_empty()
            && (table.measured.len()
                + table.pending.len()
                + table.crashes.data.targets.iter().filter(|l| **l > 0.0).count())
                < knob::knob("init", 5.0) as usize
        {
            let dimensions = ask.space.dimensions();
            let config = sequence::first_unseen(ask, self.name(), |index| sobol::point(index, dimensions, ask.seed))?;
            return Some(Suggestion { config, why: "spread over the space, because nothing is known yet".to_owned() });
        }
        let members = knob::knob("members", 1.0) as usize;
        let mut normal = || {
            use rand::RngExt;
            let u: f64 = rng.random::<f64>().max(1e-12);
            let v: f64 = rng.random();
            libm::sqrt(-2.0 * libm::log(u)) * libm::cos(2.0 * std::f64::consts::PI * v)
        };
        let all: Vec<_> = (0..members)
            .map(|member| {
                let moved: Vec<f64> = (0..2 * encoding.axes.len() + 2)
                    .map(|_| {
                        if member == 0 && knob::knob("keep", 1.0) > 0.0 {
                            0.0
                        } else {
                            knob::knob("jit", 1.0) * normal()
                        }
                    })
                    .collect();
                Models::fit(&encoding.axes, &table, &opinions, &moved)
            })
            .collect();
        let models = &all[0];
        let acquisitions: Vec<_> = all.iter().map(|models| Acquisition::new(models, &table)).collect();
        let mut ranked: Vec<_> = table
            .measured
            .iter()
            .map(|(_, point)| {
                let outlook = models.at(point);
                let value = outlook.objectives.first().map_or(0.0, |belief| belief.mean);
                (outlook.log_feasible.max(-20.0) * 10.0 + value, point.clone())
            })
            .collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut around: Vec<_> = ranked.into_iter().take(AROUND).map(|(_, point)| point).collect();
        around.extend(best_said(ask, &encoding));
        let found = search.best(&mut rng, &around, &|point| {
            let scores: Vec<_> = acquisitions.iter().map(|acquisition| acquisition.score(point)).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            most + libm::log(scores.iter().map(|score| libm::exp(score - most)).sum::<f64>())
        });
        let (_, config) = found?;
        Some(Suggestion { config, why: "it promises most".to_owned() })
    }
}

/// Points of priors that are said to be best.
fn best_said(ask: &Ask<'_>, encoding: &Encoding<'_>) -> Vec<Vec<f64>> {
    let mut best = Vec::new();
    for prior in ask.priors {
        let mut of: Vec<_> = prior
            .points()
            .iter()
            .filter_map(|(config, known)| {
                let measured = known.measured()?;
                let sign =
                    if ask.aim.objectives.first()?.goal == crate::objective::Goal::Maximize { 1.0 } else { -1.0 };
                let excess: f64 = measured.excesses.iter().map(|excess| excess.value.max(0.0)).sum();
                Some((excess.max(0.0), -sign * measured.values.first()?.value, encoding.point(config)?))
            })
            .collect();
        of.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        best.extend(of.into_iter().take(AROUND).map(|(.., point)| point));
    }
    best
}
