//! Values of one parameter in a refinement of the grid.

use crate::config::Value;
use crate::space::Domain;

/// Levels of one parameter. Never empty, unless the domain is.
#[derive(Debug)]
pub(super) struct Levels {
    pub(super) values: Vec<Value>,
    /// Whether the previous refinement contains the value, for each of `values`.
    pub(super) in_previous: Vec<bool>,
    /// Whether no later refinement has more values.
    pub(super) is_final: bool,
}

impl Levels {
    pub(super) fn new(domain: &Domain, refinement: u32, last: u32) -> Self {
        let whole = domain.values(1 << last);
        if matches!(domain, Domain::Bool | Domain::Categorical(_)) {
            let values = whole.unwrap_or_default();
            return Self { in_previous: vec![refinement > 0; values.len()], values, is_final: true };
        }
        let mut values = spread(domain, refinement);
        if refinement == last
            && let Some(whole) = &whole
        {
            values.clone_from(whole);
        }
        let before = if refinement == 0 { Vec::new() } else { spread(domain, refinement - 1) };
        let is_old = |value| before.binary_search_by(|known| number(known).total_cmp(&number(value))).is_ok();
        Self {
            in_previous: values.iter().map(is_old).collect(),
            is_final: refinement == last || whole.is_some_and(|whole| whole.len() == values.len()),
            values,
        }
    }
}

/// Returns the values at the ends of `2^refinement` equal parts of a range of numbers, ascending and each once.
fn spread(domain: &Domain, refinement: u32) -> Vec<Value> {
    let parts = 1_u32 << refinement;
    let mut values: Vec<_> = (0..=parts).map(|end| domain.decode(f64::from(end) / f64::from(parts))).collect();
    values.dedup();
    values
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}
