//! Launches of a study that test rules. Only a start can refute these rules.
//!
//! All state is in the database: a test is stored before its launch, and its verdict follows from the trial. A test
//! runs alone, so that every later proposal takes its verdict into account.

use super::{Scheduler, scope};
use crate::config::Config;
use crate::execution::ExecutionEnvironment;
use crate::job::{Job, JobSearch};
use crate::rule::Severity;
use crate::sampler::{KnownOutcome, Suggestion};
use crate::store::{RuleVerdict, ScoredTrial, Store, Study};
use crate::trial::{Origin, Proposal};
use crate::tuner::rule_test::{MAX_RULE_TESTS, rule_test_key};
use crate::tuner::run::StudyRun;
use crate::tuner::{PlannedRuleTest, RuleVerdicts, TuneError, TunerEvent};

/// Leaks the list, because the facts need it to the end of the run. A run sets aside a handful of rules.
pub(super) fn leak_rules(rules: Vec<&'static str>) -> &'static [&'static str] {
    rules.leak()
}

/// Stores missing verdicts of trials whose run was killed.
async fn store_missing_verdicts(
    job: &Job,
    installed: &ExecutionEnvironment,
    store: &Store,
    study: &Study,
) -> Result<(), TuneError> {
    let verdicts = RuleVerdicts::read(job, installed, store).await?;
    for test in verdicts.open(&study.name) {
        let Some(ScoredTrial { trial, .. }) = store.trial(study, test.number).await? else { continue };
        if trial.proposal.origin == Origin::RuleTest {
            let (found, failure) = (verdicts.conclude(&test.rule, &trial), trial.outcome.reason());
            store.end_rule_test(study.id, trial.proposal.number, found, failure.as_deref()).await?;
        }
    }
    Ok(())
}

/// Sets aside the rules that starts have refuted on this release and device class, and reports each.
pub(super) async fn set_refuted_rules_aside<'s>(
    run: &StudyRun<'_>,
    search: JobSearch<'s>,
) -> Result<JobSearch<'s>, TuneError> {
    let (job, installed, store) = (run.job, &run.installed, run.store);
    store_missing_verdicts(job, installed, store, &run.study).await?;
    let verdicts = RuleVerdicts::read(job, installed, store).await?;
    for (rule, test) in verdicts.refuted() {
        let (study, number) = (test.study.clone(), test.number);
        run.emit(TunerEvent::RuleSetAside { rule, study, number });
    }
    let aside = verdicts.rules_to_set_aside();
    Ok(if aside.is_empty() { search } else { search.without_rules(leak_rules(aside)) })
}

