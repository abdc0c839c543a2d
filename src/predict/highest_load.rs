//! Search for the highest load within the objective's limits: a `load::LoadLadder` over virtual runs.

use super::script::PromptScript;
use super::setup::TwinSetup;
use super::{Effort, PredictError, run};
use crate::job::LoadJob;
use crate::load::{ArrivalPattern, HighestLoad, LadderStep, LoadLadder, LoadRange};
use crate::objective::Constraint;
use crate::stats::f64_to_u32;
use crate::twin::Factors;

/// The quantity of a load that a search varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadKnob {
    /// Users of a closed loop, or concurrent requests if all arrive at once.
    Concurrency,
    /// Arrivals of sessions per second.
    Rate,
    /// Speed of a trace's replay relative to its recording.
    Speed,
}

impl LoadKnob {
    /// Returns the unit in reports.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Concurrency => "at a time",
            Self::Rate => "arrivals/s",
            Self::Speed => "times as fast as recorded",
        }
    }
}

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

/// Share of the completed requests that must keep the latency limits of the goodput.
pub const MIN_GOOD_SHARE: f64 = 0.99;

/// The input of a search.
pub(super) struct LoadSearch<'a> {
    pub(super) setup: &'a TwinSetup,
    pub(super) script: &'a PromptScript,
    pub(super) load: &'a LoadJob,
    pub(super) seed: u64,
    /// Limits on metrics that the twin predicts.
    pub(super) limits: &'a [Constraint],
    /// The largest number of requests of one run.
    pub(super) most_requests: u32,
}

impl LoadSearch<'_> {
    pub(super) fn knob(&self) -> LoadKnob {
        match self.load.arrival {
            ArrivalPattern::Closed | ArrivalPattern::AtOnce => LoadKnob::Concurrency,
            ArrivalPattern::Rate { .. } | ArrivalPattern::Ramp { .. } => LoadKnob::Rate,
            ArrivalPattern::Trace { .. } => LoadKnob::Speed,
        }
    }

    /// Returns the value of the knob in the study's own load.
    fn begin(&self) -> f64 {
        match self.load.arrival {
            ArrivalPattern::Closed | ArrivalPattern::AtOnce => {
                f64::from(self.load.concurrency.or(self.load.requests).unwrap_or(1))
            }
            ArrivalPattern::Rate { per_s, .. } => per_s,
            ArrivalPattern::Ramp { to_per_s, .. } => to_per_s,
            ArrivalPattern::Trace { factor } => 1.0 / factor,
        }
    }

    /// Returns the highest load that is tried. A run with a higher one would end before its queue is representative.
    fn max_value(&self) -> f64 {
        let own = self.load.requests.or_else(|| self.load.total()).unwrap_or(self.most_requests).max(1);
        let computed = f64::from(self.most_requests);
        let own = own.min(self.most_requests);
        match self.knob() {
            LoadKnob::Concurrency => computed.max(self.begin()),
            LoadKnob::Rate => self.begin() * 4.0 * computed / f64::from(own),
            LoadKnob::Speed => self.begin() * 64.0,
        }
    }

    /// Returns the study's load with another value of the knob. The number of requests grows with a higher value, so
    /// that the run lasts about as long, up to `most_requests`. It is not reduced for a lower value.
    fn load(&self, value: f64) -> LoadJob {
        let mut load = self.load.clone();
        let ratio = value / self.begin();
        match &mut load.arrival {
            ArrivalPattern::Closed | ArrivalPattern::AtOnce => {
                let users = f64_to_u32(value.round().max(1.0));
                load.concurrency = Some(users);
                // If the study's warm-up has at least one request per user, so must this one.
                if self.load.concurrency.is_some_and(|own| load.warmup >= own) {
                    load.warmup = users;
                }
            }
            ArrivalPattern::Rate { per_s, .. } => *per_s = value,
            ArrivalPattern::Ramp { burstiness, .. } => {
                load.arrival = ArrivalPattern::Rate { per_s: value, burstiness: *burstiness };
            }
            ArrivalPattern::Trace { factor } => *factor = 1.0 / value,
        }
        if !matches!(load.arrival, ArrivalPattern::Trace { .. }) {
            let scaled = |requests: u32| f64_to_u32((f64::from(requests) * ratio.max(1.0)).ceil());
            load.requests = match load.requests {
                Some(requests) => Some(scaled(requests).min(self.most_requests)),
                None => Some(self.most_requests),
            };
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
        let is_whole = self.knob() == LoadKnob::Concurrency;
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
        let value = self.search_highest(self.begin(), 2.0, central)?;
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
        Ok(PredictedHighest { knob: self.knob(), value, interval, draws: tried })
    }
}
