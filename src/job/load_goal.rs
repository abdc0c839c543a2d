//! `objective.maximize = "load_under_slo"`: the limits, and the search for the highest load of each configuration.

use super::LoadJob;
use super::objective::read_constraint;
use crate::document::{DocumentError, Section};
use crate::load::ArrivalPattern;
use crate::objective::{Constraint, LoadGoal, SloTier};
use crate::trial::Measurement;

/// The default number of probes, and the number that is added for each tier.
const PROBES: u32 = 6;
const PROBES_PER_TIER: u32 = 2;

/// The largest number of probes.
const MAX_PROBES: u32 = 50;

/// The default share of requests that must keep the limits of the goodput.
const GOOD_SHARE: f64 = 0.99;

/// The own settings of the search, as the section `objective.search` has them.
#[derive(Clone, Copy, Debug, Default)]
struct SearchKeys {
    probes: Option<u32>,
    lowest: Option<f64>,
    highest: Option<f64>,
    good_share: Option<f64>,
}

/// Reads the search, and splits the limits: those of the load, and those that are independent of it. `None` for another
/// metric.
pub(super) fn read(
    section: &Section<'_>,
    metric: &str,
    load: &LoadJob,
    constraints: Vec<Constraint>,
    has_several_workloads: bool,
) -> Result<(Option<Box<LoadGoal>>, Vec<Constraint>), DocumentError> {
    let keys = section.optional_section("search", read_keys)?;
    let tiers = section.sections("tier", |tier| {
        let limits = tier.sections("constraint", |constraint| read_constraint(constraint, load))?;
        if limits.is_empty() {
            return Err(tier.error("constraint", "is missing: a tier needs at least one limit", None));
        }
        Ok(SloTier { name: tier.required("name")?, limits })
    })?;
    if metric != Measurement::LOAD_UNDER_SLO {
        for (key, is_given) in [("search", keys.is_some()), ("tier", !tiers.is_empty())] {
            if is_given {
                let hint = format!("set maximize = \"{}\", or remove it", Measurement::LOAD_UNDER_SLO);
                return Err(section.error(key, "is for the highest load within limits", Some(hint)));
            }
        }
        return Ok((None, constraints));
    }
    check_load(section, load, has_several_workloads)?;
    let is_fixed = |constraint: &Constraint| constraint.metric == Measurement::GREEDY_AGREEMENT;
    let (fixed, limits): (Vec<_>, Vec<_>) = constraints.into_iter().partition(is_fixed);
    if limits.is_empty() && load.goodput.is_empty() {
        let hint = "add [[objective.constraint]], such as metric = \"p95_ttft_ms\" with at_most = 500, or load.goodput";
        return Err(section.error("maximize", "load_under_slo needs at least one limit", Some(hint.to_owned())));
    }
    let keys = keys.unwrap_or_default();
    if keys.good_share.is_some() && load.goodput.is_empty() {
        let hint = "set load.goodput, such as [\"ttft:200\", \"tpot:50\"], in milliseconds".to_owned();
        return Err(section.error("search", "good_share needs the latency limits of load.goodput", Some(hint)));
    }
    let more = PROBES_PER_TIER * u32::try_from(tiers.len()).unwrap_or(u32::MAX);
    let goal = LoadGoal {
        limits,
        good_share: (!load.goodput.is_empty()).then_some(keys.good_share.unwrap_or(GOOD_SHARE)),
        probes: keys.probes.unwrap_or(PROBES.saturating_add(more)).min(MAX_PROBES),
        lowest: keys.lowest,
        highest: keys.highest,
        tiers,
    };
    Ok((Some(Box::new(goal)), fixed))
}

/// Checks that the study's load has levels, and an end that does not depend on them.
fn check_load(section: &Section<'_>, load: &LoadJob, has_several_workloads: bool) -> Result<(), DocumentError> {
    let refuse = |problem: &str, hint: &str| Err(section.error("maximize", problem, Some(hint.to_owned())));
    if has_several_workloads {
        return refuse("load_under_slo needs one workload", "make a study of each workload, or mix them in one");
    }
    if matches!(load.arrival, ArrivalPattern::AtOnce | ArrivalPattern::Ramp { .. }) {
        return refuse(
            "load_under_slo needs users, a rate or a trace: load.rate is \"inf\", or load.ramp is set",
            "set load.concurrency, load.rate or load.trace_factor",
        );
    }
    if load.duration.is_none() {
        return refuse(
            "load_under_slo needs load.duration, the longest time of one probe",
            "set load.duration, such as \"60s\"",
        );
    }
    Ok(())
}

fn read_keys(section: &Section<'_>) -> Result<SearchKeys, DocumentError> {
    let keys = SearchKeys {
        probes: section.optional("probes")?,
        lowest: section.optional("lowest")?,
        highest: section.optional("highest")?,
        good_share: section.optional("good_share")?,
    };
    if let Some(probes) = keys.probes.filter(|probes| !(2..=MAX_PROBES).contains(probes)) {
        return Err(section.error("probes", format!("{probes} is not between 2 and {MAX_PROBES}"), None));
    }
    for (key, value) in [("lowest", keys.lowest), ("highest", keys.highest)] {
        if let Some(value) = value.filter(|value| !(value.is_finite() && *value > 0.0)) {
            return Err(section.error(key, format!("{value} is not above 0"), None));
        }
    }
    if let (Some(lowest), Some(highest)) = (keys.lowest, keys.highest)
        && lowest >= highest
    {
        return Err(section.error("highest", format!("{highest} is not above lowest, which is {lowest}"), None));
    }
    if let Some(share) = keys.good_share.filter(|share| !(0.0..1.0).contains(share) || *share == 0.0) {
        let hint = Some("0.99 is 99 % of the requests".to_owned());
        return Err(section.error("good_share", format!("{share} is not a share between 0 and 1"), hint));
    }
    Ok(keys)
}
