//! Expected result by the value of one parameter.

use super::effects::Functions;
use super::sample::{Region, SobolSample};
use super::support::{PERCENTILE_95, Support};
use crate::config::{Config, Value};
use crate::sampler::explanation::Expectation;
use crate::space::Domain;
use crate::stats::to_f64;

/// Maximum number of values for all of a parameter's values to be used.
const FEW: usize = 12;
/// Number of values of any other parameter, its ends included.
const VALUES: usize = 9;
/// Maximum number of rows in an average.
const ROWS: usize = 96;
/// Number of steps that meets every value of a range with at most `FEW` values.
const FINE_STEPS: usize = 512;

/// Returns some values of a parameter, in order, each with a coordinate that decodes to it.
pub(super) fn levels(domain: &Domain) -> Vec<(f64, Value)> {
    let at = |steps: usize| {
        let unit = move |step: usize| (to_f64(step) / to_f64(steps - 1)).min(1.0 - f64::EPSILON);
        let mut levels: Vec<_> = (0..steps).map(|step| (unit(step), domain.decode(unit(step)))).collect();
        levels.dedup_by(|later, earlier| later.1 == earlier.1);
        levels
    };
    let all = matches!(domain, Domain::Categorical(_)) || domain.values(FEW).is_some();
    at(if all { FINE_STEPS } else { VALUES })
}

/// Returns the mean over the sample for each value of an active parameter. `told` converts a modelled value into the
/// unit of the user. Values without an allowed configuration are left out.
pub(super) fn dependence(
    region: &Region<'_, '_>,
    sample: &SobolSample,
    functions: &Functions<'_>,
    parameter: usize,
    told: &dyn Fn(f64) -> f64,
    support: &Support<'_>,
) -> Vec<Expectation> {
    let parameter_of = &region.ask.space.parameters[parameter];
    let levels = levels(&parameter_of.domain);
    let Some((first, last)) = levels.first().zip(levels.last()).map(|(first, last)| (&first.1, &last.1)) else {
        return Vec::new();
    };
    let expected = |(unit, value): &(f64, Value)| {
        let mut sums: Vec<f64> = Vec::new();
        let mut met = 0.0;
        for row in sample.rows.iter().take(ROWS) {
            let mut exchanged = row.unit.clone();
            exchanged[parameter] = *unit;
            let Some((config, point)) = region.configuration_at(&exchanged) else { continue };
            if config.get(&parameter_of.name).is_none() {
                continue;
            }
            let values = functions(&point);
            sums.resize(values.len(), 0.0);
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            met += 1.0;
        }
        let (mean, draws) = sums.split_first()?;
        let mean = mean / met;
        // The mean of normal numbers is normal, so its deviation is enough.
        let squares = draws.iter().map(|draw| (draw / met - mean) * (draw / met - mean));
        let variance = squares.sum::<f64>() / to_f64(draws.len().max(1));
        let deviation = (variance + support.variance(&parameter_of.name, value, (first, last))).sqrt();
        let ends = [told(mean - PERCENTILE_95 * deviation), told(mean + PERCENTILE_95 * deviation)];
        Some(Expectation {
            value: value.clone(),
            mean: told(mean),
            low: ends[0].min(ends[1]),
            high: ends[0].max(ends[1]),
        })
    };
    levels.iter().filter_map(expected).collect()
}

/// Returns each parameter's share of the variance when one parameter of this configuration at a time takes other
/// values. `None` if the variances add up to less than `least`.
pub(super) fn local_shares(
    region: &Region<'_, '_>,
    best: &Config,
    mean: &dyn Fn(&[f64]) -> f64,
    least: f64,
) -> Option<Vec<f64>> {
    let space = region.ask.space;
    let variance = |index: usize| {
        let parameter = &space.parameters[index];
        if best.get(&parameter.name).is_none() {
            return 0.0;
        }
        let changed = |(_, value): (f64, Value)| {
            let choose = |at: usize| {
                if at == index { Some(value.clone()) } else { best.get(&space.parameters[at].name).cloned() }
            };
            region.locate(space.assemble(choose)).map(|(_, point)| mean(&point))
        };
        let values: Vec<_> = levels(&parameter.domain).into_iter().filter_map(changed).collect();
        let middle = values.iter().sum::<f64>() / to_f64(values.len().max(1));
        values.iter().map(|value| (value - middle) * (value - middle)).sum::<f64>() / to_f64(values.len().max(1))
    };
    let variances: Vec<_> = (0..space.dimensions()).map(variance).collect();
    let sum: f64 = variances.iter().sum();
    (sum > least).then(|| variances.into_iter().map(|variance| variance / sum).collect())
}
