//! Renders the findings of a study as lines of text and as JSON.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::configuration_results::{deployment_gain_text, deployment_text, gain_text, order_text, value_text};
use super::guard::{guard_json, guard_lines};
use super::json::{deployment_json, judgement_json, ranked_json, standing_json};
use super::load_curve::{add_load_curve, load_curve_lines};
use super::table::best_table;
use super::terminal::short_duration;
use super::winning_flags::{add_flags, flag_lines};
use super::workloads::{add_workloads, workload_lines};
use crate::store::{EarlyEnds, Incident, RuleDisagreement, RuleTest, RuleVerdict};
use crate::study_report::{RankReason, RankingPlace, StudyReport};
use crate::tuner::remaining_gain_text;

/// Explains why an estimated remaining gain does not contradict a gain that the measurements do not support.
const GAINS_EXPLANATION: &str = "the two gains do not contradict each other: the first compares measured configurations; the \
                          remaining gain is a model's estimate, with its uncertainty, of the improvement by \
                          configurations that were not measured";

/// Returns the ranking as a table, with the reasons for its order, the gain and the estimated remaining gain.
#[must_use]
pub(crate) fn best_text(report: &StudyReport) -> String {
    let lines = order_lines(&report.ranking)
        .into_iter()
        .chain(deployment_text(report))
        .chain(gain_lines(report))
        .chain(workload_findings(report))
        .chain(load_curve_lines(report))
        .chain(early_ends_text(report));
    format!("{}\n{}", best_table(report), lines.collect::<Vec<_>>().join("\n"))
}

/// Returns the best configuration as one object. Null without one. `ranking` has all places of the report, the best one
/// included.
#[must_use]
pub(crate) fn best_json(report: &StudyReport) -> Json {
    let Some(winner) = report.winner() else { return Json::Null };
    let study = &report.study;
    let gain = report.gain(&winner.results.ranked);
    let mut json = standing_json(study, winner);
    json["gain"] = gain.factor().into();
    json["gain_significant"] = gain.is_significant().into();
    json["verdict"] = json!(report.verdict(&winner.results.ranked));
    add_flags(&mut json, report, &winner.results.ranked);
    json["noise"] = json!(report.noise);
    json["noise"]["within_launch"] = report.noise_within_launch.into();
    json["early_ends"] = json!({"loads": report.early_ends.loads, "saved_s": report.early_ends.saved_s});
    json["guard"] = report.guard.as_ref().map_or(Json::Null, guard_json);
    json["draft_bias"] = report.draft_bias().into();
    json["judgement"] = report.judgement.as_ref().map_or(Json::Null, judgement_json);
    json["ranking"] = report.ranking.iter().map(|place| standing_json(study, place)).collect();
    json["baseline"] = report.baseline.as_ref().map_or(Json::Null, |ranked| ranked_json(study, ranked));
    let gain = report.gain_over_deployment(&winner.results.ranked);
    json["gain_over_deployment"] = gain.factor().into();
    json["gain_over_deployment_significant"] = gain.is_significant().into();
    json["deployment"] = report.deployment.as_ref().map_or(Json::Null, |ranked| ranked_json(study, ranked));
    json["deployment_status"] = report.deployment_status.as_ref().map_or(Json::Null, deployment_json);
    if let Some(results) = &report.workloads {
        add_workloads(&mut json, results);
    }
    add_load_curve(&mut json, report);
    json
}

/// Returns the results on each of several workloads.
fn workload_findings(report: &StudyReport) -> Vec<String> {
    let metric = report.objective.as_ref().map_or("value", |objective| objective.metric.as_str());
    report.workloads.as_ref().map_or_else(Vec::new, |results| workload_lines(results, metric))
}

