//! Tests of the card of a study.

use super::*;
use crate::config::Config;
use crate::objective::{Constraint, MetricLimit, Score};
use crate::store::{EarlyEnds, RankedConfiguration, ScoredTrial, StudyCounts};
use crate::study_report::{
    ConfigurationResults, DeploymentOutcome, DeploymentStatus, RankReason, RankingPlace, StudyGpus,
};
use crate::trial::{Measurement, Outcome, Trial};

pub(in crate::report::terminal) fn ranked(
    number: u32,
    value: f64,
    range: (f64, f64),
    measurements: u32,
) -> RankedConfiguration {
    let config = Config::new().with("max-num-seqs", 44_i64).with("enable-prefix-caching", false);
    let trial = Trial::example(number, "auto", Outcome::Measured(Measurement::default())).with_config(config);
    RankedConfiguration {
        first: ScoredTrial { trial, score: Score::Feasible { value } },
        trials: vec![number],
        value,
        measurements,
        range,
        expected: None,
        is_confirmed: false,
    }
}

pub(in crate::report::terminal) fn report(baseline: Option<RankedConfiguration>) -> StudyReport {
    let winner = ranked(10, 4794.0, (4790.0, 4798.0), 2);
    let results = ConfigurationResults { ranked: winner, measured_trials: Vec::new() };
    let mut report = StudyReport::example("quickstart");
    if let Some(objective) = &mut report.objective {
        let limit = MetricLimit::AtMost(10.0);
        objective.constraints.push(Constraint { metric: "p95_itl_ms".to_owned(), limit });
    }
    let counts = StudyCounts { measured: 17, failed: 1, rejected: 0, running: 0, live_looks: 0 };
    StudyReport { ranking: vec![RankingPlace { results, rank_reason: RankReason::Mean }], baseline, counts, ..report }
}

fn commands() -> CardCommands {
    let launch =
        "HF_HUB_OFFLINE=1 vllm serve Qwen/Qwen3-8B --max-num-seqs 44 --no-enable-prefix-caching --max-model-len 4096";
    CardCommands {
        launch: launch.split(' ').map(str::to_owned).collect(),
        export: "setpoint export --format sh --study quickstart -o serve.sh".split(' ').map(str::to_owned).collect(),
    }
}

fn cost() -> StudyCost {
    let gpus = Some(StudyGpus { count: 2, name: "NVIDIA H100 80GB HBM3".to_owned() });
    StudyCost { launches: 18, wall_s: 5400.0, gpus, ..StudyCost::default() }
}

fn card(report: &StudyReport, layout: TextLayout) -> String {
    console::strip_ansi_codes(&card_text(report, &cost(), &commands(), layout)).into_owned()
}

fn terminal(width: usize) -> TextLayout {
    TextLayout { width, wraps_sentences: true, is_utf8: true }
}

/// Returns the report of a study with a measured deployment.
fn with_deployment() -> StudyReport {
    let status = DeploymentStatus { source: "serve.sh, line 12".to_owned(), outcome: DeploymentOutcome::Measured };
    StudyReport {
        deployment: Some(ranked(1, 4402.0, (4400.0, 4404.0), 2)),
        deployment_status: Some(status),
        ..report(Some(ranked(0, 3941.0, (3930.0, 3950.0), 2)))
    }
}

#[test]
fn the_card_fits_terminals_and_pipes() {
    let report = with_deployment();
    let cards = [60, 80, 140].map(|width| card(&report, terminal(width)));
    insta::assert_snapshot!(format!("{}\n\n{}", cards.join("\n\n"), card(&report, TextLayout::pipe())));
}

#[test]
fn the_gain_over_the_deployment_pays_for_the_study_if_there_is_one() {
    let payback = |report: &StudyReport, cost: &StudyCost| payback_text(report, cost);
    let end = "the time of the study / (gain - 1)";
    let instead = "of serving it instead of today's deployment";
    assert_eq!(payback(&with_deployment(), &cost()), Some(format!("paid back after 16.8 h {instead}: {end}")));
    let without = report(Some(ranked(0, 3941.0, (3930.0, 3950.0), 2)));
    let instead = "of serving it instead of the engine's defaults";
    assert_eq!(payback(&without, &cost()), Some(format!("paid back after 6.9 h {instead}: {end}")));
}

#[test]
fn the_cost_on_the_simulated_engine_is_no_cost_of_gpus_and_is_not_paid_back() {
    let cost = StudyCost { launches: 1, wall_s: 58.2, is_simulated: true, ..StudyCost::default() };
    let card = card_text(&with_deployment(), &cost, &commands(), terminal(200));
    assert!(card.contains("\ncost of the study: 1 launch in 58.2 s on the simulated engine\n"), "{card}");
    assert!(!card.contains("paid back"), "{card}");
}

#[test]
fn the_card_and_the_ranking_have_the_time_that_early_ends_saved() {
    let report = StudyReport { early_ends: EarlyEnds { loads: 7, saved_s: 412.0 }, ..with_deployment() };
    assert!(
        card(&report, terminal(200)).contains("; 7 loads ended early and saved 7 min\n"),
        "{}",
        card(&report, terminal(200))
    );
    assert!(crate::report::best_text(&report).ends_with("\n7 loads ended early and saved 7 min"));
    let json = crate::report::best_json(&report);
    assert_eq!(json["early_ends"], serde_json::json!({"loads": 7, "saved_s": 412.0}));
}

#[test]
fn no_line_of_a_card_is_wider_than_its_terminal() {
    let report = with_deployment();
    for width in 45..160 {
        for line in card(&report, terminal(width)).lines() {
            assert!(console::measure_text_width(line) <= width, "{width}: {line}");
        }
    }
}

#[test]
fn a_doubtful_gain_is_not_called_significant_and_pays_nothing_back() {
    let card = card(&report(Some(ranked(0, 3941.0, (3941.0, 3941.0), 1))), terminal(200));
    assert!(
        card.starts_with(
            "verdict: trial 10 has 21.6 % higher output_throughput than the engine's defaults (not significant), "
        ),
        "{card}"
    );
    assert!(!card.contains("paid back") && card.contains(CONTINUE_HINT), "{card}");
}
