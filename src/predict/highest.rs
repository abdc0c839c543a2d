//! The highest load that the objectives' limits allow, by a `load::LoadLadder` over runs in virtual time.

use super::script::PromptScript;
use super::setup::TwinSetup;
use super::{Effort, PredictError, run};
use crate::job::LoadJob;
use crate::load::{ArrivalPattern, HighestLoad, LadderStep, LoadLadder, LoadRange};
use crate::objective::Constraint;
use crate::stats::f64_to_u32;
use crate::twin::Factors;

/// The quantity that a search raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadKnob {
    /// Users of a closed loop, or concurrent requests if all arrive at once.
    Concurrency,
    /// Sessions per second.
    Rate,
    /// Speed of a trace's replay relative to its recording.
    Speed,
}

impl LoadKnob {
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
    /// Range from 10 % to 90 % of the draws, widened so that it contains the value.
    pub interval: Option<(f64, f64)>,
    /// Draws behind the interval.
    pub draws: u64,
}

/// Share of good requests that limits of the goodput require.
pub const GOOD: f64 = 0.99;

/// The input of a search.
pub(super) struct LoadSearch<'a> {
    pub(super) setup: &'a TwinSetup,
    pub(super) script: &'a PromptScript,
    pub(super) load: &'a LoadJob,
    pub(super) seed: u64,
    /// Limits on metrics that the twin predicts.
    pub(super) limits: &'a [Constraint],
    /// The most requests of one run.
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

    /// Returns the highest load that is tried. Beyond it a run would end before its queue is representative.
    fn most(&self) -> f64 {
        let own = self.load.requests.or_else(|| self.load.total()).unwrap_or(self.most_requests).max(1);
        let computed = f64::from(self.most_requests);
        let own = own.min(self.most_requests);
        match self.knob() {
            LoadKnob::Concurrency => computed.max(self.begin()),
            LoadKnob::Rate => self.begin() * 4.0 * computed / f64::from(own),
            LoadKnob::Speed => self.begin() * 64.0,
        }
    }

    /// Returns the study's load with another value of the knob. It lasts equally long, within the limit on requests.
    fn load(&self, value: f64) -> LoadJob {
        let mut load = self.load.clone();
        let ratio = value / self.begin();
        match &mut load.arrival {
            ArrivalPattern::Closed | ArrivalPattern::AtOnce => {
                let users = f64_to_u32(value.round().max(1.0));
                load.concurrency = Some(users);
                // The study's warm-up has at least one request per user, so this one has, too.
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
        Ok(kept && ran.good.is_none_or(|good| good >= GOOD))
    }

    /// Searches the highest value from `begin` on. The first tries multiply and divide it by `stride`.
    fn climb(&self, begin: f64, stride: f64, factors: &Factors) -> Result<HighestLoad, PredictError> {
        let is_whole = self.knob() == LoadKnob::Concurrency;
        let mut ladder = LoadLadder::new(LoadRange { begin, stride, most: self.most(), is_whole });
        loop {
            match ladder.step() {
                LadderStep::Try(value) => ladder.record(self.holds(value, factors)?),
                LadderStep::Done(found) => return Ok(found),
            }
        }
    }

    pub(super) fn find(
        &self,
        central: &Factors,
        draws: impl Iterator<Item = Factors>,
        effort: &Effort,
    ) -> Result<PredictedHighest, PredictError> {
        let value = self.climb(self.begin(), 2.0, central)?;
        let mut found = Vec::new();
        let mut tried = 0;
        // The uncertainty of a load is undefined if no limit bounds it.
        if let HighestLoad::At(begin) = value {
            for factors in draws.take(effort.searches) {
                tried += 1;
                // If a draw keeps the limits at no load that was tried, its value is low, not unknown.
                found.push(match self.climb(begin, 1.2, &factors)? {
                    HighestLoad::Below(value) | HighestLoad::At(value) | HighestLoad::AtLeast(value) => value,
                });
            }
        }
        let range = super::interval(found);
        let interval = range.zip(value.value()).map(|(range, value)| super::containing(range, value));
        Ok(PredictedHighest { knob: self.knob(), value, interval, draws: tried })
    }
}
