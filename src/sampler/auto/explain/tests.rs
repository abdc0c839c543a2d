//! Effects of functions with known shares.

use super::*;
use crate::config::Value;
use crate::objective::Goal;
use crate::sampler::auto::Auto;
use crate::sampler::{KnownOutcome, NumberReading, ObjectiveTarget, PastTrial, Sampler, SearchAim};
use crate::space::{Condition, Domain, IntScale, Parameter, Space};

fn parameter(name: &str, domain: Domain) -> Parameter {
    Parameter { name: name.to_owned(), domain, conditions: vec![], help: None }
}

fn unit(name: &str) -> Parameter {
    parameter(name, Domain::Float { low: 0.0, high: 1.0, log: false })
}

fn aim(limits: &[&str]) -> SearchAim {
    let objectives = vec![ObjectiveTarget { name: "speed".to_owned(), goal: Goal::Maximize }];
    SearchAim { objectives, constraints: limits.iter().map(ToString::to_string).collect() }
}

fn space(parameters: Vec<Parameter>) -> Space {
    Space { parameters, fixed: Config::new() }
}

fn get(config: &Config, name: &str) -> f64 {
    config.get(name).map_or(f64::NAN, |value| value.as_f64().unwrap_or(f64::from(value.as_bool() == Some(true))))
}

/// Returns a history of `count` even configurations with the measurement of each.
fn measured(space: &Space, count: usize, of: impl Fn(&Config) -> MeasuredNumbers) -> Vec<PastTrial> {
    let past = |index| {
        let config = space.decode(&crate::sampler::sobol_point(index, space.dimensions(), 5));
        let known = KnownOutcome::Measured(of(&config));
        PastTrial::new("sobol", config, known)
    };
    (0..count).map(past).collect()
}

fn value(value: f64) -> MeasuredNumbers {
    MeasuredNumbers { values: vec![NumberReading::exact(value)], excesses: vec![] }
}

fn explained(space: &Space, history: &[PastTrial]) -> ExplainedNumber {
    let aim = aim(&[]);
    Auto.explain(&SamplerAsk::new(space, &aim, history, 1, &|_| true)).unwrap().numbers.remove(0)
}

fn of<'a>(about: &'a ExplainedNumber, name: &str) -> &'a ParameterImportance {
    about.parameters.iter().find(|importance| importance.parameter == name).unwrap()
}

fn close(share: VarianceShare, expected: f64, by: f64) {
    assert!((share.share - expected).abs() < by, "{share:?} is not {expected}");
    assert!(share.low <= share.share && share.share <= share.high, "{share:?}");
}

/// Returns the shares of an exact function, without a process in between.
fn shares(space: &Space, allowed: &dyn Fn(&Config) -> bool, of: impl Fn(&[f64]) -> f64) -> effects::Effects {
    let (aim, nothing) = (aim(&[]), Config::new());
    let ask = SamplerAsk::new(space, &aim, &[], 0, allowed);
    let encoding = Encoding::new(space, &nothing);
    let region = Region { ask: &ask, encoding: &encoding, crash: None };
    let sample = SobolSample::new(&region).unwrap();
    effects(&region, &sample, &|point: &[f64]| vec![of(point)], 1e-9)
}

#[test]
fn effects_of_a_sum_are_the_variances_of_its_terms() {
    // Variances of 3 x, 4 y and of a fair coin times 2: 9/12, 16/12 and 1.
    let space = space(vec![unit("x"), unit("y"), parameter("coin", Domain::Bool), unit("idle")]);
    let effects = shares(&space, &|_| true, |p| 3.0 * p[0] + 4.0 * p[1] + 2.0 * p[2]);
    let all = 9.0 / 12.0 + 16.0 / 12.0 + 1.0;
    for (index, expected) in [9.0 / 12.0, 16.0 / 12.0, 1.0, 0.0].into_iter().enumerate() {
        assert!((effects.total[index][0] - expected / all).abs() < 0.02, "{index}: {:?}", effects.total);
        assert!((effects.alone[index][0] - expected / all).abs() < 0.03, "{index}: {:?}", effects.alone);
    }
    assert!((effects.variance[0] / all - 1.0).abs() < 0.02, "{:?}", effects.variance);
    assert!(effects.pairs.iter().all(|(.., share)| share[0] < 1e-12), "{:?}", effects.pairs);
}

