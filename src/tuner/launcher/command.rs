//! What a launch is started with: its command line, its variables, and what only it knows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::engine::{Filling, LaunchSpec};
use crate::execution::ExecutionEnvironment;
use crate::facts::Processors;
use crate::flag::FlagError;
use crate::job::Job;
use crate::load::Api;
use crate::server::{FirstRequest, HOST, Marker, Ports};
use crate::store::{Begin, StoreError, Study, now};
use crate::trial::{Launch, Proposal};
use crate::tuner::slots::Place;
use crate::tuner::{TuneError, Tuner};

/// The command line of a configuration; without a launch, placeholders stay and the address is the engine's own default.
///
/// # Errors
/// When the release does not have a flag of the configuration.
pub fn command_line(
    job: &Job,
    installed: &ExecutionEnvironment,
    config: &Config,
    filling: Option<&Filling>,
) -> Result<Vec<String>, FlagError> {
    let engine = &job.engine;
    let mut args = engine.args.clone();
    args.extend(engine.engine.version_args(installed.version));
    let (command, model) = (engine.command.as_slice(), job.model.argument.as_str());
    let launch = filling.map(|filling| (HOST, filling));
    let spec = LaunchSpec { command, model, config, args: &args, version: installed.version, launch };
    engine.engine.command_line(&spec)
}

impl Tuner<'_> {
    /// Stores that a trial is about to be launched, so that numbers have no gaps whichever ends first.
    pub(in crate::tuner) async fn reserve(&self, study: &Study, proposal: &Proposal) -> Result<(), TuneError> {
        let command = command_line(self.job, &self.installed, &proposal.config, None)?;
        let launch = Launch::redacted(&command, self.job.launch_env(self.installed.device, &proposal.config));
        Ok(self.begin(study, proposal, &launch, &now()).await?)
    }

    pub(in crate::tuner) async fn begin(
        &self,
        study: &Study,
        proposal: &Proposal,
        launch: &Launch,
        started_at: &str,
    ) -> Result<(), StoreError> {
        let log = &self.log_path(proposal.number);
        let begin = Begin { proposal, launch, started_at, log };
        self.store.begin(study.id, &begin).await
    }

    pub(in crate::tuner) fn log_path(&self, number: u32) -> PathBuf {
        self.log_directory().join(format!("trial-{number:04}.log"))
    }

    /// Returns the environment variables of a launch that follow from its devices and slots.
    pub(in crate::tuner) fn variables(
        &self,
        place: &Place,
        ports: &Ports,
        config: &Config,
    ) -> BTreeMap<String, String> {
        let engine = &self.job.engine.engine;
        let whole = self.job.with_arguments(config, self.installed.version);
        let mut variables = place.variables(ports, engine.port_variable(&whole));
        variables.extend(engine.variables(config));
        variables.extend(self.job.device_order(self.installed.device));
        variables
    }

    /// What a launch fills into the words of the study.
    pub(in crate::tuner) fn filling(
        &self,
        place: &Place,
        ports: &Ports,
        log: &Path,
        own: &BTreeMap<String, String>,
    ) -> Filling {
        let trial = place.trial;
        // Two launches of a trial are two containers, of which the first may not yet be gone.
        let (study, unique) = (&self.job.name, rand::random::<u32>());
        let name = format!("setpoint-{study:.40}-{trial}-{unique:08x}");
        let variables = self.job.engine.env.keys().chain(own.keys()).cloned();
        let variables = variables.chain([Marker::VARIABLE.to_owned()]).collect();
        let devices = place.devices.clone().or_else(|| self.visible_devices(place).flatten());
        let devices = devices.unwrap_or_else(|| "all".to_owned());
        let processors = place.processors.clone().unwrap_or_else(Processors::allowed).to_string();
        Filling { port: ports.serving(), name, log: log.to_owned(), trial, devices, processors, variables }
    }

    /// The request that proves that a server generates tokens.
    pub(in crate::tuner) fn first_request(&self) -> FirstRequest {
        let (engine, api) = (&self.job.engine, self.job.load.api);
        match api {
            // Engines whose interface is known answer both.
            _ if engine.engine.has_rules() => FirstRequest::Tokens,
            Api::Chat => FirstRequest::Chat,
            Api::Completions if engine.dialect.takes_tokens(api) => FirstRequest::Tokens,
            Api::Completions => FirstRequest::Text,
        }
    }

    /// The names under which the server serves the model; requests use the first.
    pub(in crate::tuner) fn served_names(&self) -> Vec<String> {
        let set = self.job.with_arguments(&self.job.parameters().fixed, self.installed.version);
        let names = set.get_str("served-model-name").unwrap_or(&self.job.model.argument);
        // A list is carried as its words. A path may hold spaces as well.
        let is_list = set.get_str("served-model-name").is_some();
        if is_list { names.split_whitespace().map(str::to_owned).collect() } else { vec![names.to_owned()] }
    }
}
