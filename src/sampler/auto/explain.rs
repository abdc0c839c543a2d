//! Importance of the parameters, by processes of the measurements alone. Priors are left out, so that a wrong one
//! cannot look like a finding.
//!
//! The indices are Sobol' indices of the process's mean over the configurations that are allowed and probably serve.
//! Their intervals come from posterior samples, which fit the measurements equally well. Hyper-parameters are uncertain
//! too, so the samples come from several sets of them. The expected result at a value far from the measured ones gets a
//! wider interval than the process predicts (`support`).

mod dependence;
mod effects;
mod sample;
mod support;
#[cfg(test)]
mod tests;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use self::dependence::{dependence, local_shares};
use self::effects::effects;
use self::sample::{Region, SobolSample};
use self::support::Support;
use super::models::{of_crashes, of_values};
use super::table::{HistoryTable, TableEntry, TargetColumn};
use super::units::Units;
use crate::config::Config;
use crate::sampler::explanation::{
    ExplainedNumber, Explanation, Interaction, NumberKind, ParameterImportance, VarianceShare,
};
use crate::sampler::{MeasuredNumbers, SamplerAsk};
use crate::stats::{mean, normal, to_f64};
use crate::surrogate::{Encoding, Process, ProcessData};

/// Number of posterior samples, over all sets of hyper-parameters.
const DRAWS: usize = 32;
/// Number of hyper-parameter sets: the most likely one, and others whose priors were moved at random.
const HYPER_PARAMETER_SETS: usize = 4;
/// Maximum number of measurements in the fit, evenly chosen.
const MAX_DATA: usize = 300;
/// The variation of the mean is rounding below this share of the unexplained variance.
const ROUNDING: f64 = 1e-9;
/// Least share of a reported pair.
const LEAST_PAIR: f64 = 0.005;

/// Explains the effects of the parameters. `None` before the first measurement, if no parameter varies, or if no
/// configuration is allowed.
pub(super) fn explain(ask: &SamplerAsk<'_>) -> Option<Explanation> {
    let encoding = Encoding::new(ask.space, ask.defaults);
    // A choice outside of the space does not show the effect of the parameter's own values.
    let entries = ask.history.iter().enumerate().filter(|(_, past)| encoding.contains(&past.config));
    // Live looks count as launches: their bias is small beside the effects of the parameters.
    let entries = entries.map(|(place, past)| TableEntry::launch(place, &past.config, &past.outcome));
    let table = HistoryTable::new(&encoding, &Units::of(ask), 0, entries);
    if table.measured.is_empty() || ask.space.dimensions() == 0 {
        return None;
    }
    let has_crashed = table.crashes.data.targets.iter().any(|label| *label > 0.0);
    let crash = has_crashed
        .then(|| Process::fit(&encoding.axes, &table.crashes.data.evenly(MAX_DATA), &of_crashes(), &[]))
        .flatten();
    let mut region = Region { ask, encoding: &encoding, crash: crash.as_ref() };
    let sample = SobolSample::new(&region).or_else(|| {
        // A model that expects no configuration to serve is of no use here.
        region.crash = None;
        SobolSample::new(&region)
    })?;
    let objectives = ask.aim.objectives.iter().zip(&table.objectives).zip(&table.units.objectives);
    let objectives = objectives.map(|((target, column), unit)| {
        let told = move |modelled: f64| unit.value(modelled);
        ModelledNumber { name: &target.name, of: NumberKind::Objective, column, to_user_unit: Box::new(told) }
    });
    let limits = ask.aim.constraints.iter().zip(&table.constraints).zip(&table.units.limits);
    let limits = limits.map(|((name, column), unit)| {
        let told = move |modelled: f64| unit.original_excess(modelled);
        ModelledNumber { name, of: NumberKind::Limit, column, to_user_unit: Box::new(told) }
    });
    let measured = table.measured.iter().map(|(place, _)| ask.defaults.merged(&ask.history[*place].config));
    let configs: Vec<Config> = measured.collect();
    let mut best = None;
    let numbers = objectives.chain(limits).filter_map(|number| {
        let data = number.column.data.evenly(MAX_DATA);
        let processes = fit_processes(&encoding, &data);
        let process = processes.first()?;
        // The first number is the first objective.
        let best = best.get_or_insert_with(|| best_of(ask, &table, process));
        Some(explain_number(&region, &sample, &number, &processes, &configs, best.as_ref()))
    });
    Some(Explanation { numbers: numbers.collect() })
}

/// Fits the most likely process of the data first, then others that the priors of the hyper-parameters allow. The most
/// likely one alone is too sure with few data.
fn fit_processes(encoding: &Encoding<'_>, data: &ProcessData) -> Vec<Process> {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let hyper_parameters = 2 * encoding.axes.len() + 2;
    let likely = Process::fit(&encoding.axes, data, &of_values(), &[]);
    let moved = (1..HYPER_PARAMETER_SETS).map(|_| {
        let moved: Vec<f64> = (0..hyper_parameters).map(|_| normal::draw(&mut rng)).collect();
        Process::fit(&encoding.axes, data, &of_values(), &moved)
    });
    std::iter::once(likely).chain(moved).flatten().filter(|process| !process.is_empty()).collect()
}

