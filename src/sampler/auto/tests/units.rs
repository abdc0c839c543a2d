//! Invariance of the search under the unit of an objective, its sign, and the path to a history.

use super::*;

/// Returns value and excess of a configuration. The best share is 0.7, of backend `c`.
fn told(config: &Config) -> (f64, f64) {
    let share = config.get_f64("share").unwrap();
    let backend = if config.get("backend") == Some(&Value::from("c")) { 1.3 } else { 1.0 };
    (backend * (1.0 - (share - 0.7) * (share - 0.7)), share - 0.8)
}

/// Returns the trials of a run with values in this unit.
fn run(goal: Goal, value: &dyn Fn(usize, f64) -> f64, trials: usize) -> Vec<PastTrial> {
    let (space, aim) = (space(), aim(&[goal]));
    let mut history = Vec::new();
    for at in 0..trials {
        let suggestion = Auto.ask(&SamplerAsk::new(&space, &aim, &history, 7, &|_| true)).unwrap();
        let (worth, excess) = told(&suggestion.config);
        history.push(PastTrial::new("auto", suggestion.config, measured(&[value(at, worth)], excess)));
    }
    history
}

fn best(history: &[PastTrial]) -> f64 {
    history
        .iter()
        .map(|past| told(&past.config))
        .filter(|(_, excess)| *excess <= 0.0)
        .map(|(worth, _)| worth)
        .fold(0.0, f64::max)
}

#[test]
fn the_unit_and_the_sign_of_an_objective_do_not_change_the_proposals() {
    let configs = |history: Vec<PastTrial>| history.into_iter().map(|past| past.config).collect::<Vec<_>>();
    let plain = configs(run(Goal::Maximize, &|_, worth| worth, 16));
    for unit in [1e-6, 1024.0, 1e9] {
        assert_eq!(configs(run(Goal::Maximize, &|_, worth| unit * worth, 16)), plain, "in units of {unit}");
    }
    assert_eq!(configs(run(Goal::Minimize, &|_, worth| -worth, 16)), plain, "negated and minimized");
    // A latency is the reciprocal of a rate.
    let latency = configs(run(Goal::Minimize, &|_, worth| 1.0 / worth, 16));
    assert_eq!(configs(run(Goal::Maximize, &|_, worth| -1e4 / worth, 16)), latency, "negated and maximized");
}

#[test]
fn a_value_of_zero_does_not_disturb_a_run() {
    let plain = best(&run(Goal::Maximize, &|_, worth| worth, 24));
    assert!(plain > 1.28, "{plain} of 1.3");
    for unit in [1e-3, 1.0, 1e4] {
        let with_zero = best(&run(Goal::Maximize, &|at, worth| if at == 3 { 0.0 } else { unit * worth }, 24));
        assert!(with_zero > 1.28, "{with_zero} of 1.3 in units of {unit}");
    }
}

#[test]
fn a_prior_gives_the_same_answers_after_any_earlier_question() {
    let (space, aim) = (space(), aim(&[Goal::Maximize]));
    let points: Vec<_> = (0..20_u8)
        .map(|at| {
            let config = config(["a", "b", "c", "d"][usize::from(at % 4)], 512 << (at % 5), f64::from(at) / 19.0);
            let (worth, excess) = told(&config);
            (config, measured(&[worth], excess))
        })
        .collect();
    let used = [SamplerPrior::from_computation("the twin", points.clone())];
    let mut history = Vec::new();
    for at in 0..12 {
        let ask = SamplerAsk { priors: &used, ..SamplerAsk::new(&space, &aim, &history, 7, &|_| true) };
        let new = [SamplerPrior::from_computation("the twin", points.clone())];
        let suggestion = Auto.ask(&ask).unwrap();
        assert_eq!(Auto.ask(&SamplerAsk { priors: &new, ..ask }), Some(suggestion.clone()), "at trial {at}");
        assert_eq!(Auto.judge(&SamplerAsk { priors: &new, ..ask }), Auto.judge(&ask), "at trial {at}");
        let (worth, excess) = told(&suggestion.config);
        // The first six values are positive.
        let value = if at == 6 { 0.0 } else { worth };
        history.push(PastTrial::new("auto", suggestion.config, measured(&[value], excess)));
    }
}

#[test]
fn pending_trials_are_kept_in_a_long_history() {
    let (space, aim) = (space(), aim(&[Goal::Maximize]));
    let past = |at: u16| {
        let config = config(["a", "b"][usize::from(at % 2)], 1024, f64::from(at) / 1000.0);
        let (worth, excess) = told(&config);
        PastTrial::new("auto", config, measured(&[worth], excess))
    };
    let mut history: Vec<_> = (0..1000).map(past).collect();
    for place in [123, 456, 789] {
        history[place].outcome = KnownOutcome::Pending;
    }
    let ask = SamplerAsk::new(&space, &aim, &history, 7, &|_| true);
    let table = HistoryTable::of(&ask, &Encoding::new(&space, ask.defaults));
    assert_eq!(table.pending.len(), 3);
}
