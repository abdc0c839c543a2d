//! The check of a configuration before its launch, by the rules and the installed engine.

mod wrong_rule;

use std::collections::BTreeSet;
use std::path::Path;

use tokio::sync::RwLock;

use super::run::StudyRun;
use super::{TuneError, TunerEvent, command_line};
use crate::config::Config;
use crate::engine::{PlaceholderValues, PreflightProgram};
use crate::execution::ExecutionEnvironment;
use crate::flag::FlagError;
use crate::job::{Job, JobSearch};
use crate::preflight::{
    Disagreement, Preflight, PreflightError, PreflightLimits, PreflightSetup, PreflightVerdict, decide_finding,
};
use crate::rule::Finding;
use crate::server::Marker;
use crate::store::RuleDisagreement;

pub use self::wrong_rule::{WrongRule, wrong_rules};

/// Returns the setup of a study's preflight; `None` for an engine that has none.
///
/// # Errors
/// The reason why only the rules decide.
pub fn preflight_setup(
    job: &Job,
    installed: &ExecutionEnvironment,
    database: &Path,
) -> Result<Option<PreflightSetup>, String> {
    let engine = &job.engine;
    let Some(program) = engine.engine.preflight() else { return Ok(None) };
    if !engine.preflight {
        return Err("engine.preflight is false in the study file".to_owned());
    }
    let Some(executable) = engine.engine.preflight_executable(&engine.command) else {
        let with = match program {
            PreflightProgram::Python(_) => "with a Python of this machine".to_owned(),
            PreflightProgram::Commands(_) => format!("{} of this machine directly", program.engine()),
        };
        return Err(format!("{:?} does not run {with}", engine.command.join(" ")));
    };
    let warm_up = preflight_arguments(job, installed, &job.search_space().fixed).map_err(|error| error.to_string())?;
    let marker = Marker::helper(database, &job.name, "preflight");
    let mut env = engine.env.clone();
    env.extend(job.device_order(installed.device));
    Ok(Some(PreflightSetup { program, executable, env, marker, warm_up, limits: PreflightLimits::default() }))
}

/// Returns the arguments of a launch that follow `vllm serve`.
///
/// # Errors
/// If the release does not have a flag of the configuration.
pub fn preflight_arguments(
    job: &Job,
    installed: &ExecutionEnvironment,
    config: &Config,
) -> Result<Vec<String>, FlagError> {
    let command = &job.engine.command;
    let begin = command.iter().position(|word| word == "serve").map_or(command.len(), |index| index + 1);
    let mut words = command_line(job, installed, config, None)?.words;
    words.drain(..begin.min(words.len()));
    // The parser expects a number in place of `{port}`, so the values are like those of a launch.
    let (name, log) = ("setpoint".to_owned(), "/dev/null".into());
    let (devices, processors) = ("all".to_owned(), "0".to_owned());
    Ok(PlaceholderValues { port: 8000, name, log, trial: 0, devices, processors, variables: Vec::new() }
        .fill_words(&words))
}

/// Checks configurations with the rules and the installed engine.
pub(super) struct Preflighter<'r> {
    run: &'r StudyRun<'r>,
    /// Shared by running launches and the scheduler.
    state: RwLock<PreflightState>,
}

/// The preflight of a run: absent, not started yet, or running.
#[derive(Debug, Default)]
struct PreflightState {
    setup: Option<PreflightSetup>,
    preflight: Option<Preflight>,
    /// The release of the installed engine, once it has been compared with the study.
    checked_release: Option<String>,
    /// Whether the rules have accepted a configuration in this run.
    has_accepted: bool,
    /// The packages that the engine's installation lacks, once the engine has reported them.
    missing_packages: Option<BTreeSet<String>>,
}

impl PreflightState {
    async fn stop(&mut self) {
        if let Some(preflight) = self.preflight.take() {
            preflight.stop().await;
        }
    }
}

impl<'r> Preflighter<'r> {
    /// Creates a preflighter. Without `setup` only the rules decide.
    pub(super) fn new(run: &'r StudyRun<'r>, setup: Option<PreflightSetup>) -> Self {
        Self { run, state: PreflightState { setup, ..PreflightState::default() }.into() }
    }

    /// Starts to import the engine. Returns at once.
    pub(super) async fn start(&self) {
        let mut state = self.state.write().await;
        state.preflight = state.setup.take().map(Preflight::start);
    }

    pub(super) async fn stop(&self) {
        self.state.write().await.stop().await;
    }

    /// Returns whether only the rules decide.
    pub(super) async fn is_absent(&self) -> bool {
        let state = self.state.read().await;
        state.setup.is_none() && state.preflight.is_none()
    }

    /// Returns whether the rules have accepted a configuration in this run. The launch of the first one does not wait
    /// for the import.
    pub(super) async fn has_accepted(&self) -> bool {
        self.state.read().await.has_accepted
    }

