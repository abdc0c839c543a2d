//! Tests of the drawing at several sizes, and of the keys.

use std::sync::Arc;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::Rect;
use ratatui::style::Color;
use serde_json::json;

use super::draw::draw;
use super::key::ViewKey;
use super::panel::ViewPanel;
use super::state::{LiveLaunch, LiveProgress, ViewCommand, ViewData, ViewPurpose, ViewState};
use super::theme::ViewTheme;
use crate::config::Config;
use crate::engine::StartPhase;
use crate::objective::Score;
use crate::observation::{
    BestSoFar, ExpectedLaunch, LaunchStage, ObservedPhase, ObservedStudy, RunningLaunch, RunningTuner,
    StudyObservation, TrialDetail,
};
use crate::store::{ListedTrial, ScoredTrial, Study, StudyCounts};
use crate::trial::{
    Distribution, HighestMeasuredLoad, LoadBound, LoadCurve, LoadKnob, LoadProbe, MeasuredBy, Measurement, Origin,
    Outcome, PhaseTime, Trial, is_control,
};

const COLORED: ViewTheme = ViewTheme { has_color: true, is_utf8: true };

fn study(name: &str, has_load_goal: bool) -> Study {
    let limit = json!({"metric": "p99_ttft_ms", "at_most": 500.0});
    let mut objective = json!({"metric": "output_throughput", "goal": "maximize", "constraints": [limit]});
    if has_load_goal {
        objective["metric"] = json!("load_under_slo");
        objective["constraints"] = json!([]);
        objective["load_goal"] = json!({"limits": [limit], "probes": 6});
    }
    let parameters = json!({"max-num-seqs": {}, "block-size": {}, "enable-prefix-caching": {}});
    let space = json!({"fixed": {"max-model-len": 4096}, "parameters": parameters});
    Study {
        id: 1,
        name: name.to_owned(),
        definition: json!({"objective": objective, "space": space}),
        host: json!(null),
        setpoint_version: "0.1.0".to_owned(),
        created_at: "2030-01-02T03:04:05.678Z".to_owned(),
    }
}

fn config(seqs: i64) -> Config {
    let config = Config::new().with("max-model-len", 4096_i64);
    if seqs == 0 { config } else { config.with("max-num-seqs", seqs).with("enable-prefix-caching", true) }
}

fn listed(number: u32, state: &str, score: Score) -> ListedTrial {
    let has_failed = state != "measured";
    ListedTrial {
        number,
        state: state.to_owned(),
        origin: if number == 0 { Origin::Baseline } else { Origin::from("auto") },
        config: config(i64::from(number) * 16),
        reason_code: has_failed.then(|| "out_of_memory".to_owned()),
        reason: has_failed.then(|| "CUDA out of memory: tried to allocate 2.00 GiB".to_owned()),
        score,
        started_at: "2030-01-02T03:04:05.678Z".to_owned(),
        startup_s: (!has_failed).then_some(30.0),
        elapsed_s: if state == "rejected" { 0.0 } else { 95.0 },
        engine_version: None,
        is_earlier: false,
        is_disturbed: false,
        measured_by: MeasuredBy::PlainLaunch,
    }
}

fn launch(number: u32) -> RunningLaunch {
    let phase = |phase, seconds| ObservedPhase { phase, duration: Some(Duration::from_secs(seconds)) };
    RunningLaunch {
        number,
        origin: Origin::from("auto"),
        config: config(48),
        why: Some(
            "highest expected improvement: output_throughput 4809 (4471 to 5172), 100 % likely feasible".to_owned(),
        ),
        stage: LaunchStage::Starting,
        elapsed: Duration::from_secs(21),
        phases: vec![
            phase(StartPhase::Import, 9),
            phase(StartPhase::Configure, 2),
            phase(StartPhase::Weights, 8),
            phase(StartPhase::KvCache, 2),
        ],
        log_lines: (0..30)
            .map(|line| format!("INFO 01-02 03:04:{line:02} [core.py:1] line {line} of the log"))
            .collect(),
    }
}

