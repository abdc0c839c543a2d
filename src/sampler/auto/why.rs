//! The reason for a suggestion, in one line.

use super::Turn;
use super::models::Models;
use super::table::HistoryTable;
use crate::sampler::SamplerAsk;

/// Describes the expectation at a chosen point and the purpose of its trial.
pub(super) fn of(
    ask: &SamplerAsk<'_>,
    table: &HistoryTable,
    models: &Models<'_>,
    point: &[f64],
    turn: &Turn,
) -> String {
    let outlook = models.at(point);
    let mut parts = Vec::new();
    for (model, belief) in models.objectives.iter().zip(&outlook.objectives) {
        let target = &ask.aim.objectives[model.index];
        let measure = table.units.objectives[model.index];
        let natural = |modelled: f64| measure.value(modelled);
        let mut ends = [belief.mean - belief.deviation, belief.mean + belief.deviation].map(natural);
        ends.sort_by(f64::total_cmp);
        let [low, high] = ends.map(short);
        parts.push(format!("{} is expected at {} ({low} to {high})", target.name, short(natural(belief.mean))));
    }
    if !models.constraints.is_empty() {
        parts.push(format!("within the limits with {}", percent(libm::exp(outlook.log_feasible))));
    }
    if outlook.serves < 0.95 {
        parts.push(format!("serves with {}", percent(outlook.serves)));
    }
    let what_for = match turn {
        Turn::Doubt => "tried where the models may be wrong".to_owned(),
        Turn::Neglected(parameter) => {
            format!("the best so far with another {parameter}, which was tried least near it")
        }
        Turn::Promise if outlook.alike < 0.3 => "tried because little is known near it".to_owned(),
        Turn::Promise => "tried as what promises most".to_owned(),
    };
    parts.insert(0, what_for);
    parts.join("; ")
}

fn percent(probability: f64) -> String {
    format!("{:.0} % probability", 100.0 * probability)
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
