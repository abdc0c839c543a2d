//! Whole confirmations of configurations with known values, under noise and drift.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{Confirmation, ConfirmationPlan, ConfirmationStep, Decision, VerdictKind};
use crate::objective::{Goal, LaunchResult, LaunchedTrial, Score};
use crate::stats::{normal, to_f64};

/// A machine with noise between launches and a slow drift, both as standard deviations of logarithms.
struct NoisyMachine {
    rng: ChaCha8Rng,
    noise: f64,
    drift: f64,
    state: f64,
    launches: Vec<LaunchedTrial>,
}

impl NoisyMachine {
    fn new(seed: u64, noise: f64, drift: f64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let state = drift * normal::draw(&mut rng);
        Self { rng, noise, drift, state, launches: Vec::new() }
    }

    /// Launches a configuration with this true value. The drift's autocorrelation is 1/e after 20 launches.
    fn launch(&mut self, origin: &'static str, config: &str, truth: f64) {
        let kept = (-1.0_f64 / 20.0).exp();
        self.state = kept * self.state + self.drift * (1.0 - kept * kept).sqrt() * normal::draw(&mut self.rng);
        let value = truth * (self.state + self.noise * normal::draw(&mut self.rng)).exp();
        self.launches.push(LaunchedTrial {
            number: u32::try_from(self.launches.len()).unwrap(),
            origin: origin.into(),
            config_key: config.to_owned(),
            result: LaunchResult::Measured(Score::Feasible { value }),
        });
    }
}

/// Runs a search of three launches for each configuration and a confirmation. The first configuration is the defaults.
fn confirm(truths: &[(&str, f64)], noise: f64, drift: f64, launches: u32, seed: u64) -> Decision {
    let mut machine = NoisyMachine::new(seed, noise, drift);
    let (defaults, truth) = truths[0];
    machine.launch("baseline", defaults, truth);
    machine.launch("baseline_repeat", defaults, truth);
    for _ in 0..3 {
        truths[1..].iter().for_each(|(config, truth)| machine.launch("auto", config, *truth));
    }
    let plan = ConfirmationPlan::new(launches, 1, 3);
    loop {
        let known = machine.launches.clone();
        let mean = |config: &str| {
            let of = known.iter().filter(|trial| trial.config_key == config);
            let values: Vec<f64> = of
                .filter_map(|trial| match trial.result {
                    LaunchResult::Measured(score) => score.value(),
                    LaunchResult::Failed { .. } => None,
                })
                .collect();
            values.iter().sum::<f64>() / to_f64(values.len())
        };
        let mut candidates: Vec<&str> = truths[1..].iter().map(|(config, _)| *config).collect();
        candidates.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
        let confirmation = Confirmation { launches: &known, goal: Goal::Maximize, defaults, today: None, plan };
        match confirmation.step(&candidates) {
            ConfirmationStep::Launch(config) => {
                let truth = truths.iter().find(|(known, _)| *known == config).unwrap().1;
                machine.launch("confirmation", config, truth);
            }
            ConfirmationStep::NoCandidate => panic!("there are candidates"),
            ConfirmationStep::Settled | ConfirmationStep::Spent => return confirmation.decide().unwrap(),
        }
    }
}

fn count(decisions: &[Decision], is: impl Fn(&Decision) -> bool) -> usize {
    decisions.iter().filter(|decision| is(decision)).count()
}

const NULL: [(&str, f64); 5] = [("d", 100.0), ("a", 100.0), ("b", 100.0), ("c", 100.0), ("e", 100.0)];

#[test]
fn equal_configurations_are_equal_within_noise() {
    let decisions: Vec<_> = (0..200).map(|seed| confirm(&NULL, 0.03, 0.02, 40, seed)).collect();
    let of = |kind| count(&decisions, |decision| decision.verdict.over_defaults.kind == kind);
    let [better, equal, unclear] =
        [VerdictKind::Better, VerdictKind::EqualWithinNoise, VerdictKind::NoClearWinner].map(of);
    assert!(better <= 4 && equal >= 190, "better {better}, equal {equal}, unclear {unclear}");
    assert!(decisions.iter().all(|decision| decision.launches <= 40));
}

#[test]
fn a_true_difference_is_found_and_its_interval_holds_the_truth() {
    let truths = [("d", 100.0), ("a", 105.0), ("b", 100.0), ("c", 98.0), ("e", 104.5)];
    let decisions: Vec<_> = (0..200).map(|seed| confirm(&truths, 0.03, 0.02, 40, seed)).collect();
    let right = count(&decisions, |decision| {
        decision.verdict.over_defaults.kind == VerdictKind::Better && ["a", "e"].contains(&decision.winner.as_str())
    });
    let covered = count(&decisions, |decision| {
        let truth = truths.iter().find(|(config, _)| *config == decision.winner).unwrap().1 / 100.0 - 1.0;
        let over = decision.verdict.over_defaults;
        over.low.zip(over.high).is_some_and(|(low, high)| low <= truth && truth <= high)
    });
    assert!(right >= 186 && covered >= 192, "right {right}, covered {covered}");
}

#[test]
fn a_large_gain_needs_few_launches() {
    let truths = [("d", 100.0), ("a", 130.0), ("b", 100.0)];
    let decisions: Vec<_> = (0..50).map(|seed| confirm(&truths, 0.02, 0.02, 40, seed)).collect();
    assert_eq!(count(&decisions, |decision| decision.winner == "a" && decision.is_settled), 50);
    let most = decisions.iter().map(|decision| decision.launches).max().unwrap();
    assert!(most <= 16, "{most}");
}
