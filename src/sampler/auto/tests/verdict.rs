//! Tests of the assessment: the front, the remaining gain, and the use of priors.

use super::*;
use crate::sampler::Judgement;

/// Returns trials of one backend at these shares.
fn history(shares: impl IntoIterator<Item = f64>, values: &dyn Fn(f64) -> Vec<f64>) -> Vec<PastTrial> {
    let past = |share| PastTrial::new("auto", config("a", 1024, share), measured(&values(share), -1.0));
    shares.into_iter().map(past).collect()
}

fn judged(goals: &[Goal], history: &[PastTrial], priors: &[SamplerPrior]) -> Judgement {
    // Only the share is free.
    let mut space = space();
    space.parameters.retain(|parameter| parameter.name == "share");
    space.fixed = Config::new().with("backend", "a").with("tokens", 1024_i64);
    Auto.judge(&SamplerAsk { priors, ..SamplerAsk::new(&space, &aim(goals), history, 7, &|_| true) }).unwrap()
}

fn shares(count: u8, to: f64) -> impl Iterator<Item = f64> {
    (0..count).map(move |at| to * f64::from(at) / f64::from(count - 1))
}

#[test]
fn the_remaining_gain_is_large_if_values_still_rise_and_small_if_all_are_known() {
    for (goal, rate) in [(Goal::Maximize, 1.0), (Goal::Minimize, -1.0)] {
        let value = |share: f64| vec![100.0 * libm::exp(rate * 2.0 * share)];
        let rising = judged(&[goal], &history(shares(8, 0.5), &value), &[]);
        let known = judged(&[goal], &history(shares(24, 1.0), &value), &[]);
        let all = if goal == Goal::Maximize { libm::expm1(1.0) } else { -libm::expm1(-1.0) };
        let [low, middle, high] = rising.remaining_gain.unwrap();
        assert!(low <= middle && middle <= high && middle > 0.1 * all && high > 0.5 * all, "{goal:?} {rising:?}");
        let [.., high_when_known] = known.remaining_gain.unwrap();
        assert!(high_when_known < 0.03, "{goal:?} {known:?}");
        let (gain, gain_when_known) = (rising.next_gain.unwrap(), known.next_gain.unwrap());
        assert!(gain > 0.05 && gain_when_known < 0.01, "{goal:?}: {gain} and {gain_when_known}");
        if goal == Goal::Minimize {
            assert!(high < 1.0 && gain < 1.0, "no latency falls by more than all of it: {rising:?}");
        }
    }
}

#[test]
fn with_values_of_both_signs_the_remaining_gain_is_a_share_of_the_pick() {
    // From -1 to 638, and 171 at a share of a half.
    let value = |share: f64| vec![100.0 * libm::exp(2.0 * share) - 101.0];
    let [low, middle, high] = judged(&[Goal::Maximize], &history(shares(8, 0.5), &value), &[]).remaining_gain.unwrap();
    let all = 638.0 / 171.0 - 1.0;
    assert!(
        low <= middle && middle > 0.1 * all && high > 0.5 * all && high < 2.0 * all,
        "{low} {middle} {high} of {all}"
    );
}

#[test]
fn the_gain_of_the_next_trial_is_relative_to_the_feasible_pick() {
    let past = |share, value, excess| PastTrial::new("auto", config("a", 1024, share), measured(&[value], excess));
    let within = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5].map(|share| past(share, 100.0 + 10.0 * share, share - 0.7));
    // Twice as good, and feasible with a probability of some sixty percent.
    let borderline = [-0.005, 0.02, -0.03].map(|excess| past(0.75, 200.0, excess));
    let beyond = [past(0.9, 150.0, 0.3), past(1.0, 120.0, 0.4)];
    let trials: Vec<_> = within.into_iter().chain(borderline).chain(beyond).collect();
    let told = judged(&[Goal::Maximize], &trials, &[]);
    assert!(told.pick.as_ref().is_some_and(|pick| pick.values[0].unwrap().0 < 120.0), "{told:?}");
    let ([.., high], gain) = (told.remaining_gain.unwrap(), told.next_gain.unwrap());
    assert!(gain > 0.2 && gain < high, "{told:?}");
}

