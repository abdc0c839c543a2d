//! Narrowed parameter ranges, without the values that no configuration of the space could use.
//!
//! A value is dropped only if one rule rejects it for every value of the other parameters. The search first finds the
//! parameters that the rule depends on. It changes each one and compares the verdict and its message, which contains
//! the numbers that decide. Then it checks the rule for every combination of these parameters: of the ends, middles
//! and round values of ranges, and of all choices. A value stays if there are too many combinations, or if only
//! several rules together reject it. Proposals with such a value are checked one by one.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Facts, Finding, check};
use crate::config::{Config, Value};
use crate::space::{Domain, IntScale, Space};
use crate::stats::f64_to_i32;

/// One range that became smaller.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeNarrowing {
    pub parameter: String,
    pub before: Domain,
    pub after: Domain,
    /// The rules that reject the dropped values, one entry for each rule, with its message for one of the values.
    pub reasons: Vec<(&'static str, String)>,
}

/// The number of random configurations of the other parameters that are checked first. The value is kept at once if no
/// single rule rejects it in all of them.
const TRIED_FIRST: usize = 64;
/// The number of configurations around which each parameter is varied, to find the parameters that a rule depends on.
const BASES: usize = 4;
/// The maximum number of combinations of the parameters that a rule depends on. If there are more, the value is kept.
const MAX_COMBINATIONS: usize = 4096;
/// The number of values up to which every integer of a range is a probe. In a larger range the probes are spread, and a
/// bisection finds the ends between them.
const MAX_VALUES: usize = 64;
/// The number of passes. A smaller range may allow another range to shrink.
const ROUNDS: usize = 3;