#[test]
fn effects_of_a_polynomial_with_an_interaction_are_as_in_closed_form() {
    // With u, v even on [-1, 1]: Var u = 1/3 and Var 2uv = 4/9. So u has 3/7 alone and both have 4/7 together.
    let space = space(vec![unit("x"), unit("y")]);
    let effects = shares(&space, &|_| true, |p| {
        let (u, v) = (2.0 * p[0] - 1.0, 2.0 * p[1] - 1.0);
        u + 2.0 * u * v
    });
    let near = |value: f64, expected: f64| assert!((value - expected).abs() < 0.03, "{value} {expected}");
    near(effects.alone[0][0], 3.0 / 7.0);
    near(effects.total[0][0], 1.0);
    near(effects.alone[1][0], 0.0);
    near(effects.total[1][0], 4.0 / 7.0);
    near(effects.pairs[0].2[0], 4.0 / 7.0);
}

#[test]
fn refused_points_are_skipped_and_inert_parameters_have_no_effect() {
    let space = space(vec![unit("x"), unit("y"), unit("idle")]);
    let allowed = |config: &Config| get(config, "x") + get(config, "idle") < 1.0;
    // The value of a refused configuration is enormous.
    let effects = shares(&space, &allowed, |p| if p[0] + p[2] < 1.01 { p[0] + p[1] } else { 1e9 });
    assert_eq!((effects.total[2][0], effects.alone[2][0]), (0.0, 0.0), "it goes with x, and does nothing");
    assert!(effects.variance[0] < 1.0);
    // Given the rest, y varies by all of its 1/12, x by less than its 1/18.
    assert!(effects.total[1][0] > effects.total[0][0] && effects.total[0][0] > 0.1, "{:?}", effects.total);
}

#[test]
fn effects_are_right_if_half_of_the_space_is_refused() {
    // The refusals depend on neither x nor y.
    let space = space(vec![unit("x"), unit("y"), unit("other")]);
    for limit in [0.5, 0.05] {
        let allowed = |config: &Config| get(config, "other") < limit;
        let effects = shares(&space, &allowed, |p| 2.0 * p[0] + p[1]);
        for (index, expected) in [0.8, 0.2, 0.0].into_iter().enumerate() {
            assert!((effects.total[index][0] - expected).abs() < 0.06, "{limit} {index}: {:?}", effects.total);
            assert!((effects.alone[index][0] - expected).abs() < 0.08, "{limit} {index}: {:?}", effects.alone);
        }
    }
}

#[test]
fn the_parameters_of_a_measured_sum_have_their_known_shares() {
    let space = space(vec![unit("x"), unit("y"), unit("idle")]);
    let history = measured(&space, 40, |config| value(3.0 * get(config, "x") - 4.0 * get(config, "y") - 1.0));
    let about = explained(&space, &history);
    for (name, expected) in [("y", 16.0 / 25.0), ("x", 9.0 / 25.0), ("idle", 0.0)] {
        close(of(&about, name).alone, expected, 0.04);
        close(of(&about, name).total, expected, 0.04);
    }
    assert_eq!(about.parameters[0].parameter, "y", "the most important first");
    assert!(about.held_out_r2.unwrap() > 0.95 && about.unknown < 0.1 && about.doubts.is_empty(), "{about:?}");
    assert!(about.pairs.is_empty(), "{:?}", about.pairs);
    // At the best configuration the ends of x and y change as much as anywhere.
    assert!((of(&about, "y").at_best.unwrap() - 16.0 / 25.0).abs() < 0.05);
    let ends: Vec<_> = [0, 8].map(|at| &of(&about, "x").dependence[at]).into();
    assert_eq!((&ends[0].value, &ends[1].value), (&Value::Float(0.0), &Value::Float(1.0)));
    for (end, expected) in ends.into_iter().zip([-3.0, 0.0]) {
        assert!((end.mean - expected).abs() < 0.15 && end.low < end.mean && end.mean < end.high, "{end:?}");
        assert!(end.high - end.low < 0.8, "{end:?}");
    }
}

