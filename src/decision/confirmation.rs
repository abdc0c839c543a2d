//! The next launch of a confirmation, and the decision that its launches support.

use super::ConfirmationPlan;
use super::blocks::{BlockLaunch, LaunchBlock, StudyBlocks, score};
use super::boundary::look_level;
use super::least_squares::{BlockFit, FittedDifference};
use super::verdict::{CONFIDENCE, Decision, GainInterval, MeasuredNoise, Verdict, VerdictKind};
use crate::objective::{Goal, LaunchedTrial, rank};
use crate::stats::{mean, student, to_f64};

/// The level of all intervals of one comparison together.
const LEVEL: f64 = 1.0 - CONFIDENCE;

/// The launches of a study and the configurations to compare.
#[derive(Clone, Copy, Debug)]
pub struct Confirmation<'a> {
    /// The launches of the present context, in the order of their numbers.
    pub launches: &'a [LaunchedTrial],
    pub goal: Goal,
    /// The identifier of the engine's defaults.
    pub defaults: &'a str,
    /// Today's deployment, if it is another configuration than the defaults and was measured.
    pub today: Option<&'a str>,
    pub plan: ConfirmationPlan,
}

/// The next step of a confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfirmationStep<'a> {
    /// Launch the configuration with this identifier.
    Launch(&'a str),
    /// The verdict is final.
    Settled,
    /// The plan's launches are used, or too few are left for a round.
    Spent,
    /// No configuration besides the defaults keeps the limits.
    NoCandidate,
}

/// The rounds of one confirmation, split at the end of the selection.
#[derive(Clone, Copy)]
pub(super) struct ConfirmationRounds<'r, 'a> {
    all: &'r [LaunchBlock<'a>],
    selection: usize,
}

impl<'r, 'a> ConfirmationRounds<'r, 'a> {
    /// Returns the rounds that give the interval: those after the selection.
    pub(super) fn effective(self) -> &'r [LaunchBlock<'a>] {
        self.all.get(self.selection..).unwrap_or_default()
    }

    fn launches(self) -> usize {
        self.all.iter().map(Vec::len).sum()
    }
}

