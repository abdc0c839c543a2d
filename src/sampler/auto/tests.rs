//! Tests of the suggestions in turn, and of pending trials.

mod promise;
mod units;
mod verdict;

use super::*;
use crate::config::{Config, Value};
use crate::objective::Goal;
use crate::sampler::{
    KnownOutcome, MeasuredNumbers, NumberReading, ObjectiveTarget, PastTrial, SamplerPrior, SearchAim,
};
use crate::space::{Domain, IntScale, Parameter, Space};

/// Two choices of four and seven values, and a number.
fn space() -> Space {
    let parameter =
        |name: &str, domain| Parameter { name: name.to_owned(), domain, conditions: Vec::new(), help: None };
    let backends = ["a", "b", "c", "d"].map(Value::from);
    let parameters = vec![
        parameter("backend", Domain::Categorical(backends.into())),
        parameter("tokens", Domain::int(512, 32_768, IntScale::PowerOfTwo, 1)),
        parameter("share", Domain::Float { low: 0.0, high: 1.0, log: false }),
    ];
    Space { parameters, fixed: Config::new() }
}

fn aim(goals: &[Goal]) -> SearchAim {
    let target = |(at, goal): (usize, &Goal)| ObjectiveTarget { name: format!("objective {at}"), goal: *goal };
    SearchAim { objectives: goals.iter().enumerate().map(target).collect(), constraints: vec!["ttft_p99".to_owned()] }
}

fn config(backend: &str, tokens: i64, share: f64) -> Config {
    Config::new().with("backend", backend).with("tokens", tokens).with("share", share)
}

fn measured(values: &[f64], excess: f64) -> KnownOutcome {
    let values = values.iter().map(|value| NumberReading::exact(*value)).collect();
    KnownOutcome::Measured(MeasuredNumbers { values, excesses: vec![NumberReading::exact(excess)] })
}

/// Returns successive suggestions if every trial has an average outcome.
fn suggested(priors: &[SamplerPrior], goals: &[Goal], count: usize) -> Vec<Suggestion> {
    let middle = measured(&vec![50.0; goals.len()], -0.1);
    suggested_when(priors, goals, count, &|_| middle.clone())
}

/// Like `suggested`, but with the outcome `told(n)` of the n-th trial.
fn suggested_when(
    priors: &[SamplerPrior],
    goals: &[Goal],
    count: usize,
    told: &dyn Fn(usize) -> KnownOutcome,
) -> Vec<Suggestion> {
    let (space, aim) = (space(), aim(goals));
    let mut history = Vec::new();
    let mut suggestions = Vec::new();
    for at in 0..count {
        let ask = SamplerAsk { priors, ..SamplerAsk::new(&space, &aim, &history, 7, &|_| true) };
        let suggestion = Auto.ask(&ask).unwrap();
        history.push(PastTrial::new("auto", suggestion.config.clone(), told(at)));
        suggestions.push(suggestion);
    }
    suggestions
}

#[test]
fn the_first_points_are_nearly_the_best_of_a_prior_and_differ() {
    let mut points = vec![
        (config("a", 1024, 0.5), measured(&[100.0], -0.5)),
        (config("a", 1024, 0.52), measured(&[99.5], -0.5)),
        (config("a", 1024, 0.48), measured(&[99.0], -0.5)),
        (config("b", 1024, 0.5), measured(&[98.0], -0.5)),
        (config("b", 32_768, 0.5), measured(&[97.0], -0.5)),
        // Better and infeasible; worse; failed.
        (config("c", 2048, 0.1), measured(&[120.0], 0.1)),
        (config("d", 2048, 0.9), measured(&[90.0], -0.5)),
        (config("d", 4096, 0.9), KnownOutcome::Failed),
    ];
    points.rotate_left(3);
    let suggestions = suggested(&[SamplerPrior::new("the twin", points)], &[Goal::Maximize], 4);
    let configs: Vec<_> = suggestions.iter().map(|suggestion| suggestion.config.clone()).collect();
    assert_eq!(configs[..3], [config("a", 1024, 0.5), config("b", 32_768, 0.5), config("b", 1024, 0.5)]);
    assert_eq!(configs[3].get("backend"), Some(&Value::from("a")));
    // The message omits the value 97: no measurement has corrected it.
    let why = "the twin ranks it among the best, and it differs most from the tried configurations; predicted \
               objective 0 is 3.0 % below the best";
    assert_eq!(suggestions[1].why, why);
}

