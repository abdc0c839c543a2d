//! Tests of the live line.

use super::*;
use crate::config::Config;
use crate::objective::{Goal, Objective};
use crate::report::{ShortFlagNames, TrialRows};
use crate::tuner::{BudgetPlan, FigureSource, StudyEstimate, TunerEvent};

fn state(trials: Option<u32>) -> ProgressState {
    let objective = Objective {
        metric: "output_throughput".to_owned(),
        goal: Goal::Maximize,
        constraints: Vec::new(),
        joint: None,
        price_per_hour: None,
        load_goal: None,
    };
    let rows = TrialRows::new(objective, Config::new(), Config::new(), ShortFlagNames::default());
    ProgressState::new(rows, trials)
}

fn estimated(trials: Option<u32>) -> ProgressState {
    let mut state = state(trials);
    state.set_estimate(&estimate());
    state
}

fn estimate() -> StudyEstimate {
    StudyEstimate {
        launches: None,
        rounds: None,
        startup_s: 40.0,
        load_s: 60.0,
        limit_s: None,
        source: FigureSource::Model(3),
        finished: crate::tuner::FinishedLaunches::default(),
    }
}

fn layout(width: usize) -> TextLayout {
    TextLayout { width, wraps_sentences: true, is_utf8: true }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn begin() -> TunerEvent {
    TunerEvent::Begin { study: "s".to_owned(), stored: 4, launched: 3, best: Some(1234.0) }
}

fn phase(number: u32, phase: TrialPhase) -> TunerEvent {
    TunerEvent::Phase { number, phase }
}

#[test]
fn a_start_moves_the_bar_and_shows_its_expected_time() {
    let (mut state, now) = (estimated(Some(10)), Instant::now());
    state.follow(&begin(), now);
    let wide = layout(120);
    assert_eq!(
        status_text(&state, wide, now),
        "██████░░░░░░░░░░░░░░ 3 of 10 trials, choosing trial 4, ends in ~12 min, best 1234"
    );
    state.follow(&phase(4, TrialPhase::Starting), now);
    let at = now + seconds(12);
    assert!(
        status_text(&state, wide, at).contains("3 of 10 trials, trial 4: starting 12 s of ~40 s, ends in ~12 min"),
        "{}",
        status_text(&state, wide, at)
    );
    let (used, later) = (state.used(at).0.unwrap(), state.used(now + seconds(30)).0.unwrap());
    assert!((used - 0.312).abs() < 1e-9 && (later - 0.33).abs() < 1e-9, "{used} {later}");
    // A start that takes longer than expected does not count as load.
    assert!((state.used(now + seconds(900)).0.unwrap() - 0.34).abs() < 1e-9);
}

#[test]
fn a_guessed_duration_is_not_shown() {
    let (mut state, now) = (state(Some(6)), Instant::now());
    state.set_estimate(&StudyEstimate { source: FigureSource::Guess, ..estimate() });
    state.follow(&TunerEvent::Begin { study: "s".to_owned(), stored: 0, launched: 0, best: None }, now);
    let text = |state: &ProgressState, now| status_text(state, layout(120), now);
    assert_eq!(text(&state, now), "░░░░░░░░░░░░░░░░░░░░ 0 of 6 trials, preparing the first trial");
    state.follow(&phase(0, TrialPhase::Starting), now);
    assert_eq!(text(&state, now + seconds(5)), "░░░░░░░░░░░░░░░░░░░░ 0 of 6 trials, trial 0: starting 5 s");
    state.follow(&phase(0, TrialPhase::Measuring), now);
    state.follow(&TunerEvent::Progress { number: 0, done: 450, total: 500, tokens_per_s: None }, now);
    assert_eq!(text(&state, now), "███░░░░░░░░░░░░░░░░░ 0 of 6 trials, trial 0: loading 450 of 500 requests");
}

#[test]
fn a_load_shows_its_requests_and_the_rate() {
    let (mut state, now) = (estimated(Some(10)), Instant::now());
    state.follow(&begin(), now);
    state.follow(&phase(4, TrialPhase::Starting), now);
    state.follow(&phase(4, TrialPhase::Measuring), now + seconds(40));
    let progress = TunerEvent::Progress { number: 4, done: 310, total: 1000, tokens_per_s: Some(1240.4) };
    state.follow(&progress, now + seconds(50));
    let text = status_text(&state, layout(120), now + seconds(50));
    assert!(text.contains("trial 4: loading 310 of 1000 requests, 1240 tok/s"), "{text}");
    assert!((state.used(now + seconds(50)).0.unwrap() - 0.35).abs() < 1e-9);
}

#[test]
fn a_spent_budget_chooses_no_further_trial() {
    let (mut state, now) = (state(Some(3)), Instant::now());
    state.follow(&begin(), now);
    let text = status_text(&state, layout(120), now);
    assert!(text.contains("3 of 3 trials, judging the measurements"), "{text}");
}

#[test]
fn several_trials_are_counted_by_their_phases() {
    let (mut state, now) = (state(Some(16)), Instant::now());
    state.follow(&begin(), now);
    state.follow(&phase(4, TrialPhase::Starting), now);
    state.follow(&phase(5, TrialPhase::Measuring), now);
    state.follow(&phase(6, TrialPhase::Measuring), now);
    let text = status_text(&state, layout(120), now);
    assert!(text.contains("3 of 16 trials, 3 at a time: 1 starting, 2 loading"), "{text}");
}

#[test]
fn a_budget_of_time_moves_the_bar_as_well() {
    let (mut state, now) = (state(None), Instant::now());
    state.follow(&begin(), now);
    let hour = Some(seconds(3600));
    let plan = BudgetPlan {
        trials: None,
        baseline_repeats: 0,
        confirmations: 2,
        ablations: 0,
        has_rounds: true,
        confirms_deployment: false,
        time: hour,
        remaining_time: hour,
        launch: None,
        reserve: seconds(240),
    };
    state.follow(&TunerEvent::Plan(plan), now);
    let text = status_text(&state, layout(120), now + seconds(1800));
    assert_eq!(
        text,
        "██████████░░░░░░░░░░ 30 min of 60 min, choosing trial 4, ends in ~30 min, 4 min reserved to confirm, best 1234"
    );
}

#[test]
fn the_live_line_never_wraps() {
    let (mut state, now) = (estimated(Some(10)), Instant::now());
    state.follow(&begin(), now);
    state.follow(&phase(4, TrialPhase::Measuring), now);
    for width in 0..160 {
        let text = status_text(&state, layout(width), now);
        assert!(measure_text_width(&text) + SPINNER_COLUMNS <= width.max(SPINNER_COLUMNS), "{width}: {text}");
    }
}
