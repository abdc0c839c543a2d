//! Live looks: the configurations that a running server accepts, the best of them, and launches by the looks that their
//! servers allow.

use std::collections::HashSet;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::acquisition::Acquisition;
use super::models::{Models, PointOutlook};
use super::search::ScoredPoint;
use super::table::HistoryTable;
use crate::config::Config;
use crate::sampler::{LiveLooks, SamplerAsk, Suggestion, sobol};
use crate::stats::{log_sum_exp, to_f64};
use crate::surrogate::{EncodedAxis, Encoding};
use crate::trial::LiveRange;

/// Maximum number of configurations on a server that are scored for a look, and for the choice of a launch.
const MAX_LOOKS: usize = 300;
const MAX_LOOKS_OF_LAUNCH: usize = 16;
/// Number of levels of a number without steps.
const LEVELS: usize = 9;
/// Probability that a random configuration keeps the launched value of a knob.
const KEPT_SHARE: f64 = 0.4;
/// Number of looks that count for a launch. Each counts half as much as the one before, because their gains are alike. The
/// first counts a quarter: its gain needs a launch of its own.
const COUNTED_LOOKS: usize = 3;
/// Number of the best launches that are compared with their looks.
const COMPARED_LAUNCHES: usize = 8;
/// Least probability of keeping the constraints for a look to be launched as the first pair.
const MIN_FEASIBLE_PROBABILITY: f64 = 0.5;
/// Without a prior, the first looks on the first servers are spread over the upper part of the knobs' ranges: the number
/// of these servers and of looks on each, and the lowest value as a share of the launched one.
const SPREAD_SERVERS: usize = 1;
const SPREAD_LOOKS: usize = 6;
const LEAST_SPREAD: f64 = 0.4;
/// The expected gain over the best launch, in modelled units, above which a look is launched as the first pair. If no launch
/// keeps the limits, a look that does is enough. Otherwise the best look is launched after these numbers of looks and
/// launches.
const PROMISING_GAIN: f64 = 0.05;
const ENOUGH_LOOKS: usize = 6;
const ENOUGH_LAUNCHES: usize = 3;

/// The parameters of the space that are live knobs.
pub(super) struct LiveAxes<'a> {
    live: &'a LiveLooks,
    axes: Vec<(usize, LiveRange)>,
}

impl<'a> LiveAxes<'a> {
    /// Returns the axes of a question's live knobs. `None` if it has none.
    pub(super) fn of(ask: &SamplerAsk<'a>) -> Option<Self> {
        let live = ask.live?;
        let parameters = ask.space.parameters.iter().enumerate();
        let axes: Vec<_> = parameters
            .filter_map(|(axis, parameter)| {
                let knob = live.knobs.iter().find(|knob| knob.flag == parameter.name)?;
                Some((axis, knob.range))
            })
            .collect();
        (!axes.is_empty()).then_some(Self { live, axes })
    }

    /// Returns points that a server launched at `server` may accept: all of them if they are at most `most`, otherwise as
    /// many random ones.
    fn points(
        &self,
        encoding: &Encoding<'_>,
        server: &[f64],
        most: usize,
        mut random: impl FnMut() -> f64,
    ) -> Vec<Vec<f64>> {
        let values: Vec<Vec<f64>> =
            self.axes.iter().map(|(axis, range)| coordinates(encoding.axes[*axis], *range, server[*axis])).collect();
        let count = values.iter().try_fold(1_usize, |count, values| count.checked_mul(values.len()));
        let at = |choice: &mut dyn FnMut(usize, &[f64]) -> f64| {
            let mut point = server.to_vec();
            for (index, ((axis, _), values)) in self.axes.iter().zip(&values).enumerate() {
                point[*axis] = choice(index, values);
            }
            encoding.snap(&mut point);
            point
        };
        if let Some(count) = count.filter(|count| *count <= most) {
            let nth = |mut rest: usize| {
                at(&mut |_, values| {
                    let value = values[rest % values.len()];
                    rest /= values.len();
                    value
                })
            };
            return (0..count).map(nth).collect();
        }
        let drawn = |_| {
            at(&mut |index, values| {
                let (kept, which) = (random() < KEPT_SHARE, random());
                let chosen = crate::stats::f64_to_usize(which * to_f64(values.len())).min(values.len() - 1);
                if kept { server[self.axes[index].0] } else { values[chosen] }
            })
        };
        (0..most).map(drawn).collect()
    }
}