/// Returns the outcome with this deviation of its excess.
fn unsure(known: KnownOutcome, deviation: f64) -> KnownOutcome {
    let KnownOutcome::Measured(mut measured) = known else { return known };
    measured.excesses[0].deviation = Some(deviation);
    KnownOutcome::Measured(measured)
}

#[test]
fn the_second_point_has_the_least_uncertain_constraints_of_a_computed_prior() {
    let points = vec![
        (config("a", 1024, 0.5), unsure(measured(&[100.0], -0.5), 0.4)),
        (config("a", 1024, 0.52), unsure(measured(&[97.0], -0.5), 0.1)),
        (config("b", 32_768, 0.5), unsure(measured(&[98.0], -0.5), 0.6)),
        // More certain, but of a lower value or infeasible.
        (config("c", 2048, 0.1), unsure(measured(&[80.0], -0.5), 0.0)),
        (config("d", 2048, 0.1), unsure(measured(&[99.0], 0.1), 0.0)),
    ];
    let suggestions = suggested(&[SamplerPrior::from_computation("the twin", points.clone())], &[Goal::Maximize], 3);
    let configs: Vec<_> = suggestions.iter().map(|suggestion| suggestion.config.clone()).collect();
    assert_eq!(configs, [config("a", 1024, 0.5), config("a", 1024, 0.52), config("b", 32_768, 0.5)]);
    let why = "the twin ranks it among the best, and its constraints are the least uncertain; predicted objective 0 \
               is 3.0 % below the best";
    assert_eq!(suggestions[1].why, why);
    assert_eq!(suggestions[0].why, "the twin ranks it first");
    // Other trials before, such as a study's engine defaults, do not change the first suggestion.
    let (space, aim, priors) =
        (space(), aim(&[Goal::Maximize]), [SamplerPrior::from_computation("the twin", points.clone())]);
    let history = [PastTrial::new("baseline", config("d", 512, 1.0), measured(&[50.0], -0.5))];
    let ask = SamplerAsk { priors: &priors, ..SamplerAsk::new(&space, &aim, &history, 7, &|_| true) };
    assert_eq!(Auto.ask(&ask).unwrap().config, config("a", 1024, 0.5));
    // The deviations of measurements are noise.
    let suggestions = suggested(&[SamplerPrior::new("a study", points)], &[Goal::Maximize], 2);
    assert_eq!(suggestions[1].config, config("b", 32_768, 0.5));
}

