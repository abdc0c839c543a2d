//! The history as numbers: points, and the targets of each model.

use std::collections::BTreeSet;

use super::units::Units;
use crate::config::Config;
use crate::objective::Goal;
use crate::sampler::{KnownOutcome, PastTrial, SamplerAsk};
use crate::stats::to_f64;
use crate::surrogate::{Encoding, ProcessData};

/// The history as input of the models.
#[derive(Debug)]
pub(super) struct HistoryTable {
    /// For each objective, its values in its `ObjectiveUnit`: larger is better.
    pub(super) objectives: Vec<TargetColumn>,
    pub(super) units: Units,
    /// For each constraint, its excesses in the unit of its `LimitUnit`: at most 0 is feasible.
    pub(super) constraints: Vec<TargetColumn>,
    /// 1 if the configuration did not serve, -1 if it did.
    pub(super) crashes: TargetColumn,
    /// Points of the pending trials.
    pub(super) pending: Vec<Vec<f64>>,
    /// Points of the measured launches, each with its index in the history.
    pub(super) measured: Vec<(usize, Vec<f64>)>,
    /// Points of the measured live looks.
    pub(super) looked: Vec<Vec<f64>>,
    /// Number of launches, pending and failed ones included.
    pub(super) launches: usize,
    /// Number of live knobs. The points of the columns have a coordinate for each of them after those of the space: the
    /// size of its move, 0 at a launch.
    pub(super) knobs: usize,
}

/// A configuration with its outcome, as input of a table.
pub(super) struct TableEntry<'k> {
    /// Its index in the history.
    pub(super) place: usize,
    pub(super) config: &'k Config,
    pub(super) outcome: &'k KnownOutcome,
    /// For a live look the sizes of the knobs' moves.
    pub(super) moves: Option<Vec<f64>>,
}

impl<'k> TableEntry<'k> {
    pub(super) fn launch(place: usize, config: &'k Config, outcome: &'k KnownOutcome) -> Self {
        Self { place, config, outcome, moves: None }
    }

    /// Returns the entry of a trial. `None` for a live look that moved a knob which the question does not have.
    fn of(ask: &SamplerAsk<'_>, place: usize, past: &'k PastTrial) -> Option<Self> {
        let launch = Self::launch(place, &past.config, &past.outcome);
        match &past.server {
            None => Some(launch),
            Some(server) => Some(Self { moves: Some(ask.live?.moves(ask.defaults, server, &past.config)?), ..launch }),
        }
    }
}

/// The targets of one model.
#[derive(Clone, Debug, Default)]
pub(super) struct TargetColumn {
    pub(super) data: ProcessData,
    /// The place of each target in the history: the order of the launches.
    pub(super) places: Vec<f64>,
}

impl TargetColumn {
    pub(super) fn mean(&self) -> f64 {
        self.data.targets.iter().sum::<f64>() / to_f64(self.data.targets.len().max(1))
    }

    /// Returns the standard deviation of the targets, or 1 if they do not vary.
    pub(super) fn spread(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.data.targets.iter().map(|target| (target - mean) * (target - mean)).sum();
        let variance = squares / to_f64(self.data.targets.len().max(1));
        if variance > 0.0 { variance.sqrt() } else { 1.0 }
    }

    fn push(&mut self, place: usize, point: &[f64], target: f64, deviation: Option<f64>) {
        self.places.push(to_f64(place));
        self.data.points.push(point.to_vec());
        self.data.targets.push(target);
        // A deviation that is not a number counts as the largest one.
        let deviation = deviation.map_or(0.0, |told| if told < MAX_DEVIATION { told } else { MAX_DEVIATION });
        self.data.variances.push(deviation * deviation);
    }
}

/// Largest deviation, as modelled. A target with this deviation has no effect.
const MAX_DEVIATION: f64 = 1e3;
/// Maximum number of trials in the models. Their cost grows with the third power of it.
const MAX_TRIALS: usize = 250;
/// Number of the best trials among these; the others are chosen evenly. Pending trials are added.
const BEST_TRIALS: usize = 100;

impl HistoryTable {
    /// Builds the table of a question's history.
    pub(super) fn of(ask: &SamplerAsk<'_>, encoding: &Encoding<'_>) -> Self {
        let places = select_trials(ask);
        let entries = places.into_iter().filter_map(|place| TableEntry::of(ask, place, &ask.history[place]));
        Self::new(encoding, &Units::of(ask), ask.live.map_or(0, |live| live.knobs.len()), entries)
    }

