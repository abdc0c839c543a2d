//! The smallest change that wins: flags of the confirmed winner are put back to the defaults, and compared in pairs.
//!
//! The flags whose effect the model expects to be small are put back together, the others one after the other. A pair has
//! one launch of the present configuration and one without the tested flags, so that drift changes both alike. The order
//! is reversed in every second pair. Flags stay out if no effect is proven; a group with an effect is split into halves.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::MeasuredNoise;
use super::blocks::{BlockLaunch, LaunchBlock, score};
use super::boundary::look_level;
use super::least_squares::BlockFit;
use crate::config::{Config, Value};
use crate::objective::{Goal, LaunchResult, LaunchedTrial, Score};
use crate::stats::{student, to_f64};
use crate::trial::Origin;

/// The largest number of pairs of one test. With a noise of 3 % they prove an effect of 5 % in 97 of 100 tests.
const MAX_PAIRS: u32 = 12;

/// The level of all looks at one test together.
const LEVEL: f64 = 0.05;

/// A smaller effect counts as none, even if launches have too little noise to hide it.
const LEAST_EFFECT: f64 = 0.005;

/// A smaller effect, as a share of the value, is not worth a flag. Also the expected effect below which flags are put
/// back together.
const SMALL_EFFECT: f64 = 0.02;

/// An effect that must not be lost. After the last pair flags stay out if the measured effect is nearer to none than to it.
const LARGE_EFFECT: f64 = 0.05;

/// The smallest number of pairs before flags stay out, and the one-sided error of the bound that is below
/// `SMALL_EFFECT` then.
const MIN_PAIRS: u32 = 2;
const DROP_ERROR: f64 = 0.1;

/// A changed flag of the winner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangedFlag {
    pub name: String,
    /// The share of the value that the model expects to be lost without the flag. `None` without a model.
    pub expected: Option<f64>,
    /// Whether its value is the engine's default, so that it cannot have an effect.
    pub is_default: bool,
}

/// The plan of an ablation. It is stored before the first launch, because later launches change the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AblationPlan {
    /// The number of the first trial.
    pub began_at: u32,
    /// The winner with all of its flags.
    pub winner: String,
    /// The largest number of launches.
    pub launches: u32,
    /// The changed flags, by their expected effect; the smallest first.
    pub flags: Vec<ChangedFlag>,
}

impl AblationPlan {
    /// Plans an ablation of these flags.
    #[must_use]
    pub fn new(began_at: u32, winner: String, launches: u32, mut flags: Vec<ChangedFlag>) -> Self {
        let effect =
            |flag: &ChangedFlag| if flag.is_default { f64::NEG_INFINITY } else { flag.expected.unwrap_or(0.0) };
        flags.sort_by(|a, b| effect(a).total_cmp(&effect(b)).then_with(|| a.name.cmp(&b.name)));
        Self { began_at, winner, launches, flags }
    }

    /// Returns the groups of flags that are put back, in this order.
    fn groups(&self) -> VecDeque<Vec<usize>> {
        let is_small = |flag: &ChangedFlag| flag.is_default || flag.expected.is_none_or(|loss| loss < SMALL_EFFECT);
        let (small, large): (Vec<usize>, Vec<usize>) =
            (0..self.flags.len()).partition(|flag| is_small(&self.flags[*flag]));
        std::iter::once(small)
            .chain(large.into_iter().map(|flag| vec![flag]))
            .filter(|group| !group.is_empty())
            .collect()
    }
}

/// The result of putting a flag back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlagFinding {
    /// The value is worse without it.
    Proven,
    /// Without it a limit is broken, the launch fails, or the configuration is rejected.
    Required,
    /// No effect is proven. The flag is left out.
    NoEffect,
    /// No result: the launches have ended, or the last pair proves neither. The flag stays.
    Unsettled,
}

/// The measured effect of a flag.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlagEffect {
    pub name: String,
    /// The winner's value.
    pub value: Option<Value>,
    pub finding: FlagFinding,
    /// The gain by the flag as a share of the value without it, with its 95 % interval. `None` if it was not measured.
    pub effect: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// The number of pairs of launches.
    pub pairs: u32,
    /// The flags that were put back together with it.
    pub together_with: Vec<String>,
}

impl FlagEffect {
    /// The confidence of the interval.
    pub const CONFIDENCE: f64 = 1.0 - LEVEL;

    /// Returns whether the flag stays in the configuration.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.finding != FlagFinding::NoEffect
    }
}

/// The findings of an ablation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AblationResult {
    /// The winner of the confirmation, with all of its flags.
    pub full_winner: String,
    /// The flags in the order of their results.
    pub flags: Vec<FlagEffect>,
    /// Finished launches.
    pub launches: u32,
    /// Whether no further launch is needed.
    pub is_complete: bool,
}

