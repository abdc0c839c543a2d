//! What rules and the installed engine say of a configuration before it is launched.

mod wrong_rule;

use std::collections::BTreeSet;
use std::path::Path;

use crate::config::Config;
use crate::engine::Filling;
use crate::execution::ExecutionEnvironment;
use crate::flag::FlagError;
use crate::job::{Job, Search};
use crate::preflight::{Disagreement, Limits, Preflight, PreflightError, Setup, Verdict, judge};
use crate::rule::Finding;
use crate::server::Marker;
use crate::store::{Difference, Study};
use crate::tuner::{Event, TuneError, Tuner, command_line};

pub use self::wrong_rule::{WrongRule, wrong_rules};

/// The preflight of a study: absent, waiting to be started, or at work.
#[derive(Debug, Default)]
pub struct Inquiry {
    setup: Option<Setup>,
    pub(in crate::tuner) preflight: Option<Preflight>,
    /// The release of the installed engine, once it has been compared with the study.
    compared: Option<String>,
    /// Whether this run has let a configuration go to its launch.
    begun: bool,
    /// The packages that it lacks, once it has been asked.
    pub(in crate::tuner) absent: Option<BTreeSet<String>>,
}

impl Inquiry {
    #[must_use]
    pub fn new(setup: Option<Setup>) -> Self {
        Self { setup, ..Self::default() }
    }

    /// Returns at once.
    pub(in crate::tuner) fn start(&mut self) {
        self.preflight = self.setup.take().map(Preflight::start);
    }

    /// Whether the rules stand alone.
    pub(in crate::tuner) fn is_absent(&self) -> bool {
        self.setup.is_none() && self.preflight.is_none()
    }

    /// Whether this run has launched anything yet: its first launch does not wait for the import.
    pub(in crate::tuner) fn has_begun(&self) -> bool {
        self.begun
    }

    /// Waits until the engine is imported, or never will be: from then on nothing runs that nobody asked for.
    pub(in crate::tuner) async fn settled(&self) {
        if let Some(preflight) = &self.preflight {
            // What came of it is told to who asks.
            let _ = preflight.ready().await;
        }
    }

    pub(in crate::tuner) async fn stop(&mut self) {
        if let Some(preflight) = self.preflight.take() {
            preflight.stop().await;
        }
    }
}

/// How a study's preflight is started; `None` for an engine that has none.
///
/// # Errors
/// Says why the rules stand alone.
pub fn preflight_setup(job: &Job, installed: &ExecutionEnvironment, database: &Path) -> Result<Option<Setup>, String> {
    let engine = &job.engine;
    if !engine.engine.has_preflight() {
        return Ok(None);
    }
    if !engine.preflight {
        return Err("the study file has it off".to_owned());
    }
    let Some(python) = engine.engine.preflight_python(&engine.command) else {
        return Err(format!("{:?} is not run by a Python of this machine", engine.command.join(" ")));
    };
    let warm_up = question(job, installed, &job.parameters().fixed).map_err(|error| error.to_string())?;
    let marker = Marker::helper(database, &job.name, "preflight");
    let mut env = engine.env.clone();
    env.extend(job.device_order(installed.device));
    Ok(Some(Setup { python, env, marker, warm_up, limits: Limits::default() }))
}

/// A launch's words behind `vllm serve`.
///
/// # Errors
/// When the release does not have a flag of the configuration.
pub fn question(job: &Job, installed: &ExecutionEnvironment, config: &Config) -> Result<Vec<String>, FlagError> {
    let command = &job.engine.command;
    let begin = command.iter().position(|word| word == "serve").map_or(command.len(), |index| index + 1);
    let mut words = command_line(job, installed, config, None)?;
    words.drain(..begin.min(words.len()));
    // A port and a log such as a launch would have: the parser wants a number where `{port}` stands.
    let (name, log) = ("setpoint".to_owned(), "/dev/null".into());
    let (devices, processors) = ("all".to_owned(), "0".to_owned());
    Ok(Filling { port: 8000, name, log, trial: 0, devices, processors, variables: Vec::new() }.words(&words))
}

