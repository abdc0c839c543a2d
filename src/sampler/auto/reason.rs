//! The reason for a suggestion, in one line.

use super::SuggestionPurpose;
use super::models::Models;
use super::table::HistoryTable;
use crate::sampler::SamplerAsk;
use crate::trial::ExpectedValue;

/// The 95th percentile of the standard normal distribution.
const NORMAL_95: f64 = 1.644_853_626_951_472_7;

/// Describes the expectation at a chosen point and the purpose of its trial.
pub(super) fn describe(
    ask: &SamplerAsk<'_>,
    table: &HistoryTable,
    models: &Models<'_>,
    point: &[f64],
    turn: &SuggestionPurpose,
) -> String {
    let outlook = models.at(point);
    let mut parts = Vec::new();
    for (model, belief) in models.objectives.iter().zip(&outlook.objectives) {
        let target = &ask.aim.objectives[model.index];
        let unit = table.units.objectives[model.index];
        let natural = |modelled: f64| unit.value(modelled);
        let mut ends = [belief.mean - belief.deviation, belief.mean + belief.deviation].map(natural);
        ends.sort_by(f64::total_cmp);
        let [low, high] = ends.map(short);
        parts.push(format!("{} {} ({low} to {high})", target.name, short(natural(belief.mean))));
    }
    if !models.constraints.is_empty() {
        parts.push(format!("{} likely feasible", percent(libm::exp(outlook.log_feasible))));
    }
    if outlook.serving_probability < 0.95 {
        parts.push(format!("{} likely to serve", percent(outlook.serving_probability)));
    }
    let purpose = match turn {
        SuggestionPurpose::Exploration => "exploration where the models are uncertain".to_owned(),
        SuggestionPurpose::Neglected(parameter) => format!("the incumbent with the least tried value of {parameter}"),
        SuggestionPurpose::Look => "highest expected improvement on this server".to_owned(),
        SuggestionPurpose::Exploitation if outlook.nearest_correlation < 0.3 => {
            "highest expected improvement, far from all earlier trials".to_owned()
        }
        SuggestionPurpose::Exploitation => "highest expected improvement".to_owned(),
    };
    if parts.is_empty() { purpose } else { format!("{purpose}: {}", parts.join(", ")) }
}

/// Returns the first objective's expected value for one measurement at a chosen point. `None` without a model of it.
pub(super) fn expected_value(table: &HistoryTable, models: &Models<'_>, point: &[f64]) -> Option<ExpectedValue> {
    let model = models.objectives.iter().find(|model| model.index == 0)?;
    let (belief, _) = model.predict_with_correlation(point);
    let deviation = libm::hypot(belief.deviation, model.noise());
    let unit = table.units.objectives[0];
    let mut ends = [-1.0, 1.0].map(|sign| unit.value(belief.mean + sign * NORMAL_95 * deviation));
    ends.sort_by(f64::total_cmp);
    let expected = ExpectedValue { mean: unit.value(belief.mean), low: ends[0], high: ends[1] };
    [expected.mean, expected.low, expected.high].iter().all(|value| value.is_finite()).then_some(expected)
}

fn percent(probability: f64) -> String {
    format!("{:.0} %", 100.0 * probability)
}

/// Formats a number with about three significant digits.
fn short(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if (100.0..1e7).contains(&size) => format!("{value:.0}"),
        _ if (10.0..100.0).contains(&size) => format!("{value:.1}"),
        _ if (0.1..10.0).contains(&size) => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}
