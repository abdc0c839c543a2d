//! The trials of a study in its document: rows, metrics, fronts and parameters.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use super::document::{FrontPart, ParameterPart, TrialPart};
use super::findings::goal_name;
use crate::objective::{Goal, Objective, Score};
use crate::store::{ScoredTrial, UnfinishedTrial};
use crate::study_report::{MetricGoal, StudyDetails};
use crate::trial::{Measurement, MetricDirection, Origin, Outcome};

/// Metrics that a page offers if a trial has them, besides those of the objective and the limits.
const OFFERED: [&str; 24] = [
    "output_throughput",
    "request_throughput",
    "total_token_throughput",
    "request_goodput",
    "mean_ttft_ms",
    "median_ttft_ms",
    "p95_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "p95_tpot_ms",
    "p99_tpot_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
    "mean_output_speed",
    "requests_running_mean",
    "requests_waiting_mean",
    "kv_cache_usage_max",
    "prefix_cache_hit_rate",
    "preemptions",
    "gpu_memory_gib_max",
    "gpu_power_w_mean",
    "energy_per_output_token_j",
];

/// Latencies whose trade-off against the throughput has a front.
const FRONT_LATENCIES: [&str; 6] =
    ["mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_e2el_ms", "p99_e2el_ms"];
/// The throughput of fronts.
const FRONT_THROUGHPUT: &str = "output_throughput";

/// Returns the pairs of metrics whose fronts a page shows.
#[must_use]
pub(crate) fn page_fronts() -> Vec<[MetricGoal; 2]> {
    let throughput = MetricGoal { metric: FRONT_THROUGHPUT, goal: Goal::Maximize };
    FRONT_LATENCIES.map(|metric| [throughput, MetricGoal { metric, goal: Goal::Minimize }]).to_vec()
}

pub(super) fn front_parts(details: &StudyDetails) -> Vec<FrontPart> {
    let fronts = details.fronts.iter().filter(|front| !front.trials.is_empty());
    let part = |front: &crate::study_report::TrialFront| FrontPart {
        x: front.goals[0].metric,
        y: front.goals[1].metric,
        trials: front.trials.clone(),
    };
    fronts.map(part).collect()
}

/// Returns the metrics that at least one trial has: those of the objective and the limits first.
pub(super) fn metric_names(objective: Option<&Objective>, trials: &[ScoredTrial]) -> Vec<&'static str> {
    let own = objective.into_iter().flat_map(Objective::metrics);
    let own = own.filter_map(|metric| Measurement::names().find(|name| *name == metric));
    let measurements: Vec<_> = trials.iter().filter_map(|scored| scored.trial.outcome.measurement()).collect();
    let mut names: Vec<&'static str> = Vec::new();
    for name in own.chain(OFFERED) {
        if !names.contains(&name) && measurements.iter().any(|measurement| measurement.metric(name).is_some()) {
            names.push(name);
        }
    }
    names
}