/// The launches of an ablation, and the configurations to compare.
#[derive(Clone, Copy, Debug)]
pub struct Ablation<'a> {
    /// The launches of the present context, in the order of their numbers.
    pub launches: &'a [LaunchedTrial],
    pub goal: Goal,
    pub winner: &'a Config,
    pub defaults: &'a Config,
    pub plan: &'a AblationPlan,
    /// Keys of configurations that rules or engine reject.
    pub rejected: &'a [String],
    /// The noise that the confirmation has measured.
    pub noise: MeasuredNoise,
}

/// The next step of an ablation.
#[derive(Clone, Debug, PartialEq)]
pub enum AblationStep {
    /// Launch this configuration. Contains the names of the tested flags.
    Launch(Config, Vec<String>),
    /// No further launch is needed, or the launches are used.
    Done,
}

/// The state after the launches so far.
pub(super) struct AblationProgress {
    pub(super) step: AblationStep,
    /// The winner without the flags that had no effect.
    pub(super) config: Config,
    pub(super) result: AblationResult,
    /// The pairs of all tests.
    pub(super) pairs: Vec<(String, String, [Option<f64>; 2])>,
    pub(super) noise: MeasuredNoise,
}

/// The end of one test.
enum TestEnd {
    Decided(FlagFinding),
    Open(Config),
    /// The configuration with the flags has become infeasible.
    Void,
}

/// A test of a group of flags: the present configuration against the one without them.
struct GroupTest {
    scores: Vec<[Option<f64>; 2]>,
    used: usize,
    effect: Option<(f64, f64)>,
    end: TestEnd,
}

impl Ablation<'_> {
    /// Returns the next step.
    #[must_use]
    pub fn step(&self) -> AblationStep {
        self.progress().step
    }

    /// Replays the launches so far.
    pub(super) fn progress(&self) -> AblationProgress {
        let is_own = |trial: &&LaunchedTrial| trial.origin == Origin::Ablation && trial.number >= self.plan.began_at;
        let own: Vec<&LaunchedTrial> = self.launches.iter().filter(is_own).collect();
        let mut queue = self.plan.groups();
        let mut progress = AblationProgress {
            step: AblationStep::Done,
            config: self.winner.clone(),
            result: AblationResult {
                full_winner: self.plan.winner.clone(),
                flags: Vec::new(),
                launches: u32::try_from(own.len()).unwrap_or(u32::MAX),
                is_complete: true,
            },
            pairs: Vec::new(),
            noise: self.noise,
        };
        let mut used = 0;
        while let Some(group) = queue.pop_front() {
            let without = self.without(&progress.config, &group);
            let test = self.test(&own[used..], used, &progress.config, &without, &group, progress.noise);
            used += test.used;
            let (present, other) = (progress.config.key(), without.key());
            let pairs = u32::try_from(test.scores.len()).unwrap_or(u32::MAX);
            progress.noise = with_pairs(progress.noise, &test.scores);
            progress.pairs.extend(test.scores.iter().map(|scores| (present.clone(), other.clone(), *scores)));
            let is_decided = matches!(test.end, TestEnd::Decided(_));
            let finding = match test.end {
                TestEnd::Decided(finding) if finding != FlagFinding::NoEffect && group.len() > 1 => {
                    let (first, second) = group.split_at(group.len() / 2);
                    queue.push_front(second.to_vec());
                    queue.push_front(first.to_vec());
                    continue;
                }
                TestEnd::Decided(finding) => finding,
                TestEnd::Void => FlagFinding::Unsettled,
                TestEnd::Open(config) => {
                    // A pair with one finished launch needs one more.
                    let needed = 2 - test.used % 2;
                    if used + needed <= self.plan.launches as usize {
                        progress.result.is_complete = false;
                        progress.step = AblationStep::Launch(config, self.names(&group));
                    }
                    FlagFinding::Unsettled
                }
            };
            let names = self.names(&group);
            for name in &names {
                progress.result.flags.push(FlagEffect {
                    name: name.clone(),
                    value: self.winner.get(name).cloned(),
                    finding,
                    effect: test.effect.map(|(effect, _)| libm::expm1(effect)),
                    low: test.effect.map(|(effect, half)| libm::expm1(effect - half)),
                    high: test.effect.map(|(effect, half)| libm::expm1(effect + half)),
                    pairs,
                    together_with: names.iter().filter(|other| *other != name).cloned().collect(),
                });
            }
            if finding == FlagFinding::NoEffect {
                progress.config = without;
            } else if !is_decided {
                let rest = queue.drain(..).flatten();
                progress.result.flags.extend(rest.map(|flag| untested(self.winner, &self.plan.flags[flag].name)));
            }
        }
        progress
    }

    fn names(&self, group: &[usize]) -> Vec<String> {
        group.iter().map(|flag| self.plan.flags[*flag].name.clone()).collect()
    }

    /// Returns the configuration with these flags as in the defaults.
    fn without(&self, config: &Config, group: &[usize]) -> Config {
        self.names(group).iter().fold(config.clone(), |config, flag| config.with_flag_of(self.defaults, flag))
    }

    /// Replays the pairs of one test. `before` launches belong to earlier tests.
    fn test(
        &self,
        launches: &[&LaunchedTrial],
        before: usize,
        config: &Config,
        without: &Config,
        group: &[usize],
        noise: MeasuredNoise,
    ) -> GroupTest {
        let keys = [config.key(), without.key()];
        let mut test = GroupTest { scores: Vec::new(), used: 0, effect: None, end: TestEnd::Open(config.clone()) };
        if self.rejected.contains(&keys[1]) {
            test.end = TestEnd::Decided(FlagFinding::Required);
            return test;
        }
        let is_default = group.iter().all(|flag| self.plan.flags[*flag].is_default);
        loop {
            let order = if test.scores.len().is_multiple_of(2) { [0, 1] } else { [1, 0] };
            let mut scores = [None, None];
            for side in order {
                let Some(launch) = launches.get(test.used).filter(|launch| launch.config_key == keys[side]) else {
                    test.end = TestEnd::Open([config, without][side].clone());
                    return test;
                };
                test.used += 1;
                if breaks(launch) {
                    test.end = if side == 0 { TestEnd::Void } else { TestEnd::Decided(FlagFinding::Required) };
                    return test;
                }
                scores[side] = score(launch, self.goal);
            }
            test.scores.push(scores);
            let noise = with_pairs(noise, &test.scores);
            if let Some(finding) = Self::judge(&mut test, noise, is_default) {
                test.end = TestEnd::Decided(finding);
                return test;
            }
            if before + test.used + 2 > self.plan.launches as usize {
                test.end = TestEnd::Open(config.clone());
                return test;
            }
        }
    }

    /// Returns the finding of complete pairs, if there is one, and stores their effect.
    fn judge(test: &mut GroupTest, noise: MeasuredNoise, is_default: bool) -> Option<FlagFinding> {
        let pairs = u32::try_from(test.scores.len()).unwrap_or(u32::MAX);
        let differences: Vec<f64> =
            test.scores.iter().filter_map(|[with, without]| Some((*with)? - (*without)?)).collect();
        let effect = crate::stats::mean(&differences);
        if let (Some(effect), Some(deviation)) = (effect, noise.between_launches) {
            let error = deviation * (2.0 / to_f64(differences.len())).sqrt();
            let freedom = to_f64(noise.freedom);
            let half = student::two_sided_quantile(look_level(pairs.min(MAX_PAIRS), MAX_PAIRS, LEVEL), freedom) * error;
            test.effect = Some((effect, half));
            if effect - half > 0.0 && effect >= LEAST_EFFECT {
                return Some(FlagFinding::Proven);
            }
            let bound = effect + student::two_sided_quantile(2.0 * DROP_ERROR, freedom) * error;
            if pairs >= MIN_PAIRS && bound < SMALL_EFFECT {
                return Some(FlagFinding::NoEffect);
            }
        }
        let is_enough = pairs >= MAX_PAIRS || is_default;
        let is_small = effect.is_some_and(|effect| is_default || effect < LARGE_EFFECT / 2.0);
        is_enough.then_some(if is_small { FlagFinding::NoEffect } else { FlagFinding::Unsettled })
    }
}