#[test]
fn an_error_of_a_computed_prior_in_a_constraint_shifts_other_points_by_as_many_deviations() {
    let (space, aim, defaults) = (space(), aim(&[Goal::Maximize]), Config::new());
    let encoding = Encoding::new(&space, &defaults);
    // A product: it is not a sum of effects of single parameters.
    let doubt = |backend: usize, tokens: usize, share: f64| {
        let one = if backend.is_multiple_of(2) { share } else { 1.0 - share };
        f64::from(u8::try_from(tokens).unwrap()) / 3.0 * one
    };
    let at =
        |backend: usize, tokens: usize, share: f64| config(["a", "b", "c", "d"][backend], 512 << (2 * tokens), share);
    let all = (0..4).flat_map(|backend| (0..4).map(move |tokens| (backend, tokens)));
    let all = all.flat_map(|(backend, tokens)| [0.1, 0.5, 0.9].map(|share| (backend, tokens, share)));
    let points = all.clone().map(|(backend, tokens, share)| {
        (at(backend, tokens, share), unsure(measured(&[100.0], -0.3 * share), doubt(backend, tokens, share)))
    });
    let points: Vec<_> = points.collect();
    let tried = [(0, 3, 0.9), (1, 3, 0.1), (0, 1, 0.5), (2, 2, 0.9), (3, 3, 0.9), (1, 0, 0.5)];
    let history = tried.map(|(backend, tokens, share)| {
        let excess = -0.3 * share + 0.8 * doubt(backend, tokens, share);
        PastTrial::new("auto", at(backend, tokens, share), measured(&[100.0], excess))
    });
    let missed = |prior: SamplerPrior| {
        let priors = [prior];
        let ask = SamplerAsk { priors: &priors, ..SamplerAsk::new(&space, &aim, &history, 7, &|_| true) };
        let table = HistoryTable::of(&ask, &encoding);
        let opinions = PriorSurrogates::all(&ask, &encoding);
        let models = Models::fit(&encoding.axes, &table, &opinions, &[]);
        let misses = all.clone().map(|(backend, tokens, share)| {
            let point = encoding.point(&at(backend, tokens, share)).unwrap();
            let excess = -0.3 * share + 0.8 * doubt(backend, tokens, share);
            (models.constraints[0].predict_with_correlation(&point).0.mean - excess).abs()
        });
        misses.fold(0.0, f64::max)
    };
    let (computed, noise) = (
        missed(SamplerPrior::from_computation("twin", points.clone())),
        missed(SamplerPrior::new("study", points.clone())),
    );
    assert!(computed < 0.15 && noise > 2.0 * computed, "{computed} and {noise}");
}

#[test]
fn with_two_objectives_the_first_points_are_not_dominated() {
    let points = vec![
        (config("a", 512, 0.5), measured(&[60.0, 60.0], -0.5)),
        (config("b", 1024, 0.5), measured(&[55.0, 50.0], -0.5)),
        (config("c", 2048, 0.5), measured(&[50.0, 55.0], -0.5)),
        (config("d", 4096, 0.5), measured(&[45.0, 45.0], -0.5)),
    ];
    let suggestions = suggested(&[SamplerPrior::new("a study", points)], &[Goal::Maximize, Goal::Minimize], 3);
    let mut backends: Vec<_> =
        suggestions.iter().map(|suggestion| suggestion.config.get("backend").unwrap().to_string()).collect();
    assert_eq!(backends[0], "a");
    backends.sort();
    assert_eq!(backends, ["a", "b", "d"]);
}

#[test]
fn a_prior_without_feasible_points_does_not_choose_the_first_points() {
    let beyond = vec![
        (config("a", 512, 0.5), measured(&[100.0], 0.5)),
        (config("b", 1024, 0.5), measured(&[60.0], 0.3)),
        (config("c", 1024, 0.5), measured(&[60.0], f64::NAN)),
        (config("d", 1024, 0.5), measured(&[f64::NAN], -1.0)),
    ];
    let alone = suggested(&[], &[Goal::Maximize], 5);
    assert!(alone.iter().all(|suggestion| suggestion.why.starts_with("spread evenly over the space")));
    assert_eq!(suggested(&[SamplerPrior::new("the twin", beyond)], &[Goal::Maximize], 5), alone);
}

/// Counts the reasons of the first nine suggestions when the first trials have these outcomes.
fn reasons(goals: &[Goal], told: &[KnownOutcome]) -> [usize; 2] {
    // With two objectives no configuration dominates another.
    let said = |more: f64| measured(&[100.0 + more, 100.0 - more][..goals.len()], -0.5);
    let points = [("a", 0.0), ("b", -1.0), ("c", -2.0), ("d", -3.0)];
    let points = points.map(|(backend, more)| (config(backend, 1024, 0.5), said(more)));
    let told = |at: usize| told.get(at).cloned().unwrap_or_else(|| measured(&[100.0; 2][..goals.len()], -0.1));
    let suggestions = suggested_when(&[SamplerPrior::new("the twin", points.into())], goals, 10, &told);
    let count = |start: &str| suggestions.iter().filter(|suggestion| suggestion.why.starts_with(start)).count();
    let refuted = "spread evenly over the space: the trials refute the predictions";
    let last = &suggestions[9].why;
    assert!(last.starts_with("highest expected improvement"), "then models decide: {last}");
    [count("the twin ranks it "), count(refuted)]
}