fn observation(name: &str) -> StudyObservation {
    let study = study(name, false);
    let feasible = |value| Score::Feasible { value };
    StudyObservation {
        objective: study.objective(),
        study,
        counts: StudyCounts { measured: 4, failed: 1, rejected: 1, running: 1, live_looks: 0 },
        tuner: Some(RunningTuner { process: "4711".to_owned(), since: None }),
        trials: Arc::new(vec![
            listed(0, "measured", feasible(3941.0)),
            listed(1, "measured", feasible(4211.5)),
            listed(2, "failed", Score::Failed),
            listed(3, "rejected", Score::Failed),
            listed(4, "measured", Score::Infeasible { violation: 0.2, value: 5120.0 }),
            listed(5, "measured", feasible(4733.2)),
        ]),
        best: Some(BestSoFar {
            number: 5,
            value: 4733.2,
            measurements: 1,
            is_confirmed: false,
            gain: Some(1.201),
            is_settled: false,
        }),
        baseline: Some(3941.0),
        expected: Some(ExpectedLaunch { start_s: 40.0, rest_s: 65.0 }),
        running: vec![launch(6)],
    }
}

fn detail(number: u32) -> TrialDetail {
    let distribution = |p99| Some(Distribution { mean: 20.0, p99, ..Distribution::default() });
    let measurement = Measurement {
        completed: 300,
        failed: 2,
        duration_s: 60.0,
        total_output_tokens: 283_992,
        ttft_ms: distribution(421.5),
        tpot_ms: distribution(12.25),
        ..Measurement::default()
    };
    let trial = Trial::example(number, "auto", Outcome::Measured(measurement)).with_config(config(80));
    let phase = |phase: &str, duration_s| PhaseTime { phase: phase.to_owned(), duration_s };
    TrialDetail {
        scored: ScoredTrial {
            trial: Trial { startup_s: Some(30.0), elapsed_s: 95.0, ..trial },
            score: Score::Feasible { value: 4733.2 },
        },
        phases: vec![phase("import", 9.25), phase("weights", 18.0), phase("kv_cache", 2.75)],
        generation_rates: vec![0.0, 3000.0, 4500.0, 4700.0, 4720.0, 4600.0, 1200.0],
        log_lines: vec!["the first line".to_owned(), "Application startup complete.".to_owned()],
    }
}

fn state(observation: StudyObservation, columns: u16, rows: u16) -> ViewState {
    let mut state = ViewState::new(COLORED, ViewPurpose::Watch);
    state.size = Rect::new(0, 0, columns, rows);
    let details = vec![Arc::new(detail(5))];
    state.show(ViewData { observation: Some(Arc::new(observation)), details, ..ViewData::default() });
    state
}

fn screen(state: &ViewState) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(state.size.width, state.size.height)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    terminal
}

fn text(state: &ViewState) -> String {
    screen(state).backend().to_string()
}

#[test]
fn the_view_at_three_sizes() {
    for (columns, rows) in [(80, 24), (120, 40), (200, 60), (40, 10)] {
        let mut state = state(observation("chat"), columns, rows);
        if columns != 80 {
            state.selected = Some(5);
        }
        insta::assert_snapshot!(format!("view_{columns}x{rows}"), text(&state));
    }
}

#[test]
fn a_load_search_has_a_chart_of_its_curve() {
    let mut seen = observation("load");
    seen.study = study("load", true);
    seen.objective = seen.study.objective();
    let probe = |load: f64, p99: f64| LoadProbe {
        load,
        seconds: 30.0,
        kept: p99 <= 500.0,
        measurement: Measurement {
            ttft_ms: Some(Distribution { p99, ..Distribution::default() }),
            duration_s: 30.0,
            ..Measurement::default()
        },
    };
    let highest =
        HighestMeasuredLoad { value: 23.5, low: Some(21.0), high: Some(25.5), bound: LoadBound::Between, cliff: false };
    let probes =
        vec![probe(4.0, 90.0), probe(16.0, 210.0), probe(32.0, 1250.0), probe(24.0, 520.0), probe(22.0, 430.0)];
    let curve = LoadCurve { knob: LoadKnob::Concurrency, highest, lost_against: None, probes, tiers: Vec::new() };
    let mut detail = detail(5);
    if let Outcome::Measured(measurement) = &mut detail.scored.trial.outcome {
        measurement.load_curve = Some(curve);
    }
    let mut state = state(seen, 120, 40);
    state.data.details = vec![Arc::new(detail)];
    insta::assert_snapshot!("load_curve_120x40", text(&state));
    (state.size, state.focus) = (Rect::new(0, 0, 80, 24), ViewPanel::LoadCurve);
    insta::assert_snapshot!("load_curve_80x24", text(&state));
}

