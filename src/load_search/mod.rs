//! The highest load within limits on one server: the choice of the next load, and the estimate from the measured ones.
//!
//! Each probe measures one load. A limit becomes an *excess*: the logarithm of the measured value divided by the limit,
//! with the sign that is positive beyond the limit. The excess of a probe is the largest one over its limits. It grows
//! with the load, so the excesses are fitted by a rising function (`isotonic`), and the highest load is its zero (`crossing`).
//!
//! The search steps up or down until two loads enclose the crossing. Then it measures the most likely crossing, until
//! the interval is narrow enough or the probes are spent. A load is repeated if the noise of its excess decides.
//! AIPerf's planners are similar (exponential probes and bisection), but take each probe as exact.

mod crossing;
mod isotonic;
mod probe;
mod step;
#[cfg(test)]
mod tests;

use crate::objective::{Constraint, LoadGoal};
use crate::trial::{
    HighestMeasuredLoad, Interval, LoadBound, LoadCurve, LoadKnob, LoadProbe, Measurement, Outcome, TierLoad,
};

use crossing::Crossing;
use probe::{Excess, excess};

/// The interval at which a search ends: half its width, as a share of the load.
const TOLERANCE: f64 = 0.035;

/// Further probes if the first load is not an expected value.
const UNEXPECTED_PROBES: usize = 3;

/// The range of a search, and its first load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoadSearchRange {
    pub knob: LoadKnob,
    /// The first load.
    pub begin: f64,
    /// Whether `begin` is a prediction or an earlier measurement. The first steps are smaller then.
    pub is_expected: bool,
    pub lowest: f64,
    pub highest: f64,
}

/// The next step of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LoadSearchStep {
    /// Measure this load.
    Probe(f64),
    Done,
}

/// A search under way.
#[derive(Clone, Debug)]
pub(crate) struct LoadSearch<'a> {
    goal: &'a LoadGoal,
    range: LoadSearchRange,
    /// The value that the highest load must be able to reach.
    floor: Option<f64>,
    probes: Vec<LoadProbe>,
    /// Loads that failed, with the outcome.
    failed: Vec<(f64, Outcome)>,
}

/// One measured load with its logarithm and its excess.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProbedExcess {
    load: f64,
    x: f64,
    excess: Excess,
}

impl<'a> LoadSearch<'a> {
    /// Begins a search. A highest load certainly below `floor` ends it.
    #[must_use]
    pub(crate) fn new(goal: &'a LoadGoal, range: LoadSearchRange, floor: Option<f64>) -> Self {
        let begin = range.begin.clamp(range.lowest, range.highest);
        let range = LoadSearchRange { begin, ..range };
        Self { goal, range, floor, probes: Vec::new(), failed: Vec::new() }
    }

    /// Returns the next step.
    #[must_use]
    pub(crate) fn step(&self) -> LoadSearchStep {
        let used = self.probes.len() + self.failed.len();
        let more = if self.range.is_expected { 0 } else { UNEXPECTED_PROBES };
        if used >= self.goal.probes as usize + more {
            return LoadSearchStep::Done;
        }
        for (number, limits) in self.limit_sets().enumerate() {
            let points = self.points(limits);
            if number == 0 && self.is_lost(&points) {
                return LoadSearchStep::Done;
            }
            if let Some(load) = step::next(&points, &self.range) {
                return LoadSearchStep::Probe(load);
            }
        }
        LoadSearchStep::Done
    }

    /// Returns the number of measured loads. Each one gets other arrivals, because those of one seed would move all
    /// loads near the capacity to the same side. Launches with equal numbers have equal arrivals.
    #[must_use]
    pub(crate) fn measured(&self) -> u64 {
        (self.probes.len() + self.failed.len()) as u64
    }