#[test]
fn points_are_spread_after_a_prior_that_is_wrong_at_its_best_points() {
    let values = |values: &[f64]| values.iter().map(|value| measured(&[*value], -0.1)).collect::<Vec<_>>();
    let one = [Goal::Maximize];
    assert_eq!(reasons(&one, &values(&[100.0, 40.0])), [2, 5], "a factor of 2.5 between two that are said to be equal");
    assert_eq!(reasons(&one, &values(&[100.0, 150.0, 60.0])), [3, 5]);
    assert_eq!(reasons(&one, &values(&[20.0, 20.5, 19.5, 20.0])), [4, 0], "all by the same factor");
    assert_eq!(reasons(&one, &values(&[100.0, 110.0, 90.0, 80.0])), [4, 0], "as wrong as a prior usually is");
    let minimized = [Goal::Minimize];
    assert_eq!(reasons(&minimized, &values(&[100.0, 40.0])), [2, 5]);
    let of_two = [[100.0, 100.0], [100.0, 40.0]].map(|values| measured(&values, -0.1));
    assert_eq!(reasons(&[Goal::Maximize, Goal::Maximize], &of_two), [4, 0], "one of two objectives counts half");
    let of_two = [[100.0, 100.0], [40.0, 40.0]].map(|values| measured(&values, -0.1));
    assert_eq!(reasons(&[Goal::Maximize, Goal::Maximize], &of_two), [2, 5]);
}

#[test]
fn two_failures_at_the_best_points_of_a_prior_refute_it_and_one_does_not() {
    let one = [Goal::Maximize];
    assert_eq!(reasons(&one, &[KnownOutcome::Failed, KnownOutcome::Failed]), [2, 5]);
    assert_eq!(reasons(&one, &[KnownOutcome::Failed, KnownOutcome::Rejected]), [2, 5]);
    assert_eq!(reasons(&one, &[KnownOutcome::Failed]), [4, 0]);
    // An unknown outcome is no evidence. A lost trial counts as tried, but not as known.
    assert_eq!(
        reasons(&one, &[KnownOutcome::Failed, KnownOutcome::Pending, KnownOutcome::Pending, KnownOutcome::Pending]),
        [4, 0]
    );
    assert_eq!(reasons(&one, &[measured(&[f64::NAN], -0.1), measured(&[100.0], -0.1)]), [4, 0]);
}

#[test]
fn trials_that_refute_one_prior_do_not_refute_another() {
    let said = |name: &str, value: f64, backends: [&str; 2]| {
        let points = backends.map(|backend| (config(backend, 1024, 0.5), measured(&[value], -0.5)));
        SamplerPrior::new(name, points.into())
    };
    let priors = [said("study one", 100.0, ["a", "b"]), said("study two", 90.0, ["c", "d"])];
    let failed = |at: usize| if at < 2 { KnownOutcome::Failed } else { measured(&[90.0], -0.1) };
    let suggestions = suggested_when(&priors, &[Goal::Maximize], 5, &failed);
    let whys: Vec<_> = suggestions.iter().map(|suggestion| suggestion.why.as_str()).collect();
    assert_eq!(whys[0], "study one ranks it first");
    let of_two = whys.iter().filter(|why| why.contains("study two ranks it"));
    assert_eq!(of_two.count(), 2, "{whys:?}");
    assert!(!whys.iter().any(|why| why.starts_with("spread")), "{whys:?}");
}

/// Twenty trials: two of the backends with two numbers of tokens, and a failed one of another backend.
fn narrow_history() -> Vec<PastTrial> {
    let past = |config, known| PastTrial::new("auto", config, known);
    let mut history: Vec<_> = (0..19_u8)
        .map(|at| {
            let share = f64::from(at) / 19.0;
            let config = config(if at % 2 == 0 { "a" } else { "b" }, if at % 3 == 0 { 1024 } else { 2048 }, share);
            past(config, measured(&[100.0 - 120.0 * (share - 0.5).abs()], -0.5))
        })
        .collect();
    history.push(past(config("c", 2048, 0.5), KnownOutcome::Failed));
    history
}