/// Returns the space without unusable values, and the changes. `arguments` override every configuration.
///
/// A parameter that would keep no value stays as it is.
#[must_use]
pub fn narrow(space: &Space, arguments: &Config, facts: &Facts<'_>) -> (Space, Vec<RangeNarrowing>) {
    let mut narrowed = space.clone();
    if facts.engine.is_none() {
        return (narrowed, Vec::new());
    }
    let mut reasons: Vec<Vec<(&'static str, String)>> = vec![Vec::new(); space.parameters.len()];
    for _ in 0..ROUNDS {
        let before = narrowed.clone();
        for (index, why) in reasons.iter_mut().enumerate() {
            let mut search = NarrowingSearch { space: &before, arguments, facts, index, reasons: Vec::new() };
            if let Some(domain) = search.shrink(&before.parameters[index].domain) {
                narrowed.parameters[index].domain = domain;
                search.reasons.retain(|(rule, _)| !why.iter().any(|(known, _)| known == rule));
                why.append(&mut search.reasons);
            }
        }
        if narrowed == before {
            break;
        }
    }
    let changed = space.parameters.iter().zip(&narrowed.parameters).zip(reasons).filter(|((old, new), _)| old != new);
    let narrowings = changed.map(|((old, new), reasons)| RangeNarrowing {
        parameter: old.name.clone(),
        before: old.domain.clone(),
        after: new.domain.clone(),
        reasons,
    });
    let narrowings = narrowings.collect();
    (narrowed, narrowings)
}

/// The search for values of one parameter that cannot be used.
struct NarrowingSearch<'a> {
    space: &'a Space,
    arguments: &'a Config,
    facts: &'a Facts<'a>,
    index: usize,
    reasons: Vec<(&'static str, String)>,
}

impl NarrowingSearch<'_> {
    /// Returns the domain without its unusable values, if there are any and others are left.
    fn shrink(&mut self, domain: &Domain) -> Option<Domain> {
        let shrunk = match domain {
            Domain::Bool => {
                let usable = self.retain_usable(vec![Value::Bool(false), Value::Bool(true)]);
                if usable.len() == 2 { Domain::Bool } else { Domain::Categorical(usable) }
            }
            Domain::Categorical(values) => Domain::Categorical(self.retain_usable(values.clone())),
            Domain::Int { scale, multiple_of, .. } => {
                let probes = domain.values(MAX_VALUES).unwrap_or_else(|| probes(domain));
                let (low, high) = self.ends(&probes, |dead, alive| {
                    let (Value::Int(dead), Value::Int(alive)) = (dead, alive) else { return None };
                    let steps = (alive - dead) / multiple_of;
                    let halves = *scale != IntScale::PowerOfTwo && steps.abs() > 1;
                    halves.then(|| Value::Int(dead + steps / 2 * multiple_of))
                })?;
                Domain::Int { low: low.as_i64()?, high: high.as_i64()?, scale: *scale, multiple_of: *multiple_of }
            }
            Domain::Float { log, low, high } => {
                let finest = (high - low) / 1e6;
                let (low, high) = self.ends(&probes(domain), |dead, alive| {
                    let (dead, alive) = (dead.as_f64()?, alive.as_f64()?);
                    ((alive - dead).abs() > finest).then(|| Value::Float(f64::midpoint(dead, alive)))
                })?;
                Domain::Float { low: low.as_f64()?, high: high.as_f64()?, log: *log }
            }
        };
        (!shrunk.is_empty() && shrunk != *domain).then_some(shrunk)
    }

    fn retain_usable(&mut self, values: Vec<Value>) -> Vec<Value> {
        values.into_iter().filter(|value| !self.is_unusable(value)).collect()
    }

    /// Returns the smallest and the largest usable value, by a bisection between ascending probes. `between` returns a
    /// value between an unusable and a usable neighbour. It returns `None` when they are close enough.
    fn ends(&mut self, probes: &[Value], between: impl Fn(&Value, &Value) -> Option<Value>) -> Option<(Value, Value)> {
        let mut end = |probes: &[&Value]| {
            let first = probes.iter().position(|probe| !self.is_unusable(probe))?;
            let mut alive = probes[first].clone();
            if first > 0 {
                let mut dead = probes[first - 1].clone();
                while let Some(value) = between(&dead, &alive) {
                    if self.is_unusable(&value) { dead = value } else { alive = value }
                }
                if let (Value::Float(dead), Value::Float(usable)) = (&dead, &alive) {
                    let rounded = round_away(*dead, *usable).map(Value::Float);
                    alive = rounded.filter(|rounded| !self.is_unusable(rounded)).unwrap_or(alive);
                }
            }
            Some(alive)
        };
        let ascending: Vec<_> = probes.iter().collect();
        let descending: Vec<_> = probes.iter().rev().collect();
        Some((end(&ascending)?, end(&descending)?))
    }

    /// Returns whether one rule rejects this value for all values of the other parameters. That rule is recorded as a
    /// reason.
    fn is_unusable(&mut self, value: &Value) -> bool {
        let reason = self.find_rejecting_rule(value);
        let dead = reason.is_some();
        self.reasons.extend(reason.filter(|(rule, _)| !self.reasons.iter().any(|(known, _)| known == rule)));
        dead
    }

    fn find_rejecting_rule(&self, value: &Value) -> Option<(&'static str, String)> {
        let choices: Vec<_> =
            self.space.parameters.iter().map(|parameter| representative_values(&parameter.domain)).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        let mut bases = Vec::new();
        let mut suspects: Option<Vec<Finding>> = None;
        for _ in 0..TRIED_FIRST {
            let picks: Vec<usize> = choices.iter().map(|values| rng.random_range(0..values.len())).collect();
            let Some(findings) = self.findings(value, &choices, &picks) else { continue };
            let held = |known: &Finding| findings.iter().any(|finding| finding.rule == known.rule);
            let left: Vec<_> = match suspects {
                Some(known) => known.into_iter().filter(held).collect(),
                None => findings,
            };
            if left.is_empty() {
                return None;
            }
            suspects = Some(left);
            bases.push(picks);
        }
        bases.truncate(BASES);
        let suspects = suspects?;
        let guilty = suspects.into_iter().find(|suspect| self.always_rejects(suspect.rule, value, &choices, &bases));
        guilty.map(|finding| (finding.rule, finding.message))
    }

    /// Returns whether the rule rejects the value in every combination of the parameters that the rule depends on.
    fn always_rejects(&self, rule: &str, value: &Value, choices: &[Vec<Value>], bases: &[Vec<usize>]) -> bool {
        let verdict = |picks: &[usize]| match self.findings(value, choices, picks) {
            // The value of an inactive parameter does not matter.
            None => Some(None),
            Some(findings) => findings.into_iter().find(|finding| finding.rule == rule).map(|f| Some(f.message)),
        };
        let mut looked_at = vec![false; choices.len()];
        for base in bases {
            let Some(usual) = verdict(base) else { return false };
            for (other, values) in choices.iter().enumerate() {
                for pick in 0..values.len() {
                    let mut picks = base.clone();
                    picks[other] = pick;
                    match verdict(&picks) {
                        None => return false,
                        Some(message) => looked_at[other] |= message != usual,
                    }
                }
            }
        }
        let axes: Vec<usize> = (0..choices.len()).filter(|other| looked_at[*other]).collect();
        let combinations = axes.iter().try_fold(1_usize, |n, other| n.checked_mul(choices[*other].len()));
        if combinations.is_none_or(|combinations| combinations > MAX_COMBINATIONS) {
            return false;
        }
        let Some(base) = bases.first() else { return false };
        (0..combinations.unwrap_or(0)).all(|mut number| {
            let mut picks = base.clone();
            for other in &axes {
                picks[*other] = number % choices[*other].len();
                number /= choices[*other].len();
            }
            verdict(&picks).is_some()
        })
    }

    /// Returns the rejections of a configuration with this value, or `None` if the parameter is not active in it.
    fn findings(&self, value: &Value, choices: &[Vec<Value>], picks: &[usize]) -> Option<Vec<Finding>> {
        let choose =
            |other: usize| if other == self.index { value.clone() } else { choices[other][picks[other]].clone() };
        let config = self.space.assemble(|other| Some(choose(other)));
        config.get(&self.space.parameters[self.index].name)?;
        let findings = check(&config.merged(self.arguments), self.facts).into_iter();
        Some(findings.filter(|finding| finding.severity.rejects()).collect())
    }
}