    /// Returns the packages that the engine's installation lacks, once the engine has reported them.
    pub(super) async fn missing_packages(&self) -> Option<BTreeSet<String>> {
        self.state.read().await.missing_packages.clone()
    }

    /// Waits until the import of the engine has ended or failed. From then on the preflight computes only on request.
    pub(super) async fn wait_for_import(&self) {
        if let Some(preflight) = &self.state.read().await.preflight {
            // `ask` reports the reason of a failure.
            let _ = preflight.wait_until_ready().await;
        }
    }

    /// Returns the reason not to launch a configuration, if there is one. The engine decides on flags that it can
    /// check. It is not asked if a rule predicts a failure after its parser and its configuration classes.
    ///
    /// The first launch of a run does not wait for the engine's import if the rules accept its configuration. If the
    /// engine refuses it, the launch fails in less time than the import takes.
    pub(super) async fn rejection(
        &self,
        number: u32,
        config: &Config,
        search: &JobSearch<'_>,
    ) -> Result<Option<Finding>, TuneError> {
        let findings = search.findings(config);
        let severity = findings.first().map(|finding| finding.severity).filter(|severity| severity.rejects());
        let later = severity.is_some_and(|severity| !severity.is_refusal());
        let is_first = severity.is_none() && !std::mem::replace(&mut self.state.write().await.has_accepted, true);
        let unasked = later || is_first;
        let answer = if unasked { None } else { self.ask(config).await? };
        let Some((verdict, engine_version)) = answer else {
            return Ok(findings.into_iter().next().filter(|finding| finding.severity.rejects()));
        };
        let (finding, disagreement) = decide_finding(findings, &verdict);
        let (engine, rule, message) = match disagreement {
            None => return Ok(finding.filter(|finding| finding.severity.rejects())),
            Some(Disagreement::FalseRejection(wrong)) => ("accept", Some(wrong.rule.to_owned()), wrong.message),
            Some(Disagreement::FalseAcceptance(missed)) => ("reject", None, missed.message),
        };
        let (trial, engine) = (Some(number), engine.to_owned());
        let difference = RuleDisagreement { trial, config: None, engine_version, engine, rule, message };
        self.run.store.store_disagreement(self.run.study.id, &difference).await?;
        Ok(finding.filter(|finding| finding.severity.rejects()))
    }

    /// Returns the engine's verdict and release; `None` if it does not answer.
    async fn ask(&self, config: &Config) -> Result<Option<(PreflightVerdict, String)>, TuneError> {
        if self.run.job.engine.engine.preflight().is_none() {
            return Ok(None);
        }
        let Ok(args) = preflight_arguments(self.run.job, &self.run.installed, config) else { return Ok(None) };
        let mut state = self.state.write().await;
        let Some(version) = self.check_release(&mut state).await? else { return Ok(None) };
        let Some(preflight) = &state.preflight else { return Ok(None) };
        match preflight.ask(&args, &std::collections::BTreeMap::new()).await {
            Ok(verdict) => Ok(Some((verdict, version))),
            Err(error) => {
                self.report_missing_answer(&mut state, &error).await;
                Ok(None)
            }
        }
    }

    /// Returns the release of the installed engine, after it has been compared with the study once.
    async fn check_release(&self, state: &mut PreflightState) -> Result<Option<String>, TuneError> {
        let Some(preflight) = &state.preflight else { return Ok(None) };
        if state.checked_release.is_some() {
            return Ok(state.checked_release.clone());
        }
        let installed = match preflight.wait_until_ready().await {
            Ok(installed) => installed,
            Err(error) => {
                self.report_missing_answer(state, &error).await;
                return Ok(None);
            }
        };
        self.run.job.check_installed(&installed)?;
        let defaults = self.run.store.trial(&self.run.study, 0).await?;
        let served = defaults.is_some_and(|scored| scored.trial.startup_s.is_some());
        if let (Some((_, message)), true) = (installed.warm_up.rejection(), served) {
            let text = format!(
                "it refuses the defaults, although the engine has served them: {message}; from now on only the rules \
                 decide"
            );
            self.run.emit(TunerEvent::Preflight { text, is_final: true });
            state.stop().await;
            return Ok(None);
        }
        state.missing_packages = Some(installed.missing_packages.clone());
        state.checked_release = Some(installed.version.clone());
        Ok(state.checked_release.clone())
    }

    /// Reports a missing answer. Stops the preflight if it can never answer.
    async fn report_missing_answer(&self, state: &mut PreflightState, error: &PreflightError) {
        let is_final = error.is_final();
        let consequence = if is_final { "from now on only the rules decide" } else { "the rules decide on this trial" };
        self.run.emit(TunerEvent::Preflight { text: format!("{error}; {consequence}"), is_final });
        if is_final {
            state.stop().await;
        }
    }
}