#[test]
fn a_value_with_a_large_deviation_counts_little() {
    let mut trials = history(shares(9, 1.0), &|_| vec![100.0]);
    let lucky = |deviation| {
        let reading = NumberReading { deviation, ..NumberReading::exact(200.0) };
        KnownOutcome::Measured(MeasuredNumbers { values: vec![reading], excesses: vec![NumberReading::exact(-1.0)] })
    };
    let expected = |known, trials: &mut [PastTrial]| {
        trials[4].outcome = known;
        judged(&[Goal::Maximize], trials, &[]).pick.unwrap().values[0].unwrap().0
    };
    let known = expected(lucky(Some(0.0)), &mut trials);
    assert!(known > 125.0, "{known}");
    for deviation in [1.0, 1e160] {
        let unknown = expected(lucky(Some(deviation)), &mut trials);
        assert!(unknown < 110.0, "{deviation}: {unknown}");
    }
}

#[test]
fn the_pick_is_on_the_front_even_if_another_point_has_more_measurements() {
    // Both objectives are noisy and hardly rise.
    let noise = |at: usize| if at.is_multiple_of(2) { 1.02 } else { 0.98 };
    let value = |(at, share)| [100.0 + share, 50.0 + share].map(|value| value * noise(at));
    let often = std::iter::repeat_n(0.8, 6);
    let tried = shares(7, 1.0).chain(often).enumerate();
    let trials: Vec<_> =
        tried.map(|trial| PastTrial::new("auto", config("a", 1024, trial.1), measured(&value(trial), -1.0))).collect();
    let goals = [Goal::Maximize; 2];
    let told = judged(&goals, &trials, &[]);
    let pick = told.pick.unwrap();
    assert!(told.front.iter().any(|other| other.history_index == pick.history_index), "{pick:?} of {:?}", told.front);
    // With one objective the pick is the configuration measured most often.
    assert_eq!(judged(&goals[..1], &trials, &[]).pick.unwrap().history_index, 7);
}

#[test]
fn a_judgement_contains_the_front_and_no_value_for_an_unmeasured_objective() {
    let goals = [Goal::Maximize, Goal::Minimize];
    // Both objectives get worse beyond a share of 0.6.
    let value = |share: f64| vec![100.0 - 50.0 * (share - 0.6).abs(), 10.0 + 20.0 * share];
    let trials = history(shares(11, 1.0), &value);
    let told = judged(&goals, &trials, &[]);
    let mut places: Vec<_> = told.front.iter().map(|pick| pick.history_index).collect();
    places.sort_unstable();
    assert_eq!(places, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!((told.remaining_gain, told.next_gain), (None, None));
    let first = told.front.iter().find(|pick| pick.history_index == 0).unwrap();
    let [throughput, latency] = [first.values[0].unwrap().0, first.values[1].unwrap().0];
    assert!((throughput - 70.0).abs() < 2.0 && (latency - 10.0).abs() < 0.5, "{first:?}");
    let half = judged(&goals, &history(shares(6, 1.0), &|share| vec![f64::NAN, 10.0 + share]), &[]);
    let pick = half.pick.unwrap();
    assert_eq!(pick.values[0], None);
    assert!((pick.values[1].unwrap().0 - 10.0).abs() < 0.5, "{pick:?}");
    assert_eq!(half.remaining_gain, None);
    let one = judged(&[Goal::Maximize], &history(shares(6, 1.0), &|share| vec![1.0 + share]), &[]);
    assert!(one.front.is_empty());
}

#[test]
fn a_note_reports_a_contradicted_prior_but_no_confirmed_one() {
    let trials = history(shares(10, 1.0), &|share| vec![100.0 * (1.0 + share)]);
    let prior = |sign: f64| {
        let points =
            shares(20, 1.0).map(|share| (config("a", 1024, share), measured(&[100.0 + 50.0 * sign * share], -1.0)));
        SamplerPrior::from_computation("the twin", points.collect())
    };
    // A prior with values that rise by a tenth.
    let agreeing = || {
        let points = shares(20, 1.0).map(|share| (config("a", 1024, share), measured(&[100.0 + 10.0 * share], -1.0)));
        SamplerPrior::from_computation("the twin", points.collect())
    };
    let notes = |sign: f64| judged(&[Goal::Maximize], &trials, &[prior(sign)]).notes;
    assert_eq!(notes(1.0), Vec::<String>::new());
    let expected = "the predictions of the twin for objective 0 contradict the measurements: rank correlation -1.00 \
                    over 10 measurements; the search relies on the measurements";
    assert_eq!(notes(-1.0), [expected]);
    // The order of measurements that hardly differ is chance.
    let alike = history(shares(10, 1.0), &|share| vec![100.0 * (1.0 - 0.03 * share)]);
    assert_eq!(judged(&[Goal::Maximize], &alike, &[agreeing()]).notes, Vec::<String>::new());
    // Too few measurements for a note.
    let few = judged(&[Goal::Maximize], &trials[..7], &[prior(-1.0)]);
    assert!(few.notes.is_empty());
}