impl<'a> Confirmation<'a> {
    /// Returns the next step. `candidates` are the configurations besides the defaults that keep the limits, the best
    /// first.
    #[must_use]
    pub fn step(&self, candidates: &[&'a str]) -> ConfirmationStep<'a> {
        let blocks = StudyBlocks::of(self.launches, self.goal);
        let rounds = blocks.present_rounds();
        let rounds = self.split(rounds);
        let Some(leader) = self.leader(rounds, candidates) else { return ConfirmationStep::NoCandidate };
        // One more launch of a configuration that looks worse than the defaults would change nothing.
        if !self.plan.has_baselines && self.feasible().first() == Some(&self.defaults) {
            return ConfirmationStep::NoCandidate;
        }
        let is_begun = rounds.all.last().and_then(|round| self.missing(rounds, round, leader, candidates));
        if let Some(missing) = is_begun {
            return self.launch_within(rounds, missing, 1);
        }
        let decided = self.decide_rounds(&blocks, rounds.all);
        if decided.as_ref().is_some_and(|decided| decided.is_settled) {
            return ConfirmationStep::Settled;
        }
        let members = self.members(rounds, rounds.all.len(), leader, candidates, decided.as_ref());
        match members.first() {
            Some(first) => self.launch_within(rounds, first, members.len()),
            None => ConfirmationStep::Settled,
        }
    }

    /// Returns the decision of the present confirmation. `None` before one of its launches was measured, and after further
    /// trials of the search.
    #[must_use]
    pub fn decide(&self) -> Option<Decision> {
        let blocks = StudyBlocks::of(self.launches, self.goal);
        self.decide_rounds(&blocks, blocks.present_rounds())
    }

    pub(super) fn split<'r>(&self, rounds: &'r [LaunchBlock<'a>]) -> ConfirmationRounds<'r, 'a> {
        ConfirmationRounds { all: rounds, selection: self.plan.selection_rounds as usize }
    }

    fn launch_within(
        &self,
        rounds: ConfirmationRounds<'_, 'a>,
        config: &'a str,
        needed: usize,
    ) -> ConfirmationStep<'a> {
        let is_enough = rounds.launches() + needed <= self.plan.launches as usize;
        if is_enough { ConfirmationStep::Launch(config) } else { ConfirmationStep::Spent }
    }

    /// Returns the configuration that is confirmed: that of the last rounds, else the first of the ranking that took
    /// part in the selection, else the first of the ranking.
    fn leader(&self, rounds: ConfirmationRounds<'_, 'a>, candidates: &[&'a str]) -> Option<&'a str> {
        let is_candidate = |config: &str| candidates.contains(&config);
        let is_rival = |config: &str| config != self.defaults && self.today != Some(config);
        let mut later = rounds.effective().iter().rev().flatten().map(|launch| launch.config);
        let confirmed = later.find(|config| is_rival(config) && is_candidate(config));
        let took_part = |config: &&&'a str| {
            rounds.all.iter().take(rounds.selection).flatten().any(|launch| launch.config == **config)
        };
        let selected = || candidates.iter().find(took_part).copied();
        confirmed.or_else(selected).or_else(|| candidates.first().copied())
    }

    /// Returns the configurations of the round with this index, in the order of their launches.
    fn members(
        &self,
        rounds: ConfirmationRounds<'_, 'a>,
        index: usize,
        leader: &'a str,
        candidates: &[&'a str],
        decided: Option<&Decision>,
    ) -> Vec<&'a str> {
        let mut members: Vec<&'a str> = Vec::new();
        if index < rounds.selection {
            let begun = rounds.all.iter().flatten().map(|launch| launch.config);
            let known = begun.filter(|config| candidates.contains(config)).chain(candidates.iter().copied());
            for config in known {
                if members.len() < self.plan.finalists as usize && !members.contains(&config) {
                    members.push(config);
                }
            }
        } else {
            members.push(leader);
            // A settled comparison needs no further launches of its baseline.
            let is_open = |gain: Option<&GainInterval>| gain.is_none_or(|gain| !gain.is_decided());
            let verdict = decided.map(|decided| &decided.verdict);
            let is_today_open = is_open(verdict.and_then(|verdict| verdict.over_today.as_ref()));
            let are_defaults_open = is_open(verdict.map(|verdict| &verdict.over_defaults));
            let baselines = [(self.today, is_today_open), (Some(self.defaults), are_defaults_open)];
            let baselines = baselines.into_iter().filter(|(_, is_open)| *is_open && self.plan.has_baselines);
            members.extend(baselines.filter_map(|(config, _)| config).filter(|config| *config != leader));
        }
        if index % 2 == 1 {
            members.reverse();
        }
        members
    }

    /// Returns the first configuration that the begun round `round` lacks.
    fn missing(
        &self,
        rounds: ConfirmationRounds<'_, 'a>,
        round: &LaunchBlock<'a>,
        leader: &'a str,
        candidates: &[&'a str],
    ) -> Option<&'a str> {
        let before = self.split(&rounds.all[..rounds.all.len() - 1]);
        let blocks = StudyBlocks::of(self.launches, self.goal);
        let decided = self.decide_rounds(&blocks, before.all);
        let members = self.members(rounds, before.all.len(), leader, candidates, decided.as_ref());
        members.into_iter().find(|member| round.iter().all(|launch| launch.config != *member))
    }

    /// Returns the decision of these rounds. `None` without a measured candidate.
    fn decide_rounds(&self, blocks: &StudyBlocks<'a>, rounds: &[LaunchBlock<'a>]) -> Option<Decision> {
        let feasible = self.feasible();
        let is_feasible = |config: &str| feasible.contains(&config);
        let candidates: Vec<&'a str> = feasible.iter().copied().filter(|config| *config != self.defaults).collect();
        let rounds = self.split(rounds);
        let is_measured = |config: &&str| {
            rounds.all.iter().flatten().any(|launch| launch.config == *config && launch.score.is_some())
        };
        // Without the baselines in its rounds, a confirmation is one more launch, and the means decide.
        let leader = if self.plan.has_baselines {
            self.leader(rounds, &candidates).filter(is_measured)?
        } else {
            feasible.first().copied()?
        };
        let noise = noise_of(&self.noise_blocks(blocks, rounds, leader));
        let effective = self.effect_blocks(rounds, leader);
        let fit = BlockFit::of(&effective, leader)?;
        let level = self.level(rounds, leader);
        let gain = |baseline: &str| {
            let Some(difference) = fit.difference(leader, baseline) else {
                return GainInterval::unmeasured(VerdictKind::NoClearWinner);
            };
            // The selection alone is no evidence: its leader was chosen by the same launches.
            let is_selection = self.plan.has_baselines && rounds.effective().is_empty();
            let known = if is_selection { MeasuredNoise::default() } else { noise };
            interval(difference, known, level)
        };
        let mut over_defaults = gain(self.defaults);
        let mut over_today = self.today.map(|today| if today == leader { GainInterval::NONE } else { gain(today) });
        let mut winner = leader;
        // The interval settles a gain over a baseline that breaks a limit as well. A baseline that never served has none.
        let never_served = |config: &'a str| self.launches_of(config).all(|launch| launch.score.is_none());
        let settles = |config: &'a str, gain: &GainInterval| gain.is_decided() || never_served(config);
        let is_settled = settles(self.defaults, &over_defaults)
            && self.today.zip(over_today.as_ref()).is_none_or(|(today, over)| settles(today, over));
        if !is_feasible(self.defaults) {
            over_defaults.kind = VerdictKind::Better;
        } else if over_defaults.gain.is_some_and(|gain| gain < 0.0) {
            let kind = if over_defaults.is_loss() { VerdictKind::EqualWithinNoise } else { over_defaults.kind };
            winner = self.defaults;
            over_defaults = GainInterval { kind, ..GainInterval::NONE };
            over_today = self
                .today
                .and_then(|today| fit.difference(winner, today))
                .map(|difference| interval(difference, noise, level));
        }
        if let Some(over) = over_today.as_mut().filter(|_| self.today.is_some_and(|today| !is_feasible(today))) {
            over.kind = VerdictKind::Better;
        }
        let has_rounds = self.plan.has_baselines && !rounds.effective().is_empty();
        let value = |config: &str| self.mean_value(&effective, config);
        Some(Decision {
            winner: winner.to_owned(),
            value: value(winner),
            defaults_value: value(self.defaults),
            today_value: self.today.and_then(value),
            verdict: Verdict { over_defaults, over_today },
            noise,
            launches: u32::try_from(rounds.launches()).unwrap_or(u32::MAX),
            rounds: u32::try_from(rounds.all.len()).unwrap_or(u32::MAX),
            is_settled: has_rounds && is_settled,
            ablation: None,
        })
    }

    /// Returns the configurations that keep the limits, the best mean first.
    pub(super) fn feasible(&self) -> Vec<&'a str> {
        let first = |number: u32| self.launches.iter().find(|trial| trial.number == number);
        let ranked = rank(self.launches, self.goal).into_iter();
        ranked.filter_map(|value| first(value.first)).map(|trial| trial.config_key.as_str()).collect()
    }

