//! Tests of the rows and lines of a study.

use super::*;
use crate::objective::{Constraint, Goal, MetricLimit, Objective, Score};
use crate::trial::{Distribution, Failure, FailureKind, Measurement, Rejection, Trial};
use crate::tuner::TrialPhase;

#[test]
fn one_missing_answer_does_not_look_like_the_end_of_the_preflight() {
    let late = "the preflight did not answer within 30s; the rules decide on this trial";
    assert_eq!(preflight_line(late, false), format!("preflight: {late}"));
    let gone = "python3 cannot import vllm: no module; from now on only the rules decide";
    assert_eq!(preflight_line(gone, true), format!("no preflight: {gone}"));
}

#[test]
fn long_times_are_rounded() {
    let told: Vec<_> = [40, 89, 90, 5399, 12_600].map(|s| coarse(Duration::from_secs(s))).to_vec();
    assert_eq!(told, ["40 s", "89 s", "2 min", "90 min", "3.5 h"]);
}

fn display(verbose: bool) -> ProgressLine {
    let limit = Constraint { metric: "p99_ttft_ms".to_owned(), limit: MetricLimit::AtMost(500.0) };
    let objective = Objective {
        metric: "output_throughput".to_owned(),
        goal: Goal::Maximize,
        constraints: vec![limit],
        joint: None,
        price_per_hour: None,
        load_goal: None,
    };
    let names = ShortFlagNames::new(["max-num-seqs"].into_iter());
    let rows = TrialRows::new(objective, Config::new(), Config::new().with("max-num-seqs", 256_i64), names);
    ProgressLine {
        mode: ProgressMode::Lines,
        verbose,
        metric: "output_throughput".to_owned(),
        fixed: Config::new(),
        state: Arc::new(Mutex::new(ProgressState::new(rows, Some(8)))),
    }
}

/// Returns the texts of these events on a terminal with 100 columns, without colour.
fn page(display: &ProgressLine, events: &[TunerEvent]) -> String {
    let layout = TextLayout { width: 100, wraps_sentences: true, is_utf8: true };
    let texts = events.iter().flat_map(|event| {
        let mut state = display.state();
        state.follow(event, Instant::now());
        let mut texts = display.rows(event, &mut state, layout);
        drop(state);
        texts.extend(display.line(event, &texts));
        texts
    });
    let texts: Vec<_> = texts.collect();
    console::strip_ansi_codes(&texts.join("\n")).into_owned()
}

/// Returns the events of a trial.
fn events(number: u32, origin: &'static str, why: Option<&str>, seqs: i64, outcome: Outcome) -> Vec<TunerEvent> {
    let config = if seqs == 256 { Config::new() } else { Config::new().with("max-num-seqs", seqs) };
    let proposal = Proposal { config, why: why.map(str::to_owned), ..Proposal::example(number, origin) };
    let is_launched = !matches!(outcome, Outcome::Rejected(_));
    let value = outcome.measurement().map(|measurement| measurement.metric("output_throughput").unwrap());
    let score = value.map_or(Score::Failed, |value| Score::Feasible { value });
    let trial = Trial { startup_s: Some(40.0), elapsed_s: 70.0, ..Trial::of(proposal.clone(), outcome) };
    let mut events = vec![TunerEvent::Phase { number, phase: TrialPhase::Checking }];
    if is_launched {
        let phase = TrialPhase::Starting;
        events.extend([TunerEvent::Launch(proposal), TunerEvent::Phase { number, phase }]);
    }
    let trial = Box::new(ScoredTrial { trial, score });
    events.push(TunerEvent::TrialEnded { trial, best: value, improves: number == 3, launched: number + 1 });
    events
}

fn night() -> Vec<TunerEvent> {
    let measured = |tokens: u64| {
        let ttft_ms = Some(Distribution { p99: 400.0, ..Distribution::default() });
        let total_output_tokens = tokens * 10;
        Outcome::Measured(Measurement {
            completed: 30,
            duration_s: 10.0,
            total_output_tokens,
            ttft_ms,
            ..Measurement::default()
        })
    };
    let message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.2 GiB free";
    let failed = Outcome::Failed(Failure { kind: FailureKind::OutOfMemory, message: message.to_owned() });
    let rejected = || {
        let message = "max_num_batched_tokens (128) is smaller than max_num_seqs (2048), and the engine refuses it";
        Outcome::Rejected(Rejection { rule: "R2".to_owned(), message: message.to_owned() })
    };
    let why = "highest expected improvement: output_throughput 4809 (4471 to 5172), 100 % likely feasible";
    [
        vec![TunerEvent::Begin { study: "night".to_owned(), stored: 0, launched: 0, best: None }],
        events(0, "baseline", None, 256, measured(3941)),
        events(1, "deployment", Some("today's deployment: serve.sh, line 12"), 768, rejected()),
        events(2, "start", Some("start: recipe A"), 512, measured(4100)),
        events(3, "auto", Some(why), 64, measured(4772)),
        events(4, "auto", Some(why), 1024, failed),
        events(5, "auto", Some(why), 2048, rejected()),
        events(6, "confirmation", None, 64, measured(4780)),
        vec![TunerEvent::RunEnded(StudyEnding::TrialsSpent)],
    ]
    .concat()
}

#[test]
fn without_verbose_each_launched_trial_has_one_row() {
    insta::assert_snapshot!(page(&display(false), &night()));
}

#[test]
fn verbose_adds_reasons_phases_rejections_and_whole_causes() {
    insta::assert_snapshot!(page(&display(true), &night()));
}