#[test]
fn the_incumbent_is_tried_with_its_least_tried_values() {
    let (space, aim, history) = (space(), aim(&[Goal::Maximize]), narrow_history());
    assert_eq!(history.len() % CYCLE_LENGTH, NEGLECTED_AT);
    let suggestion = Auto.ask(&SamplerAsk::new(&space, &aim, &history, 7, &|_| true)).unwrap();
    let tried = |name: &str, value: &Value| history.iter().any(|past| past.config.get(name) == Some(value));
    let of = |name: &str| suggestion.config.get(name).unwrap();
    // Backend `d` and five numbers of tokens are new. Only one of the two is changed.
    let changed = match (tried("backend", of("backend")), tried("tokens", of("tokens"))) {
        (true, false) => "tokens",
        (false, true) => "backend",
        _ => panic!("{}", suggestion.config),
    };
    let share = suggestion.config.get_f64("share").unwrap();
    let is_best = |past: &PastTrial| past.measured().is_some_and(|measured| measured.values[0].value > 90.0);
    let same = |past: &PastTrial| (past.config.get_f64("share").unwrap() - share).abs() < 1e-3;
    assert!(history.iter().any(|past| is_best(past) && same(past)), "{}", suggestion.config);
    let why = format!("the incumbent with the least tried value of {changed}: ");
    assert!(suggestion.why.starts_with(&why), "{} does not begin with {why}", suggestion.why);
}

#[test]
fn a_refused_variant_of_the_incumbent_is_skipped() {
    let (space, aim, history) = (space(), aim(&[Goal::Maximize]), narrow_history());
    let allowed = |config: &Config| {
        config.get("backend").is_some_and(|backend| *backend == Value::from("a"))
            && config.get_i64("tokens") == Some(1024)
    };
    let suggestion = Auto.ask(&SamplerAsk::new(&space, &aim, &history, 7, &allowed)).unwrap();
    assert!(allowed(&suggestion.config), "{}", suggestion.config);
}

#[test]
fn the_reason_names_an_exploring_turn() {
    let (space, aim, mut history) = (space(), aim(&[Goal::Maximize]), narrow_history());
    let mut whys = Vec::new();
    while history.len() < 20 + CYCLE_LENGTH {
        let suggestion = Auto.ask(&SamplerAsk::new(&space, &aim, &history, 7, &|_| true)).unwrap();
        whys.push((history.len() % CYCLE_LENGTH, suggestion.why));
        history.push(PastTrial::new("auto", suggestion.config, measured(&[70.0], -0.5)));
    }
    for (place, why) in whys {
        assert_eq!(
            why.starts_with("exploration where the models are uncertain"),
            place == EXPLORATION_POSITION,
            "{why}"
        );
        assert_eq!(why.starts_with("the incumbent with the least tried value of "), place == NEGLECTED_AT, "{why}");
    }
}

#[test]
fn the_last_six_trials_do_not_explore() {
    let (space, aim, mut history) = (space(), aim(&[Goal::Maximize]), narrow_history());
    let mut explored = Vec::new();
    for left in (1..=2 * FINAL_TRIALS).rev() {
        let ask = SamplerAsk { trials_left: Some(left), ..SamplerAsk::new(&space, &aim, &history, 7, &|_| true) };
        let Suggestion { config, why, .. } = Auto.ask(&ask).unwrap();
        if ["exploration where the models are uncertain", "the incumbent with the least tried value of "]
            .iter()
            .any(|turn| why.starts_with(turn))
        {
            explored.push(left);
        }
        history.push(PastTrial::new("auto", config, measured(&[70.0], -0.5)));
    }
    assert_eq!(explored.len(), 2, "each turn once in six: {explored:?}");
    assert!(explored.iter().all(|left| *left > FINAL_TRIALS), "{explored:?}");
}