#[test]
fn the_progress_of_a_tuner_replaces_the_stage_and_help_and_studies_are_windows() {
    let mut state = state(observation("chat"), 100, 30);
    state.purpose = ViewPurpose::Tune;
    let text_of_launch = "loading 310 of 1000 requests, 1240 tok/s".to_owned();
    state.live = Some(LiveProgress {
        budget: "5 of 16 trials, ends in ~12 min".to_owned(),
        share: Some(0.33),
        launches: vec![LiveLaunch { number: 6, text: text_of_launch, share: Some(0.31) }],
    });
    insta::assert_snapshot!("live_100x30", text(&state));
    assert_eq!(state.press(ViewKey::Char('?')), None);
    insta::assert_snapshot!("help_100x30", text(&state));
    state.press(ViewKey::Escape);
    let observed = |id, is_running| ObservedStudy {
        study: Study { id, ..study(&format!("study {id}"), false) },
        counts: StudyCounts { measured: 12, failed: 3, ..StudyCounts::default() },
        is_running,
    };
    state.data.studies = Arc::new((0..40).map(|id| observed(id, id == 1)).collect());
    state.press(ViewKey::Char('s'));
    state.press(ViewKey::Down);
    insta::assert_snapshot!("studies_100x30", text(&state));
    assert_eq!(state.press(ViewKey::Enter), Some(ViewCommand::ShowStudy("study 2".to_owned())));
}

#[test]
fn hostile_names_logs_and_causes_reach_the_screen_as_plain_text() {
    let hostile = "<script>alert(\"1\")</script>\u{1b}[2J\u{1b}]0;title\u{7}\r\n\t'&amp;\u{202e}\u{9b}31m模型\u{0}";
    let mut seen = observation(hostile);
    let trials = Arc::make_mut(&mut seen.trials);
    for trial in trials.iter_mut() {
        trial.state = if trial.state == "measured" { trial.state.clone() } else { hostile.to_owned() };
        trial.reason = Some(hostile.to_owned());
        trial.reason_code = Some(hostile.to_owned());
        trial.config = Config::new().with(hostile, hostile);
        trial.origin = Origin::from_name(hostile.to_owned());
    }
    seen.tuner = Some(RunningTuner { process: hostile.to_owned(), since: None });
    seen.running[0].why = Some(hostile.to_owned());
    seen.running[0].config = Config::new().with(hostile, hostile);
    let mut shown = detail(5);
    shown.phases[0].phase = hostile.to_owned();
    shown.scored.trial.proposal.why = Some(hostile.to_owned());
    for (columns, rows) in [(30, 8), (80, 24), (120, 40), (200, 60)] {
        for selected in [None, Some(2), Some(5), Some(77)] {
            for focus in ViewPanel::all(false) {
                let mut state = state(seen.clone(), columns, rows);
                state.data.details = vec![Arc::new(shown.clone())];
                state.data.problem = (selected == Some(77)).then(|| hostile.to_owned());
                (state.selected, state.focus) = (selected, focus);
                let terminal = screen(&state);
                let cells = &terminal.backend().buffer().content;
                let control = cells.iter().find(|cell| cell.symbol().contains(is_control));
                assert_eq!(control, None, "{columns}x{rows}, {focus:?}, {selected:?}");
            }
        }
    }
    let state = state(seen, 200, 60);
    assert!(text(&state).contains("<script>alert(\"1\")</script>"), "HTML is text");
}

fn thousand_trials() -> StudyObservation {
    let mut seen = observation("thousand");
    let value = |number: u32| 3000.0 + f64::from((number * 7919) % 1000);
    let trials = (0..1_000).map(|number| listed(number, "measured", Score::Feasible { value: value(number) }));
    seen.trials = Arc::new(trials.collect());
    seen.running = vec![launch(1_000)];
    seen
}

#[test]
fn a_thousand_trials_are_scrolled_and_summed_up_in_bars() {
    let mut state = state(thousand_trials(), 120, 40);
    insta::assert_snapshot!("thousand_120x40", text(&state));
    state.press(ViewKey::End);
    assert_eq!(state.selected, Some(0));
    assert!(text(&state).contains("engine's defaults"), "{}", text(&state));
    state.press(ViewKey::PageUp);
    let page = state.selected.unwrap();
    assert!((10..60).contains(&page), "{page}");
    state.press(ViewKey::Char('k'));
    assert_eq!(state.selected, Some(page + 1));
    state.press(ViewKey::Home);
    assert_eq!((state.selected, state.selected_number()), (None, Some(1_000)), "the newest one is followed");
    state.press(ViewKey::Char('j'));
    state.press(ViewKey::Char('b'));
    assert_eq!(state.selected, Some(5));
    state.press(ViewKey::Escape);
    assert_eq!(state.selected, None);
}

