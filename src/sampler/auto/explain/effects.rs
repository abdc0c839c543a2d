//! Shares of a function's variance over a sample.
//!
//! With `a` a row, `b` one of the other sample, `c` the row `a` with coordinate `i` of `b`, and `V` the variance of
//! `f`:
//!
//! ```text
//! alone   E f(b) (f(c) - f(a)) / V       A. Saltelli et al., "Variance based sensitivity analysis of model output",
//!                                        2010, (b)
//! total   E (f(c) - f(a))^2 / 2V         M. Jansen 1999, in the same article as (f)
//! pair    E (f(c_ij) - f(c_i) - f(c_j) + f(a))^2 / 4V
//!                                        R. Liu and A. Owen, "Estimating mean dimension of functions", 2006: all
//!                                        effects that depend on both
//! ```
//!
//! A coordinate without effect changes nothing when it is exchanged, and gets exactly 0. A refused exchange is tried
//! with other rows, and left out if none of them is allowed. The effects are therefore those among allowed
//! configurations. If parameters restrict each other, the shares are approximate.

use std::collections::HashMap;

use super::sample::{Region, SobolSample, exchanged};

/// Number of parameters whose pairs are computed: those with the largest difference of `total` and `alone`.
const PAIRED: usize = 5;

/// Several functions at once: their values at a point. The first function is the mean.
pub(super) type Functions<'a> = dyn Fn(&[f64]) -> Vec<f64> + 'a;

/// Effects by parameter or pair, one share for each function.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) variance: Vec<f64>,
    pub(super) alone: Vec<Vec<f64>>,
    pub(super) total: Vec<Vec<f64>>,
    pub(super) pairs: Vec<(usize, usize, Vec<f64>)>,
}

/// Computes the effects of each coordinate on each function. A function that varies by less than `least` has none.
pub(super) fn effects(region: &Region<'_, '_>, sample: &SobolSample, functions: &Functions<'_>, least: f64) -> Effects {
    let rows: Vec<_> = sample.rows.iter().map(|place| functions(&place.point)).collect();
    let others: Vec<_> = sample.others.iter().map(|place| functions(&place.point)).collect();
    let count = rows.first().map_or(0, Vec::len);
    let each = |of: &dyn Fn(usize) -> f64| (0..count).map(of).collect::<Vec<_>>();
    let means = each(&|f| average(rows.iter().chain(&others).map(|values| values[f])));
    let variance =
        each(&|f| average(rows.iter().chain(&others).map(|values| (values[f] - means[f]) * (values[f] - means[f]))));
    let share = |f: usize, of: f64| if variance[f] > least { (of / variance[f]).max(0.0) } else { 0.0 };

    let mut effects = Effects { variance: variance.clone(), ..Effects::default() };
    let mut exchanges = Vec::with_capacity(sample.exchanges.len());
    for exchanged in &sample.exchanges {
        let values: Vec<_> = exchanged.iter().map(|exchange| functions(&exchange.point)).collect();
        let both = || exchanged.iter().zip(&values);
        let total = each(&|f| {
            let difference = both().map(|(exchange, values)| values[f] - rows[exchange.row][f]);
            share(f, average(difference.map(|difference| 0.5 * difference * difference)))
        });
        let alone = each(&|f| {
            let product = both()
                .map(|(exchange, values)| (others[exchange.from][f] - means[f]) * (values[f] - rows[exchange.row][f]));
            share(f, average(product)).min(total[f])
        });
        effects.alone.push(alone);
        effects.total.push(total);
        let opposite = both().filter(|(exchange, _)| exchange.from == exchange.row);
        exchanges.push(opposite.map(|(exchange, values)| (exchange.row, values.clone())).collect::<HashMap<_, _>>());
    }
    let open = |i: &usize| effects.total[*i][0] - effects.alone[*i][0];
    let mut paired: Vec<_> = (0..sample.exchanges.len()).filter(|i| effects.total[*i][0] > 0.0).collect();
    paired.sort_by(|a, b| open(b).total_cmp(&open(a)));
    paired.truncate(PAIRED);
    paired.sort_unstable();
    let mut pairs = Vec::new();
    for (at, i) in paired.iter().enumerate() {
        for j in &paired[at + 1..] {
            let mut sums = vec![0.0; count];
            let mut met = 0.0;
            for (row, place) in sample.rows.iter().enumerate() {
                let singles = exchanges[*i].get(&row).zip(exchanges[*j].get(&row));
                let other = &sample.others[row];
                if let Some((one, two)) = singles
                    && let Some(point) = exchanged(region, place, other, &[*i, *j])
                {
                    let both = functions(&point);
                    for (f, sum) in sums.iter_mut().enumerate() {
                        let mixed = both[f] - one[f] - two[f] + rows[row][f];
                        *sum += 0.25 * mixed * mixed;
                    }
                    met += 1.0;
                }
            }
            if met > 0.0 {
                pairs.push((*i, *j, each(&|f| share(f, sums[f] / met))));
            }
        }
    }
    effects.pairs = pairs;
    effects
}

/// Returns the mean, or 0 without values.
fn average(values: impl Iterator<Item = f64>) -> f64 {
    let (count, sum) = values.fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    if count > 0.0 { sum / count } else { 0.0 }
}
