//! The scheduler of a run: it chooses the next launch and its slots, learns from the outcomes, and ends the run.

mod ablation;
mod budget_split;
mod clock;
mod expected_load;
mod failed_starts;
mod confirm;
mod first_points;
mod interference_trials;
mod joint_values;
mod judge;
mod looks;
mod prior;
mod probe;
mod propose;
mod rule_test;
mod launch_costs;
mod slot_failures;
mod unmodelled;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use self::clock::RunClock;
use self::failed_starts::{FailedStarts, MAX_FAILED_STARTS};
use self::joint_values::JointValues;
use self::launch_costs::LaunchCostHistory;
use self::looks::WaitingServer;
use self::probe::Probe;
pub(super) use self::slot_failures::FailureClass;
use self::slot_failures::SlotFailures;
use super::estimate::{FigureSource, estimate};
use super::journal::Journal;
use super::launcher::{EndedOrder, EndedTrial, LaunchEnd, LaunchEvent, LaunchOrder, LookOrder};
use super::preflighter::Preflighter;
use super::race::race_target;
use super::run::StudyRun;
use super::slots::{SlotPlace, SlotPool};
use super::study_calibration::may_calibrate;
use super::{BudgetPlan, StopRequest, StudyEnding, TrialPhase, TuneError, TunerEvent, read_learned_memory};
use crate::config::Config;
use crate::engine::LiveHelper;
use crate::job::{JobSearch, past_trial};
use crate::memory::LearnedMemory;
use crate::metrics::RaceTarget;
use crate::rule::{Finding, SpaceRemoval};
use crate::sampler::{PastTrial, SamplerPrior};
use crate::server::LeftBehind;
use crate::store::{ScoredTrial, StoredProposal};
use crate::trial::{FailureKind, LiveKnob, Origin, Outcome, Proposal, Rejection, Trial};

/// The number of rejected configurations in a row after which the space counts as having no valid one.
const MAX_REJECTED_IN_ROW: usize = 1000;

/// The largest expected duration of a launch that the plan uses.
const MAX_EXPECTED_LAUNCH: Duration = Duration::from_hours(24);

/// A trial that has a number and no outcome.
#[derive(Clone, Debug)]
pub(super) struct PendingTrial {
    pub(super) proposal: Proposal,
    /// Whether it needs no further check by the rules and the engine.
    checked: bool,
    /// The number of failed launches in a row that ends the retries. Only failures of the environment count.
    pub(super) max_failures: u32,
    /// Failures that a probe has attributed to configurations.
    pub(super) own_failures: Arc<[FailureClass]>,
    /// Whether it runs without neighbours, because they may have taken the memory that it lacked.
    needs_isolation: bool,
    /// The value that its load must be able to reach, if it races.
    pub(super) race: Option<Box<RaceTarget>>,
    /// The expected value of the highest load, in a study that searches for it.
    pub(super) expected_load: Option<f64>,
    /// The helper for live looks on its server.
    pub(super) live_helper: Option<&'static LiveHelper>,
}

/// The next step of a run.
#[expect(clippy::large_enum_variant, reason = "one for each launch and look")]
pub(super) enum NextAction {
    Launch(LaunchOrder),
    /// The waiting server of a trial takes a live look.
    Look {
        server_of: u32,
        order: Box<LookOrder>,
    },
    /// The waiting server of a trial ends.
    Release {
        server_of: u32,
    },
    /// A proposal was rejected before its launch. The caller asks for the next step again.
    AskAgain,
    /// Nothing, until one of the running launches has ended.
    Wait,
    End(StudyEnding),
}

/// The search space under the present rules.
struct SearchScope<'a> {
    search: JobSearch<'a>,
    /// The part of the space that the rules remove.
    removal: SpaceRemoval,
    /// Whether the rules reject every configuration.
    empty: bool,
}

