//! Suggestions in any space: each belongs to the space.

use proptest::prelude::*;

use super::*;
use crate::stats::to_f64;

/// One parameter as numbers; any numbers give a parameter.
#[derive(Clone, Debug)]
struct Plan {
    kind: u8,
    low: i64,
    width: i64,
    multiple: i64,
    /// The indices of parents among the parameters before it, and the coordinates of the values that make it active.
    parents: Vec<(proptest::sample::Index, f64)>,
}

fn plan() -> impl Strategy<Value = Plan> {
    let parents = proptest::collection::vec((any::<proptest::sample::Index>(), 0.0..1.0), 0..3);
    (0..8_u8, 1_i64..200, 0_i64..3000, 1_i64..40, parents).prop_map(|(kind, low, width, multiple, parents)| Plan {
        kind,
        low,
        width,
        multiple,
        parents,
    })
}

fn domain(plan: &Plan) -> Domain {
    let (low, high) = (plan.low, plan.low + plan.width);
    // Wide enough for a value with any multiple.
    let multiple_high = high + plan.multiple;
    match plan.kind {
        0 => Domain::Bool,
        1 => Domain::Categorical((0..=plan.width % 4).map(|index| Value::from(format!("choice {index}"))).collect()),
        2 => Domain::Categorical(vec![Value::Bool(true), Value::Int(3), Value::Float(0.5), Value::from("auto")]),
        3 => Domain::int(low - 100, multiple_high, IntScale::Linear, plan.multiple),
        4 => Domain::int(low, multiple_high, IntScale::Log, plan.multiple),
        5 => Domain::int(low, 2 * high, IntScale::PowerOfTwo, 1),
        6 => Domain::Float { low: to_f64(low) * 1e-3, high: to_f64(high), log: true },
        _ => Domain::Float { low: -to_f64(low), high: to_f64(high), log: false },
    }
}

fn space() -> impl Strategy<Value = Space> {
    proptest::collection::vec(plan(), 0..7).prop_map(|plans| {
        let fixed = Config::new().with("fixed-number", 3_i64).with("fixed-switch", true);
        let mut parameters: Vec<Parameter> = Vec::new();
        for (place, plan) in plans.iter().enumerate() {
            let condition = |(parent, coordinate): &(proptest::sample::Index, f64)| match parent.index(place + 1) {
                0 => Condition { parameter: "fixed-switch".to_owned(), values: vec![Value::Bool(*coordinate < 0.8)] },
                above => {
                    let parent: &Parameter = &parameters[above - 1];
                    let values = [*coordinate, 1.0 - coordinate].map(|at| parent.domain.decode(at));
                    Condition { parameter: parent.name.clone(), values: values.into() }
                }
            };
            let when = plan.parents.iter().map(condition).collect();
            parameters.push(parameter(&format!("p{place}"), domain(plan), when));
        }
        Space { parameters, fixed }
    })
}

/// The outcome of a trial, and its point.
fn trial() -> impl Strategy<Value = (Vec<f64>, KnownOutcome)> {
    let number =
        prop_oneof![8 => -5.0..5.0, 1 => Just(f64::NAN), 1 => Just(f64::INFINITY), 1 => Just(0.0), 1 => Just(1e300)];
    let numbers = proptest::collection::vec(number.prop_map(NumberReading::exact), 0..4);
    let known = prop_oneof![
        1 => Just(KnownOutcome::Pending),
        1 => Just(KnownOutcome::Inconclusive),
        1 => Just(KnownOutcome::Rejected),
        2 => Just(KnownOutcome::Failed),
        8 => (numbers.clone(), numbers).prop_map(|(values, excesses)| KnownOutcome::Measured(MeasuredNumbers { values, excesses })),
    ];
    (proptest::collection::vec(0.0..1.0, 7), known)
}

fn any_aim() -> impl Strategy<Value = SearchAim> {
    let goal = prop_oneof![Just(Goal::Maximize), Just(Goal::Minimize)];
    (proptest::collection::vec(goal, 0..4), 0..3_usize).prop_map(|(goals, constraints)| SearchAim {
        objectives: goals.into_iter().map(|goal| ObjectiveTarget { name: "metric".to_owned(), goal }).collect(),
        constraints: (0..constraints).map(|index| format!("limit {index}")).collect(),
    })
}

/// Returns the number of cases: few, because a model is fitted in each, unless `PROPTEST_CASES` is set.
fn cases() -> ProptestConfig {
    let asked_for = std::env::var_os("PROPTEST_CASES").is_some();
    if asked_for { ProptestConfig::default() } else { ProptestConfig::with_cases(24) }
}

/// Maximum number of configurations in a space for all of them to be compared.
const FEW: usize = 5000;

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_suggestion_is_new_allowed_and_of_the_space_or_nothing_is_left(
        space in space(),
        trials in proptest::collection::vec(trial(), 0..14),
        aim in any_aim(),
        seed: u64,
        share in prop_oneof![Just(1_u64), Just(2), Just(5)],
    ) {
        // One configuration in `share` is allowed, by a hash of its key.
        let allowed = |config: &Config| {
            let hash = config.key().bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
            (hash >> 20).is_multiple_of(share)
        };
        let past = |(point, known): &(Vec<f64>, KnownOutcome)| PastTrial::new("random", space.decode(point), known.clone());
        let history: Vec<_> = trials.iter().map(past).collect();
        let ask = SamplerAsk::new(&space, &aim, &history, seed, &allowed);
        let is_new = |config: &Config| allowed(config) && !history.iter().any(|past| past.config.key() == config.key());
        // If a space cannot be listed, a point of a fixed walk proves that a configuration is left.
        let listed = space.enumerate(FEW);
        let witness = |index: usize| is_new(&space.decode(&random::point(&ask, index)));
        let is_left = match &listed {
            Some(configs) => configs.iter().any(is_new),
            None => (0..200).any(witness),
        };
        prop_assume!(is_left || listed.is_some());
        for sampler in SAMPLERS {
            match sampler.ask(&ask) {
                Some(suggestion) => prop_assert_eq!(complaint(&ask, &suggestion), None, "{}", sampler.name()),
                None => prop_assert!(!is_left, "{} ends where something is left", sampler.name()),
            }
        }
    }
}