/// Returns the coordinates of a knob that a server accepts.
fn coordinates(axis: EncodedAxis, range: LiveRange, launched: f64) -> Vec<f64> {
    let all: Vec<f64> = match axis {
        EncodedAxis::Choice { count } => (0..count).map(to_f64).collect(),
        EncodedAxis::Number { step } if step > 0.0 => {
            let steps = crate::stats::f64_to_u32(libm::round(1.0 / step));
            (0..=steps).map(|index| f64::from(index) * step).collect()
        }
        _ => {
            let most = if range == LiveRange::UpToLaunched { launched } else { 1.0 };
            (0..=LEVELS).map(|level| most * to_f64(level) / to_f64(LEVELS)).collect()
        }
    };
    let is_number = matches!(axis, EncodedAxis::Number { .. });
    let accepted = |at: &f64| match range {
        LiveRange::UpToLaunched => !is_number || *at < launched + 1e-9,
        LiveRange::Off => *at < 0.5 || (*at - launched).abs() < 1e-9,
        LiveRange::Any => true,
    };
    let mut accepted: Vec<f64> = all.into_iter().filter(accepted).collect();
    if accepted.is_empty() {
        accepted.push(launched);
    }
    accepted
}

/// The inputs of a choice: a question with its models.
pub(super) struct LookQuestion<'q> {
    pub(super) ask: &'q SamplerAsk<'q>,
    pub(super) encoding: &'q Encoding<'q>,
    pub(super) table: &'q HistoryTable,
    pub(super) models: &'q [Models<'q>],
    pub(super) weights: &'q [f64],
}

