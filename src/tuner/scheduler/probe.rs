//! Probes: after failures in a row, a configuration that is known to work is launched again. If it starts, the failures
//! belonged to their configurations. If it fails, the environment has changed.

use super::slot_failures::{FailedTrial, ProbeReason};
use super::{FailedStarts, NextAction, PendingTrial, Scheduler};
use crate::config::Config;
use crate::sampler::{KnownOutcome, PastTrial, Suggestion};
use crate::store::Incident;
use crate::trial::{Origin, Outcome, Proposal, Trial};
use crate::tuner::launcher::{EndedTrial, LaunchEnd, PauseEvidence, UnresolvedFailure, remedy};
use crate::tuner::{RetryPause, StudyEnding, TuneError, TunerEvent, read_learned_memory};

/// The number of ranked configurations that a probe chooses from.
const MAX_RANKED_CANDIDATES: u32 = 50;

/// A planned or running probe.
pub(super) struct Probe {
    /// The slots with failed launches.
    slots: Vec<usize>,
    alarm: ProbeReason,
    /// The trial whose environment failed until the retries were exhausted. It has no outcome until the probe has one.
    held_trial: Option<(PendingTrial, Box<UnresolvedFailure>)>,
    /// The probe's own number, once it is launched.
    number: Option<u32>,
}