    /// Iterates over the points of all trials, pending ones and live looks included. Those of the latter have further
    /// coordinates.
    pub(super) fn points(&self) -> impl Iterator<Item = &Vec<f64>> {
        self.crashes.data.points.iter().chain(&self.pending)
    }

    /// Builds a table of configurations with their outcomes. Those without a point are left out.
    pub(super) fn new<'k>(
        encoding: &Encoding<'_>,
        units: &Units,
        knobs: usize,
        entries: impl Iterator<Item = TableEntry<'k>>,
    ) -> Self {
        let mut table = Self {
            objectives: vec![TargetColumn::default(); units.objectives.len()],
            constraints: vec![TargetColumn::default(); units.limits.len()],
            units: units.clone(),
            crashes: TargetColumn::default(),
            pending: Vec::new(),
            measured: Vec::new(),
            looked: Vec::new(),
            launches: 0,
            knobs,
        };
        for TableEntry { place, config, outcome, moves } in entries {
            let Some(of_space) = encoding.point(config) else { continue };
            let is_look = moves.is_some();
            table.launches += usize::from(!is_look && !matches!(outcome, KnownOutcome::Inconclusive));
            let mut point = of_space.clone();
            point.extend(moves.unwrap_or_else(|| vec![0.0; knobs]));
            match outcome {
                KnownOutcome::Pending => table.pending.push(of_space),
                KnownOutcome::Inconclusive => {}
                KnownOutcome::Rejected | KnownOutcome::Failed => table.crashes.push(place, &point, 1.0, None),
                KnownOutcome::Measured(measured) => {
                    table.crashes.push(place, &point, -1.0, None);
                    let readings = measured.values.iter().zip(&units.objectives);
                    for (column, (reading, unit)) in table.objectives.iter_mut().zip(readings) {
                        let target = unit.modelled(reading.value);
                        let deviation = reading.deviation.map(|share| unit.modelled_deviation(share, reading.value));
                        if target.is_finite() {
                            column.push(place, &point, target, deviation);
                        }
                    }
                    let readings = measured.excesses.iter().zip(&units.limits);
                    for (column, (reading, unit)) in table.constraints.iter_mut().zip(readings) {
                        let deviation = reading.deviation.map(|told| unit.modelled_deviation(told, reading.value));
                        if reading.value.is_finite() {
                            column.push(place, &point, unit.to_modelled(reading.value), deviation);
                        }
                    }
                    if is_look {
                        table.looked.push(of_space);
                    } else {
                        table.measured.push((place, of_space));
                    }
                }
            }
        }
        for column in &mut table.objectives {
            compress_outliers(&mut column.data.targets);
        }
        table
    }
}

/// Returns the indices of the selected trials, ascending: all, or the best, the pending ones and an even choice of the
/// others.
fn select_trials(ask: &SamplerAsk<'_>) -> Vec<usize> {
    let all = ask.history.len();
    if all <= MAX_TRIALS {
        return (0..all).collect();
    }
    let goal = ask.aim.objectives.first().map(|target| target.goal);
    let rank = |place: usize| {
        let measured = ask.history[place].measured()?;
        let value = measured.values.first().map(|reading| reading.value).filter(|value| value.is_finite())?;
        let excess: f64 = measured.excesses.iter().map(|excess| excess.value).filter(|excess| *excess > 0.0).sum();
        Some((excess, if goal == Some(Goal::Minimize) { value } else { -value }, place))
    };
    let mut ranked: Vec<_> = (0..all).filter_map(rank).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut places: BTreeSet<_> = ranked.into_iter().take(BEST_TRIALS).map(|(.., place)| place).collect();
    let others = MAX_TRIALS - places.len();
    places.extend((0..others).map(|at| at * (all - 1) / (others - 1)));
    // A pending trial that is left out would be proposed again.
    places.extend((0..all).filter(|place| matches!(ask.history[*place].outcome, KnownOutcome::Pending)));
    places.into_iter().collect()
}

/// Compresses values far below the others, whose exact size has little meaning. A value more than 1.5 interquartile
/// ranges below the lower quartile counts by the logarithm of its distance.
fn compress_outliers(targets: &mut [f64]) {
    let mut sorted = targets.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted.len() < 4 {
        return;
    }
    let (lower, upper) = (sorted[sorted.len() / 4], sorted[sorted.len() * 3 / 4]);
    let width = upper - lower;
    let edge = lower - 1.5 * width;
    for target in targets.iter_mut().filter(|target| **target < edge && width > 0.0) {
        *target = edge - width * libm::log(1.0 + (edge - *target) / width);
    }
}
