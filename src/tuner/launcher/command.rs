//! What a launch is started with: its command line, its variables, and what only it knows.

use std::collections::BTreeMap;
use std::path::Path;

use super::devices::visible_devices;

use crate::config::Config;
use crate::engine::{Filling, LaunchSpec};
use crate::execution::ExecutionEnvironment;
use crate::facts::Processors;
use crate::flag::FlagError;
use crate::job::Job;
use crate::load::Api;
use crate::server::{FirstRequest, HOST, Marker, Ports};
use crate::tuner::run::StudyRun;
use crate::tuner::slots::Place;

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

/// Returns the environment variables of a launch that follow from its devices and slots.
pub(super) fn variables(run: &StudyRun<'_>, place: &Place, ports: &Ports, config: &Config) -> BTreeMap<String, String> {
    let engine = &run.job.engine.engine;
    let whole = run.whole(config);
    let mut variables = place.variables(ports, engine.port_variable(&whole));
    variables.extend(engine.variables(config));
    variables.extend(run.job.device_order(run.installed.device));
    variables
}

/// What a launch fills into the words of the study.
pub(super) fn filling(
    run: &StudyRun<'_>,
    place: &Place,
    ports: &Ports,
    log: &Path,
    own: &BTreeMap<String, String>,
) -> Filling {
    let trial = place.trial;
    // Two launches of a trial are two containers, of which the first may not yet be gone.
    let (study, unique) = (&run.job.name, rand::random::<u32>());
    let name = format!("setpoint-{study:.40}-{trial}-{unique:08x}");
    let variables = run.job.engine.env.keys().chain(own.keys()).cloned();
    let variables = variables.chain([Marker::VARIABLE.to_owned()]).collect();
    let devices = place.devices.clone().or_else(|| visible_devices(run, place).flatten());
    let devices = devices.unwrap_or_else(|| "all".to_owned());
    let processors = place.processors.clone().unwrap_or_else(Processors::allowed).to_string();
    Filling { port: ports.serving(), name, log: log.to_owned(), trial, devices, processors, variables }
}

/// The request that proves that a server generates tokens.
pub(super) fn first_request(job: &Job) -> FirstRequest {
    let (engine, api) = (&job.engine, job.load.api);
    match api {
        // Engines whose interface is known answer both.
        _ if engine.engine.rules().is_some() => FirstRequest::Tokens,
        Api::Chat => FirstRequest::Chat,
        Api::Completions if engine.dialect.takes_tokens(api) => FirstRequest::Tokens,
        Api::Completions => FirstRequest::Text,
    }
}

/// The names under which the server serves the model; requests use the first.
pub(super) fn served_names(run: &StudyRun<'_>) -> Vec<String> {
    let set = run.whole(&run.job.parameters().fixed);
    let names = set.get_str("served-model-name").unwrap_or(&run.job.model.argument);
    // A list is carried as its words. A path may hold spaces as well.
    let is_list = set.get_str("served-model-name").is_some();
    if is_list { names.split_whitespace().map(str::to_owned).collect() } else { vec![names.to_owned()] }
}