impl LookQuestion<'_> {
    /// Returns the unit coordinates of the live knobs at the best known point, in the form of `Domain::decode`. It is the
    /// point of the highest expectation among those that are probably feasible. Empty without live looks.
    pub(super) fn best_knobs(&self) -> Vec<(usize, f64)> {
        let Some(live) = LiveAxes::of(self.ask).filter(|_| !self.table.looked.is_empty()) else { return Vec::new() };
        let value = |point: &Vec<f64>| {
            let outlook = self.models[0].at(point);
            let is_feasible = outlook.log_feasible >= libm::log(MIN_FEASIBLE_PROBABILITY);
            (is_feasible, outlook.objectives.first().map_or(0.0, |belief| belief.mean))
        };
        let known = self.table.measured.iter().map(|(_, point)| point).chain(&self.table.looked);
        let best = known.map(|point| (value(point), point)).max_by(|a, b| {
            let ((a_kept, a), (b_kept, b)) = (a.0, b.0);
            a_kept.cmp(&b_kept).then(a.total_cmp(&b))
        });
        let unit = |axis: usize, at: f64| match self.encoding.axes[axis] {
            EncodedAxis::Choice { count } => (at + 0.5) / to_f64(count),
            EncodedAxis::Number { step } if step > 0.0 => (at / step + 0.5) / (1.0 / step + 1.0),
            _ => at,
        };
        best.map_or_else(Vec::new, |(_, point)| {
            live.axes.iter().map(|(axis, _)| (*axis, unit(*axis, point[*axis]))).collect()
        })
    }

    /// Returns an evenly spread look on one of the first servers. `None` if the models are to choose it.
    pub(super) fn spread_look(&self, live: &LiveAxes<'_>, server: &Config) -> Option<Suggestion> {
        let ask = self.ask;
        let on_server = ask.history.iter().filter(|past| past.server.as_ref() == Some(server)).count();
        if !ask.priors.is_empty() || self.table.launches > SPREAD_SERVERS || on_server >= SPREAD_LOOKS {
            return None;
        }
        let launched = self.encoding.point(server)?;
        let looks = ask.history.iter().filter(|past| past.server.is_some()).count();
        let seen: HashSet<String> = ask.history.iter().map(|past| past.config.key()).collect();
        let mut points = (looks..looks + MAX_LOOKS).map(|index| {
            let mut point = launched.clone();
            for ((axis, range), at) in live.axes.iter().zip(sobol::point(index, live.axes.len(), ask.seed)) {
                point[*axis] = match (self.encoding.axes[*axis], range) {
                    (EncodedAxis::Choice { count }, _) => to_f64(crate::stats::f64_to_usize(at * to_f64(count))),
                    (_, LiveRange::UpToLaunched) => launched[*axis] * (LEAST_SPREAD + (1.0 - LEAST_SPREAD) * at),
                    _ => at,
                };
            }
            self.encoding.snap(&mut point);
            self.encoding.config(&point)
        });
        let is_new = |config: &Config| {
            live.live.moves(ask.defaults, server, config).is_some()
                && !seen.contains(&config.key())
                && (ask.allowed)(config)
        };
        let config = points.find(is_new)?;
        Some(Suggestion::new(config, "spread evenly over the values that this server accepts"))
    }

    /// Returns the new configuration on a server with the highest acquisition for its cost. `cost` is the logarithm of a
    /// look's cost.
    pub(super) fn best_look(
        &self,
        live: &LiveAxes<'_>,
        server: &Config,
        cost: f64,
        rng: &mut ChaCha8Rng,
    ) -> Option<ScoredPoint> {
        let (ask, encoding) = (self.ask, self.encoding);
        let launched = encoding.point(server)?;
        let seen: HashSet<String> = ask.history.iter().map(|past| past.config.key()).collect();
        let known = || self.table.measured.iter().map(|(_, point)| point).chain(&self.table.looked);
        let acquisitions: Vec<_> = self
            .models
            .iter()
            .map(|models| Acquisition::among(models, self.table, self.weights, false, known()))
            .collect();
        let candidate = |point: Vec<f64>| {
            let config = encoding.config(&point);
            let moves = live.live.moves(ask.defaults, server, &config)?;
            if seen.contains(&config.key()) || !(ask.allowed)(&config) {
                return None;
            }
            let looked: Vec<f64> = point.iter().copied().chain(moves).collect();
            let scores: Vec<_> =
                acquisitions.iter().map(|acquisition| acquisition.look_score(&point, &looked)).collect();
            Some(ScoredPoint { score: log_sum_exp(&scores) - cost, point, config })
        };
        let points = live.points(encoding, &launched, MAX_LOOKS, || rng.random());
        points.into_iter().filter_map(candidate).max_by(|a, b| a.score.total_cmp(&b.score))
    }

    /// Returns the best of some launches: by its own acquisition and those of the best looks on its server. The scores
    /// include costs.
    pub(super) fn best_launch(
        &self,
        live: &LiveAxes<'_>,
        mut launches: Vec<ScoredPoint>,
        score: &dyn Fn(&[f64]) -> f64,
        rng: &mut ChaCha8Rng,
    ) -> Option<ScoredPoint> {
        launches.truncate(COMPARED_LAUNCHES);
        let with_looks = |launch: ScoredPoint| {
            let points = live.points(self.encoding, &launch.point, MAX_LOOKS_OF_LAUNCH, || rng.random());
            let cost = score(&launch.point) - launch.score;
            let mut looks: Vec<f64> = points.iter().map(|point| score(point) - cost).collect();
            looks.sort_by(|a, b| b.total_cmp(a));
            looks.truncate(COUNTED_LOOKS);
            let counted = looks.iter().zip(2..).map(|(look, rank)| look - f64::from(rank) * std::f64::consts::LN_2);
            let all: Vec<f64> = std::iter::once(launch.score).chain(counted).collect();
            ScoredPoint { score: log_sum_exp(&all), ..launch }
        };
        launches.into_iter().map(with_looks).max_by(|a, b| a.score.total_cmp(&b.score))
    }

    /// Returns the best live look as the next launch, if no configuration was both looked at and launched. The two
    /// measurements show the difference.
    pub(super) fn first_pair(&self) -> Option<Suggestion> {
        let ask = self.ask;
        let launched = ask.history_keys();
        let measured = |past: &&crate::sampler::PastTrial| past.server.is_some() && past.measured().is_some();
        let looks: Vec<_> = ask.history.iter().filter(measured).collect();
        if looks.iter().any(|look| launched.contains(&look.config.key())) {
            return None;
        }
        let outlook = |config: &Config| Some(self.models[0].at(&self.encoding.point(config)?));
        let value = |config: &Config| {
            let outlook = outlook(config).filter(|_| (ask.allowed)(config))?;
            Some(outlook.objectives.first()?.mean + outlook.log_feasible)
        };
        let valued = looks.iter().filter_map(|look| Some((value(&look.config)?, &look.config)));
        let (expected, best) = valued.max_by(|a, b| a.0.total_cmp(&b.0))?;
        let launches = self.table.measured.iter().map(|(_, point)| self.models[0].at(point));
        let is_feasible = |outlook: &PointOutlook| outlook.log_feasible >= libm::log(MIN_FEASIBLE_PROBABILITY);
        let values = launches.filter(is_feasible).filter_map(|outlook| Some(outlook.objectives.first()?.mean));
        let is_promising = match values.max_by(f64::total_cmp) {
            Some(incumbent) => expected - incumbent >= PROMISING_GAIN,
            // No launch keeps the limits.
            None => outlook(best).is_some_and(|best| is_feasible(&best)),
        };
        let is_due = looks.len() >= ENOUGH_LOOKS && self.table.launches >= ENOUGH_LAUNCHES;
        if !is_due && !is_promising {
            return None;
        }
        let why = "the best live look, launched: the two measurements show the difference between looks and launches";
        Some(Suggestion::new(best.clone(), why))
    }
}
