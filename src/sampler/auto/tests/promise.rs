//! Comparison of the acquisition with random samples of the outcomes.

use super::*;
use crate::sampler::auto::models::PointOutlook;
use crate::stats::to_f64;
use crate::surrogate::PosteriorBelief;

const DRAWS: usize = 200_000;

/// Outcomes of ten trials by their share: values by objective, and the excess over the constraint.
fn history(values: &dyn Fn(f64) -> Vec<f64>) -> Vec<PastTrial> {
    let shares = (0..10_u8).map(|at| f64::from(at) / 9.0);
    let past = |share: f64| match share {
        // A large share does not serve.
        share if share > 0.95 => PastTrial::new("auto", config("a", 1024, share), KnownOutcome::Failed),
        share => PastTrial::new("auto", config("a", 1024, share), measured(&values(share), 0.9 * (share - 0.6))),
    };
    shares.map(past).collect()
}

/// Returns the predictions for some configurations, and the exponential of each score without the penalty for a
/// failure.
fn scored(goals: &[Goal], history: &[PastTrial]) -> (Vec<PointOutlook>, Vec<(PointOutlook, f64)>) {
    let (space, aim) = (space(), aim(goals));
    let ask = SamplerAsk::new(&space, &aim, history, 7, &|_| true);
    let encoding = Encoding::new(&space, ask.defaults);
    let table = HistoryTable::of(&ask, &encoding);
    let models = Models::fit(&encoding.axes, &table, &[], &[]);
    let weights = vec![1.0 / f64::from(u8::try_from(goals.len()).unwrap()); goals.len()];
    let acquisition = Acquisition::new(&models, &table, &weights, false);
    let known = table.measured.iter().map(|(_, point)| models.at(point));
    let asked = [("a", 0.35), ("b", 0.5), ("b", 0.65), ("c", 0.72)];
    let asked = asked.map(|(backend, share)| {
        let point = encoding.point(&config(backend, 2048, share)).unwrap();
        let outlook = models.at(&point);
        assert!(outlook.serving_probability > 0.5 && outlook.nearest_correlation < 0.98, "{outlook:?}");
        let score = acquisition.score(&point) - 2.0 * libm::log(outlook.serving_probability);
        (outlook, libm::exp(score))
    });
    (known.collect(), asked.into())
}

/// Asserts that `promised` is the mean gain over samples of the objectives, times the probability of keeping the
/// constraint.
fn is_drawn(promised: f64, outlook: &PointOutlook, gain: &dyn Fn(&[f64]) -> f64) {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let value = |rng: &mut ChaCha8Rng, belief: &PosteriorBelief| belief.mean + belief.deviation * normal::draw(rng);
    let (mut sum, mut squares) = (0.0, 0.0);
    for _ in 0..DRAWS {
        let values: Vec<_> = outlook.objectives.iter().map(|belief| value(&mut rng, belief)).collect();
        let gain = libm::exp(outlook.log_feasible) * gain(&values);
        (sum, squares) = (sum + gain, squares + gain * gain);
    }
    let mean = sum / to_f64(DRAWS);
    let error = ((squares / to_f64(DRAWS) - mean * mean) / to_f64(DRAWS)).sqrt();
    assert!(error < 0.1 * mean, "{DRAWS} draws are too few for {mean}");
    assert!((promised - mean).abs() < 4.0 * error, "{promised}, and {mean} +-{error} by draws: {outlook:?}");
}

fn probable(known: &[PointOutlook]) -> impl Iterator<Item = &PointOutlook> {
    known.iter().filter(|outlook| outlook.log_feasible >= libm::log(0.5))
}

#[test]
fn with_one_objective_it_is_the_mean_feasible_improvement() {
    let (known, asked) = scored(&[Goal::Maximize], &history(&|share| vec![100.0 * (1.0 + share)]));
    let best = probable(&known).map(|outlook| outlook.objectives[0].mean).fold(f64::NEG_INFINITY, f64::max);
    let mut keeps = Vec::new();
    for (outlook, promised) in asked {
        is_drawn(promised, &outlook, &|values| (values[0] - best - 0.01).max(0.0));
        keeps.push(outlook.log_feasible);
    }
    assert!(keeps.iter().any(|log| *log < libm::log(0.7)), "the limit decides somewhere: {keeps:?}");
}

/// Returns the area that a further point adds to the area between a reference and some points.
fn added(front: &[[f64; 2]], reference: [f64; 2], [x, y]: [f64; 2]) -> f64 {
    let mut edges: Vec<_> = front.iter().map(|point| point[0]).filter(|at| *at < x && *at > reference[0]).collect();
    edges.extend([reference[0], x]);
    edges.sort_by(f64::total_cmp);
    let strips = edges.windows(2).map(|strip| {
        let covered = front.iter().filter(|point| point[0] >= strip[1]).map(|point| point[1]);
        (strip[1] - strip[0]) * (y - covered.fold(reference[1], f64::max)).max(0.0)
    });
    if x > reference[0] { strips.sum() } else { 0.0 }
}