/// Chooses the launches of a run and learns from their outcomes. A later run rebuilds most of this state from the
/// database.
pub(super) struct Scheduler<'r> {
    run: &'r StudyRun<'r>,
    journal: &'r Journal<'r>,
    preflighter: &'r Preflighter<'r>,
    /// Whether the installed engine was already asked about wrong rules.
    rules_checked: bool,
    /// The configuration of [`Job::repeat`](crate::job::Job), until this run has proposed it.
    repeat: Option<Config>,
    scope: SearchScope<'r>,
    /// The memory model's observations of earlier starts.
    learned_memory: LearnedMemory,
    clock: RunClock,
    /// The key of the best feasible configuration.
    best_key: Option<String>,
    /// The key of the winner of the settled confirmations.
    settled_winner: Option<String>,
    /// The keys of winners of other settled confirmations, whose gain was smaller.
    beaten_winners: Vec<String>,
    /// The first trial of the confirmation whose winner's ablation is under way.
    open_ablation: Option<u32>,
    /// The plan that was last shown.
    plan: Option<BudgetPlan>,
    /// Every proposal, in the order of their numbers.
    history: Vec<PastTrial>,
    /// The values of the launches on several workloads.
    joint_values: JointValues,
    /// Priors from the twin and from earlier studies.
    priors: Vec<SamplerPrior>,
    /// The number of trials that calibrated the twin's prior.
    calibrated_trials: usize,
    /// The durations in seconds of the trials that may calibrate it, in the order of their ends.
    calibrating_s: Vec<f64>,
    /// Costs of the study's launches; `None` for the simulated engine, and if the twin cannot simulate this engine's
    /// start.
    launch_costs: Option<LaunchCostHistory>,
    /// Notices of the sampler's model that were already shown.
    noticed: BTreeSet<String>,
    /// Trials that an earlier run has left without an outcome, and trials that found no free slots yet.
    waiting: VecDeque<PendingTrial>,
    pool: SlotPool,
    /// The number of concurrent trials, once their interference is known.
    at_a_time: Option<usize>,
    /// Running launches, by their numbers.
    running: BTreeMap<u32, RunningTrial>,
    /// Finished trials that count for the budget.
    launched: u32,
    /// Whether any trial of the present context was measured.
    measured_any: bool,
    rejected_in_row: usize,
    failed_starts: FailedStarts,
    slot_failures: SlotFailures,
    probes: Vec<Probe>,
    /// Whether the environment was found broken, so that the run ends.
    paused: bool,
    /// Rules that no configuration can test.
    untestable: BTreeSet<&'static str>,
    /// The helper for live looks; `None` if the study has none.
    live_helper: Option<&'static LiveHelper>,
    /// The knobs of the last server that offered live looks.
    live_knobs: Option<Vec<LiveKnob>>,
    /// The seconds of the load of the first such server. A look takes about as long.
    first_look_s: Option<f64>,
    /// The measured server that waits for live looks.
    server: Option<WaitingServer>,
}

/// A running launch.
struct RunningTrial {
    /// Whether no other launch may begin beside it.
    alone: bool,
    /// Whether it counts for the budget.
    is_paid: bool,
}