    /// Returns the probability that an interval of the present look misses the truth.
    pub(super) fn level(&self, rounds: ConfirmationRounds<'_, 'a>, leader: &str) -> f64 {
        let of_leader = |round: &&LaunchBlock<'_>| round.iter().any(|launch| launch.config == leader);
        let looks = rounds.effective().iter().filter(of_leader).count();
        let looks = u32::try_from(looks).unwrap_or(u32::MAX).max(1);
        look_level(looks, self.plan.rounds.max(looks), LEVEL)
    }

    /// Returns the blocks that give the gain. Without rounds that contain the baselines, it is one block of all launches
    /// of the baselines and the confirming launches of the leader.
    fn effect_blocks(&self, rounds: ConfirmationRounds<'_, 'a>, leader: &'a str) -> Vec<LaunchBlock<'a>> {
        if self.plan.has_baselines && !rounds.effective().is_empty() {
            return rounds.effective().to_vec();
        }
        let baselines = [Some(self.defaults), self.today].into_iter().flatten().filter(|config| *config != leader);
        let is_of_leader = |launch: &&BlockLaunch<'_>| launch.config == leader;
        let mut own: LaunchBlock<'a> = rounds.all.iter().flatten().filter(is_of_leader).copied().collect();
        if own.is_empty() {
            own = self.launches_of(leader).collect();
        }
        vec![baselines.flat_map(|config| self.launches_of(config)).chain(own).collect()]
    }

    /// Returns the blocks that give the noise: those of the effects, and repeated launches.
    fn noise_blocks(
        &self,
        blocks: &StudyBlocks<'a>,
        rounds: ConfirmationRounds<'_, 'a>,
        leader: &'a str,
    ) -> Vec<LaunchBlock<'a>> {
        if self.plan.has_baselines {
            return rounds.all.iter().chain(&blocks.repeats).cloned().collect();
        }
        let defaults = self.launches_of(self.defaults).filter(|_| leader != self.defaults);
        vec![defaults.chain(self.launches_of(leader)).collect()]
    }

