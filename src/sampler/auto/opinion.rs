//! What a prior says of configurations that it does not name.

use std::sync::{Arc, Mutex, PoisonError};

use super::models::of_values;
use super::table::{Column, Table};
use super::units::Units;
use crate::config::Config;
use crate::objective::Goal;
use crate::sampler::{Ask, Known, Prior};
use crate::stats::to_f64;
use crate::surrogate::{Axis, Data, Encoding, Process};

/// Points of a prior that are used at most, evenly chosen.
const MOST_POINTS: usize = 300;
/// What varies by less says nothing: it is rounding.
const LEAST_SPREAD: f64 = 1e-9;

/// A prior's surrogates.
#[derive(Clone, Debug, Default)]
pub(in crate::sampler) struct Opinion {
    pub(super) objectives: Vec<Option<Trend>>,
    pub(super) constraints: Vec<Option<Trend>>,
    /// For each limit how unsure the prior is of it, where that is not the same everywhere.
    pub(super) doubts: Vec<Option<Trend>>,
    pub(super) crash: Option<Trend>,
}

/// What a prior says of one number.
#[derive(Debug)]
pub(super) struct Trend {
    process: Process,
    level: f64,
    spread: f64,
    /// The last answer: models under several assumptions ask for the same point one after the other.
    last: Mutex<Option<(Vec<f64>, f64)>>,
}

impl Clone for Trend {
    fn clone(&self) -> Self {
        Self { process: self.process.clone(), level: self.level, spread: self.spread, last: Mutex::default() }
    }
}

impl Trend {
    fn new(axes: &[Axis], data: &Data) -> Option<Self> {
        let said = data.evenly(MOST_POINTS);
        let used = said.targets.len();
        if used < 2 {
            return None;
        }
        let data = Data { variances: vec![0.0; used], ..said };
        let level = data.targets.iter().sum::<f64>() / to_f64(used);
        let variance =
            data.targets.iter().map(|target| (target - level) * (target - level)).sum::<f64>() / to_f64(used);
        let process = Process::fit(axes, &data, &of_values(), &[])?;
        let trend = Self { process, level, spread: variance.sqrt(), last: Mutex::default() };
        Some(trend).filter(|trend| trend.spread > LEAST_SPREAD)
    }

    /// What is said of a point.
    pub(super) fn at(&self, point: &[f64]) -> f64 {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((known, said)) if known == point => *said,
            _ => {
                let said = self.process.mean(point);
                *last = Some((point.to_vec(), said));
                said
            }
        }
    }

    /// The same in units of its own spread.
    pub(super) fn units(&self, said: f64) -> f64 {
        (said - self.level) / self.spread
    }
}

/// The last opinion of a prior, with the units that it is in: to find it out costs more than all else of a question.
#[derive(Debug, Default)]
pub(in crate::sampler) struct Opinions(Mutex<Option<(Units, Arc<Opinion>)>>);

impl Clone for Opinions {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()))
    }
}

impl Opinion {
    /// Of all priors of a question.
    pub(super) fn all(ask: &Ask<'_>, encoding: &Encoding<'_>) -> Vec<Arc<Self>> {
        let units = Units::of(ask);
        ask.priors.iter().map(|prior| Self::of(prior, encoding, &units)).collect()
    }

    /// Of a prior, as far as its points lie in the space.
    fn of(prior: &Prior, encoding: &Encoding<'_>, units: &Units) -> Arc<Self> {
        let mut last = prior.opinions.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            // The history decides of the units: those of an earlier question may be others.
            Some((known, opinion)) if known == units => Arc::clone(opinion),
            _ => {
                let opinion = Arc::new(Self::new(prior, encoding, units));
                *last = Some((units.clone(), Arc::clone(&opinion)));
                opinion
            }
        }
    }

    fn new(prior: &Prior, encoding: &Encoding<'_>, units: &Units) -> Self {
        let points = prior.points().iter().enumerate();
        let known = points.map(|(place, (config, known))| (place, config, known));
        let table = Table::new(encoding, units, known);
        let trends =
            |columns: &[Column]| columns.iter().map(|column| Trend::new(&encoding.axes, &column.data)).collect();
        let doubts = table.constraints.iter().map(|column| Trend::new(&encoding.axes, &column.data.deviations()));
        Self {
            objectives: trends(&table.objectives),
            constraints: trends(&table.constraints),
            doubts: if prior.is_computed() { doubts.collect() } else { Vec::new() },
            crash: Trend::new(&encoding.axes, &table.crashes.data),
        }
    }
}

/// The points that a prior finds best: within the limits or nearest to them, then by the first objective.
pub(super) fn best(prior: &Prior, ask: &Ask<'_>, encoding: &Encoding<'_>, most: usize) -> Vec<Vec<f64>> {
    let Some(target) = ask.aim.objectives.first() else { return Vec::new() };
    let rank = |(config, known): &(Config, Known)| {
        let measured = known.measured()?;
        let excess: f64 = measured.excesses.iter().map(|excess| excess.value.max(0.0)).sum();
        let value = Some(measured.values.first()?.value).filter(|value| !value.is_nan())?;
        Some((excess, if target.goal == Goal::Maximize { -value } else { value }, encoding.point(config)?))
    };
    let mut ranked: Vec<_> = prior.points().iter().filter_map(rank).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    ranked.into_iter().take(most).map(|(.., point)| point).collect()
}