impl Scheduler<'_> {
    /// Sets further rules aside.
    pub(super) fn set_rules_aside(&mut self, rules: &[&'static str]) {
        let mut aside = self.scope.search.facts.contradicted_rules.to_vec();
        aside.extend(rules.iter().filter(|rule| !self.scope.search.facts.contradicted_rules.contains(rule)));
        self.scope = scope(self.run, self.scope.search.without_rules(leak_rules(aside)));
        // A configuration that two rules rejected may now test the remaining one.
        self.untestable.clear();
    }

    /// Returns whether a rule is to be tested. Its launch waits until the others have ended.
    pub(super) async fn is_rule_test_due(&self) -> Result<bool, TuneError> {
        Ok(!self.due_rules().await?.is_empty())
    }

    /// Returns the rules that are to be tested now.
    async fn due_rules(&self) -> Result<Vec<crate::rule::TestableRule>, TuneError> {
        let is_launched = |past: &&crate::sampler::PastTrial| {
            past.origin == Origin::RuleTest && !matches!(past.outcome, KnownOutcome::Rejected)
        };
        if self.history.iter().filter(is_launched).count() >= MAX_RULE_TESTS {
            return Ok(Vec::new());
        }
        let absent = self.preflighter.missing_packages().await;
        let search = self.scope.search.with_learned(&self.learned_memory, absent.as_ref());
        let mut due = search.testable_rules(&self.scope.removal);
        // A rule that leaves enough to measure is tested once the engine is known to work, and before the confirmation.
        let is_confirming = self.is_confirming();
        let is_time = (self.measured_any && !is_confirming) || self.scope.empty;
        due.retain(|rule| (rule.removes_defaults || is_time) && !self.untestable.contains(rule.rule));
        if due.is_empty() {
            return Ok(due);
        }
        let verdicts = RuleVerdicts::read(self.run.job, &self.run.installed, self.run.store).await?;
        due.retain(|rule| !verdicts.is_decided(rule.rule, &search.facts));
        // A test without a verdict is repeated later: once another trial has been measured, or if there is nothing else
        // to do.
        due.retain(|rule| {
            let Some(last) = verdicts.last_attempt(&self.run.study.name, rule.rule) else { return true };
            let later = self.history.iter().skip(last as usize + 1);
            self.scope.empty || later.into_iter().any(|past| past.measured().is_some())
        });
        Ok(due)
    }

    /// Returns the next launch that tests a rule.
    pub(super) async fn find_rule_test(&mut self) -> Result<Option<PlannedRuleTest>, TuneError> {
        let due = self.due_rules().await?;
        if due.is_empty() {
            return Ok(None);
        }
        let absent = self.preflighter.missing_packages().await;
        let best = self.run.store.best(&self.run.study, self.run.job.objective.goal, 1).await?.pop();
        let search = self.scope.search.with_learned(&self.learned_memory, absent.as_ref());
        let defaults = &search.space.fixed;
        let near = best.map_or_else(|| defaults.clone(), |best| best.first.trial.proposal.config);
        // Slots are devices: a launch that needs more of them than there are cannot be placed.
        let (slots, left) = (&self.run.slots, self.pool.remaining_count() as u64);
        let fits = |config: &Config| slots.describe().is_none() || search.devices_needed(config) <= left;
        let is_refused = |config: &Config| {
            let refused = |past: &&crate::sampler::PastTrial| matches!(past.outcome, KnownOutcome::Rejected);
            self.history.iter().filter(refused).any(|past| past.origin == Origin::RuleTest && past.config == *config)
        };
        let mut untestable = Vec::new();
        let mut found = None;
        for testable in due {
            let near = if testable.removes_defaults { defaults } else { &near };
            let accepts = |config: &Config| fits(config) && !is_refused(config);
            if let Some((config, finding)) = search.rule_test(testable.rule, near, accepts) {
                let (rule, removes_defaults) = (testable.rule, testable.removes_defaults);
                let (reason, message) = (testable.to_string(), finding.message);
                found = Some(PlannedRuleTest { rule, removes_defaults, reason, config, message });
                break;
            }
            untestable.push(testable.rule);
        }
        self.untestable.extend(untestable);
        Ok(found)
    }

    /// Stores the test of a rule under the next number, and returns its configuration. Trial 0 is always the defaults.
    pub(super) async fn begin_rule_test(&mut self) -> Result<Option<Suggestion>, TuneError> {
        let Some(test) = self.find_rule_test().await? else { return Ok(None) };
        let PlannedRuleTest { rule, reason, config, message, .. } = test;
        if self.history.is_empty() && config != self.scope.search.space.fixed {
            return Ok(None);
        }
        let number = u32::try_from(self.history.len()).unwrap_or(u32::MAX);
        let key = rule_test_key(self.run.job, &self.run.installed);
        self.run.store.begin_rule_test(self.run.study.id, number, &key, rule, &message).await?;
        let why = format!("tests rule {rule}, which {reason} and which only a start can refute: {message}");
        Ok(Some(Suggestion::new(config, why)))
    }

    /// Returns the rule that a proposal tests.
    pub(super) async fn tested_rule(&self, proposal: &Proposal) -> Result<Option<&'static str>, TuneError> {
        if proposal.origin != Origin::RuleTest {
            return Ok(None);
        }
        let verdicts = RuleVerdicts::read(self.run.job, &self.run.installed, self.run.store).await?;
        Ok(verdicts.of_trial(&self.run.study.name, proposal.number).and_then(|test| verdicts.rule_id(&test.rule)))
    }

    /// Stores the verdict of a trial that tested a rule, and sets a refuted rule aside.
    pub(super) async fn conclude_rule_test(&mut self, scored: &ScoredTrial) -> Result<(), TuneError> {
        let trial = &scored.trial;
        if trial.proposal.origin != Origin::RuleTest {
            return Ok(());
        }
        let store = self.run.store;
        let verdicts = RuleVerdicts::read(self.run.job, &self.run.installed, store).await?;
        let Some(test) = verdicts.of_trial(&self.run.study.name, trial.proposal.number) else { return Ok(()) };
        let Some(rule) = verdicts.rule_id(&test.rule) else { return Ok(()) };
        let (verdict, failure) = (verdicts.conclude(rule, trial), trial.outcome.reason());
        store.end_rule_test(self.run.study.id, trial.proposal.number, verdict, failure.as_deref()).await?;
        let (number, config, message) = (trial.proposal.number, trial.proposal.config.clone(), test.message.clone());
        self.run.emit(TunerEvent::RuleTested { number, rule, verdict, config, message, failure });
        if verdict == RuleVerdict::Refuted {
            self.set_rules_aside(&[rule]);
        }
        Ok(())
    }

    /// Returns the defaults if rules rejected them, and no longer do because a start has refuted a rule since.
    pub(super) fn defaults_after_refutation(&self) -> Option<Suggestion> {
        let (first, later) = self.history.split_first()?;
        let search = &self.scope.search;
        let is_late = |id: &&str| search.facts.rules().any(|rule| rule.id == *id && rule.severity == Severity::Startup);
        let is_freed =
            matches!(first.outcome, KnownOutcome::Rejected) && search.facts.contradicted_rules.iter().any(is_late);
        let is_known = later.iter().any(|past| past.origin == Origin::Baseline || past.config == first.config);
        let absent_rejection = || search.with_learned(&self.learned_memory, None).rejection(&first.config).is_none();
        let why = "the engine's defaults, which a refuted rule had rejected: the baseline of all comparisons";
        (is_freed && !is_known && absent_rejection()).then(|| Suggestion::new(first.config.clone(), why))
    }
}