#[test]
fn a_pure_interaction_explains_nothing_alone() {
    let space = space(vec![unit("x"), unit("y"), unit("idle")]);
    let centred = |config: &Config, name| 2.0 * get(config, name) - 1.0;
    let history = measured(&space, 60, |config| value(centred(config, "x") * centred(config, "y")));
    let about = explained(&space, &history);
    for name in ["x", "y"] {
        close(of(&about, name).alone, 0.0, 0.08);
        close(of(&about, name).total, 1.0, 0.08);
    }
    close(of(&about, "idle").total, 0.0, 0.05);
    assert_eq!(about.pairs[0].parameters, ["x", "y"]);
    close(about.pairs[0].share, 1.0, 0.08);
}

#[test]
fn equal_values_make_no_parameter_important() {
    let space = space(vec![unit("x"), parameter("coin", Domain::Bool)]);
    let about = explained(&space, &measured(&space, 12, |_| value(7.3)));
    for importance in &about.parameters {
        assert_eq!((importance.alone.share, importance.total.share), (0.0, 0.0), "{importance:?}");
        assert_eq!(importance.at_best, None);
        assert!(importance.dependence.iter().all(|point| (point.mean - 7.3).abs() < 1e-6), "{importance:?}");
    }
    assert_eq!((about.held_out_r2, about.unknown), (None, 1.0));
    assert_eq!(about.doubts, ["the measured values do not differ, so that there is nothing to explain"]);
}

#[test]
fn noise_and_few_measurements_raise_doubts() {
    let names = ["a", "b", "c", "d"];
    let space = space(names.map(unit).into());
    // Digits far behind the decimal point have nothing to do with the parameters.
    let noise = |config: &Config| (1e4 * get(config, "a") + 7e3 * get(config, "b")).sin();
    let about = explained(&space, &measured(&space, 30, |config| value(2.0 + (1e5 * noise(config)).fract())));
    assert!(about.held_out_r2.unwrap() < ExplainedNumber::LEAST_R2, "{:?}", about.held_out_r2);
    assert!(about.doubts.len() == 1 && about.doubts[0].contains("do not rely on it"), "{:?}", about.doubts);
    assert!(about.unknown > 0.5, "{}", about.unknown);
    let few = explained(&space, &measured(&space, 7, |config| value(1.0 + get(config, "a"))));
    assert!(few.doubts[0].starts_with("7 measurements for 4 parameters: with fewer than 8"), "{:?}", few.doubts);
}

#[test]
fn a_conditional_parameter_acts_only_where_it_is_active() {
    let mut depth = parameter("depth", Domain::int(1, 9, IntScale::Linear, 1));
    depth.conditions.push(Condition { parameter: "on".to_owned(), values: vec![Value::Bool(true)] });
    let space = space(vec![parameter("on", Domain::Bool), depth]);
    // Off 0, on 20 + depth: mean 25 and variance 20/3. In total 1/2 20/3 + 25^2 / 4.
    let speed = |config: &Config| config.get("depth").map_or(0.5, |depth| 20.0 + depth.as_f64().unwrap());
    let history = measured(&space, 40, |config| value(10.0 - speed(config)));
    let about = explained(&space, &history);
    let all = 10.0 / 3.0 + 24.5 * 24.5 / 4.0;
    close(of(&about, "depth").total, 10.0 / 3.0 / all, 0.02);
    assert!(of(&about, "on").total.share > 0.9);
    let dependence = &of(&about, "depth").dependence;
    assert_eq!(dependence.len(), 9);
    for point in dependence {
        // The mean is over the configurations with an active parameter, not over all.
        let expected = 10.0 - 20.0 - point.value.as_f64().unwrap();
        assert!((point.mean - expected).abs() < 1.0, "{point:?} {expected}");
    }
    let values: Vec<_> = of(&about, "on").dependence.iter().map(|point| point.value.clone()).collect();
    assert_eq!(values, [Value::Bool(false), Value::Bool(true)]);
}

