//! Suggestions after any history: the next configuration is new and belongs to the space.

use std::cell::Cell;

use super::*;
use crate::stats::to_f64;

fn target(name: &str, goal: Goal) -> ObjectiveTarget {
    ObjectiveTarget { name: name.to_owned(), goal }
}

fn aim_of(goals: &[Goal], constraints: usize) -> SearchAim {
    let constraints = (0..constraints).map(|index| format!("limit {index}")).collect();
    SearchAim { objectives: goals.iter().map(|goal| target("metric", *goal)).collect(), constraints }
}

fn readings(numbers: &[f64]) -> Vec<NumberReading> {
    numbers.iter().copied().map(NumberReading::exact).collect()
}

fn measured(values: &[f64], excesses: &[f64]) -> KnownOutcome {
    KnownOutcome::Measured(MeasuredNumbers { values: readings(values), excesses: readings(excesses) })
}

/// Returns a point of a space in an even but irregular order, with its outcome.
fn past(space: &Space, index: usize, known: KnownOutcome) -> PastTrial {
    let coordinate = |dimension: usize| {
        let steps = [0.618_033_988_749_895, 0.754_877_666_246_693, 0.569_840_290_998_053, 0.819_172_513_396_164];
        let number = f64::from(u32::try_from(index).unwrap()) + 0.5;
        (number * (steps[dimension % 4] + f64::from(u32::try_from(dimension).unwrap()).sqrt())).fract()
    };
    let point: Vec<_> = (0..space.dimensions()).map(coordinate).collect();
    PastTrial::new("random", space.decode(&point), known)
}

/// Asks every sampler twice for a suggestion after a dozen trials with these outcomes.
fn survives(what: &str, aim: &SearchAim, known: impl Fn(usize) -> KnownOutcome) {
    let space = mixed_space();
    let history: Vec<_> = (0..12).map(|index| past(&space, index, known(index))).collect();
    survives_history(what, aim, &space, &history);
}

fn survives_history(what: &str, aim: &SearchAim, space: &Space, history: &[PastTrial]) {
    for sampler in SAMPLERS {
        let ask = SamplerAsk::new(space, aim, history, 3, &|_| true);
        let suggestion = sampler.ask(&ask).unwrap_or_else(|| panic!("{} has none: {what}", sampler.name()));
        assert_eq!(complaint(&ask, &suggestion), None, "{}: {what}", sampler.name());
        assert_eq!(sampler.ask(&ask), Some(suggestion), "{} changes its mind: {what}", sampler.name());
    }
}