impl<'r> Scheduler<'r> {
    /// Creates the scheduler from the stored trials, the priors and the rules.
    ///
    /// # Errors
    /// If the database cannot be used.
    pub(super) async fn open(
        run: &'r StudyRun<'r>,
        journal: &'r Journal<'r>,
        preflighter: &'r Preflighter<'r>,
    ) -> Result<Self, TuneError> {
        let (job, study) = (run.job, &run.study);
        let proposed = run.store.proposals(study).await?;
        let stored = proposed.iter().filter(|row| row.state != "running").count();
        let was = |row: &&StoredProposal| {
            matches!(&*row.state, "measured" | "failed") && row.proposal.origin.counts_against_budget()
        };
        let launched = u32::try_from(proposed.iter().filter(was).count()).unwrap_or(u32::MAX);
        let measured_any = proposed.iter().any(|row| row.state == "measured" && !row.is_earlier);
        let outcomes = run.store.present_trials(study).await?;
        let spent = LaunchCostHistory::read(run, &outcomes).await?;
        let launches: Vec<Trial> = outcomes.iter().map(|scored| scored.trial.clone()).collect();
        let mut clock = RunClock::new(run.time.clone(), job.budget.time, expected_launch(run).await?);
        let startups = run.store.startups(study).await?;
        for trial in &launches {
            clock.learn(trial, startups.get(&trial.proposal.number));
        }
        let joint_values = JointValues::of(&job.objective, &launches);
        let (history, waiting) = propose::read(proposed, outcomes, &job.objective);
        let best = run.store.best(study, job.objective.goal, 1).await?.pop();
        let best_key = best.as_ref().map(|best| best.first.trial.proposal.config.key());
        let best = best.map(|best| best.value);
        run.emit(TunerEvent::Begin { study: job.name.clone(), stored, launched, best });
        let installed = &run.installed;
        let search = job.search(installed.version, installed.device, installed.host);
        let scope = scope(run, Box::pin(rule_test::set_refuted_rules_aside(run, search)).await?);
        // Priors take seconds to compute, and nothing runs yet that would have to wait. They are computed before memory
        // observations are read, so that a resumed run begins with equal priors.
        let calibrating_s: Vec<f64> =
            launches.iter().filter(|trial| may_calibrate(trial)).map(|trial| trial.elapsed_s).collect();
        let mut noticed = BTreeSet::new();
        let calibrated_trials = prior::calibrated_trials(run, &calibrating_s);
        let priors = prior::read(run, &scope.search, calibrated_trials, &mut noticed).await?;
        let known = read_learned_memory(job, installed, run.store).await?;
        let scope = match preflighter.contradicted_before(&scope.removal).await? {
            [] => scope,
            wrong => {
                let aside = [scope.search.facts.contradicted_rules, wrong].concat();
                self::scope(run, scope.search.without_rules(rule_test::leak_rules(aside)))
            }
        };
        let mut scheduler = Self {
            run,
            journal,
            preflighter,
            rules_checked: false,
            repeat: job.repeat.clone(),
            scope,
            learned_memory: known,
            clock,
            best_key,
            settled_winner: None,
            beaten_winners: Vec::new(),
            open_ablation: None,
            plan: None,
            history,
            joint_values,
            priors,
            calibrated_trials,
            calibrating_s,
            launch_costs: spent,
            noticed,
            waiting,
            at_a_time: (run.slots.parallel() == 1).then_some(1),
            pool: SlotPool::new(run.slots.clone()),
            running: BTreeMap::new(),
            launched,
            measured_any,
            rejected_in_row: 0,
            failed_starts: FailedStarts::default(),
            slot_failures: SlotFailures::default(),
            probes: Vec::new(),
            paused: false,
            untestable: BTreeSet::new(),
            live_helper: looks::live_helper(run),
            live_knobs: None,
            first_look_s: None,
            server: None,
        };
        scheduler.store_deployment().await?;
        // The last run may have ended between a launch and its decision.
        Box::pin(scheduler.decide()).await?;
        scheduler.show_plan();
        scheduler.rebuild_failures(launches).await?;
        scheduler.limit_paused_retries().await?;
        scheduler.queue_new_baseline();
        Ok(scheduler)
    }

    /// Returns the next step, given the running launches.
    pub(super) async fn next(&mut self) -> Result<NextAction, TuneError> {
        if self.run.stop() > StopRequest::No {
            return Ok(NextAction::End(StudyEnding::Interrupted));
        }
        if let Some(step) = self.next_server_step().await? {
            return Ok(step);
        }
        let most = self.at_a_time.unwrap_or_else(|| self.run.slots.parallel());
        if self.running.len() >= most || self.running.values().any(|running| running.alone) {
            return Ok(NextAction::Wait);
        }
        if self.at_a_time.is_none() && self.running.is_empty() {
            self.judge_interference().await?;
        }
        if !self.is_time_spent()
            && let Some(next) = self.launch_probe().await?
        {
            return Ok(next);
        }
        // A trial that no longer fits into the time keeps its number for the next run.
        let first = self.waiting.iter().position(|waiting| self.has_time_for(waiting));
        let pending = match first.and_then(|first| self.waiting.remove(first)) {
            Some(pending) => pending,
            None => match self.propose().await? {
                ControlFlow::Continue(pending) => pending,
                ControlFlow::Break(next) => return Ok(next),
            },
        };
        self.admit(pending).await
    }

    fn is_time_spent(&self) -> bool {
        !self.clock.has_time(Duration::ZERO)
    }

    /// Asks the engine which rules are wrong, and sets these aside. Returns `false` if a stop was requested first.
    async fn check_rules_with_engine(&mut self) -> Result<bool, TuneError> {
        self.report_checking(self.history.len());
        let work = self.preflighter.find_contradicted_rules(&self.scope.removal);
        let Some(wrong) = self.run.unless_stopped(work).await? else { return Ok(false) };
        self.rules_checked = true;
        if !wrong.is_empty() {
            self.set_rules_aside(&wrong);
        }
        Ok(true)
    }

    fn report_checking(&self, number: usize) {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.run.emit(TunerEvent::Phase { number, phase: TrialPhase::Checking });
    }