/// Returns the findings at the end of a run: the best configuration, its gain, and remarks. Empty without a best
/// configuration.
#[must_use]
pub(crate) fn findings_lines(report: &StudyReport) -> Vec<String> {
    let Some(winner) = report.winner() else { return Vec::new() };
    let (counts, best) = (report.counts, &winner.results.ranked);
    let mut lines = vec![
        format!(
            "study {}: {} measured, {} failed, {} rejected before launch{}",
            report.study.name,
            counts.measured,
            counts.failed,
            counts.rejected,
            if counts.live_looks > 0 { format!("; live looks: {}", counts.live_looks) } else { String::new() }
        ),
        format!("best: trial {}, {}", best.first.trial.proposal.number, value_text(&report.value_name(), best)),
        format!("  {}", best.first.trial.proposal.config),
    ];
    // The other reasons, the best expectation or the best mean, are the usual ones for a first place and get no line.
    if matches!(winner.rank_reason, RankReason::Confirmed { .. }) {
        lines.extend(order_lines(std::slice::from_ref(winner)));
    }
    lines.extend(incidents_line(&report.incidents));
    if let Some(baseline) = &report.baseline {
        let limits = if baseline.first.score.is_feasible() { "" } else { ", over a limit" };
        lines.push(format!("engine's defaults: {}{limits}", value_text(&report.value_name(), baseline)));
    }
    lines.extend(deployment_text(report));
    lines.extend(gain_lines(report));
    lines.extend(workload_findings(report));
    lines.extend(load_curve_lines(report));
    lines.extend(difference_lines(&report.differences));
    lines.extend(report.rule_tests.iter().filter_map(rule_test_line));
    lines
}