#[test]
fn a_suggestion_of_the_models_has_an_expectation_in_the_unit_of_the_user() {
    for goal in [Goal::Maximize, Goal::Minimize] {
        let (space, aim, history) = (space(), aim(&[goal]), narrow_history());
        let ask = SamplerAsk { trials_left: Some(1), ..SamplerAsk::new(&space, &aim, &history, 7, &|_| true) };
        let suggestion = Auto.ask(&ask).unwrap();
        let expected = suggestion.expected.unwrap();
        assert!(expected.low < expected.mean && expected.mean < expected.high, "{expected:?}");
        let shown = suggestion.why.split_once(": objective 0 ").unwrap().1.split(' ').next().unwrap().to_owned();
        let shown: f64 = shown.parse().unwrap();
        assert!((shown / expected.mean - 1.0).abs() < 0.01, "{} and {expected:?}", suggestion.why);
    }
    let (space, aim) = (space(), aim(&[Goal::Maximize]));
    let first = Auto.ask(&SamplerAsk::new(&space, &aim, &[], 7, &|_| true)).unwrap();
    assert_eq!(first.expected, None, "there is no model before the first measurement");
}

#[test]
fn the_reason_contains_the_expected_value_and_its_range() {
    for goal in [Goal::Maximize, Goal::Minimize] {
        let (space, aim, history) = (space(), aim(&[goal]), narrow_history());
        let why = Auto
            .ask(&SamplerAsk { trials_left: Some(1), ..SamplerAsk::new(&space, &aim, &history, 7, &|_| true) })
            .unwrap()
            .why;
        let (_, expected) = why.split_once(": objective 0 ").unwrap();
        let numbers: Vec<f64> = expected.split(['(', ')', ' ']).filter_map(|word| word.parse().ok()).take(3).collect();
        assert!(numbers.len() == 3 && numbers[1] < numbers[0] && numbers[0] < numbers[2], "{goal:?}: {why}");
    }
}

#[test]
fn pending_trials_count_for_the_incumbent() {
    let (space, aim) = (space(), aim(&[Goal::Maximize]));
    let past = |share: f64, known| PastTrial::new("auto", config("a", 1024, share), known);
    let measured = |share: f64| past(share, measured(&[100.0 * (1.0 + share)], -1.0));
    let mut history: Vec<_> = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5].into_iter().map(measured).collect();
    history.push(past(0.8, KnownOutcome::Pending));
    let gain = |history: &[PastTrial], share: f64| {
        let ask = SamplerAsk::new(&space, &aim, history, 7, &|_| true);
        let encoding = Encoding::new(&space, ask.defaults);
        let table = HistoryTable::of(&ask, &encoding);
        let models = Models::fit(&encoding.axes, &table, &[], &[]);
        let acquisition = Acquisition::new(&models, &table, &[1.0], false);
        libm::exp(acquisition.score(&encoding.point(&config("a", 1024, share)).unwrap()))
    };
    let alone = gain(&history[..6], 0.75);
    assert!(alone > 0.1, "promises {alone} where nothing is under way");
    let beside = gain(&history, 0.75);
    assert!(beside < 0.2 * alone, "promises {beside} beside what is expected to be better, {alone} without");
    history[6].outcome = KnownOutcome::Inconclusive;
    let lost = gain(&history, 0.75);
    assert!((lost - alone).abs() < 1e-9, "what says nothing is not to be improved on: {lost} and {alone}");
}

#[test]
fn a_pending_trial_does_not_raise_the_feasibility_of_its_neighbours() {
    let (space, aim) = (space(), aim(&[Goal::Maximize]));
    let past = |share: f64, known| PastTrial::new("auto", config("a", 1024, share), known);
    let within = [0.0, 0.1, 0.2, 0.3].map(|share| past(share, measured(&[100.0], -0.2)));
    let beyond = [0.9, 1.0].map(|share| past(share, measured(&[100.0], 0.2)));
    let mut history: Vec<_> = within.into_iter().chain(beyond).collect();
    let keeps = |history: &[PastTrial], share: f64| {
        let ask = SamplerAsk::new(&space, &aim, history, 7, &|_| true);
        let encoding = Encoding::new(&space, ask.defaults);
        let models = Models::fit(&encoding.axes, &HistoryTable::of(&ask, &encoding), &[], &[]);
        libm::exp(models.at(&encoding.point(&config("a", 1024, share)).unwrap()).log_feasible)
    };
    let alone = keeps(&history, 0.58);
    assert!((0.4..0.9).contains(&alone), "keeps the limit with {alone}");
    history.push(past(0.56, KnownOutcome::Pending));
    let beside = keeps(&history, 0.58);
    assert!(beside < alone, "keeps it with {beside} beside a trial that may miss it, {alone} without");
    let far = keeps(&history, 0.1);
    assert!(far > 0.99, "keeps it with {far} where that is known");
}