    /// Checks a proposal and finds slots for it.
    async fn admit(&mut self, mut pending: PendingTrial) -> Result<NextAction, TuneError> {
        let absent = self.preflighter.missing_packages().await;
        let mut aside = self.scope.search.facts.contradicted_rules.to_vec();
        let tested = Box::pin(self.tested_rule(&pending.proposal)).await?;
        aside.extend(tested);
        let mut search = self.scope.search.with_learned(&self.learned_memory, absent.as_ref());
        if tested.is_some() {
            search = search.without_rules(&aside);
        }
        let needed = self.pool.needed(search.devices_needed(&pending.proposal.config));
        // A measurement outweighs the rules and the preflight.
        let has_worked = |past: &PastTrial| past.config == pending.proposal.config && past.measured().is_some();
        if !pending.checked && !self.history.iter().any(has_worked) {
            let Proposal { number, config, .. } = &pending.proposal;
            self.report_checking(*number as usize);
            let work = self.preflighter.rejection(*number, config, &search);
            let Some(rejection) = self.run.unless_stopped(work).await? else {
                self.waiting.push_front(pending);
                return Ok(NextAction::End(StudyEnding::Interrupted));
            };
            if self.scope.empty
                && rejection.is_none()
                && tested.is_none()
                && Box::pin(self.find_rule_test()).await?.is_none()
            {
                return Ok(NextAction::End(StudyEnding::NothingAllowed(self.scope.removal.clone())));
            }
            if let Some(finding) = rejection {
                return Ok(self.reject(pending.proposal, finding).await?.map_or(NextAction::AskAgain, NextAction::End));
            }
            pending.checked = true;
        }
        let number = pending.proposal.number;
        if self.running.is_empty() && needed > self.pool.remaining_count() {
            return Err(TuneError::TooFewSlots { number, needed, left: self.pool.remaining_count() });
        }
        if self.running.is_empty() && needed > self.pool.usable() {
            // A slot that was set aside is better than none.
            self.pool.restore_all();
        }
        let alone = pending.needs_isolation || pending.proposal.origin.runs_alone();
        let place = if alone && !self.running.is_empty() {
            None
        } else {
            self.pool.take_with(number, &self.wanted_slots(number), needed, alone)
        };
        let Some(place) = place else {
            // Its number is taken, and a later trial may be stored before it is launched.
            self.journal.reserve(&pending.proposal).await?;
            self.waiting.push_front(pending);
            return Ok(NextAction::Wait);
        };
        self.begin(pending, place).await
    }

    /// Stores a proposal as running, and returns its launch.
    async fn begin(&mut self, mut pending: PendingTrial, place: SlotPlace) -> Result<NextAction, TuneError> {
        self.rejected_in_row = 0;
        pending.own_failures = self.slot_failures.own_failures();
        pending.race = race_target(self.run, &pending.proposal.origin).await?.map(Box::new);
        pending.expected_load = self.expected_load(&pending.proposal.config).await;
        pending.live_helper = self.helper_for(&pending.proposal.origin);
        let proposal = &pending.proposal;
        self.journal.reserve(proposal).await?;
        let running = RunningTrial { alone: place.alone, is_paid: proposal.origin.counts_against_budget() };
        self.running.insert(proposal.number, running);
        self.run.emit(TunerEvent::Launch(proposal.clone()));
        Ok(NextAction::Launch(LaunchOrder { pending, place }))
    }

    async fn reject(&mut self, proposal: Proposal, finding: Finding) -> Result<Option<StudyEnding>, TuneError> {
        let rejection = Rejection { rule: finding.rule.to_owned(), message: finding.message };
        self.rejected_in_row += 1;
        let trial = self.journal.rejected(proposal, rejection);
        let scored = self.record(trial.into()).await?;
        let (rejected, last) = (self.rejected_in_row, scored.trial.outcome.reason().unwrap_or_default());
        Ok((rejected >= MAX_REJECTED_IN_ROW).then_some(StudyEnding::NothingValid { rejected, last }))
    }

    /// Processes an event of a launch. Returns an ending if the run is to end.
    pub(super) async fn process(&mut self, event: LaunchEvent) -> Result<Option<StudyEnding>, TuneError> {
        match event {
            LaunchEvent::Measured { ended, knobs } => self.process_measured(*ended, knobs).await.map(|()| None),
            LaunchEvent::Looked { ended, is_usable } => self.process_look(*ended, is_usable).await.map(|()| None),
            LaunchEvent::Ended(ended) => self.process_end(ended).await,
        }
    }