#[test]
fn with_two_objectives_it_is_the_mean_added_area() {
    let values = |share: f64| vec![100.0 * (1.0 + share), 10.0 * (1.0 + 2.0 * share * share)];
    let (known, asked) = scored(&[Goal::Maximize, Goal::Minimize], &history(&values));
    let points: Vec<_> =
        probable(&known).map(|outlook| [outlook.objectives[0].mean, outlook.objectives[1].mean]).collect();
    let end = |of: usize, pick: fn(f64, f64) -> f64| points.iter().map(|point| point[of]).reduce(pick).unwrap();
    let reference = [0, 1].map(|of| end(of, f64::min) - 0.1 * (end(of, f64::max) - end(of, f64::min)) - 0.01);
    for (outlook, promised) in asked {
        is_drawn(promised, &outlook, &|values| added(&points, reference, [values[0], values[1]]));
    }
}

#[test]
fn points_that_probably_fail_are_tried_last() {
    let (space, aim) = (space(), aim(&[Goal::Maximize]));
    // A larger share is better, and no share above a half serves.
    let past = |at: u8| {
        let share = f64::from(at) / 11.0;
        let known = if share > 0.5 { KnownOutcome::Failed } else { measured(&[libm::exp(5.0 * share)], -1.0) };
        PastTrial::new("auto", config("a", 1024, share), known)
    };
    let history: Vec<_> = (0..12).map(past).collect();
    let ask = SamplerAsk::new(&space, &aim, &history, 7, &|_| true);
    let encoding = Encoding::new(&space, ask.defaults);
    let table = HistoryTable::of(&ask, &encoding);
    let models = Models::fit(&encoding.axes, &table, &[], &[]);
    let acquisition = Acquisition::new(&models, &table, &[1.0], false);
    let points = (0..200_u8).map(|at| encoding.point(&config("a", 1024, f64::from(at) / 199.0)).unwrap());
    let (serving, failing): (Vec<_>, Vec<_>) = points.partition(|point| models.at(point).serving_probability >= 0.5);
    let most = |points: &[Vec<f64>], of: &dyn Fn(&[f64]) -> f64| {
        points.iter().map(|point| of(point)).fold(f64::NEG_INFINITY, f64::max)
    };
    let value = |point: &[f64]| models.at(point).objectives[0].mean;
    assert!(most(&failing, &value) > most(&serving, &value) + 0.5, "what fails would be worth more");
    let score = |point: &[f64]| acquisition.score(point);
    assert!(most(&failing, &score) < most(&serving, &score) - 15.0);
}

#[test]
fn with_three_objectives_the_whole_front_is_explored() {
    let parameter = |name: &str| Parameter {
        name: name.to_owned(),
        domain: Domain::Float { low: 0.0, high: 1.0, log: false },
        conditions: Vec::new(),
        help: None,
    };
    let space = Space { parameters: ["x", "y", "u", "v", "w"].map(parameter).into(), fixed: Config::new() };
    let aim = SearchAim { constraints: Vec::new(), ..aim(&[Goal::Maximize; 3]) };
    // An eighth of a sphere: a weighted sum would find its corners only. Each objective has a unit of its own.
    let values = |config: &Config| {
        let at = |name: &str| config.get_f64(name).unwrap();
        let (a, b) = (1.5 * at("x"), 1.5 * at("y"));
        let off = 1.0 + 3.0 * ["u", "v", "w"].iter().map(|name| (at(name) - 0.7) * (at(name) - 0.7)).sum::<f64>();
        [(1e4, libm::cos(a) * libm::cos(b)), (1e-2, libm::cos(a) * libm::sin(b)), (1.0, libm::sin(a))]
            .map(|(unit, value)| unit * (1.0 + value / off))
    };
    let share_of_box = |sampler: &dyn Sampler| {
        let mut history = Vec::new();
        while history.len() < 30 {
            let suggestion = sampler.ask(&SamplerAsk::new(&space, &aim, &history, 3, &|_| true)).unwrap();
            let readings = values(&suggestion.config).map(NumberReading::exact).into();
            let known = KnownOutcome::Measured(MeasuredNumbers { values: readings, excesses: Vec::new() });
            history.push(PastTrial::new(sampler.name(), suggestion.config, known));
        }
        // Estimates by random samples how much of a box the trials dominate.
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let units = [1e4, 1e-2, 1.0];
        let covered = (0..20_000).filter(|_| {
            let corner = units.map(|unit| unit * (1.0 + rng.random::<f64>()));
            history.iter().any(|past| {
                let found = &past.measured().unwrap().values;
                found.iter().zip(corner).all(|(reading, corner)| reading.value >= corner)
            })
        });
        covered.count()
    };
    let random = crate::sampler::find("random").unwrap();
    let (ours, theirs) = (share_of_box(&Auto), share_of_box(random));
    assert!(ours > theirs + theirs / 10, "{ours} of 20000, random {theirs}");
}
