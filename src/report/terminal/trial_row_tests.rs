//! Tests of the rows of trials.

use super::*;
use crate::objective::{Goal, Score};
use crate::trial::{Distribution, Failure, FailureKind, Proposal, Rejection, Trial};

const WIDTHS: [usize; 4] = [60, 80, 120, 140];

fn layout(width: usize) -> TextLayout {
    TextLayout { width, wraps_sentences: true, is_utf8: true }
}

fn limit(metric: &str, limit: MetricLimit) -> Constraint {
    Constraint { metric: metric.to_owned(), limit }
}

fn rows(constraints: Vec<Constraint>) -> TrialRows {
    let objective = Objective {
        metric: "output_throughput".to_owned(),
        goal: Goal::Maximize,
        constraints,
        joint: None,
        price_per_hour: None,
        load_goal: None,
    };
    let defaults = Config::new()
        .with("max-num-seqs", 256_i64)
        .with("max-num-batched-tokens", 2048_i64)
        .with("enable-prefix-caching", true)
        .with("gpu-memory-utilization", 0.92)
        .with("block-size", 16_i64);
    let names: Vec<String> = defaults.iter().map(|(name, _)| name.to_owned()).collect();
    let names = ShortFlagNames::new(names.iter().map(String::as_str));
    TrialRows::new(objective, Config::new().with("max-model-len", 4096_i64), defaults, names)
}

fn limits() -> Vec<Constraint> {
    vec![
        limit("p95_itl_ms", MetricLimit::AtMost(10.0)),
        limit("p99_ttft_ms", MetricLimit::AtMost(500.0)),
        limit("request_throughput", MetricLimit::AtLeast(2.0)),
    ]
}

fn trial(number: u32, origin: &'static str, config: Config, outcome: Outcome) -> ScoredTrial {
    let proposal = Proposal { config: config.with("max-model-len", 4096_i64), ..Proposal::example(number, origin) };
    let trial = Trial { startup_s: Some(41.2), elapsed_s: 312.0, ..Trial::of(proposal, outcome) };
    ScoredTrial { trial, score: Score::Failed }
}

fn measured(number: u32, origin: &'static str, config: Config, tokens: u64, p95_itl: f64) -> ScoredTrial {
    let latency = |p95, p99| Some(Distribution { p95, p99, ..Distribution::default() });
    let measurement = Measurement {
        completed: 30,
        duration_s: 10.0,
        total_output_tokens: tokens * 10,
        itl_ms: latency(p95_itl, p95_itl),
        ttft_ms: latency(p95_itl * 40.0, p95_itl * 48.5),
        ..Measurement::default()
    };
    let objective = Objective {
        metric: "output_throughput".to_owned(),
        goal: Goal::Maximize,
        constraints: limits(),
        joint: None,
        price_per_hour: None,
        load_goal: None,
    };
    let outcome = Outcome::Measured(measurement);
    let score = objective.score(&outcome);
    ScoredTrial { score, ..trial(number, origin, config, outcome) }
}

fn changed() -> Config {
    Config::new()
        .with("max-num-seqs", 44_i64)
        .with("max-num-batched-tokens", 384_i64)
        .with("enable-prefix-caching", false)
        .with("gpu-memory-utilization", 0.979_812)
        .with("block-size", 16_i64)
}

/// Returns one trial of each kind.
fn trials() -> Vec<ScoredTrial> {
    let failure = Failure {
        kind: FailureKind::NoKvMemory,
        message: "No available memory for the cache blocks. Try increasing `gpu_memory_utilization`\nTraceback"
            .to_owned(),
    };
    let rejection =
        Rejection { rule: "R2".to_owned(), message: "max_num_batched_tokens (128) is too small".to_owned() };
    let small = Config::new().with("gpu-memory-utilization", 0.3);
    vec![
        measured(0, "baseline", Config::new(), 3941, 11.2),
        measured(1, "auto", changed(), 4772, 7.9),
        measured(2, "auto", Config::new().with("max-num-seqs", 64_i64), 3870, 10.08),
        trial(3, "auto", small.clone(), Outcome::Failed(failure)),
        trial(4, "auto", Config::new().with("max-num-batched-tokens", 128_i64), Outcome::Rejected(rejection)),
        measured(1234, "confirmation", changed(), 4790, 7.8),
        measured(6, "auto", Config::new().with("max-num-seqs", 256_i64), 3941, 9.0),
    ]
}

fn page(rows: &TrialRows, layout: TextLayout) -> String {
    let trials = trials();
    let lines = trials.iter().map(|scored| rows.row(scored, Some(3941.0), scored.trial.proposal.number == 1, layout));
    let lines: Vec<_> = std::iter::once(rows.header(layout)).chain(lines).collect();
    lines.join("\n")
}

#[test]
fn rows_are_aligned_to_the_terminal() {
    let shown = WIDTHS.map(|width| page(&rows(limits()), layout(width)));
    let plain = shown.map(|page| console::strip_ansi_codes(&page).into_owned());
    insta::assert_snapshot!(plain.join("\n\n"));
}

