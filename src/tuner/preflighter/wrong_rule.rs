//! Rules that the installed engine contradicts. Removed configurations are never proposed, so a wrong rule would hide
//! good ones for ever. The engine is therefore asked about an example of each rule.

use std::collections::BTreeMap;

use super::{Preflighter, preflight_arguments};
use crate::config::Config;
use crate::execution::ExecutionEnvironment;
use crate::job::Job;
use crate::preflight::{Preflight, PreflightError};
use crate::rule::SpaceRemoval;
use crate::store::RuleDisagreement;
use crate::tuner::{TuneError, TunerEvent};

/// A rule that rejects a configuration which the installed engine accepts.
#[derive(Clone, Debug, PartialEq)]
pub struct WrongRule {
    pub rule: &'static str,
    /// A configuration that it rejects.
    pub config: Config,
    /// Its reason to reject it.
    pub message: String,
}

/// Asks the engine about one configuration for each rule that removes part of the space and imitates the engine's
/// parser or configuration classes.
///
/// # Errors
/// If the engine does not answer.
pub async fn wrong_rules(
    job: &Job,
    installed: &ExecutionEnvironment,
    removal: &SpaceRemoval,
    preflight: &Preflight,
) -> Result<Vec<WrongRule>, PreflightError> {
    let mut wrong = Vec::new();
    for removed in removal.rules.iter().filter(|removed| removed.severity.is_refusal()) {
        // A configuration that cannot be spelt for this release does not concern the rule.
        let Ok(args) = preflight_arguments(job, installed, &removed.config) else { continue };
        if preflight.ask(&args, &BTreeMap::new()).await?.rejection().is_none() {
            let (rule, config, message) = (removed.rule, removed.config.clone(), removed.example.clone());
            wrong.push(WrongRule { rule, config, message });
        }
    }
    Ok(wrong)
}

impl Preflighter<'_> {
    /// Returns the rules that the installed release contradicted in an earlier run of the study, if they remove
    /// something. They are reported again.
    pub(in crate::tuner) async fn contradicted_before(
        &self,
        removal: &SpaceRemoval,
    ) -> Result<&'static [&'static str], TuneError> {
        if self.is_absent().await {
            return Ok(&[]);
        }
        let mut wrong = Vec::new();
        for stored in self.run.store.disagreements(self.run.study.id).await? {
            let is_example = stored.trial.is_none() && stored.engine == "accept";
            let is_same = stored.engine_version.parse() == Ok(self.run.installed.version);
            let Some(removed) = removal.rules.iter().find(|removed| Some(removed.rule) == stored.rule.as_deref())
            else {
                continue;
            };
            if is_example && is_same {
                let config = stored.config.as_deref().and_then(|key| serde_json::from_str(key).ok());
                let config = config.unwrap_or_else(|| removed.config.clone());
                let found = WrongRule { rule: removed.rule, config, message: stored.message };
                self.run.emit(TunerEvent::WrongRule(found));
                wrong.push(removed.rule);
            }
        }
        // The list of a few names is leaked once in a run, because the search borrows it to the end.
        Ok(wrong.leak())
    }

    /// Returns the rules to set aside, after they are stored and reported. The list is empty if the engine does not
    /// answer.
    pub(in crate::tuner) async fn find_contradicted_rules(
        &self,
        removal: &SpaceRemoval,
    ) -> Result<Vec<&'static str>, TuneError> {
        let mut state = self.state.write().await;
        let Some(engine_version) = self.check_release(&mut state).await? else { return Ok(Vec::new()) };
        let Some(preflight) = &state.preflight else { return Ok(Vec::new()) };
        let wrong = match wrong_rules(self.run.job, &self.run.installed, removal, preflight).await {
            Ok(wrong) => wrong,
            Err(error) => {
                self.report_missing_answer(&mut state, &error).await;
                return Ok(Vec::new());
            }
        };
        for found in &wrong {
            let difference = RuleDisagreement {
                trial: None,
                config: Some(found.config.key()),
                engine_version: engine_version.clone(),
                engine: "accept".to_owned(),
                rule: Some(found.rule.to_owned()),
                message: found.message.clone(),
            };
            self.run.store.store_disagreement(self.run.study.id, &difference).await?;
            self.run.emit(TunerEvent::WrongRule(found.clone()));
        }
        Ok(wrong.into_iter().map(|found| found.rule).collect())
    }
}