pub(super) fn metric_goals(metrics: &[&'static str]) -> BTreeMap<&'static str, &'static str> {
    let goal = |name: &str| match Measurement::direction(name) {
        Some(MetricDirection::Minimize) => goal_name(Goal::Minimize),
        _ => goal_name(Goal::Maximize),
    };
    metrics.iter().map(|name| (*name, goal(name))).collect()
}

/// Returns all trials in the order of their numbers, also those that are running.
pub(super) fn trial_parts(details: &StudyDetails, metrics: &[&'static str]) -> Vec<TrialPart> {
    let goal = details.report.objective.as_ref().map_or(Goal::Maximize, |objective| objective.goal);
    let is_earlier = |number: u32| details.contexts.get(&number).is_some_and(|stored| stored.is_earlier);
    let mut best: Option<f64> = None;
    let ended = details.trials.iter().map(|scored| {
        let number = scored.trial.proposal.number;
        let is_earlier = is_earlier(number);
        let counts = scored.trial.proposal.origin.is_ranked() && scored.trial.proposal.server_of.is_none();
        if let Score::Feasible { value } = scored.score
            && counts
            && !is_earlier
            && best.is_none_or(|best| if goal == Goal::Maximize { value > best } else { value < best })
        {
            best = Some(value);
        }
        ended_part(scored, metrics, best, is_earlier)
    });
    let mut parts: Vec<_> = ended.collect();
    let running = details.unfinished.iter();
    parts.extend(running.map(|trial| running_part(trial, is_earlier(trial.proposal.number))));
    parts.sort_by_key(|part| part.trial);
    parts
}

fn ended_part(
    scored: &ScoredTrial,
    metrics: &[&'static str],
    best: Option<f64>,
    is_earlier_context: bool,
) -> TrialPart {
    let trial = &scored.trial;
    let (reason_code, reason) = match &trial.outcome {
        Outcome::Rejected(rejection) => (Some(rejection.rule.clone()), Some(rejection.message.clone())),
        Outcome::Failed(failure) => (Some(failure.kind.name().to_owned()), Some(failure.message.clone())),
        Outcome::Measured(_) => (None, None),
    };
    let measurement = trial.outcome.measurement();
    TrialPart {
        trial: trial.proposal.number,
        origin: trial.proposal.origin.name().to_owned(),
        state: trial.outcome.name().to_owned(),
        value: scored.score.value(),
        is_feasible: measurement.is_some().then(|| scored.score.is_feasible()),
        best,
        is_confirmation: trial.proposal.origin == Origin::Confirmation,
        is_look: trial.proposal.server_of.is_some(),
        is_disturbed: scored.is_disturbed(),
        is_earlier_context,
        expected: trial.proposal.expected,
        started_at: trial.started_at.clone(),
        startup_s: trial.startup_s,
        elapsed_s: Some(trial.elapsed_s),
        reason_code,
        reason,
        why: trial.proposal.why.clone(),
        config: trial.proposal.config.clone(),
        metrics: measurement.map(|measurement| metrics.iter().map(|name| measurement.metric(name)).collect()),
    }
}

fn running_part(trial: &UnfinishedTrial, is_earlier_context: bool) -> TrialPart {
    TrialPart {
        trial: trial.proposal.number,
        origin: trial.proposal.origin.name().to_owned(),
        state: "running".to_owned(),
        value: None,
        is_feasible: None,
        best: None,
        is_confirmation: trial.proposal.origin == Origin::Confirmation,
        is_look: false,
        is_disturbed: false,
        is_earlier_context,
        expected: trial.proposal.expected,
        started_at: trial.started_at.clone(),
        startup_s: None,
        elapsed_s: None,
        reason_code: None,
        reason: None,
        why: trial.proposal.why.clone(),
        config: trial.proposal.config.clone(),
        metrics: None,
    }
}

/// Returns the parameters of the study's definition that vary, in the order of their names.
pub(super) fn parameter_parts(definition: &Json, trials: &[TrialPart]) -> Vec<ParameterPart> {
    let parameters = definition["space"]["parameters"].as_object();
    let part = |(name, parameter): (&String, &Json)| {
        let domain = parameter["domain"].as_str().unwrap_or_default();
        let is_range = domain.split_once(" to ").is_some_and(|(low, _)| low.parse::<f64>().is_ok());
        let mut values: Vec<String> = match (is_range, domain) {
            (true, _) => Vec::new(),
            (false, "true or false") => vec!["false".to_owned(), "true".to_owned()],
            (false, list) => list.split(", ").filter(|value| !value.is_empty()).map(str::to_owned).collect(),
        };
        if !is_range {
            // A deployment or a start point may lie outside of the space.
            let known: BTreeSet<String> = values.iter().cloned().collect();
            let set = trials.iter().filter_map(|trial| Some(trial.config.get(name)?.to_string()));
            values.extend(set.filter(|value| !known.contains(value)).collect::<BTreeSet<_>>());
        }
        ParameterPart {
            name: name.clone(),
            domain: domain.to_owned(),
            kind: if is_range { "number" } else { "choice" },
            log: is_range && (domain.contains("powers of two") || domain.contains("logarithmic")),
            values,
        }
    };
    parameters.into_iter().flatten().map(part).collect()
}
