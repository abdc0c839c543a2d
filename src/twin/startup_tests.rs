//! The start-up model on starts of a CPU, and properties of every forecast.

use proptest::prelude::*;

use super::{PhaseForecast, StartConditions, StartForecast, StartupModel, WarmState};
use crate::trial::PhaseTime;

/// The model of `examples/setup-vllm-cpu.sh`.
const TINY: StartConditions = StartConditions {
    weight_bytes: 10 << 20,
    layers: 4,
    cpu: true,
    uses_compilation: false,
    graphs: 0,
    whole_graphs: false,
    max_num_batched_tokens: 2048,
    compute: 180e9,
    warm: WarmState { page_cache: true, compile_cache: false },
};

const PHASES: [&str; 7] = ["import", "configure", "processes", "weights", "kv_cache", "server", "first_token"];

fn times(seconds: &[f64]) -> Vec<PhaseTime> {
    let time = |(phase, duration_s): (&&str, &f64)| PhaseTime { phase: (*phase).to_owned(), duration_s: *duration_s };
    PHASES.iter().zip(seconds).map(time).collect()
}

/// Starts of vLLM 0.32.0 with `--enforce-eager` on that model and two cores, in their order. They are seven trials of
/// one study, from its table `startups`.
const CPU: [[f64; 7]; 7] = [
    [14.38, 0.0, 19.61, 0.15, 2.0, 0.93, 0.03],
    [8.89, 0.0, 19.23, 0.15, 1.96, 1.13, 0.03],
    [9.09, 0.0, 19.13, 0.15, 1.91, 0.88, 0.04],
    [9.76, 0.0, 23.5, 0.21, 2.32, 1.59, 0.04],
    [12.1, 0.0, 26.1, 0.26, 2.79, 1.71, 0.04],
    [13.02, 0.0, 22.7, 0.21, 2.32, 1.03, 0.03],
    [11.56, 0.0, 18.56, 0.15, 1.7, 0.92, 0.03],
];

#[test]
fn starts_on_a_cpu_are_predicted_from_those_before_them() {
    let mut model = StartupModel::default();
    let (mut errors, mut as_before, mut missed) = (Vec::new(), Vec::new(), 0);
    for (number, seconds) in CPU.iter().enumerate() {
        let (forecast, took) = (model.predict(&TINY), seconds.iter().sum::<f64>());
        let error = (forecast.mean_s / took - 1.0).abs();
        missed += usize::from(took < forecast.low_s || forecast.high_s < took);
        assert!(error < if number == 0 { 0.5 } else { 0.25 }, "start {number}: {took} s, {forecast:?}");
        model.learn(&TINY, &times(seconds));
        if let Some(next) = CPU.get(number + 1) {
            as_before.push((took / next.iter().sum::<f64>() - 1.0).abs());
        }
        if number > 0 {
            errors.push(error);
        }
    }
    // Better than the time of the last start, which is the best prediction from a single number.
    let middle = |errors: &mut [f64]| {
        errors.sort_by(f64::total_cmp);
        f64::midpoint(errors[2], errors[3])
    };
    assert!(middle(&mut errors) < middle(&mut as_before), "{errors:?} {as_before:?}");
    assert!(missed <= 1, "{missed} of seven are outside of their intervals");
}

#[test]
fn one_start_calibrates_and_later_ones_narrow() {
    let mut model = StartupModel::default();
    let width = |model: &StartupModel| {
        let StartForecast { low_s, high_s, .. } = model.predict(&TINY);
        (high_s / low_s).ln()
    };
    let slow = [60.0, 0.0, 90.0, 0.5, 8.0, 4.0, 0.1];
    let (before, cold) = (width(&model), model.predict(&TINY).mean_s);
    model.learn(&TINY, &times(&slow));
    let (once, mean) = (width(&model), model.predict(&TINY).mean_s);
    assert!(cold < 60.0 && mean > 120.0 && mean < 190.0, "{cold} {mean}");
    (0..6).for_each(|_| model.learn(&TINY, &times(&slow)));
    assert!(width(&model) < 0.8 * once && once < before, "{before} {once} {}", width(&model));
    assert!((model.predict(&TINY).mean_s / slow.iter().sum::<f64>() - 1.0).abs() < 0.05);
}

#[test]
fn a_start_with_graphs_and_a_cold_cache_has_more_to_do() {
    let model = StartupModel::default();
    let warm = StartConditions {
        weight_bytes: 16 << 30,
        layers: 32,
        cpu: false,
        uses_compilation: true,
        graphs: 67,
        compute: 250e12,
        warm: WarmState { page_cache: true, compile_cache: true },
        ..TINY
    };
    let of = |start: &StartConditions| model.predict(start).mean_s;
    assert!(of(&warm) > of(&StartConditions { graphs: 0, ..warm }) + 15.0);
    assert!(of(&warm) > of(&StartConditions { uses_compilation: false, ..warm }) + 8.0);
    assert!(of(&StartConditions { warm: WarmState::default(), ..warm }) > of(&warm) + 40.0);
    let phases: Vec<_> = model.predict(&warm).parts.iter().map(|part| part.phase).collect();
    assert_eq!(phases.len(), 9, "each phase once: {phases:?}");
    // A cold compilation reveals nothing of a warm one.
    let mut taught = model.clone();
    let cold = PhaseTime { phase: "compile".to_owned(), duration_s: 500.0 };
    taught.learn(&StartConditions { warm: WarmState::default(), ..warm }, &[cold]);
    assert_eq!(taught.predict(&warm), model.predict(&warm));
}

#[test]
fn one_start_in_a_hundred_of_its_time_does_not_spoil_the_next() {
    let mut model = StartupModel::default();
    (0..5).for_each(|_| model.learn(&TINY, &times(&CPU[1])));
    let before = model.predict(&TINY).mean_s;
    model.learn(&TINY, &times(&CPU[1].map(|seconds| seconds * 100.0)));
    assert!(model.predict(&TINY).mean_s < 1.5 * before);
}

proptest! {
    #[test]
    fn after_any_starts_the_mean_of_a_forecast_is_finite_and_inside_its_interval(
        starts in proptest::collection::vec(proptest::array::uniform7(0.0..1e5_f64), 0..30),
    ) {
        let mut model = StartupModel::default();
        for seconds in &starts {
            model.learn(&TINY, &times(seconds));
        }
        let mean = |part: &PhaseForecast| part.median_s * (part.spread * part.spread / 2.0).exp();
        let StartForecast { mean_s, low_s, high_s, parts } = model.predict(&TINY);
        prop_assert!(0.0 < low_s && low_s < mean_s && mean_s < high_s && high_s.is_finite(), "{low_s} {mean_s} {high_s}");
        prop_assert!((parts.iter().map(mean).sum::<f64>() / mean_s - 1.0).abs() < 1e-9);
    }
}