impl Scheduler<'_> {
    /// Returns the number of trials of the budget that wait for the verdict of a probe.
    pub(super) fn held_trial_count(&self) -> usize {
        self.probes
            .iter()
            .filter(|probe| {
                probe.held_trial.as_ref().is_some_and(|(held, _)| held.proposal.origin.counts_against_budget())
            })
            .count()
    }

    /// Returns whether no configuration has ever been measured.
    fn nothing_works(&self) -> bool {
        !self.history.iter().any(|past| past.origin != Origin::Interference && past.measured().is_some())
    }

    /// Reads the failures since the last success from stored trials, in the order of their launches.
    pub(super) async fn rebuild_failures(&mut self, mut trials: Vec<Trial>) -> Result<(), TuneError> {
        trials.sort_by(|a, b| a.started_at.cmp(&b.started_at));
        let mut measured = std::collections::BTreeSet::new();
        for trial in trials {
            let slots = match self.run.store.placement(&self.run.study, trial.proposal.number).await? {
                Some(placement) => placement.slots.iter().map(|slot| *slot as usize).collect(),
                None => vec![0],
            };
            let key = trial.proposal.config.key();
            match &trial.outcome {
                Outcome::Rejected(_) => continue,
                Outcome::Measured(_) => {
                    self.slot_failures.clear(&slots);
                    measured.insert(key);
                }
                Outcome::Failed(_) if trial.proposal.origin == Origin::Probe => self.slot_failures.clear(&slots),
                Outcome::Failed(failure) => {
                    if trial.probe.is_none() && trial.proposal.origin.blames_configuration() {
                        let was_known_good = measured.contains(&key);
                        let failed = failed_trial(&trial, failure.clone(), was_known_good);
                        self.slot_failures.add(&slots, &failed);
                    }
                    if trial.probe.is_some() {
                        self.slot_failures.remember_own(failure);
                    }
                }
            }
            if trial.proposal.origin == Origin::Probe {
                self.slot_failures.probe_started(&[]);
            }
        }
        for slot in self.slot_failures.slots() {
            self.plan_probe_if_needed(vec![slot]);
        }
        // The probe of a killed run is launched again, and needs no second one.
        let left = self.waiting.iter().find(|waiting| waiting.proposal.origin == Origin::Probe);
        let left = left.map(|waiting| waiting.proposal.number);
        if let Some(probe) = self.probes.first_mut() {
            probe.number = left;
        }
        Ok(())
    }

    /// Plans a probe if the latest failure on these slots requires one.
    fn plan_probe_if_needed(&mut self, slots: Vec<usize>) {
        let nothing_works = self.nothing_works();
        if let Some(alarm) = self.slot_failures.probe_reason(&slots, nothing_works) {
            self.plan(Probe { slots, alarm, held_trial: None, number: None });
        }
    }

    /// Adds a probe. A probe without a trial on hold is added only if none is planned for the same slots.
    fn plan(&mut self, probe: Probe) {
        let is_planned = |other: &Probe| other.held_trial.is_none() && other.slots == probe.slots;
        if probe.held_trial.is_some() || !self.probes.iter().any(is_planned) {
            self.probes.push(probe);
        }
    }

    /// Records the outcome of a trial, and plans a probe if its failure requires one. Returns an ending if the study
    /// pauses.
    pub(super) async fn track_outcome(
        &mut self,
        trial: &Trial,
        slots: Vec<usize>,
        launches: u32,
    ) -> Result<Option<StudyEnding>, TuneError> {
        match &trial.outcome {
            Outcome::Rejected(_) => {}
            Outcome::Measured(_) => self.slot_failures.clear(&slots),
            Outcome::Failed(_) if !trial.proposal.origin.blames_configuration() => {}
            Outcome::Failed(failure) => {
                let config = &trial.proposal.config;
                let same = |past: &PastTrial| {
                    past.config == *config && past.origin != Origin::Interference && past.measured().is_some()
                };
                let failed = failed_trial(trial, failure.clone(), self.history.iter().any(same));
                self.slot_failures.add(&slots, &FailedTrial { launches, ..failed });
                if self.paused {
                    // It ran beside the launches that led to the pause.
                    self.withdraw(&slots).await?;
                } else {
                    self.plan_probe_if_needed(slots);
                }
            }
        }
        self.conclude_without_probes().await
    }

    /// Puts a trial on hold whose environment has failed until the retries were exhausted.
    pub(super) async fn hold_trial(
        &mut self,
        pending: PendingTrial,
        slots: Vec<usize>,
        unresolved: Box<UnresolvedFailure>,
    ) -> Result<Option<StudyEnding>, TuneError> {
        let UnresolvedFailure { last, failures, since, .. } = &*unresolved;
        let was_ready = unresolved.ended.trial.startup_s.is_some();
        let alarm = ProbeReason { failure: last.failure.clone(), launches: *failures, since: since.clone(), was_ready };
        self.plan(Probe { slots, alarm, held_trial: Some((pending, unresolved)), number: None });
        self.conclude_without_probes().await
    }

    /// Blames the environment without a probe if no configuration is left for one. That is so if nothing has ever been
    /// measured, and the defaults have failed too.
    async fn conclude_without_probes(&mut self) -> Result<Option<StudyEnding>, TuneError> {
        while let Some(at) = self.probes.iter().position(|probe| probe.number.is_none()) {
            if self.probe_config(&self.probes[at]).await?.is_some() {
                return Ok(None);
            }
            let probe = self.probes.remove(at);
            let last = match &probe.held_trial {
                Some((_, unresolved)) => unresolved.last.clone(),
                None => self.last_failure(&probe),
            };
            if let Some(ending) = self.blame_environment(probe, last, None).await? {
                return Ok(Some(ending));
            }
        }
        Ok(None)
    }

    /// Returns the latest failure on a probe's slots, as an incident that is not stored.
    fn last_failure(&self, probe: &Probe) -> Incident {
        let number = self.slot_failures.failed(&probe.slots).last().map_or(0, |failed| failed.number);
        let (at, failure) = (probe.alarm.since.clone(), probe.alarm.failure.clone());
        Incident { number, attempt: 1, at, failure, log: Some(self.run.log_path(number)), paused: true }
    }

    /// Returns the configuration for a probe: the best one that is known to work, else the engine's defaults. One that
    /// has not failed since is preferred, then one that needs as many slots. Returns `None` if nothing was measured and
    /// the defaults have failed as well.
    async fn probe_config(&self, probe: &Probe) -> Result<Option<Config>, TuneError> {
        let held = probe.held_trial.iter().map(|(held, _)| held.proposal.config.key());
        let failed = self.slot_failures.failed(&probe.slots).map(|failed| failed.config_key.clone()).chain(held);
        let failed: std::collections::BTreeSet<_> = failed.collect();
        let goal = self.run.job.objective.goal;
        let ranked = self.run.store.best(&self.run.study, goal, MAX_RANKED_CANDIDATES).await?;
        let ranked = ranked.into_iter().map(|ranked| ranked.first.trial.proposal.config);
        let measured =
            self.history.iter().filter(|past| past.origin != Origin::Interference && past.measured().is_some());
        let known_good: Vec<Config> = ranked.chain(measured.map(|past| past.config.clone())).collect();
        // The probe is to run on all slots that have failed, so its configuration should need as many.
        let fits = |config: &&Config| self.slots_needed(config) == probe.slots.len();
        let unfailed = |config: &&Config| !failed.contains(&config.key());
        let best = known_good.iter().find(|config| unfailed(config) && fits(config));
        let best = best.or_else(|| known_good.iter().find(unfailed)).or_else(|| known_good.first());
        let defaults = self.defaults().filter(|past| !matches!(past.outcome, KnownOutcome::Rejected));
        let defaults = defaults.map(|past| &past.config).filter(|config| !failed.contains(&config.key()));
        Ok(best.or(defaults).cloned())
    }

    fn slots_needed(&self, config: &Config) -> usize {
        self.pool.needed(self.scope.search.devices_needed(config))
    }

    /// Returns the slots that a proposal has to run on; empty if it may run on any.
    pub(super) fn wanted_slots(&self, number: u32) -> Vec<usize> {
        let probe = self.probes.iter().find(|probe| probe.number == Some(number));
        probe.map(|probe| probe.slots.clone()).unwrap_or_default()
    }

    /// Launches a planned probe; `None` if there is none. Probes are outside of the budget of trials.
    pub(super) async fn launch_probe(&mut self) -> Result<Option<NextAction>, TuneError> {
        let Some(at) = self.probes.iter().position(|probe| probe.number.is_none()) else { return Ok(None) };
        let Some(config) = self.probe_config(&self.probes[at]).await? else { return Ok(None) };
        let probe = &mut self.probes[at];
        let number = u32::try_from(self.history.len()).unwrap_or(u32::MAX);
        let needed = self.pool.needed(self.scope.search.devices_needed(&config));
        let Some(place) = self.pool.take_with(number, &probe.slots, needed, false) else {
            return Ok((!self.running.is_empty()).then_some(NextAction::Wait));
        };
        probe.number = Some(number);
        let ProbeReason { failure, launches, .. } = &probe.alarm;
        let why = format!(
            "{launches} {} failed alike ({}: {}): the launch of a known configuration tests the environment",
            if *launches == 1 { "launch" } else { "launches in a row" },
            failure.kind,
            failure.message
        );
        let proposal = self.add_proposal(Origin::Probe, Suggestion::new(config, why), None);
        let pending = PendingTrial { checked: true, max_failures: 1, ..PendingTrial::new(proposal) };
        self.begin(pending, place).await.map(Some)
    }

    /// Processes the end of a probe.
    pub(super) async fn process_probe_end(
        &mut self,
        pending: PendingTrial,
        slots: Vec<usize>,
        end: LaunchEnd,
    ) -> Result<Option<StudyEnding>, TuneError> {
        let number = pending.proposal.number;
        let at = self.probes.iter().position(|probe| probe.number == Some(number));
        // An earlier run may have left a probe without an outcome and without an alarm.
        let without_alarm = |last: &Incident| Probe {
            slots: slots.clone(),
            alarm: ProbeReason { failure: last.failure.clone(), launches: 1, since: last.at.clone(), was_ready: false },
            held_trial: None,
            number: None,
        };
        let probe = at.map(|at| self.probes.remove(at));
        match end {
            LaunchEnd::RunEnded(ending) => Ok(Some(ending)),
            // A probe offers no live looks.
            LaunchEnd::Reported { .. } => Ok(None),
            LaunchEnd::Unresolved(unresolved) => {
                let probe = probe.unwrap_or_else(|| without_alarm(&unresolved.last));
                self.blame_environment(probe, unresolved.last, Some(pending)).await
            }
            LaunchEnd::Outcome(ended)
                if probe
                    .as_ref()
                    .map_or(ended.trial.startup_s.is_some(), |probe| probe.alarm.is_refuted_by(&ended.trial)) =>
            {
                self.record(ended).await?;
                self.blame_configurations(probe, &slots, number).await?;
                Ok(None)
            }
            LaunchEnd::Outcome(EndedTrial { trial, .. }) => {
                let Some(failure) = trial.outcome.failure() else { return Ok(None) };
                let last = self.journal.append_incident(trial.proposal.number, failure, trial.log.as_deref()).await?;
                let probe = probe.unwrap_or_else(|| without_alarm(&last));
                self.blame_environment(probe, last, Some(pending)).await
            }
        }
    }

    /// Attributes the failures to their configurations, since the probe has started.
    async fn blame_configurations(
        &mut self,
        probe: Option<Probe>,
        slots: &[usize],
        number: u32,
    ) -> Result<(), TuneError> {
        let Some(probe) = probe else {
            self.slot_failures.clear(slots);
            self.slot_failures.probe_started(&[]);
            return Ok(());
        };
        let mut failed = self.slot_failures.take(&probe.slots);
        if let Some((held, unresolved)) = probe.held_trial {
            let UnresolvedFailure { ended, failures, since, .. } = *unresolved;
            let trial = Trial { probe: Some(number), ..ended.trial };
            let failure = probe.alarm.failure.clone();
            let own = FailedTrial { launches: failures, since, ..failed_trial(&trial, failure, false) };
            self.launched += u32::from(held.proposal.origin.counts_against_budget());
            self.record(EndedTrial { trial, ..ended }).await?;
            failed.push(own);
        }
        let numbers: Vec<_> = failed.iter().map(|failed| failed.number).collect();
        self.run.store.blame_configurations(self.run.study.id, &numbers, number).await?;
        for number in &numbers {
            self.read_again(*number).await?;
        }
        let failures: Vec<_> = failed.into_iter().map(|failed| failed.failure).collect();
        self.slot_failures.probe_started(&failures);
        let names = names(&numbers);
        let text =
            format!("the probe, trial {number}, has started: the environment did not cause the failures of {names}");
        self.run.emit(TunerEvent::Notice { text });
        Ok(())
    }

    /// Attributes the failures to the environment of the probe's slots. The failures since the last success become
    /// incidents, and their trials are launched again on other slots. If no other slot is usable, the study pauses.
    async fn blame_environment(
        &mut self,
        probe: Probe,
        last: Incident,
        failed_probe: Option<PendingTrial>,
    ) -> Result<Option<StudyEnding>, TuneError> {
        let failures = probe.alarm.launches + u32::from(failed_probe.is_some());
        self.withdraw(&probe.slots).await?;
        if let Some((held, _)) = probe.held_trial {
            self.run.store.mark_paused(self.run.study.id, held.proposal.number).await?;
            self.waiting.push_back(PendingTrial { max_failures: 1, ..held });
        }
        let evidence = match &failed_probe {
            Some(probe) => PauseEvidence::Probe(probe.proposal.number),
            None => PauseEvidence::NothingWorks,
        };
        self.waiting.make_contiguous().sort_by_key(|waiting| waiting.proposal.number);
        self.waiting.extend(failed_probe);
        let hint = remedy(self.run, &last.failure);
        let pause = Box::new(RetryPause { failures, since: probe.alarm.since, last, evidence, hint });
        self.pool.set_aside(&probe.slots, true);
        if self.pool.usable() > 0 {
            let failure = &pause.last.failure;
            let why = format!("{failures} launches failed in a row, {}: {}", failure.kind, failure.message);
            let (number, slots) = (pause.last.number, probe.slots);
            self.run.emit(TunerEvent::SlotsSetAside { number, slots, why });
            return Ok(None);
        }
        self.pool.restore_all();
        self.paused = true;
        self.run.emit(TunerEvent::Paused(pause.clone()));
        Ok(Some(StudyEnding::Paused(pause)))
    }

    /// Withdraws the outcomes of the trials that failed on these slots since the last success there.
    async fn withdraw(&mut self, slots: &[usize]) -> Result<(), TuneError> {
        let (mut incidents, mut trials) = (Vec::new(), Vec::new());
        for failed in self.slot_failures.take(slots) {
            let Some(stored) = self.run.store.trial(&self.run.study, failed.number).await? else { continue };
            let trial = stored.trial;
            let incident =
                self.journal.prepare_incident(trial.proposal.number, &failed.failure, trial.log.as_deref()).await?;
            incidents.push(Incident { paused: true, ..incident });
            trials.push(trial);
        }
        self.run.store.withdraw(self.run.study.id, &incidents).await?;
        self.learned_memory = read_learned_memory(self.run.job, &self.run.installed, self.run.store).await?;
        self.failed_starts = FailedStarts::default();
        for trial in trials {
            let proposal = trial.proposal;
            self.launched = self.launched.saturating_sub(u32::from(proposal.origin.counts_against_budget()));
            if let Some(past) = self.history.get_mut(proposal.number as usize) {
                *past = PastTrial::pending(proposal.clone());
            }
            if let Some(spent) = &mut self.launch_costs {
                spent.forget(proposal.number);
            }
            self.waiting.push_back(PendingTrial { max_failures: 1, ..PendingTrial::new(proposal) });
        }
        Ok(())
    }

    /// Limits waiting trials that have already had a pause, and probes, to one launch.
    pub(super) async fn limit_paused_retries(&mut self) -> Result<(), TuneError> {
        for waiting in &mut self.waiting {
            let has_paused = self.run.store.has_paused(&self.run.study, waiting.proposal.number).await?;
            if has_paused || waiting.proposal.origin == Origin::Probe {
                waiting.max_failures = 1;
            }
        }
        // The probe comes first, before any other trial depends on the environment. The defaults come before the trials
        // that are compared with them.
        let order = |waiting: &PendingTrial| {
            let Proposal { number, origin, .. } = &waiting.proposal;
            (*origin != Origin::Probe, *origin != Origin::Baseline, *number)
        };
        self.waiting.make_contiguous().sort_by_key(order);
        Ok(())
    }

    /// Reads the outcome of a trial into the history, as a later run would.
    async fn read_again(&mut self, number: u32) -> Result<(), TuneError> {
        if let Some(stored) = self.run.store.trial(&self.run.study, number).await?
            && let Some(past) = self.history.get_mut(number as usize)
        {
            *past = crate::job::past_trial(&self.run.job.objective, stored.trial, stored.score);
        }
        Ok(())
    }
}

fn failed_trial(trial: &Trial, failure: crate::trial::Failure, was_known_good: bool) -> FailedTrial {
    let (number, since, config_key) = (trial.proposal.number, trial.started_at.clone(), trial.proposal.config.key());
    let was_ready = trial.startup_s.is_some();
    FailedTrial { number, failure, launches: 1, since, config_key, was_known_good, was_ready }
}

/// Returns `trial 4` or `trials 4, 5`.
fn names(numbers: &[u32]) -> String {
    let list: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    format!("trial{} {}", if numbers.len() == 1 { "" } else { "s" }, list.join(", "))
}