/// Returns the reasons for a ranking's order, each once. The reason of a confirmed configuration names its trial.
fn order_lines(ranking: &[RankingPlace]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for RankingPlace { results: standing, rank_reason: order } in ranking {
        let line = match order {
            RankReason::Confirmed { .. } => {
                format!("trial {} is first, {}", standing.ranked.first.trial.proposal.number, order_text(order))
            }
            order => format!("{}: {}", order.name(), order_text(order)),
        };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Returns the gain over the defaults and over today's deployment, their significance, and the estimated remaining gain.
fn gain_lines(report: &StudyReport) -> Vec<String> {
    let Some(winner) = report.winner() else { return Vec::new() };
    let gain = report.gain(&winner.results.ranked);
    let mut lines = vec![gain_text(gain)];
    if report.deployment_status.is_some() {
        lines.push(deployment_gain_text(report.gain_over_deployment(&winner.results.ranked)));
    }
    lines.extend(flag_lines(report, &winner.results.ranked));
    lines.extend(certainty_lines(report));
    lines
}

/// Returns the findings that are neither gains nor flags, one sentence each.
#[must_use]
pub(super) fn remark_lines(report: &StudyReport) -> Vec<String> {
    let mut lines = certainty_lines(report);
    lines.extend(deployment_text(report));
    lines.extend(incidents_line(&report.incidents));
    lines.extend(workload_findings(report));
    lines.extend(difference_lines(&report.differences));
    lines.extend(report.rule_tests.iter().filter_map(rule_test_line));
    lines
}

/// Returns the noise, the estimated remaining gain, and the reasons to doubt the measurements.
fn certainty_lines(report: &StudyReport) -> Vec<String> {
    let Some(winner) = report.winner() else { return Vec::new() };
    let gain = report.gain(&winner.results.ranked);
    let mut lines = Vec::new();
    lines.extend(report.draft_bias().map(|warning| format!("warning: {warning}")));
    lines.extend(report.guard.iter().flat_map(guard_lines));
    lines.extend(noise_text(report));
    if let Some(remaining) = report.judgement.as_ref().and_then(|judgement| judgement.remaining) {
        lines.push(remaining_gain_text(remaining));
        if gain.is_significant() != Some(true) {
            lines.push(GAINS_EXPLANATION.to_owned());
        }
    }
    lines
}

/// Describes the noise between launches. `None` without repeated launches.
fn noise_text(report: &StudyReport) -> Option<String> {
    let deviation = 100.0 * report.noise.between_launches?;
    let launches = report.decision.as_ref().map(|decision| (decision.launches, decision.rounds));
    let confirmation =
        launches.map(|(launches, rounds)| format!("; launches of the confirmation: {launches}, rounds: {rounds}"));
    let within = report.noise_within_launch.map(|share| format!(", within a launch {:.1} %", 100.0 * share));
    Some(format!(
        "noise between launches: {deviation:.1} % (standard deviation; degrees of freedom: {}){}{}",
        report.noise.freedom,
        within.unwrap_or_default(),
        confirmation.unwrap_or_default()
    ))
}

/// Returns the time that early ends of loads saved; `None` if no load ended early.
#[must_use]
pub(super) fn early_ends_text(report: &StudyReport) -> Option<String> {
    let EarlyEnds { loads, saved_s } = report.early_ends;
    let (noun, saved) = (if loads == 1 { "load" } else { "loads" }, short_duration(saved_s));
    (loads > 0).then(|| format!("{loads} {noun} ended early and saved {saved}"))
}

/// Counts launches that were repeated, by the kind of their failure. `None` if there were none.
#[must_use]
pub(crate) fn incidents_line(incidents: &[Incident]) -> Option<String> {
    let mut kinds: BTreeMap<_, usize> = BTreeMap::new();
    for incident in incidents {
        *kinds.entry(incident.failure.kind).or_default() += 1;
    }
    let kinds: Vec<_> = kinds.into_iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let launches = if incidents.len() == 1 { "launch" } else { "launches" };
    let text =
        format!("{} more {launches} failed for reasons of the environment: {}", incidents.len(), kinds.join(", "));
    (!incidents.is_empty()).then_some(text)
}

/// Returns lines about rules that contradict the engine: defects of the rules.
fn difference_lines(differences: &[RuleDisagreement]) -> Vec<String> {
    let rejects = |difference: &RuleDisagreement| {
        let rule = difference.rule.as_deref()?;
        Some(format!("rule {rule} rejects a configuration that release {} accepts", difference.engine_version))
    };
    let examples = differences.iter().filter(|difference| difference.trial.is_none());
    let mut lines: Vec<_> = examples
        .filter_map(|example| Some(format!("{}, and was set aside: {}", rejects(example)?, example.message)))
        .collect();
    let trials: Vec<_> = differences.iter().filter_map(|difference| Some((difference.trial?, difference))).collect();
    if let Some((number, first)) = trials.first() {
        let of = if trials.len() == 1 { "trial" } else { "trials, first" };
        let unknown = || format!("no rule predicts that release {} refuses it", first.engine_version);
        let what = rejects(first).unwrap_or_else(unknown);
        lines.push(format!("rules and engine disagree on {} {of} {number}: {what}: {}", trials.len(), first.message));
    }
    lines
}
/// Returns a line about a rule that a launch has refuted or confirmed.
fn rule_test_line(test: &RuleTest) -> Option<String> {
    let RuleTest { number, rule, .. } = test;
    match test.verdict? {
        RuleVerdict::Refuted => Some(format!(
            "rule {rule} rejects the configuration that trial {number} served, and was set aside: {}",
            test.message
        )),
        RuleVerdict::Confirmed => Some(format!("rule {rule} was confirmed: trial {number} failed as predicted")),
        RuleVerdict::Inconclusive => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::Score;
    use crate::store::{RankedConfiguration, ScoredTrial};
    use crate::study_report::ConfigurationResults;
    use crate::trial::{Measurement, Outcome, Trial};

    #[test]
    fn the_json_of_the_best_has_every_place_of_the_ranking() {
        let place = |number: u32| {
            let value = f64::from(100 - number);
            let trial = Trial::example(number, "auto", Outcome::Measured(Measurement::default()));
            let first = ScoredTrial { trial, score: Score::Feasible { value } };
            let (trials, range) = (vec![number], (value, value));
            let ranked = RankedConfiguration {
                first,
                trials,
                value,
                measurements: 1,
                range,
                expected: None,
                is_confirmed: false,
            };
            RankingPlace {
                results: ConfigurationResults { ranked, measured_trials: Vec::new() },
                rank_reason: RankReason::Mean,
            }
        };
        let report = StudyReport { ranking: vec![place(3), place(5), place(4)], ..StudyReport::example("s") };
        let json = best_json(&report);
        assert_eq!((&json["trial"], &json["mean_value"]), (&3.into(), &97.0.into()));
        let ranking: Vec<_> = json["ranking"].as_array().into_iter().flatten().map(|place| &place["trial"]).collect();
        assert_eq!(ranking, [3, 5, 4]);
    }
}