    /// Processes the end of a launch. Returns an ending if the run is to end.
    async fn process_end(&mut self, ended: EndedOrder) -> Result<Option<StudyEnding>, TuneError> {
        let EndedOrder { order: LaunchOrder { pending, place }, result } = ended;
        let number = pending.proposal.number;
        self.running.remove(&number);
        let (slots, was_alone) = (place.slots.clone(), place.alone || self.at_a_time == Some(1));
        self.pool.give_back(place);
        let is_interrupted = matches!(result, Ok(LaunchEnd::RunEnded(_)));
        let is_recorded = self.forget_server(number, is_interrupted).await?;
        let end = match result {
            Ok(end) => end,
            Err(TuneError::LeftBehind(left_behind)) => {
                if !is_recorded {
                    self.waiting.push_front(pending);
                }
                return self.remove_slots(number, slots, left_behind).map(|()| None);
            }
            Err(error) => return Err(error),
        };
        if pending.proposal.origin == Origin::Probe {
            return Box::pin(self.process_probe_end(pending, slots, end)).await;
        }
        let (mut ended, launches) = match end {
            LaunchEnd::Outcome(ended) => (ended, 1),
            LaunchEnd::RunEnded(ending) => return Ok(Some(ending)),
            LaunchEnd::Reported { left_behind: None } => return Ok(None),
            LaunchEnd::Reported { left_behind: Some(left_behind) } => {
                return self.remove_slots(number, slots, left_behind).map(|()| None);
            }
            // No second pause: the trial has already had one, or a probe has started in spite of such failures.
            LaunchEnd::Unresolved(unresolved)
                if pending.max_failures == 1 || self.slot_failures.is_own(&unresolved.last.failure) =>
            {
                (unresolved.ended, unresolved.failures)
            }
            LaunchEnd::Unresolved(_) if self.paused => return Ok(None),
            LaunchEnd::Unresolved(unresolved) => return Box::pin(self.hold_trial(pending, slots, unresolved)).await,
        };
        let left_behind = ended.left_behind.take();
        if left_behind.is_none() && !was_alone && self.repeat_without_neighbours(&pending, &ended).await? {
            self.waiting.push_front(PendingTrial { needs_isolation: true, ..pending });
            return Ok(None);
        }
        self.launched += u32::from(pending.proposal.origin.counts_against_budget());
        let scored = Box::pin(self.record(ended)).await?;
        if let Some(left_behind) = left_behind {
            self.remove_slots(number, slots.clone(), left_behind)?;
        }
        if let Some(ending) = Box::pin(self.track_outcome(&scored.trial, slots, launches)).await? {
            return Ok(Some(ending));
        }
        let (failures, last) = (self.failed_starts.count(), scored.trial.outcome.reason().unwrap_or_default());
        let broken = !self.measured_any && self.probes.is_empty() && failures >= MAX_FAILED_STARTS;
        Ok(broken.then_some(StudyEnding::EngineBroken { failures, last }))
    }

    /// Decides whether a trial is repeated without neighbours, and stores its failure as an incident if so. All
    /// neighbours share the host's memory, and the launch that is ended may have taken the least. An interference trial
    /// is not repeated, because its failure is a result (`judge_interference`).
    async fn repeat_without_neighbours(&self, pending: &PendingTrial, ended: &EndedTrial) -> Result<bool, TuneError> {
        let trial = &ended.trial;
        let failure = trial.outcome.failure().filter(|failure| failure.kind == FailureKind::HostMemory);
        let Some(failure) =
            failure.filter(|_| !pending.needs_isolation && pending.proposal.origin.counts_against_budget())
        else {
            return Ok(false);
        };
        let incident = self.journal.append_incident(trial.proposal.number, failure, trial.log.as_deref()).await?;
        self.run.emit(TunerEvent::Retry { incident: Box::new(incident), wait: Duration::ZERO });
        Ok(true)
    }

