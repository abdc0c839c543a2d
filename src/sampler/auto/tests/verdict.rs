//! What is said of the measurements: the front, what is left to gain, and of what use priors are.

use super::*;
use crate::sampler::Judgement;

/// Trials of one backend at these shares.
fn history(shares: impl IntoIterator<Item = f64>, values: &dyn Fn(f64) -> Vec<f64>) -> Vec<Past> {
    let past = |share| Past::new("auto", config("a", 1024, share), measured(&values(share), -1.0));
    shares.into_iter().map(past).collect()
}

fn judged(goals: &[Goal], history: &[Past], priors: &[Prior]) -> Judgement {
    // Only the share is open.
    let mut space = space();
    space.parameters.retain(|parameter| parameter.name == "share");
    space.fixed = Config::new().with("backend", "a").with("tokens", 1024_i64);
    Auto.judge(&Ask { priors, ..Ask::new(&space, &aim(goals), history, 7, &|_| true) }).unwrap()
}

fn shares(count: u8, to: f64) -> impl Iterator<Item = f64> {
    (0..count).map(move |at| to * f64::from(at) / f64::from(count - 1))
}

#[test]
fn what_is_left_to_gain_is_much_where_values_still_rise_and_little_where_all_is_known() {
    for (goal, rate) in [(Goal::Maximize, 1.0), (Goal::Minimize, -1.0)] {
        let value = |share: f64| vec![100.0 * libm::exp(rate * 2.0 * share)];
        let rising = judged(&[goal], &history(shares(8, 0.5), &value), &[]);
        let known = judged(&[goal], &history(shares(24, 1.0), &value), &[]);
        let all = if goal == Goal::Maximize { libm::expm1(1.0) } else { -libm::expm1(-1.0) };
        let [low, middle, high] = rising.remaining.unwrap();
        assert!(low <= middle && middle <= high && middle > 0.1 * all && high > 0.5 * all, "{goal:?} {rising:?}");
        let [.., high_when_known] = known.remaining.unwrap();
        assert!(high_when_known < 0.03, "{goal:?} {known:?}");
        let (gain, gain_when_known) = (rising.next_gain.unwrap(), known.next_gain.unwrap());
        assert!(gain > 0.05 && gain_when_known < 0.01, "{goal:?}: {gain} and {gain_when_known}");
        if goal == Goal::Minimize {
            assert!(high < 1.0 && gain < 1.0, "no latency falls by more than all of it: {rising:?}");
        }
    }
}

#[test]
fn of_several_objectives_the_front_is_told_and_what_was_not_measured_has_no_value() {
    let goals = [Goal::Maximize, Goal::Minimize];
    // Beyond a share of 0.6 both get worse.
    let value = |share: f64| vec![100.0 - 50.0 * (share - 0.6).abs(), 10.0 + 20.0 * share];
    let trials = history(shares(11, 1.0), &value);
    let told = judged(&goals, &trials, &[]);
    let mut places: Vec<_> = told.front.iter().map(|pick| pick.place).collect();
    places.sort_unstable();
    assert_eq!(places, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!((told.remaining, told.next_gain), (None, None));
    let first = told.front.iter().find(|pick| pick.place == 0).unwrap();
    let [throughput, latency] = [first.values[0].unwrap().0, first.values[1].unwrap().0];
    assert!((throughput - 70.0).abs() < 2.0 && (latency - 10.0).abs() < 0.5, "{first:?}");
    let half = judged(&goals, &history(shares(6, 1.0), &|share| vec![f64::NAN, 10.0 + share]), &[]);
    let pick = half.pick.unwrap();
    assert_eq!(pick.values[0], None);
    assert!((pick.values[1].unwrap().0 - 10.0).abs() < 0.5, "{pick:?}");
    assert_eq!(half.remaining, None);
    let one = judged(&[Goal::Maximize], &history(shares(6, 1.0), &|share| vec![1.0 + share]), &[]);
    assert!(one.front.is_empty());
}

#[test]
fn a_prior_that_says_the_opposite_is_told_of_and_one_that_agrees_is_not() {
    let trials = history(shares(10, 1.0), &|share| vec![100.0 * (1.0 + share)]);
    let prior = |sign: f64| {
        let points =
            shares(20, 1.0).map(|share| (config("a", 1024, share), measured(&[100.0 + 50.0 * sign * share], -1.0)));
        Prior::computed("the twin", points.collect())
    };
    let notes = |sign: f64| judged(&[Goal::Maximize], &trials, &[prior(sign)]).notes;
    assert_eq!(notes(1.0), Vec::<String>::new());
    let expected = "what the twin says of objective 0 is of little use here: its rank correlation with 10 measurements is \
                    -1.00; the search goes by the measurements";
    assert_eq!(notes(-1.0), [expected]);
    // Too few to tell.
    let few = judged(&[Goal::Maximize], &trials[..7], &[prior(-1.0)]);
    assert!(few.notes.is_empty());
}