fn untested(winner: &Config, name: &str) -> FlagEffect {
    FlagEffect {
        name: name.to_owned(),
        value: winner.get(name).cloned(),
        finding: FlagFinding::Unsettled,
        effect: None,
        low: None,
        high: None,
        pairs: 0,
        together_with: Vec::new(),
    }
}

/// Returns whether a launch breaks a limit, or fails because of its configuration.
fn breaks(launch: &LaunchedTrial) -> bool {
    match launch.result {
        LaunchResult::Failed { is_own } => is_own,
        LaunchResult::Measured(score) => matches!(score, Score::Infeasible { .. }),
    }
}

/// Adds the residuals of pairs to an estimate of the noise.
fn with_pairs(noise: MeasuredNoise, scores: &[[Option<f64>; 2]]) -> MeasuredNoise {
    let blocks: Vec<LaunchBlock<'_>> = scores.iter().map(|scores| block("present", "without", *scores)).collect();
    let Some(fit) = BlockFit::of(&blocks, "present") else { return noise };
    let freedom = noise.freedom + fit.freedom;
    let squares = noise.between_launches.unwrap_or(0.0).powi(2) * to_f64(noise.freedom) + fit.squares;
    let between_launches = (freedom > 0).then(|| (squares / to_f64(freedom)).sqrt());
    MeasuredNoise { between_launches, freedom }
}

/// Returns the launches of a pair as a block.
pub(super) fn block<'a>(config: &'a str, without: &'a str, scores: [Option<f64>; 2]) -> LaunchBlock<'a> {
    [config, without].into_iter().zip(scores).map(|(config, score)| BlockLaunch { config, score }).collect()
}

#[cfg(test)]
#[path = "ablation_tests.rs"]
mod tests;