#[test]
fn the_deployment_and_start_points_are_named_and_confirmed_by_name() {
    let mut rows = rows(limits());
    let today = Config::new().with("max-num-seqs", 768_i64).with("enable-prefix-caching", true);
    let full = today.clone().with("max-model-len", 4096_i64);
    rows.deployment = Some(full);
    let start = |number, source: &str| {
        let mut scored = measured(number, "start", Config::new().with("max-num-seqs", 512_i64), 4000, 9.0);
        scored.trial.proposal.why = Some(format!("start: {source}"));
        scored
    };
    let failure = Failure { kind: FailureKind::OutOfMemory, message: "CUDA out of memory".to_owned() };
    let rejection = Rejection { rule: "R1".to_owned(), message: "32 heads are not divisible by 3".to_owned() };
    let odd = Config::new().with("max-num-seqs", 3_i64);
    let searched = |number, origin| measured(number, origin, Config::new().with("max-num-seqs", 44_i64), 4772, 9.0);
    rows.remember(&searched(6, "auto").trial.proposal);
    let trials = [
        measured(0, "baseline", Config::new(), 3941, 9.0),
        measured(1, "deployment", today.clone(), 4402, 9.0),
        start(2, "recipe A"),
        start(3, "https://recipes.example.org/a/long/path/to/a/recipe/of/this/model.yaml"),
        trial(4, "deployment", today.clone(), Outcome::Failed(failure)),
        trial(5, "deployment", odd, Outcome::Rejected(rejection)),
        searched(6, "auto"),
        searched(7, "confirmation"),
        measured(8, "confirmation", today, 4400, 9.0),
        measured(9, "confirmation", Config::new(), 3940, 9.0),
    ];
    let shown = WIDTHS.map(|width| {
        let layout = layout(width);
        let lines: Vec<_> = trials.iter().map(|scored| rows.row(scored, Some(3941.0), false, layout)).collect();
        console::strip_ansi_codes(&lines.join("\n")).into_owned()
    });
    insta::assert_snapshot!(shown.join("\n\n"));
    rows.deployment = Some(Config::new().with("max-model-len", 4096_i64));
    assert!(rows.row(&trials[0], None, false, layout(140)).ends_with("engine's defaults, today's deployment"));
}

#[test]
fn without_a_terminal_rows_have_one_width_and_in_a_plain_locale_only_ascii() {
    let pipe = TextLayout { is_utf8: false, ..TextLayout::pipe() };
    let page = page(&rows(Vec::new()), pipe);
    let plain = console::strip_ansi_codes(&page);
    assert!(plain.is_ascii(), "{plain}");
    insta::assert_snapshot!(plain);
}

#[test]
fn only_the_best_row_and_failures_have_a_colour() {
    let page = page(&rows(limits()), layout(80));
    let styles = |line: &str| line.starts_with('\u{1b}').then(|| line[1..line.find('m').unwrap()].to_owned());
    let painted: Vec<_> = page.lines().map(styles).collect();
    let (green, red) = (Some("[1".to_owned()), Some("[2".to_owned()));
    assert_eq!(painted, [None, None, green, None, red.clone(), red, None, None]);
    assert!(page.contains("\u{1b}[1m\u{1b}[32m") && page.contains("\u{1b}[2m\u{1b}[31m"), "{page:?}");
}

#[test]
fn no_row_is_wider_than_its_output_also_with_wide_characters() {
    let mut trials = trials();
    let wide = Config::new().with("模型模型模型", "値値値値値値値値値値値値値値値値値値").with("max-num-seqs", 7_i64);
    let failure = Failure { kind: FailureKind::Crash, message: "失敗しました ".repeat(40) };
    trials.push(measured(7, "auto", wide.clone(), 123_456_789, 1e9));
    trials.push(trial(8, "probe", wide, Outcome::Failed(failure)));
    for rows in [rows(limits()), rows(Vec::new())] {
        for width in 1..200 {
            let layout = layout(width);
            let lines = trials.iter().map(|scored| rows.row(scored, Some(1.0), true, layout));
            for line in lines.chain([rows.header(layout)]) {
                assert!(measure_text_width(&line) <= width, "{width}: {line}");
            }
        }
    }
}

#[test]
fn a_cause_has_no_control_characters_and_no_secrets() {
    let message = "\u{1b}[2J HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789 is refused".to_owned();
    let failed = trial(1, "auto", Config::new(), Outcome::Failed(Failure { kind: FailureKind::Crash, message }));
    let row = rows(limits()).row(&failed, None, false, layout(140));
    assert!(!row.contains("[2J") && !row.contains("hf_abc"), "{row:?}");
}

#[test]
fn the_change_of_a_latency_and_of_a_missing_baseline_are_shown_as_they_are() {
    assert_eq!(change_text(80.0, 100.0), "-20.0 %");
    assert_eq!(change_text(350.0, 100.0), "+250 %");
    assert_eq!(change_text(3.0, 0.0), "");
    assert_eq!([0.04, 99.96, 5969.0, 6000.0].map(short_duration), ["0.0 s", "2 min", "99 min", "1.7 h"]);
}