impl Tuner<'_> {
    /// Why a configuration is not to be launched. The engine decides what it can see.
    ///
    /// The first launch of a run, resumed or not, does not wait until the engine has been imported if the rules accept its
    /// configuration: what the engine refuses then fails within the time that the import takes.
    pub(in crate::tuner) async fn rejection(
        &self,
        study: &Study,
        number: u32,
        config: &Config,
        search: &Search<'_>,
    ) -> Result<Option<Finding>, TuneError> {
        let findings = search.findings(config);
        let severity = findings.first().map(|finding| finding.severity).filter(|severity| severity.rejects());
        let later = severity.is_some_and(|severity| !severity.is_refusal());
        let is_first = severity.is_none() && !std::mem::replace(&mut self.inquiry.write().await.begun, true);
        let unasked = later || is_first;
        let answer = if unasked { None } else { self.ask(study, config).await? };
        let Some((verdict, engine_version)) = answer else {
            return Ok(findings.into_iter().next().filter(|finding| finding.severity.rejects()));
        };
        let (finding, disagreement) = judge(findings, &verdict);
        let (engine, rule, message) = match disagreement {
            None => return Ok(finding.filter(|finding| finding.severity.rejects())),
            Some(Disagreement::FalseRejection(wrong)) => ("accept", Some(wrong.rule.to_owned()), wrong.message),
            Some(Disagreement::FalseAcceptance(missed)) => ("reject", None, missed.message),
        };
        let (trial, engine) = (Some(number), engine.to_owned());
        let difference = Difference { trial, config: None, engine_version, engine, rule, message };
        self.store.differ(study.id, &difference).await?;
        Ok(finding.filter(|finding| finding.severity.rejects()))
    }

    /// The engine's verdict and release; `None` where it does not answer.
    async fn ask(&self, study: &Study, config: &Config) -> Result<Option<(Verdict, String)>, TuneError> {
        if !self.job.engine.engine.has_preflight() {
            return Ok(None);
        }
        let Ok(args) = question(self.job, &self.installed, config) else { return Ok(None) };
        let mut inquiry = self.inquiry.write().await;
        let Some(version) = self.compared(&mut inquiry, study).await? else { return Ok(None) };
        let Some(preflight) = &inquiry.preflight else { return Ok(None) };
        match preflight.ask(&args, &std::collections::BTreeMap::new()).await {
            Ok(verdict) => Ok(Some((verdict, version))),
            Err(error) => {
                self.unanswered(&mut inquiry, &error).await;
                Ok(None)
            }
        }
    }

    /// The release of the installed engine, after it has been compared with the study once.
    pub(in crate::tuner) async fn compared(
        &self,
        inquiry: &mut Inquiry,
        study: &Study,
    ) -> Result<Option<String>, TuneError> {
        let Some(preflight) = &inquiry.preflight else { return Ok(None) };
        if inquiry.compared.is_some() {
            return Ok(inquiry.compared.clone());
        }
        let installed = match preflight.ready().await {
            Ok(installed) => installed,
            Err(error) => {
                self.unanswered(inquiry, &error).await;
                return Ok(None);
            }
        };
        self.job.check_installed(&installed)?;
        let defaults = self.store.trial(study, 0).await?;
        let served = defaults.is_some_and(|scored| scored.trial.startup_s.is_some());
        if let (Some((_, message)), true) = (installed.warm_up.rejection(), served) {
            let text = format!("it refuses the defaults, which the engine has just served: {message}");
            (self.observer)(Event::Preflight { text });
            inquiry.stop().await;
            return Ok(None);
        }
        inquiry.absent = Some(installed.absent.clone());
        inquiry.compared = Some(installed.version.clone());
        Ok(inquiry.compared.clone())
    }

    /// Says why there is no answer, and asks no more where there never will be one.
    pub(in crate::tuner) async fn unanswered(&self, inquiry: &mut Inquiry, error: &PreflightError) {
        let consequence = if error.is_final() { "; from here on the rules stand alone" } else { "" };
        (self.observer)(Event::Preflight { text: format!("{error}{consequence}") });
        if error.is_final() {
            inquiry.stop().await;
        }
    }
}