/// Returns the first fault of a judgement, independent of the sampler and the history.
fn flaw(ask: &SamplerAsk<'_>, judgement: &Judgement) -> Option<&'static str> {
    let is_measured = |pick: &Pick| ask.history[pick.history_index].measured().is_some();
    let picks = || judgement.pick.iter().chain(&judgement.ranking).chain(&judgement.front);
    let ordered = |[low, middle, high]: [f64; 3]| 0.0 <= low && low <= middle && middle <= high;
    if !picks().all(is_measured) {
        Some("picks what was not measured")
    } else if picks().any(|pick| pick.values.len() != ask.aim.objectives.len()) {
        Some("has no place for each objective")
    } else if !picks().all(|pick| (0.0..=1.0).contains(&pick.feasible)) {
        Some("has a probability that is none")
    } else if !picks().flat_map(|pick| pick.values.iter().flatten()).all(|(value, _)| value.is_finite()) {
        Some("expects what is no number")
    } else if judgement.ranking.first() != judgement.pick.as_ref() {
        Some("does not rank its pick first")
    } else if !judgement.remaining_gain.is_none_or(ordered) || judgement.next_gain.is_some_and(f64::is_nan) {
        Some("does not know what is left")
    } else {
        None
    }
}

#[test]
fn a_judgement_is_consistent_for_any_outcomes() {
    let space = finite_space();
    let judged = |what: &str, aim: &SearchAim, known: &dyn Fn(usize) -> KnownOutcome| {
        let history: Vec<_> = (0..7).map(|index| past(&space, index, known(index))).collect();
        for sampler in SAMPLERS {
            let ask = SamplerAsk::new(&space, aim, &history, 3, &|_| true);
            if let Some(judgement) = sampler.judge(&ask) {
                assert_eq!(flaw(&ask, &judgement), None, "{}: {what}: {judgement:?}", sampler.name());
                assert_eq!(sampler.judge(&ask), Some(judgement), "{} changes its mind: {what}", sampler.name());
            }
        }
    };
    for goal in [UP, DOWN] {
        let aim = aim_of(&[goal], 1);
        judged("all failed", &aim, &|_| KnownOutcome::Failed);
        judged("all under way", &aim, &|_| KnownOutcome::Pending);
        judged("all beyond the limit", &aim, &|index| measured(&[5.0], &[0.1 + to_f64(index)]));
        judged("nothing measured", &aim, &|_| measured(&[f64::NAN], &[f64::NAN]));
        judged("constant", &aim, &|_| measured(&[7.0], &[-0.1]));
        judged("all zero", &aim, &|_| measured(&[0.0], &[0.0]));
        judged("of both signs", &aim, &|index| measured(&[to_f64(index) - 3.0], &[-0.1]));
        judged("negative", &aim, &|index| measured(&[-1.0 - to_f64(index)], &[-0.1]));
        judged("huge, of both signs", &aim, &|index| measured(&[1.7e308 * (to_f64(index) - 2.5).signum()], &[-0.1]));
        judged("tiny", &aim, &|index| measured(&[1e-300 * (1.0 + to_f64(index))], &[-0.1]));
        let several = aim_of(&[goal, DOWN, UP], 1);
        judged("three objectives", &several, &|index| {
            measured(&[1.0 + to_f64(index), 2.0, 9.0 - to_f64(index)], &[-0.1])
        });
        judged("one of three measured", &several, &|index| {
            measured(&[f64::NAN, 1.0 + to_f64(index), f64::NAN], &[-0.1])
        });
    }
}

const UP: Goal = Goal::Maximize;
const DOWN: Goal = Goal::Minimize;

#[test]
fn trials_without_numbers_are_accepted() {
    let aim = aim_of(&[UP], 2);
    survives("all failed", &aim, |_| KnownOutcome::Failed);
    survives("all rejected", &aim, |_| KnownOutcome::Rejected);
    survives("all under way", &aim, |_| KnownOutcome::Pending);
    survives("all lost", &aim, |_| KnownOutcome::Inconclusive);
    survives("of every kind", &aim, |index| match index % 5 {
        0 => KnownOutcome::Failed,
        1 => KnownOutcome::Rejected,
        2 => KnownOutcome::Pending,
        3 => KnownOutcome::Inconclusive,
        _ => measured(&[1.0], &[-0.1, 0.1]),
    });
}

#[test]
fn constraints_that_no_trial_keeps_or_measures_are_accepted() {
    let aim = aim_of(&[UP], 2);
    survives("all beyond a limit", &aim, |index| measured(&[5.0], &[0.1 + to_f64(index), -1.0]));
    survives("the same excess", &aim, |_| measured(&[5.0], &[0.5, 0.5]));
    survives("no excesses", &aim, |index| measured(&[to_f64(index)], &[]));
    survives("fewer excesses than limits", &aim, |index| measured(&[to_f64(index)], &[-0.5]));
    survives("more excesses than limits", &aim, |index| measured(&[to_f64(index)], &[-0.5; 5]));
    survives("excesses that are no numbers", &aim, |index| measured(&[to_f64(index)], &[f64::NAN, 0.1]));
    survives("infinite excesses", &aim, |index| {
        measured(&[to_f64(index)], &[if index % 2 == 0 { f64::INFINITY } else { f64::NEG_INFINITY }, -0.1])
    });
    survives("huge and tiny excesses", &aim, |index| measured(&[to_f64(index)], &[1e300, -1e-300]));
}

#[test]
fn any_measured_numbers_are_accepted() {
    for goal in [UP, DOWN] {
        let aim = aim_of(&[goal], 1);
        let with = |what: &str, value: fn(f64) -> f64| {
            survives(what, &aim, |index| measured(&[value(to_f64(index))], &[-0.1]));
        };
        with("constant", |_| 7.0);
        with("all zero", |_| 0.0);
        with("negative", |index| -1.0 - index);
        with("of both signs, and zero", |index| index - 6.0);
        with("no numbers", |_| f64::NAN);
        with("infinite", |index| if index % 2.0 > 0.0 { f64::INFINITY } else { f64::NEG_INFINITY });
        with("huge", |index| 1e300 * (1.0 + index));
        with("huge, of both signs", |index| 1.7e308 * (index - 5.5).signum());
        with("tiny", |index| 1e-300 * (1.0 + index));
        with("huge and tiny", |index| if index % 2.0 > 0.0 { 1e300 } else { 1e-300 });
        with("one that is far away", |index| if index > 10.0 { 1e12 } else { 1.0 });
    }
}

#[test]
fn any_number_of_objectives_is_accepted() {
    let value = |index: usize, step: usize| to_f64((index * step) % 7);
    let all = |index| [value(index, 1), value(index, 3), value(index, 5), value(index, 2)];
    for (count, goals) in [(0, vec![]), (2, vec![UP, DOWN]), (3, vec![UP, UP, DOWN]), (4, vec![DOWN; 4])] {
        let aim = aim_of(&goals, 1);
        survives(&format!("{count} objectives"), &aim, |index| {
            measured(&all(index)[..count], &[0.1 - value(index, 4)])
        });
        survives(&format!("{count} objectives, all equal"), &aim, |_| measured(&[2.0; 4][..count], &[-0.1]));
        survives(&format!("{count} objectives, one unmeasured"), &aim, |index| {
            measured(&all(index)[..count.saturating_sub(index % 2)], &[-0.1])
        });
        survives(&format!("{count} objectives, huge"), &aim, |index| {
            measured(&all(index).map(|value| (value - 3.0) * 1e300)[..count], &[-0.1])
        });
    }
}

#[test]
fn any_deviations_are_accepted() {
    let aim = aim_of(&[UP], 1);
    for deviation in [0.0, 0.03, 1e300, 1e-300, -1.0, f64::NAN, f64::INFINITY] {
        survives(&format!("deviation {deviation}"), &aim, |index| {
            let reading = |value| NumberReading { value, deviation: Some(deviation) };
            KnownOutcome::Measured(MeasuredNumbers {
                values: vec![reading(1.0 + to_f64(index))],
                excesses: vec![reading(-0.2)],
            })
        });
    }
}

#[test]
fn configurations_outside_of_the_space_are_accepted() {
    let space = mixed_space();
    let aim = aim_of(&[UP], 1);
    let foreign = [
        Config::new(),
        space.fixed.clone(),
        Config::new().with("unknown", "value"),
        Config::new().with("delay", 99.0).with("seqs", -4_i64).with("share", 0.0),
        Config::new().with("delay", "fast").with("seqs", 2.5).with("share", true).with("backend", 3_i64),
        Config::new().with("delay", f64::NAN).with("share", f64::INFINITY),
        Config::new().with("backend", "gone").with("blocks", 3_i64).with("chunked", false).with("steps", 9_i64),
        Config::new().with("backend", "flash").with("seqs", i64::MAX).with("blocks", i64::MIN),
    ];
    let foreign = |index: usize| foreign[index % foreign.len()].clone();
    let only: Vec<_> = (0..12)
        .map(|index| PastTrial { config: foreign(index), ..past(&space, index, measured(&[1.0], &[-0.1])) })
        .collect();
    survives_history("only foreign configurations", &aim, &space, &only);
    let some: Vec<_> =
        (0..16).map(|index| past(&space, index, measured(&[to_f64(index)], &[-0.1]))).chain(only).collect();
    survives_history("some foreign configurations", &aim, &space, &some);
}

#[test]
fn repeated_measurements_of_a_configuration_are_accepted() {
    let space = mixed_space();
    let aim = aim_of(&[UP], 1);
    let again = |index: usize| past(&space, index / 6, measured(&[10.0 + to_f64(index % 3)], &[-0.1]));
    survives_history("repeated", &aim, &space, &(0..18).map(again).collect::<Vec<_>>());
    let once_failed: Vec<_> = (0..12)
        .map(|index| {
            past(&space, index / 6, if index % 2 == 0 { KnownOutcome::Failed } else { measured(&[1.0], &[0.1]) })
        })
        .collect();
    survives_history("measured and failed", &aim, &space, &once_failed);
}

#[test]
fn any_priors_defaults_and_costs_are_accepted() {
    let space = mixed_space();
    let aim = aim_of(&[UP], 1);
    let known =
        [measured(&[2.0], &[-0.5]), KnownOutcome::Failed, measured(&[f64::NAN], &[]), measured(&[1e300], &[1e300])];
    let points = known
        .into_iter()
        .enumerate()
        .map(|(index, known)| (past(&space, 50 + index, KnownOutcome::Pending).config, known));
    let points: Vec<_> = points.chain([(Config::new(), KnownOutcome::Pending)]).collect();
    let priors = [SamplerPrior::default(), SamplerPrior::new("twin", points)];
    let defaults = Config::new().with("seqs", 256_i64).with("chunked", true).with("steps", "none");
    let history: Vec<_> = (0..12).map(|index| past(&space, index, measured(&[to_f64(index)], &[-0.1]))).collect();
    for cost in [1.0, 0.0, -1.0, f64::NAN, f64::INFINITY] {
        for sampler in SAMPLERS {
            for length in [1, 12] {
                let ask = SamplerAsk {
                    defaults: &defaults,
                    priors: &priors,
                    trials_left: Some(3),
                    cost: Some(&|_| cost),
                    ..SamplerAsk::new(&space, &aim, &history[..length], 3, &|_| true)
                };
                let suggestion = sampler.ask(&ask).unwrap_or_else(|| panic!("{} has none", sampler.name()));
                assert_eq!(complaint(&ask, &suggestion), None, "{} with cost {cost}", sampler.name());
            }
        }
    }
}

#[test]
fn trials_of_any_cost_are_accepted() {
    let space = mixed_space();
    let aim = aim_of(&[UP], 1);
    let costs = [Some(1e300), Some(1e-300), Some(f64::NAN), Some(-1.0), Some(0.0), Some(f64::INFINITY), None];
    let costing = |index: usize| PastTrial {
        cost: costs[index % costs.len()],
        ..past(&space, index, if index == 3 { KnownOutcome::Failed } else { measured(&[to_f64(index)], &[-0.1]) })
    };
    survives_history("costs", &aim, &space, &(0..16).map(costing).collect::<Vec<_>>());
}

#[test]
fn a_resumed_study_with_measurements_gets_the_same_proposals() {
    let space = mixed_space();
    let aim = aim_of(&[UP], 1);
    for sampler in SAMPLERS {
        let mut history: Vec<_> =
            (0..11).map(|index| past(&space, index, measured(&[to_f64(index)], &[-0.1]))).collect();
        let mut answers = Vec::new();
        for _ in 0..3 {
            let suggestion = sampler.ask(&SamplerAsk::new(&space, &aim, &history, 8, &|_| true)).unwrap();
            answers.push(suggestion.config.clone());
            let known = measured(&[3.0], &[0.1]);
            history.push(PastTrial::new(sampler.name(), suggestion.config, known));
        }
        // The sampler keeps no state: its answer depends on the given history only.
        let again = sampler.ask(&SamplerAsk::new(&space, &aim, &history[..12], 8, &|_| true)).unwrap();
        assert_eq!(again.config, answers[1], "{}", sampler.name());
    }
}

#[test]
fn ten_thousand_trials_need_a_bounded_number_of_checks() {
    let space = mixed_space();
    let aim = aim_of(&[UP], 1);
    let known = |index: usize| match index % 5 {
        0 => KnownOutcome::Failed,
        1 => measured(&[to_f64(index % 17)], &[0.3]),
        _ => measured(&[to_f64(index % 13)], &[-0.3]),
    };
    for sampler in SAMPLERS {
        let of = |index| PastTrial { origin: Origin::from_name(sampler.name()), ..past(&space, index, known(index)) };
        let history: Vec<_> = (0..10_000).map(of).collect();
        let looks = Cell::new(0_usize);
        let allowed = |_: &Config| {
            looks.set(looks.get() + 1);
            true
        };
        let ask = SamplerAsk::new(&space, &aim, &history, 3, &allowed);
        let suggestion = sampler.ask(&ask).unwrap_or_else(|| panic!("{} has none", sampler.name()));
        assert!(looks.get() <= 20_000, "{} asks {} times", sampler.name(), looks.get());
        assert_eq!(complaint(&ask, &suggestion), None, "{}", sampler.name());
    }
}
