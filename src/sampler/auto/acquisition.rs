//! How much a trial of a point promises: the logarithm of the expected improvement, with the probabilities that the
//! configuration serves and keeps the limits.
//!
//! Source: S. Ament et al., "Unexpected improvements to expected improvement for Bayesian optimization", 2023; the product
//! with probabilities: M. Schonlau, W. Welch and D. Jones, "Global versus local search in constrained optimization", 1998.

use super::knob::knob;
use super::models::{Models, Outlook};
use super::table::Table;
use crate::surrogate::normal;

/// What serves with less than even odds is not tried while anything else is left.
const LEAST_SERVING: f64 = 0.5;
/// A place that is so much alike to a known one is as good as known.
const MOST_ALIKE: f64 = 0.98;
/// Logarithms taken from what is not to be tried.
const PENALTY: f64 = 20.0;
/// While nothing is known to be within the limits, an improvement counts so little.
const UNTIL_FEASIBLE: f64 = 0.05;

pub(super) struct Acquisition<'a> {
    models: &'a Models<'a>,
    /// The best expected value among the measured points that are probably within the limits.
    incumbent: Option<f64>,
    /// By how much uncertainties are taken for larger than they are said to be.
    wider: f64,
}

impl<'a> Acquisition<'a> {
    pub(super) fn new(models: &'a Models<'a>, table: &Table) -> Self {
        let least = libm::log(knob("inc", 0.5));
        let mut best: Option<(f64, usize)> = None;
        let mut latest = 0;
        for (place, point) in &table.measured {
            latest = latest.max(*place);
            let outlook = models.at(point);
            let Some(value) = outlook.objectives.first().map(|belief| belief.mean) else { continue };
            if outlook.log_feasible >= least && best.is_none_or(|(most, _)| value > most) {
                best = Some((value, *place));
            }
        }
        let stall = best.map_or(0.0, |(_, place)| (latest - place) as f64);
        let turn = knob("turn", 0.0);
        let count = table.crashes.data.targets.len() as f64;
        let wider = if turn > 0.0 && best.is_some() && count % turn == turn - 1.0 {
            knob("wide", 3.0)
        } else {
            1.0 + (knob("widen", 0.1) * (stall - 4.0).max(0.0)).min(knob("widest", 1.5))
        };
        Self { models, incumbent: best.map(|(value, _)| value + knob("xi", 0.01)), wider }
    }

    pub(super) fn score(&self, point: &[f64]) -> f64 {
        let outlook = self.models.wider(point, self.wider);
        let mut score = outlook.log_feasible + knob("crw", 1.0) * libm::log(outlook.serves.max(1e-300));
        if let Some(first) = outlook.objectives.first() {
            match self.incumbent {
                Some(incumbent) => {
                    score += knob("eiw", 1.0) * improvement(first.mean - incumbent, self.wider * first.deviation)
                }
                None => score += knob("until", UNTIL_FEASIBLE) * improvement(first.mean, first.deviation),
            }
        }
        if outlook.serves < knob("least", LEAST_SERVING) {
            score -= PENALTY * (1.0 + LEAST_SERVING - outlook.serves);
        }
        if outlook.alike > knob("alike", MOST_ALIKE) {
            score -= PENALTY;
        }
        score
    }

    pub(super) fn alike(&self, point: &[f64]) -> f64 {
        self.models.at(point).alike
    }

    pub(super) fn why(&self, point: &[f64]) -> Outlook {
        self.models.at(point)
    }
}

/// Logarithm of the expected improvement of a normal number over zero.
fn improvement(mean: f64, deviation: f64) -> f64 {
    libm::log(deviation) + normal::log_improvement(mean / deviation)
}