#[test]
fn constraints_and_logarithms_are_reported_in_their_own_units() {
    let space = space(vec![unit("x"), unit("y"), unit("z")]);
    let both = |config: &Config| MeasuredNumbers {
        values: vec![NumberReading::exact(libm::exp(3.0 * get(config, "x")))],
        excesses: vec![NumberReading::exact(get(config, "y") - 0.5)],
    };
    let mut history = measured(&space, 40, both);
    // Configurations with a large z fail: the explanation has no expectation for them.
    for past in &mut history {
        if get(&past.config, "z") > 0.8 {
            past.outcome = KnownOutcome::Failed;
        }
    }
    let aim = aim(&["late"]);
    let explanation = Auto.explain(&SamplerAsk::new(&space, &aim, &history, 1, &|_| true)).unwrap();
    let [speed, late] = &explanation.numbers[..] else { panic!("{explanation:?}") };
    assert_eq!((speed.of, &*late.name, late.of), (NumberKind::Objective, "late", NumberKind::Limit));
    assert!(of(speed, "x").total.share > 0.9 && of(late, "y").total.share > 0.9, "{explanation:?}");
    let end = |about: &ExplainedNumber, name: &str, at: usize| of(about, name).dependence[at].mean;
    assert!((libm::log(end(speed, "x", 8)) - 3.0).abs() < 0.3, "{}", end(speed, "x", 8));
    assert!((end(late, "y", 8) - 0.5).abs() < 0.1 && (end(late, "y", 0) + 0.5).abs() < 0.1);
    assert!(of(speed, "z").dependence.last().unwrap().value.as_f64().unwrap() < 1.0, "nothing serves there");
}

#[test]
fn there_is_no_explanation_without_measurements() {
    let (aim, space) = (aim(&[]), space(vec![unit("x")]));
    let failed = PastTrial::new("sobol", Config::new().with("x", 0.5), KnownOutcome::Failed);
    assert_eq!(Auto.explain(&SamplerAsk::new(&space, &aim, &[failed], 1, &|_| true)), None);
    let history = measured(&space, 3, |config| value(get(config, "x")));
    assert_eq!(Auto.explain(&SamplerAsk::new(&space, &aim, &history, 1, &|_| false)), None, "nothing is allowed");
    let one = Auto.explain(&SamplerAsk::new(&space, &aim, &history[..1], 1, &|_| true)).unwrap();
    assert_eq!(one.numbers[0].held_out_r2, None);
    assert!(one.numbers[0].doubts[1].contains("a held-out test of the model needs 3"), "{:?}", one.numbers[0].doubts);
}

#[test]
fn the_same_question_has_the_same_answer() {
    let space = space(vec![unit("x"), parameter("coin", Domain::Bool)]);
    let history = measured(&space, 9, |config| value(1.0 + get(config, "x") * get(config, "coin")));
    assert_eq!(explained(&space, &history), explained(&space, &history));
}

#[test]
fn the_interval_of_an_unmeasured_value_contains_an_unseen_cliff() {
    // A throughput that grows with the sequences up to 20 and is constant above, with some noise. It is measured from
    // 32 on.
    let sequences = parameter("seqs", Domain::int(1, 256, IntScale::Log, 1));
    let space = space(vec![sequences, unit("noise"), parameter("coin", Domain::Bool)]);
    let truth = |seqs: f64| 4600.0 * (seqs / 20.0).min(1.0);
    for count in [7, 24] {
        let mut history = measured(&space, 4 * count, |config| {
            let noise = 0.06 * (1e3 * get(config, "noise")).sin();
            value(truth(get(config, "seqs")) * (1.0 + noise))
        });
        history.retain(|past| get(&past.config, "seqs") >= 32.0);
        history.truncate(count);
        let about = explained(&space, &history);
        let levels = &of(&about, "seqs").dependence;
        for level in levels {
            let real = truth(level.value.as_f64().unwrap());
            assert!(level.low <= real && real <= level.high, "{count}: {level:?} does not hold {real}");
        }
        let width = |level: &crate::sampler::explanation::Expectation| level.high / level.low;
        let (first, last) = (&levels[0], levels.last().unwrap());
        assert!(width(first) > 50.0 && width(last) < 2.5, "{first:?} {last:?}");
    }
}