/// The number of values up to which a domain is represented by all of its values.
const MAX_CHOICES: usize = 12;

/// Returns values that represent a domain: all if there are few, otherwise the ends, the middle and the roundest
/// number.
fn representative_values(domain: &Domain) -> Vec<Value> {
    if let Some(values) = domain.values(MAX_CHOICES) {
        return values;
    }
    let mut values = vec![domain.decode(0.0), domain.decode(0.5), domain.decode(1.0)];
    match domain {
        Domain::Int { low, high, .. } => values.extend(roundest(*low, *high).map(Value::Int)),
        // Every choice counts: a rule may depend on a single one.
        Domain::Categorical(choices) => values.clone_from(choices),
        Domain::Float { .. } | Domain::Bool => {}
    }
    values.dedup();
    values
}

/// Returns the positive number in a range that is divisible by the highest power of two.
fn roundest(low: i64, high: i64) -> Option<i64> {
    let steps = (0..i64::BITS - 2).rev().map(|exponent| 1_i64 << exponent);
    steps.map(|step| high.div_euclid(step) * step).find(|round| (low..=high).contains(round) && *round > 0)
}

/// Returns ascending values over a whole range, including both ends and, for integers, the powers of two.
fn probes(domain: &Domain) -> Vec<Value> {
    const STEPS: u32 = 32;
    let mut values: Vec<_> = (0..=STEPS).map(|step| domain.decode(f64::from(step) / f64::from(STEPS))).collect();
    if let Domain::Int { low, high, multiple_of, .. } = domain {
        let powers = (0..i64::BITS - 2).map(|exponent| 1_i64 << exponent);
        let powers = powers.filter(|power| (low..=high).contains(&power) && power % multiple_of == 0);
        values.extend(powers.map(Value::Int));
        values.sort_by_key(Value::as_i64);
    }
    values.dedup();
    values
}

/// Rounds `usable` to three significant digits, away from `dead`. Sampled floats usually have this precision.
fn round_away(dead: f64, usable: f64) -> Option<f64> {
    if usable == 0.0 {
        return Some(usable);
    }
    let exponent = f64_to_i32(usable.abs().log10().floor()) - 2;
    let steps = usable / 10_f64.powi(exponent);
    let steps = if dead > usable { steps.floor() } else { steps.ceil() };
    // Parsed from text, so that the result is exactly the double of that decimal.
    format!("{steps}e{exponent}").parse().ok().filter(|rounded: &f64| rounded.is_finite())
}
