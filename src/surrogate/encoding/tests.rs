//! Tests of the conversions between configurations and points, in any space.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::space::{Condition, Parameter};
use crate::stats::to_f64;

fn parameter(name: &str, domain: Domain, when: Vec<Condition>) -> Parameter {
    Parameter { name: name.to_owned(), domain, conditions: when, help: None }
}

fn domain() -> impl Strategy<Value = Domain> {
    (0..8_u8, 1_i64..200, 0_i64..3000, 1_i64..40).prop_map(|(kind, low, width, multiple)| {
        let high = low + width;
        match kind {
            0 => Domain::Bool,
            1 => Domain::Categorical((0..=width % 4).map(|index| Value::from(format!("choice {index}"))).collect()),
            2 => Domain::Categorical(vec![Value::Bool(true), Value::Int(3), Value::Float(0.5), Value::from("auto")]),
            3 => Domain::int(low - 100, high + multiple, IntScale::Linear, multiple),
            4 => Domain::int(low, high + multiple, IntScale::Log, multiple),
            5 => Domain::int(low, 2 * high, IntScale::PowerOfTwo, 1),
            6 => Domain::Float { low: to_f64(low) * 1e-3, high: to_f64(high), log: true },
            _ => Domain::Float { low: -to_f64(low), high: to_f64(high), log: false },
        }
    })
}

/// Spaces of up to seven parameters. Some of them depend on others or on a fixed flag.
fn space() -> impl Strategy<Value = Space> {
    let parents = proptest::collection::vec((any::<Index>(), 0.0..1.0), 0..3);
    proptest::collection::vec((domain(), parents), 0..7).prop_map(|plans| {
        let fixed = Config::new().with("fixed-switch", true);
        let mut parameters: Vec<Parameter> = Vec::new();
        for (place, (domain, parents)) in plans.into_iter().enumerate() {
            let condition = |(parent, coordinate): &(Index, f64)| match parent.index(place + 1) {
                0 => Condition { parameter: "fixed-switch".to_owned(), values: vec![Value::Bool(*coordinate < 0.8)] },
                above => {
                    let parent: &Parameter = &parameters[above - 1];
                    let values = [*coordinate, 1.0 - coordinate].map(|at| parent.domain.decode(at));
                    Condition { parameter: parent.name.clone(), values: values.into() }
                }
            };
            let when = parents.iter().map(condition).collect();
            parameters.push(parameter(&format!("p{place}"), domain, when));
        }
        Space { parameters, fixed }
    })
}

/// Returns values of all parameters of a space, inactive ones included, as an engine's defaults.
fn defaults(space: &Space, at: f64) -> Config {
    let with = |config: Config, parameter: &Parameter| config.with(&parameter.name, parameter.domain.decode(at));
    space.parameters.iter().fold(Config::new(), with)
}

/// Returns coordinates as a search makes them: positions of numbers, indices of choices.
fn searched(encoding: &Encoding<'_>, at: &[f64]) -> Vec<f64> {
    let coordinate = |(axis, at): (&EncodedAxis, &f64)| match axis {
        EncodedAxis::Choice { count } => (at * to_f64(*count)).floor(),
        EncodedAxis::Number { .. } | EncodedAxis::Trend | EncodedAxis::Difference => *at,
    };
    encoding.axes.iter().zip(at).map(coordinate).collect()
}

proptest! {
    #[test]
    fn a_configuration_is_the_one_of_its_point(
        space in space(), at in proptest::collection::vec(0.0..1.0, 7), default: Option<bool>,
    ) {
        let defaults = default.map_or_else(Config::new, |high| defaults(&space, if high { 0.9 } else { 0.0 }));
        let encoding = Encoding::new(&space, &defaults);
        let config = space.decode(&at);
        let point = encoding.point(&config).unwrap();
        prop_assert_eq!(encoding.config(&point).key(), config.key());
        for (axis, coordinate) in encoding.axes.iter().zip(&point) {
            let is_inside = match axis {
                EncodedAxis::Choice { count } => *coordinate == NOT_ACTIVE || (coordinate.fract() == 0.0 && *coordinate < to_f64(*count)),
                EncodedAxis::Number { .. } => (0.0..=1.0).contains(coordinate),
                EncodedAxis::Trend | EncodedAxis::Difference => false,
            };
            prop_assert!(is_inside, "{:?} of {:?}", coordinate, axis);
        }
    }

    #[test]
    fn a_point_snaps_to_that_of_its_configuration(
        space in space(), at in proptest::collection::vec(0.0..1.0, 7), default: Option<bool>,
    ) {
        let defaults = default.map_or_else(Config::new, |high| defaults(&space, if high { 0.9 } else { 0.0 }));
        let encoding = Encoding::new(&space, &defaults);
        let mut point = searched(&encoding, &at);
        let config = encoding.config(&point);
        encoding.snap(&mut point);
        prop_assert_eq!(&point, &encoding.point(&config).unwrap());
        prop_assert_eq!(encoding.config(&point).key(), config.key());
        let once = point.clone();
        encoding.snap(&mut point);
        prop_assert_eq!(point, once);
    }
}

