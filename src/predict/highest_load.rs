//! Search for the highest load within the objective's limits: a `load::LoadLadder` over virtual runs.

use super::script::PromptScript;
use super::setup::TwinSetup;
use super::{Effort, PredictError, run};
use crate::job::LoadJob;
use crate::load::{ArrivalPattern, HighestLoad, LadderStep, LoadLadder, LoadRange};
use crate::objective::Constraint;
use crate::trial::{HighestMeasuredLoad, LoadBound, LoadCurve, LoadKnob};
use crate::twin::Factors;

/// The highest load at which every limit holds.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictedHighest {
    pub knob: LoadKnob,
    pub value: HighestLoad,
    /// The 10th to the 90th percentile of the draws, widened to contain the value. `None` if the limits hold at every
    /// tried load or at none.
    pub interval: Option<(f64, f64)>,
    /// Number of draws behind the interval.
    pub draws: u64,
}

impl PredictedHighest {
    /// Returns the prediction in the form of a measured curve without measured loads.
    pub(super) fn curve(&self) -> LoadCurve {
        let (value, bound) = match self.value {
            HighestLoad::Below(value) => (value, LoadBound::Below),
            HighestLoad::At(value) => (value, LoadBound::Between),
            HighestLoad::AtLeast(value) => (value, LoadBound::AtLeast),
        };
        let (low, high) = self.interval.unzip();
        let highest = HighestMeasuredLoad { value, low, high, bound, cliff: false };
        LoadCurve { knob: self.knob, highest, lost_against: None, probes: Vec::new(), tiers: Vec::new() }
    }
}

/// Share of the completed requests that must keep the latency limits of the goodput.
pub const MIN_GOOD_SHARE: f64 = 0.99;

/// The input of a search.
pub(super) struct TwinLoadSearch<'a> {
    pub(super) setup: &'a TwinSetup,
    pub(super) script: &'a PromptScript,
    pub(super) load: &'a LoadJob,
    pub(super) seed: u64,
    /// Limits on metrics that the twin predicts.
    pub(super) limits: &'a [Constraint],
    /// The largest number of requests of one run.
    pub(super) most_requests: u32,
}

impl TwinLoadSearch<'_> {
    /// Returns the highest load that is tried. A run with a higher one would end before its queue is representative.
    fn max_value(&self) -> f64 {
        let own = self.load.requests.or_else(|| self.load.total()).unwrap_or(self.most_requests).max(1);
        let computed = f64::from(self.most_requests);
        let own = own.min(self.most_requests);
        match self.load.knob() {
            LoadKnob::Concurrency => computed.max(self.load.level()),
            LoadKnob::Rate => self.load.level() * 4.0 * computed / f64::from(own),
            LoadKnob::Speed => self.load.level() * 64.0,
        }
    }

    /// Returns the study's load at another level, with a number of requests.
    fn load(&self, level: f64) -> LoadJob {
        let mut load = self.load.at_level(level, self.most_requests);
        if !matches!(load.arrival, ArrivalPattern::Trace { .. }) {
            load.requests = load.requests.or(Some(self.most_requests));
        }
        load
    }

    /// Returns whether all limits hold at this load.
    fn holds(&self, value: f64, factors: &Factors) -> Result<bool, PredictError> {
        let ran = run::run(self.setup, self.script, &self.load(value), self.seed, factors)?;
        let Some(measurement) = ran.outcome.measurement() else { return Ok(false) };
        let kept = self.limits.iter().all(|limit| limit.violation(measurement) <= 0.0);
        Ok(kept && ran.good.is_none_or(|good| good >= MIN_GOOD_SHARE))
    }

    /// Searches the highest value at which the limits hold, starting at `begin`. The first tries multiply or divide it
    /// by `stride`.
    fn search_highest(&self, begin: f64, stride: f64, factors: &Factors) -> Result<HighestLoad, PredictError> {
        let is_whole = self.load.knob() == LoadKnob::Concurrency;
        let mut ladder = LoadLadder::new(LoadRange { begin, stride, most: self.max_value(), is_whole });
        loop {
            match ladder.step() {
                LadderStep::Try(value) => ladder.record(self.holds(value, factors)?),
                LadderStep::Done(found) => return Ok(found),
            }
        }
    }

    /// Searches with the expected step times, and with those of some draws for the interval.
    pub(super) fn find(
        &self,
        central: &Factors,
        draws: impl Iterator<Item = Factors>,
        effort: &Effort,
    ) -> Result<PredictedHighest, PredictError> {
        let value = self.search_highest(self.load.level(), 2.0, central)?;
        let mut found = Vec::new();
        let mut tried = 0;
        // If no limit bounds the load, its uncertainty is undefined.
        if let HighestLoad::At(begin) = value {
            for factors in draws.take(effort.searches) {
                tried += 1;
                // If a draw keeps the limits at no tried load, the lowest tried load counts as its value.
                found.push(match self.search_highest(begin, 1.2, &factors)? {
                    HighestLoad::Below(value) | HighestLoad::At(value) | HighestLoad::AtLeast(value) => value,
                });
            }
        }
        let range = super::interval(found);
        let interval = range.zip(value.value()).map(|(range, value)| super::containing(range, value));
        Ok(PredictedHighest { knob: self.load.knob(), value, interval, draws: tried })
    }
}
