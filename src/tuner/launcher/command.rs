//! The command line of a launch, its environment variables, and the values of its placeholders.

use std::collections::BTreeMap;
use std::path::Path;

use super::devices::visible_devices;

use crate::config::Config;
use crate::engine::{LaunchSpec, PlaceholderValues};
use crate::execution::ExecutionEnvironment;
use crate::facts::Processors;
use crate::flag::FlagError;
use crate::job::Job;
use crate::load::RequestApi;
use crate::server::{FirstRequest, HOST, Marker, Ports};
use crate::trial::CommandLine;
use crate::tuner::run::StudyRun;
use crate::tuner::slots::SlotPlace;

/// Returns the command line of a configuration. `filling` has a launch's values for the placeholders. Without it the
/// placeholders stay and the address is the engine's own default.
///
/// # Errors
/// If the release does not have a flag of the configuration.
pub fn command_line(
    job: &Job,
    installed: &ExecutionEnvironment,
    config: &Config,
    filling: Option<&PlaceholderValues>,
) -> Result<CommandLine, FlagError> {
    let engine = &job.engine;
    let mut args = engine.args.clone();
    args.extend(engine.engine.version_args(installed.version));
    let (command, model) = (engine.command.as_slice(), job.model.argument.as_str());
    let launch = filling.map(|filling| (HOST, filling));
    let spec = LaunchSpec { command, model, config, args: &args, version: installed.version, launch };
    engine.engine.command_line(&spec)
}

/// Returns the environment variables of a launch that follow from its devices and slots.
pub(super) fn variables(
    run: &StudyRun<'_>,
    place: &SlotPlace,
    ports: &Ports,
    config: &Config,
) -> BTreeMap<String, String> {
    let engine = &run.job.engine.engine;
    let whole = run.with_engine_args(config);
    let mut variables = place.variables(ports, engine.port_variable(&whole));
    variables.extend(engine.variables(config));
    variables.extend(run.job.device_order(run.installed.device));
    variables
}

/// Returns the values of a launch for the placeholders in the study's words. `own` are the variables that follow from
/// its devices and slots.
pub(super) fn placeholder_values(
    run: &StudyRun<'_>,
    place: &SlotPlace,
    ports: &Ports,
    log: &Path,
    own: &BTreeMap<String, String>,
) -> PlaceholderValues {
    let trial = place.trial;
    // Two launches of a trial are two containers. The first may not have ended yet.
    let (study, unique) = (&run.job.name, rand::random::<u32>());
    let name = format!("setpoint-{study:.40}-{trial}-{unique:08x}");
    let variables = run.job.engine.env.keys().chain(own.keys()).cloned();
    let variables = variables.chain([Marker::VARIABLE.to_owned()]).collect();
    let devices = place.devices.clone().or_else(|| visible_devices(run, place).flatten());
    let devices = devices.unwrap_or_else(|| "all".to_owned());
    let processors = place.processors.clone().unwrap_or_else(Processors::allowed).to_string();
    PlaceholderValues { port: ports.serving(), name, log: log.to_owned(), trial, devices, processors, variables }
}

/// Returns the request that proves that a server generates tokens.
pub(super) fn first_request(job: &Job) -> FirstRequest {
    let (engine, api) = (&job.engine, job.load.api);
    match api {
        // Engines with rules serve both interfaces, so the first request can be a completion of token ids.
        _ if engine.engine.rules().is_some() => FirstRequest::Tokens,
        RequestApi::Chat => FirstRequest::Chat,
        RequestApi::Completions if engine.dialect.takes_tokens(api) => FirstRequest::Tokens,
        RequestApi::Completions => FirstRequest::Text,
    }
}

/// Returns the names that the server gives to the model, or the name of its adapter. Requests use the first.
pub(super) fn served_names(run: &StudyRun<'_>) -> Vec<String> {
    if let Some(adapter) = &run.job.model.adapter {
        return vec![adapter.clone()];
    }
    let set = run.with_engine_args(&run.job.search_space().fixed);
    let names = set.get_str("served-model-name").unwrap_or(&run.job.model.argument);
    // The flag's value is a list of words. The model's path may contain spaces and is one name.
    let is_list = set.get_str("served-model-name").is_some();
    if is_list { names.split_whitespace().map(str::to_owned).collect() } else { vec![names.to_owned()] }
}