#[test]
fn pending_trials_do_not_change_the_judgement() {
    let (space, aim) = (space(), aim(&[Goal::Maximize]));
    let past = |share: f64, known| PastTrial::new("auto", config("a", 1024, share), known);
    let mut history: Vec<_> =
        [0.0, 0.2, 0.4, 0.8].map(|share| past(share, measured(&[100.0 * (1.0 + share)], share - 0.5))).into();
    let picked = |history: &[PastTrial]| {
        let pick = Auto.judge(&SamplerAsk::new(&space, &aim, history, 7, &|_| true)).unwrap().pick.unwrap();
        (pick.history_index, pick.values, pick.feasible)
    };
    let before = picked(&history);
    history.extend([0.38, 0.42].map(|share| past(share, KnownOutcome::Pending)));
    assert_eq!(picked(&history), before);
}

#[test]
fn repeated_measurements_correct_the_reported_deviations() {
    let (space, aim) = (space(), SearchAim { constraints: Vec::new(), ..aim(&[Goal::Maximize]) });
    // Each window reports a deviation of 10 %.
    let past = |share: f64, off: f64| {
        let reading = NumberReading { value: (100.0 + 20.0 * share) * (1.0 + off), deviation: Some(0.1) };
        let known = KnownOutcome::Measured(MeasuredNumbers { values: vec![reading], excesses: Vec::new() });
        PastTrial::new("auto", config("a", 1024, share), known)
    };
    let expected = |again: f64| {
        let shares = (0..12_u8).map(|at| f64::from(at) / 11.0);
        let signs = [1.0, -1.0, -1.0, 1.0];
        let once = shares.clone().zip(signs.into_iter().cycle()).map(|(share, sign)| past(share, sign * again));
        let twice = shares.zip(signs.into_iter().cycle()).map(|(share, sign)| past(share, -sign * again));
        let history: Vec<_> = once.chain(twice).collect();
        let judgement = Auto.judge(&SamplerAsk::new(&space, &aim, &history, 7, &|_| true)).unwrap();
        judgement.pick.unwrap().values[0].unwrap().1
    };
    let (agreed, differed) = (expected(0.001), expected(0.1));
    assert!(agreed < 0.01, "{agreed} where it comes out the same");
    assert!((0.01..0.1).contains(&differed), "{differed} where it does not");
}

#[test]
fn among_equal_configurations_the_one_with_more_measurements_is_picked() {
    let (space, aim) = (space(), aim(&[Goal::Maximize]));
    let value = |share: f64| 100.0 - 40.0 * (share - 0.498).abs();
    let picked = |place: usize| {
        let mut history: Vec<_> = (0..12_u8)
            .map(|at| {
                let share = f64::from(at) / 11.0;
                PastTrial::new("auto", config("a", 1024, share), measured(&[value(share)], -0.5))
            })
            .collect();
        let again = history[place].clone();
        history.push(PastTrial { origin: "confirmation".into(), ..again });
        let ask = SamplerAsk::new(&space, &aim, &history, 7, &|_| true);
        let pick = Auto.judge(&ask).unwrap().pick.unwrap();
        history.iter().position(|past| past.config == history[pick.history_index].config).unwrap()
    };
    assert_eq!(picked(2), 5, "what was measured again and is worse");
    assert_eq!(picked(6), 6, "0.2 % less than at 5, which is less than is known");
}