    /// Removes slots after a launch has left processes behind, which may occupy the devices for ever. The run continues
    /// on the other slots.
    ///
    /// # Errors
    /// If no slot is usable.
    fn remove_slots(&mut self, number: u32, slots: Vec<usize>, left_behind: LeftBehind) -> Result<(), TuneError> {
        self.pool.mark_lost(&slots);
        if self.pool.usable() == 0 {
            return Err(left_behind.into());
        }
        self.run.emit(TunerEvent::SlotsSetAside { number, slots, why: left_behind.to_string() });
        Ok(())
    }

    /// Stores an outcome, learns from it, and reports it.
    async fn record(&mut self, ended: EndedTrial) -> Result<ScoredTrial, TuneError> {
        let EndedTrial { trial, records, .. } = ended;
        let (run, goal) = (self.run, self.run.job.objective.goal);
        let objective = &run.job.objective;
        let (score, rescored) = self.joint_values.score(objective, &trial, &self.history);
        let lost = records.answers.as_ref().map_or(0.0, |answers| answers.violation(run.job.guard.min_agreement));
        let score = score.with_further_violation(lost);
        Box::pin(self.journal.append(&trial, score, &records, &rescored)).await?;
        joint_values::replace(&mut self.history, &rescored);
        // The outcome is read back from the database, so that the history equals that of a resumed run.
        let stored = run.store.trial(&self.run.study, trial.proposal.number).await?;
        if let Some(stored) = stored.filter(|_| (trial.proposal.number as usize) < self.history.len()) {
            if let Some(spent) = &mut self.launch_costs {
                spent.add(&stored.trial, run.store.startup(&self.run.study, trial.proposal.number).await?);
            }
            let server_of = stored.trial.proposal.server_of;
            let past = past_trial(objective, stored.trial, stored.score);
            let past = looks::with_server(past, server_of, &self.history);
            self.history[trial.proposal.number as usize] = past;
        }
        self.clock.learn_now(&trial, records.startup.as_ref());
        if may_calibrate(&trial) {
            self.calibrating_s.push(trial.elapsed_s);
        }
        if trial.log.is_some() {
            self.learned_memory = read_learned_memory(run.job, &run.installed, run.store).await?;
        }
        self.count(&trial);
        let scored = ScoredTrial { trial, score };
        let best = run.store.best(&self.run.study, goal, 1).await?.pop();
        let improves =
            best.as_ref().is_some_and(|best| best.first.trial.proposal.number == scored.trial.proposal.number);
        self.best_key = best.as_ref().map(|best| best.first.trial.proposal.config.key());
        if matches!(scored.trial.proposal.origin, Origin::Confirmation | Origin::Ablation) {
            Box::pin(self.decide()).await?;
        }
        let (best, launched) = (best.map(|best| best.value), self.launched);
        run.emit(TunerEvent::TrialEnded { trial: Box::new(scored.clone()), improves, best, launched });
        self.show_plan();
        Box::pin(self.conclude_rule_test(&scored)).await?;
        Ok(scored)
    }

    fn count(&mut self, trial: &Trial) {
        match &trial.outcome {
            Outcome::Rejected(_) => {}
            Outcome::Failed(_) if matches!(trial.proposal.origin, Origin::RuleTest | Origin::LiveLook) => {}
            Outcome::Failed(failure) => self.failed_starts.add(failure),
            Outcome::Measured(_) => self.measured_any = true,
        }
    }
}

/// Returns the expected duration of a launch, from earlier trials or the twin. Returns `None` without a time limit, or
/// if only rough figures are available.
async fn expected_launch(run: &StudyRun<'_>) -> Result<Option<Duration>, TuneError> {
    if run.job.budget.time.is_none() {
        return Ok(None);
    }
    let estimate = estimate(run.job, &run.installed, &run.slots, None, Some(run.store)).await?;
    let seconds = (estimate.startup_s + estimate.load_s).clamp(0.0, MAX_EXPECTED_LAUNCH.as_secs_f64());
    Ok((estimate.source != FigureSource::Guess).then(|| Duration::from_secs_f64(seconds)))
}

/// Computes the search space under the present rules, and reports the removed part.
fn scope<'s>(run: &StudyRun<'_>, search: JobSearch<'s>) -> SearchScope<'s> {
    let removal = search.removal();
    let empty = search.is_empty(&removal);
    run.emit(TunerEvent::Space(removal.clone()));
    SearchScope { search, removal, empty }
}

#[cfg(test)]
mod first_points_tests;
#[cfg(test)]
mod learning_tests;
#[cfg(test)]
mod rule_test_tests;
#[cfg(test)]
mod tests;
