//! A prior's predictions for configurations that it does not contain.

use std::sync::{Arc, Mutex, PoisonError};

use super::models::of_values;
use super::table::{HistoryTable, TableEntry, TargetColumn};
use super::units::Units;
use crate::config::Config;
use crate::objective::Goal;
use crate::sampler::{KnownOutcome, SamplerAsk, SamplerPrior};
use crate::stats::to_f64;
use crate::surrogate::{EncodedAxis, Encoding, Process, ProcessData};

/// Maximum number of points of a prior in the fit, evenly chosen.
const MAX_POINTS: usize = 300;
/// Least spread of the predictions for a surrogate to be used. A smaller one is rounding.
const LEAST_SPREAD: f64 = 1e-9;

/// A prior's surrogates. A surrogate is `None` if fewer than two predictions exist or if they do not vary.
#[derive(Clone, Debug, Default)]
pub(in crate::sampler) struct PriorSurrogates {
    pub(super) objectives: Vec<Option<PriorTrend>>,
    pub(super) constraints: Vec<Option<PriorTrend>>,
    /// The prior's uncertainty about each constraint, if it varies over the space.
    pub(super) uncertainties: Vec<Option<PriorTrend>>,
    /// Of the labels 1 (does not start) and -1 (serves).
    pub(super) crash: Option<PriorTrend>,
}

/// A prior's surrogate of one number.
#[derive(Debug)]
pub(super) struct PriorTrend {
    process: Process,
    /// Mean and standard deviation of the predictions that the surrogate is fitted to.
    level: f64,
    spread: f64,
    /// The last answer. Models with several sets of hyper-parameters query the same point one after the other.
    last: Mutex<Option<(Vec<f64>, f64)>>,
}

impl Clone for PriorTrend {
    fn clone(&self) -> Self {
        Self { process: self.process.clone(), level: self.level, spread: self.spread, last: Mutex::default() }
    }
}

impl PriorTrend {
    fn new(axes: &[EncodedAxis], data: &ProcessData) -> Option<Self> {
        let said = data.evenly(MAX_POINTS);
        let used = said.targets.len();
        if used < 2 {
            return None;
        }
        let data = ProcessData { variances: vec![0.0; used], ..said };
        let level = data.targets.iter().sum::<f64>() / to_f64(used);
        let variance =
            data.targets.iter().map(|target| (target - level) * (target - level)).sum::<f64>() / to_f64(used);
        let process = Process::fit(axes, &data, &of_values(), &[])?;
        let trend = Self { process, level, spread: variance.sqrt(), last: Mutex::default() };
        Some(trend).filter(|trend| trend.spread > LEAST_SPREAD)
    }

    /// Returns the prediction for a point.
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

    /// Returns a prediction in units of the surrogate's spread.
    pub(super) fn units(&self, said: f64) -> f64 {
        (said - self.level) / self.spread
    }
}

/// Cache of the last surrogates of a prior, with their units. Their fit takes longer than the rest of a question.
#[derive(Debug, Default)]
pub(in crate::sampler) struct PriorSurrogateCache(Mutex<Option<(Units, Arc<PriorSurrogates>)>>);

impl Clone for PriorSurrogateCache {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()))
    }
}

impl PriorSurrogates {
    /// Returns the surrogates of all priors of a question, in the order of the priors.
    pub(super) fn all(ask: &SamplerAsk<'_>, encoding: &Encoding<'_>) -> Vec<Arc<Self>> {
        let units = Units::of(ask);
        ask.priors.iter().map(|prior| Self::of(prior, encoding, &units)).collect()
    }

    /// Returns the surrogates of a prior, fitted to its points in the space.
    fn of(prior: &SamplerPrior, encoding: &Encoding<'_>, units: &Units) -> Arc<Self> {
        let mut last = prior.surrogates.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            // The units depend on the history: an earlier question may have had others.
            Some((known, opinion)) if known == units => Arc::clone(opinion),
            _ => {
                let opinion = Arc::new(Self::new(prior, encoding, units));
                *last = Some((units.clone(), Arc::clone(&opinion)));
                opinion
            }
        }
    }

    fn new(prior: &SamplerPrior, encoding: &Encoding<'_>, units: &Units) -> Self {
        let points = prior.points().iter().enumerate();
        let entries = points.map(|(place, (config, known))| TableEntry::launch(place, config, known));
        let table = HistoryTable::new(encoding, units, 0, entries);
        let trends = |columns: &[TargetColumn]| {
            columns.iter().map(|column| PriorTrend::new(&encoding.axes, &column.data)).collect()
        };
        let doubts = table.constraints.iter().map(|column| PriorTrend::new(&encoding.axes, &column.data.deviations()));
        Self {
            objectives: trends(&table.objectives),
            constraints: trends(&table.constraints),
            uncertainties: if prior.is_computed() { doubts.collect() } else { Vec::new() },
            crash: PriorTrend::new(&encoding.axes, &table.crashes.data),
        }
    }
}

/// Returns the best points of a prior: feasible ones or those with the least excess, then by the first objective.
pub(super) fn best(prior: &SamplerPrior, ask: &SamplerAsk<'_>, encoding: &Encoding<'_>, most: usize) -> Vec<Vec<f64>> {
    let Some(target) = ask.aim.objectives.first() else { return Vec::new() };
    let rank = |(config, known): &(Config, KnownOutcome)| {
        let measured = known.measured()?;
        let excess: f64 = measured.excesses.iter().map(|excess| excess.value.max(0.0)).sum();
        let value = Some(measured.values.first()?.value).filter(|value| !value.is_nan())?;
        Some((excess, if target.goal == Goal::Maximize { -value } else { value }, encoding.point(config)?))
    };
    let mut ranked: Vec<_> = prior.points().iter().filter_map(rank).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    ranked.into_iter().take(most).map(|(.., point)| point).collect()
}