#[test]
fn a_selected_trial_stays_selected_when_further_ones_end() {
    let mut state = state(observation("chat"), 80, 24);
    (0..3).for_each(|_| drop(state.press(ViewKey::Down)));
    assert_eq!(state.selected, Some(3));
    state.show(ViewData { observation: Some(Arc::new(thousand_trials())), ..ViewData::default() });
    assert_eq!(state.selected, Some(3));
    let mut other = observation("other");
    other.study.id = 2;
    state.show(ViewData { observation: Some(Arc::new(other)), ..ViewData::default() });
    assert_eq!(state.selected, None);
}

#[test]
fn keys_give_orders_by_the_purpose_and_windows_close_first() {
    let mut state = state(observation("chat"), 80, 24);
    assert_eq!(state.press(ViewKey::Char('q')), Some(ViewCommand::Leave));
    assert_eq!(state.press(ViewKey::Control('c')), Some(ViewCommand::Interrupt));
    assert_eq!(state.press(ViewKey::Control('z')), Some(ViewCommand::Suspend));
    assert_eq!(state.press(ViewKey::Control('l')), Some(ViewCommand::Redraw));
    state.press(ViewKey::Char('?'));
    assert_eq!((state.press(ViewKey::Down), state.is_help_open, state.selected), (None, false, None));
    assert_eq!((state.press(ViewKey::Char('s')), state.chooser), (None, None), "there is no list of studies");
    let mut seen = vec![state.focus];
    for _ in 0..5 {
        state.press(ViewKey::Tab);
        seen.push(state.focus);
        assert!(state.layout().unwrap().rows_of(state.focus) > 0);
    }
    assert_eq!(seen, ViewPanel::all(false));
    state.press(ViewKey::Tab);
    assert_eq!(state.focus, ViewPanel::Trials);
    state.press(ViewKey::BackTab);
    assert_eq!(state.focus, ViewPanel::Objective);
}

#[test]
fn a_log_is_scrolled_from_its_end() {
    let mut state = state(observation("chat"), 80, 24);
    state.focus = ViewPanel::Log;
    assert!(text(&state).contains("line 29 of the log"));
    (0..4).for_each(|_| drop(state.press(ViewKey::Up)));
    assert!(!text(&state).contains("line 29 of the log") && text(&state).contains("line 25 of the log"));
    state.press(ViewKey::Home);
    assert!(text(&state).contains("line 0 of the log"));
    state.press(ViewKey::End);
    assert!(text(&state).contains("line 29 of the log"));
}

#[test]
fn without_colours_nothing_is_coloured_and_in_a_plain_locale_all_is_ascii() {
    for (columns, rows) in [(40, 10), (80, 24), (200, 60)] {
        let mut state = state(observation("chat"), columns, rows);
        let colors = |state: &ViewState| {
            screen(state)
                .backend()
                .buffer()
                .content
                .iter()
                .any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert!(colors(&state));
        state.theme = ViewTheme { has_color: false, is_utf8: false };
        for is_help_open in [false, true] {
            state.is_help_open = is_help_open;
            assert!(!colors(&state));
            assert!(text(&state).is_ascii(), "{}", text(&state));
        }
    }
}

#[test]
fn no_size_and_no_missing_data_is_a_problem() {
    let mut empty = observation("empty");
    (empty.trials, empty.best, empty.baseline, empty.expected, empty.objective, empty.tuner) = Default::default();
    empty.study.definition = json!(null);
    for columns in (0..130).step_by(9) {
        for rows in (0..45).step_by(4) {
            for seen in [observation("chat"), empty.clone()] {
                let mut state = state(seen, columns, rows);
                state.is_help_open = columns % 2 == 0;
                screen(&state);
                state.data = ViewData::default();
                screen(&state);
            }
        }
    }
    assert!(text(&state(observation("chat"), 29, 20)).contains("terminal too small"));
}