/// A switch, a parameter that depends on it, and one that depends on the latter.
fn nested() -> Space {
    let when = |parent: &str, value: Value| vec![Condition { parameter: parent.to_owned(), values: vec![value] }];
    let parameters = vec![
        parameter("switch", Domain::Bool, vec![]),
        parameter("mode", Domain::Categorical(["a", "b"].map(Value::from).into()), when("switch", true.into())),
        parameter("size", Domain::int(1, 9, IntScale::Linear, 1), when("mode", Value::from("b"))),
    ];
    Space { parameters, fixed: Config::new() }
}

#[test]
fn inactive_parameters_and_their_children_lie_in_the_middle() {
    let (space, defaults) = (nested(), Config::new().with("switch", true).with("mode", "b").with("size", 9_i64));
    let encoding = Encoding::new(&space, &defaults);
    let point = |config: Config| encoding.point(&config);
    assert_eq!(point(Config::new().with("switch", false)), Some(vec![0.0, 0.5, 0.5]));
    assert_eq!(point(Config::new().with("mode", "a")), Some(vec![1.0, 0.0, 0.5]));
    // All parameters have the engine's defaults.
    assert_eq!(point(Config::new()), Some(vec![1.0, 1.0, 1.0]));
    assert_eq!(point(Config::new().with("size", 5_i64)), Some(vec![1.0, 1.0, 0.5]));
}

#[test]
fn an_unknown_choice_lies_in_the_middle_and_an_unknown_number_has_no_point() {
    let (space, nothing) = (nested(), Config::new());
    let point = |config: &Config| Encoding::new(&space, &nothing).point(config);
    let on = nothing.clone().with("switch", true);
    // The children of a parameter without a known value are not active.
    assert_eq!(point(&nothing), Some(vec![0.5, 0.5, 0.5]));
    assert_eq!(point(&on), Some(vec![1.0, 0.5, 0.5]));
    assert_eq!(point(&on.clone().with("mode", "c")), Some(vec![1.0, 0.5, 0.5]), "none of the choices");
    let contains = |config: &Config| Encoding::new(&space, &nothing).contains(config);
    assert!(contains(&on.clone().with("mode", "a")) && contains(&nothing.clone().with("switch", false)));
    assert!(!contains(&nothing) && !contains(&on.clone().with("mode", "c")));
    assert_eq!(point(&on.with("mode", "b")), None, "the size is not known");
    assert_eq!(point(&nothing.clone().with("switch", false)), Some(vec![0.0, 0.5, 0.5]), "nothing is missing");
}

#[test]
fn a_default_outside_of_the_range_lies_at_its_end() {
    let parameters = vec![
        parameter("seqs", Domain::int(8, 128, IntScale::Log, 8), vec![]),
        parameter("share", Domain::Float { low: 0.5, high: 0.9, log: false }, vec![]),
        parameter("only", Domain::int(4, 4, IntScale::Linear, 1), vec![]),
    ];
    let space = Space { parameters, fixed: Config::new() };
    let point = |seqs: i64, share: f64| {
        let defaults = Config::new().with("seqs", seqs).with("share", share).with("only", 7_i64);
        Encoding::new(&space, &defaults).point(&Config::new())
    };
    assert_eq!(point(1024, 0.2), Some(vec![1.0, 0.0, 0.5]));
    assert_eq!(point(1, 0.95), Some(vec![0.0, 1.0, 0.5]));
    assert_eq!(point(-4, f64::NAN), None);
}