/// An objective or a constraint, with the measurements that its model is fitted to.
struct ModelledNumber<'a> {
    name: &'a str,
    of: NumberKind,
    column: &'a TargetColumn,
    /// Converts a modelled value into the unit of the user.
    to_user_unit: Box<dyn Fn(f64) -> f64 + 'a>,
}

/// Explains one number.
fn explain_number(
    region: &Region<'_, '_>,
    sample: &SobolSample,
    number: &ModelledNumber<'_>,
    processes: &[Process],
    configs: &[Config],
    best: Option<&Config>,
) -> ExplainedNumber {
    let process = &processes[0];
    let draws: Vec<_> =
        (0..).zip(processes).map(|(seed, process)| process.draws(DRAWS / processes.len(), seed)).collect();
    // The first function is the mean of the most likely process. The means of the others are left out: they are not
    // samples.
    let functions = |point: &[f64]| {
        let mut values = draws[0].at(point);
        draws[1..].iter().for_each(|draws| values.extend(draws.at(point).into_iter().skip(1)));
        values
    };
    let unlearnt = {
        let rows = sample.rows.iter().step_by(4);
        let variances: Vec<_> = rows.map(|place| process.at(&place.point).deviation).map(|d| d * d).collect();
        mean(&variances).unwrap_or(0.0) + process.noise() * process.noise()
    };
    let least = ROUNDING * unlearnt;
    let effects = effects(region, sample, &functions, least);
    let near = best.and_then(|best| local_shares(region, best, &|point| process.mean(point), least));
    let differences = process.held_out();
    let squares: Vec<_> = differences.iter().map(|difference| difference * difference).collect();
    let missed = mean(&squares).unwrap_or(0.0);
    let support = Support { configs, squared_error: missed };
    let parameters = region.ask.space.parameters.iter().enumerate().map(|(index, parameter)| ParameterImportance {
        parameter: parameter.name.clone(),
        alone: share(&effects.alone[index]),
        total: share(&effects.total[index]),
        at_best: near.as_ref().map(|near| near[index]),
        dependence: dependence(region, sample, &functions, index, &number.to_user_unit, &support),
    });
    let mut parameters: Vec<_> = parameters.collect();
    parameters.sort_by(|a, b| b.total.share.total_cmp(&a.total.share));
    let name_of = |index: usize| region.ask.space.parameters[index].name.clone();
    let pairs = effects
        .pairs
        .iter()
        .map(|(one, other, shares)| Interaction { parameters: [name_of(*one), name_of(*other)], share: share(shares) });
    let mut pairs: Vec<_> = pairs.filter(|pair| pair.share.share >= LEAST_PAIR).collect();
    pairs.sort_by(|a, b| b.share.share.total_cmp(&a.share.share));
    let ModelledNumber { name, of, column, .. } = number;
    let measured = column.data.targets.len();
    let held_out_r2 = held_out_r2(&column.data.evenly(MAX_DATA).targets, process);
    let explained = effects.variance.first().copied().filter(|variance| *variance > least).unwrap_or(0.0);
    ExplainedNumber {
        name: (*name).to_owned(),
        of: *of,
        measured,
        held_out_r2,
        unknown: unlearnt / (explained + unlearnt),
        doubts: ExplainedNumber::reliability_warnings(measured, region.ask.space.dimensions(), held_out_r2),
        parameters,
        pairs,
    }
}

/// Returns the share of the squared error that held-out predictions save over the mean of the other values.
fn held_out_r2(targets: &[f64], process: &Process) -> Option<f64> {
    let n = to_f64(targets.len());
    let level = mean(targets).unwrap_or(0.0);
    let open: f64 = targets.iter().map(|target| (target - level) * n / (n - 1.0)).map(|d| d * d).sum();
    let missed: f64 = process.held_out().iter().map(|difference| difference * difference).sum();
    // Equal numbers differ from their mean by rounding.
    let least = ROUNDING * level.abs();
    (n > 2.0 && open > n * least * least).then(|| 1.0 - missed / open)
}

/// Returns the measured configuration with the highest expected value among those that kept every constraint.
fn best_of(ask: &SamplerAsk<'_>, table: &HistoryTable, process: &Process) -> Option<Config> {
    let feasible = table.measured.iter().filter_map(|(place, point)| {
        let past = &ask.history[*place];
        past.measured().is_some_and(MeasuredNumbers::is_feasible).then(|| (process.mean(point), past))
    });
    let (_, past) = feasible.max_by(|a, b| a.0.total_cmp(&b.0))?;
    // A parameter that a configuration does not set has the engine's default.
    let with_defaults = ask.defaults.merged(&past.config);
    Some(ask.space.assemble(|index| with_defaults.get(&ask.space.parameters[index].name).cloned()))
}

/// Returns the share of the mean and the interval of nine of ten samples.
fn share(shares: &[f64]) -> VarianceShare {
    let Some((share, draws)) = shares.split_first() else { return VarianceShare::default() };
    let mut sorted = draws.to_vec();
    sorted.sort_by(f64::total_cmp);
    let tail = sorted.len() / 20;
    let end = |place: Option<&f64>| place.copied().unwrap_or(*share);
    // The mean is one of the functions that fit.
    let low = end(sorted.get(tail)).min(*share);
    VarianceShare { share: *share, low, high: end(sorted.iter().rev().nth(tail)).max(*share) }
}
