//! Tests of the verdict.

use super::*;
use crate::report::terminal::study_card::tests::{ranked, report};
use crate::study_report::DeploymentStatus;

fn with_deployment(outcome: DeploymentOutcome, value: Option<(f64, f64)>) -> StudyReport {
    let report = report(Some(ranked(0, 3941.0, (3930.0, 3950.0), 2)));
    let deployment = value.map(|(least, most)| ranked(1, f64::midpoint(least, most), (least, most), 2));
    let deployment_status = Some(DeploymentStatus { source: "serve.sh".to_owned(), outcome });
    StudyReport { deployment, deployment_status, ..report }
}

#[test]
fn the_gain_over_the_deployment_stands_beside_the_gain_over_the_defaults() {
    let better = "trial 10 has 21.6 % higher output_throughput than the engine's defaults";
    let measured = |least, most| verdict_text(&with_deployment(DeploymentOutcome::Measured, Some((least, most))));
    let beside =
        |difference: &str| format!("{better} (significant) and {difference} output_throughput than today's deployment");
    let end = ", and keeps the limit";
    assert_eq!(measured(4500.0, 4520.0), format!("{} (significant){end}", beside("6.3 % higher")));
    assert_eq!(measured(4780.0, 4792.0), format!("{} (not significant){end}", beside("0.2 % higher")));
    let same = verdict_text(&with_deployment(DeploymentOutcome::IsDefaults, None));
    assert_eq!(same, format!("{better}, which are today's deployment (significant){end}"));
}

#[test]
fn a_deployment_without_a_measurement_is_named_with_its_outcome() {
    let outcomes = [
        (DeploymentOutcome::Failed("out_of_memory: no room".to_owned()), "failed"),
        (DeploymentOutcome::Rejected("R1: 3 heads".to_owned()), "was rejected before its launch"),
        (DeploymentOutcome::NotLaunched, "was not launched"),
    ];
    for (outcome, text) in outcomes {
        let verdict = verdict_text(&with_deployment(outcome, None));
        assert!(verdict.ends_with(&format!("keeps the limit; today's deployment {text}")), "{verdict}");
        assert!(verdict.starts_with("trial 10 has 21.6 % higher"), "{verdict}");
    }
}

#[test]
fn a_deployment_that_is_the_best_is_kept() {
    let mut best = with_deployment(DeploymentOutcome::Measured, None);
    best.deployment = best.winner().map(|winner| winner.results.ranked.clone());
    assert_eq!(
        verdict_text(&best),
        "no configuration is better than today's deployment, trial 10; keep it: it has 21.6 % higher \
         output_throughput than the engine's defaults (significant)"
    );
}

#[test]
fn defaults_that_are_the_best_are_kept_and_compared_with_the_deployment() {
    let mut best = with_deployment(DeploymentOutcome::Measured, Some((4400.0, 4500.0)));
    best.ranking[0].results.ranked.first.trial.proposal.number = 0;
    assert_eq!(
        verdict_text(&best),
        "no configuration is better than the engine's defaults; keep them: they have 7.7 % higher output_throughput \
         than today's deployment (significant)"
    );
}

#[test]
fn baselines_over_a_limit_and_missing_baselines_are_named() {
    let mut over = with_deployment(DeploymentOutcome::Measured, Some((4400.0, 4500.0)));
    for baseline in [&mut over.baseline, &mut over.deployment] {
        let first = &mut baseline.as_mut().unwrap().first;
        first.score = crate::objective::Score::Infeasible { value: 1.0, violation: 0.2 };
    }
    assert!(verdict_text(&over).ends_with("; the defaults break a limit; today's deployment breaks a limit"));
    let unknown = verdict_text(&report(None));
    assert_eq!(unknown, "trial 10 is the best, and keeps the limit; the defaults were not measured");
}

#[test]
fn a_lower_latency_is_a_gain() {
    let objective = Objective {
        metric: "p99_ttft_ms".to_owned(),
        goal: Goal::Minimize,
        constraints: Vec::new(),
        joint: None,
        price_per_hour: None,
        load_goal: None,
    };
    assert_eq!(change_text(&objective, 1.25), "20.0 % lower p99_ttft_ms");
    assert_eq!(change_text(&objective, 0.8), "25.0 % higher p99_ttft_ms");
}