    /// Records the outcome of a load, and returns whether it keeps the limits. A load whose requests failed exceeds every
    /// limit.
    pub(crate) fn record(&mut self, load: f64, seconds: f64, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Measured(measurement) => {
                let kept = excess(&self.goal.limits, self.goal.good_share, &measurement).value <= 0.0;
                self.probes.push(LoadProbe { load, seconds, kept, measurement });
                kept
            }
            failed => {
                self.failed.push((load, failed));
                false
            }
        }
    }

    /// Returns the outcome of the launch: the measurement of the highest load that keeps the limits, with the whole
    /// curve. The failure of the lowest load if no load was measured.
    #[must_use]
    pub(crate) fn finish(self) -> Outcome {
        let sets: Vec<Vec<ProbedExcess>> = self.limit_sets().map(|limits| self.points(limits)).collect();
        let found: Vec<_> = sets.iter().map(|points| highest(points)).collect();
        let lost_against = self.floor.filter(|_| self.is_lost(&sets[0]));
        let Self { goal, range, probes, failed, .. } = self;
        let limit = found[0].high.unwrap_or(f64::INFINITY);
        let by_load = |a: &&LoadProbe, b: &&LoadProbe| a.load.total_cmp(&b.load);
        let kept = probes.iter().filter(|probe| probe.kept && probe.load <= limit).max_by(by_load);
        let Some(chosen) = kept.or_else(|| probes.iter().min_by(by_load)) else {
            let first = failed.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
            let (_, outcome) = first.unwrap_or_else(|| unreachable!("a search has at least one probe"));
            return outcome;
        };
        let mut measurement = chosen.measurement.clone();
        let tiers = goal.tiers.iter().zip(&found[1..]);
        let tiers = tiers.map(|(tier, highest)| TierLoad { name: tier.name.clone(), highest: *highest }).collect();
        if let (Some(low), Some(high)) = (found[0].low, found[0].high) {
            let interval = Interval { low: Some(low), high: Some(high) };
            measurement.confidence.insert(Measurement::LOAD_UNDER_SLO.to_owned(), interval);
        }
        let curve = LoadCurve { knob: range.knob, highest: found[0], lost_against, probes, tiers };
        measurement.load_curve = Some(curve);
        Outcome::Measured(measurement)
    }

    /// Returns the limits of the objective, followed by those of each tier.
    fn limit_sets(&self) -> impl Iterator<Item = &'a [Constraint]> + use<'a> {
        let goal = self.goal;
        std::iter::once(goal.limits.as_slice()).chain(goal.tiers.iter().map(|tier| tier.limits.as_slice()))
    }

    /// Returns the excesses over a set of limits, by load.
    fn points(&self, limits: &[Constraint]) -> Vec<ProbedExcess> {
        let point = |load: f64, excess| ProbedExcess { load, x: libm::log(load), excess };
        let of_probe = |probe: &LoadProbe| excess(limits, self.goal.good_share, &probe.measurement);
        let measured = self.probes.iter().map(|probe| point(probe.load, of_probe(probe)));
        let failed = self.failed.iter().map(|(load, _)| point(*load, Excess::FAILED));
        let mut points: Vec<_> = measured.chain(failed).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        points
    }

    /// Returns whether the highest load is certainly below the floor.
    fn is_lost(&self, points: &[ProbedExcess]) -> bool {
        let Some(floor) = self.floor else { return false };
        let Some(Crossing { bracket, half, .. }) = Crossing::find(points) else { return false };
        bracket.1 + half < libm::log(floor)
    }
}

/// Returns the highest load of a set of points. It must not be empty.
fn highest(points: &[ProbedExcess]) -> HighestMeasuredLoad {
    if let Some(found) = Crossing::find(points) {
        let at = |x: f64| libm::exp(x);
        return HighestMeasuredLoad {
            value: at(found.x),
            low: Some(at(found.x - found.half)),
            high: Some(at(found.x + found.half)),
            bound: LoadBound::Between,
            cliff: found.cliff,
        };
    }
    // All loads are on one side, so the fit of any decides.
    let (first, last) = (points[0].load, points[points.len() - 1].load);
    if isotonic::fit(points)[0].y <= 0.0 {
        return HighestMeasuredLoad {
            value: last,
            low: Some(last),
            high: None,
            bound: LoadBound::AtLeast,
            cliff: false,
        };
    }
    HighestMeasuredLoad { value: first, low: None, high: Some(first), bound: LoadBound::Below, cliff: false }
}
