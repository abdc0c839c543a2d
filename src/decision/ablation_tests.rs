//! Whole ablations of winners with known effects, under noise and drift.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::decision::{Confirmation, ConfirmationPlan, VerdictKind};
use crate::stats::normal;

const NOISE: f64 = 0.03;

/// Flags `(name, true loss without it, loss that the model expects)`.
type Effects<'a> = &'a [(&'a str, f64, Option<f64>)];

fn winner(effects: Effects<'_>) -> Config {
    effects.iter().fold(Config::new().with("fixed", 1_i64), |config, (name, ..)| config.with(*name, 2_i64))
}

fn plan(effects: Effects<'_>, launches: u32) -> AblationPlan {
    let flag = |(name, _, expected): &(&str, f64, Option<f64>)| ChangedFlag {
        name: (*name).to_owned(),
        expected: *expected,
        is_default: false,
    };
    AblationPlan::new(0, winner(effects).key(), launches, effects.iter().map(flag).collect())
}

/// Runs an ablation on a machine whose launches differ by 3 % and drift by 2 %. `result` replaces the outcome of a
/// configuration.
fn ablate(
    effects: Effects<'_>,
    launches: u32,
    seed: u64,
    result: impl Fn(&Config) -> Option<LaunchResult>,
) -> (AblationProgress, u32) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let kept = (-1.0_f64 / 20.0).exp();
    let mut drift = 0.02 * normal::draw(&mut rng);
    let (winner, plan, defaults) = (winner(effects), plan(effects, launches), Config::new().with("fixed", 1_i64));
    let mut known = Vec::new();
    loop {
        let noise = MeasuredNoise { between_launches: Some(NOISE), freedom: 8 };
        let ablation = Ablation {
            launches: &known,
            goal: Goal::Maximize,
            winner: &winner,
            defaults: &defaults,
            plan: &plan,
            rejected: &[],
            noise,
        };
        let progress = ablation.progress();
        let AblationStep::Launch(config, _) = progress.step.clone() else {
            return (progress, u32::try_from(known.len()).unwrap());
        };
        drift = kept * drift + 0.02 * (1.0 - kept * kept).sqrt() * normal::draw(&mut rng);
        let lost: f64 = effects.iter().filter(|(name, ..)| config.get(name).is_none()).map(|(_, loss, _)| loss).sum();
        let value = 100.0 * (drift + NOISE * normal::draw(&mut rng) - lost).exp();
        known.push(LaunchedTrial {
            number: u32::try_from(known.len()).unwrap(),
            origin: Origin::Ablation,
            config_key: config.key(),
            result: result(&config).unwrap_or(LaunchResult::Measured(Score::Feasible { value })),
        });
    }
}

fn kept(progress: &AblationProgress) -> Vec<&str> {
    progress.config.iter().map(|(name, _)| name).filter(|name| *name != "fixed").collect()
}

#[test]
fn flags_with_an_effect_stay_and_the_others_are_dropped() {
    let effects = [
        ("a", 0.2, Some(0.15)),
        ("b", 0.07, Some(0.03)),
        ("c", 0.0, Some(0.01)),
        ("d", 0.0, None),
        ("e", 0.0, Some(0.0)),
    ];
    let runs: Vec<_> = (0..100).map(|seed| ablate(&effects, 100, seed, |_| None)).collect();
    let right = runs.iter().filter(|(progress, _)| kept(progress) == ["a", "b"]).count();
    let most = runs.iter().map(|(_, launches)| *launches).max().unwrap();
    assert!(right >= 95, "{right} of 100");
    assert!(most <= 90, "{most}");
}

#[test]
fn a_group_with_an_effect_is_split() {
    let effects = [("a", 0.15, Some(0.0)), ("b", 0.0, Some(0.0)), ("c", 0.0, Some(0.0)), ("d", 0.0, Some(0.0))];
    let runs: Vec<_> = (0..50).map(|seed| ablate(&effects, 200, seed, |_| None)).collect();
    assert!(runs.iter().filter(|(progress, _)| kept(progress) == ["a"]).count() >= 45);
    let (progress, _) = &runs[0];
    let effect = progress.result.flags.iter().find(|flag| flag.name == "a").unwrap();
    assert_eq!(effect.finding, FlagFinding::Proven);
    assert!(effect.low.unwrap() < 0.1618 && effect.high.unwrap() > 0.1618, "{effect:?}");
}

#[test]
fn a_flag_without_which_a_limit_breaks_or_a_launch_fails_stays() {
    let effects = [("a", 0.0, Some(0.0)), ("b", 0.0, Some(0.0))];
    for broken in [
        LaunchResult::Measured(Score::Infeasible { violation: 0.1, value: 120.0 }),
        LaunchResult::Failed { is_own: true },
    ] {
        let (progress, _) = ablate(&effects, 100, 1, |config| config.get("a").is_none().then_some(broken));
        assert_eq!(kept(&progress), ["a"]);
        let of = |name: &str| progress.result.flags.iter().find(|flag| flag.name == name).unwrap().finding;
        assert_eq!((of("a"), of("b")), (FlagFinding::Required, FlagFinding::NoEffect));
    }
}

#[test]
fn without_enough_launches_all_flags_stay() {
    let effects = [("a", 0.04, Some(0.0)), ("b", 0.3, Some(0.2))];
    let (progress, launches) = ablate(&effects, 5, 3, |_| None);
    assert_eq!((kept(&progress), launches), (vec!["a", "b"], 4));
    assert!(progress.result.is_complete);
    let findings: Vec<_> = progress.result.flags.iter().map(|flag| (flag.name.as_str(), flag.finding)).collect();
    assert_eq!(findings, [("a", FlagFinding::Unsettled), ("b", FlagFinding::Unsettled)]);
}

#[test]
fn a_rejected_configuration_is_never_launched() {
    let effects = [("a", 0.0, Some(0.0))];
    let (winner, plan) = (winner(&effects), plan(&effects, 10));
    let rejected = [Config::new().with("fixed", 1_i64).key()];
    let ablation = Ablation {
        launches: &[],
        goal: Goal::Maximize,
        winner: &winner,
        defaults: &Config::new().with("fixed", 1_i64),
        plan: &plan,
        rejected: &rejected,
        noise: MeasuredNoise::default(),
    };
    let progress = ablation.progress();
    assert_eq!((progress.step, progress.result.flags[0].finding), (AblationStep::Done, FlagFinding::Required));
}

/// A confirmation of rounds of the winner and the defaults, followed by an ablation.
fn confirmed_launches(winner: &Config, defaults: &Config, gain: f64) -> Vec<LaunchedTrial> {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let rounds = (0..4).flat_map(|_| [(winner, gain), (defaults, 0.0)]);
    let mut launch = |(number, (config, score)): (u32, (&Config, f64))| LaunchedTrial {
        number,
        origin: Origin::Confirmation,
        config_key: config.key(),
        result: LaunchResult::Measured(Score::Feasible {
            value: 100.0 * (score + 0.005 * normal::draw(&mut rng)).exp(),
        }),
    };
    (0..).zip(rounds).map(&mut launch).collect()
}

#[test]
fn the_reduced_winner_replaces_the_full_one_with_its_own_gain() {
    let effects: Effects<'_> = &[("a", 0.2, Some(0.2)), ("b", 0.0, Some(0.0))];
    let (winner, defaults) = (winner(effects), Config::new().with("fixed", 1_i64));
    let mut launches = confirmed_launches(&winner, &defaults, 0.2);
    let plan = AblationPlan { began_at: 8, ..plan(effects, 40) };
    let (winner_key, defaults_key) = (winner.key(), defaults.key());
    let decision = loop {
        let confirmation = Confirmation {
            launches: &launches,
            goal: Goal::Maximize,
            defaults: &defaults_key,
            today: None,
            plan: ConfirmationPlan::new(8, 1, 1),
        };
        let full = confirmation.decide().unwrap();
        assert!(full.is_settled && full.winner == winner_key, "{full:?}");
        let noise = full.noise;
        let (goal, rejected) = (Goal::Maximize, &[][..]);
        let ablation =
            Ablation { launches: &launches, goal, winner: &winner, defaults: &defaults, plan: &plan, rejected, noise };
        let AblationStep::Launch(config, _) = ablation.step() else { break confirmation.reduce(full, &ablation) };
        let number = u32::try_from(launches.len()).unwrap();
        // Two values, so that pairs have a small difference in either direction.
        let lost: f64 = if config.get("a").is_none() { 0.2 } else { 0.0 };
        let value = 100.0 * (0.2 - lost + [0.001, -0.001, -0.002, 0.002][launches.len() % 4]).exp();
        let result = LaunchResult::Measured(Score::Feasible { value });
        launches.push(LaunchedTrial { number, origin: Origin::Ablation, config_key: config.key(), result });
    };
    assert_eq!(decision.winner, winner.with_flag_of(&defaults, "b").key());
    let gain = decision.verdict.over_defaults;
    assert_eq!(gain.kind, VerdictKind::Better);
    assert!((gain.gain.unwrap() - 0.2_f64.exp_m1()).abs() < 0.02 && gain.low.unwrap() > 0.15, "{gain:?}");
    assert!((decision.value.unwrap() - 122.0).abs() < 2.0, "{:?}", decision.value);
    let result = decision.ablation.unwrap();
    assert_eq!((result.full_winner, result.is_complete), (winner_key, true));
}