    fn launches_of(&self, config: &'a str) -> impl Iterator<Item = BlockLaunch<'a>> {
        let of = move |trial: &&LaunchedTrial| trial.config_key == config && trial.origin.is_ranked();
        let goal = self.goal;
        self.launches.iter().filter(of).map(move |trial| BlockLaunch { config, score: score(trial, goal) })
    }

    /// Returns the geometric mean of a configuration's values in these blocks.
    fn mean_value(&self, blocks: &[LaunchBlock<'_>], config: &str) -> Option<f64> {
        let scores: Vec<f64> = blocks
            .iter()
            .flatten()
            .filter(|launch| launch.config == config)
            .filter_map(|launch| launch.score)
            .collect();
        mean(&scores).map(|mean| match self.goal {
            Goal::Maximize => libm::exp(mean),
            Goal::Minimize => libm::exp(-mean),
        })
    }
}

/// Estimates the noise of a launch from blocks. Blocks without a common configuration contribute separately.
fn noise_of(blocks: &[LaunchBlock<'_>]) -> MeasuredNoise {
    let (mut squares, mut freedom) = (0.0, 0);
    let mut seen: Vec<&str> = Vec::new();
    for config in blocks.iter().flatten().filter(|launch| launch.score.is_some()).map(|launch| launch.config) {
        if seen.contains(&config) {
            continue;
        }
        let Some(fit) = BlockFit::of(blocks, config) else { continue };
        seen.extend(fit.configs());
        squares += fit.squares;
        freedom += fit.freedom;
    }
    let between_launches = (freedom > 0).then(|| (squares / to_f64(freedom)).sqrt());
    MeasuredNoise { between_launches, freedom }
}

/// Returns the interval of a difference that misses the truth with the probability `level`.
pub(super) fn interval(difference: FittedDifference, noise: MeasuredNoise, level: f64) -> GainInterval {
    let half = noise.between_launches.map(|deviation| {
        student::two_sided_quantile(level, to_f64(noise.freedom)) * deviation * difference.unit_variance.sqrt()
    });
    GainInterval::of(difference.value, half, noise.between_launches)
}

/// Returns the number of the first trial of the present confirmation. `None` if none has begun since the last trial of
/// the search.
#[must_use]
pub fn confirmation_begin(launches: &[LaunchedTrial], goal: Goal) -> Option<u32> {
    let blocks = StudyBlocks::of(launches, goal);
    blocks.began_at.filter(|_| !blocks.is_search_last)
}

/// Returns the noise between launches by all repeated launches of a study.
#[must_use]
pub fn launch_noise(launches: &[LaunchedTrial], goal: Goal) -> MeasuredNoise {
    let blocks = StudyBlocks::of(launches, goal);
    let blocks: Vec<_> = blocks.repeats.iter().chain(blocks.confirmations.iter().flatten()).cloned().collect();
    noise_of(&blocks)
}
