//! The interface of engines, from the command line of a configuration to the cause of a failure. The implementations
//! are in `engines`.

mod access;
mod adapters;
mod capability;
mod environment;
mod evidence;
mod fast_start;
mod live;
mod own_flags;
mod own_models;
mod phases;
mod placeholder;
mod python;
mod recipe_format;
mod reported;
mod normalized_message;
mod serving;
mod simulated;
mod starts;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value as Json;

use crate::config::Config;
use crate::facts::{Device, EngineVersion, parse_reported_release};
use crate::flag::{FlagBook, FlagError, FlagTable};
use crate::rule::EngineRules;
use crate::trial::{CommandLine, Failure};
use crate::twin::LaunchDraw;

pub use access::take_api_keys;
pub use adapters::{ADAPTERS_FLAG, adapter_names};
pub use capability::{
    ConfigFileEntries, ConfigFileFlags, ConfigFileProblem, LogReader, MetricsPage, ModelNameCheck, PreflightCommands,
    PreflightProgram, PythonPreflight, QUANTITIES, Readiness, ReleasePage, TwinModel,
};
pub use environment::{environment, is_variable};
pub(crate) use evidence::EXTERNAL_SIGNALS;
pub use evidence::{EngineEvidence, ProcessExit};
pub use fast_start::FastStart;
pub use live::{LIVE_SETTINGS, LIVE_STATE, LiveHelper};
pub use normalized_message::normalized_message;
pub use own_flags::{LAUNCH_FLAGS, is_connection_flag};
pub use own_models::own_models;
pub use phases::{PhaseMark, PhaseTimeline, StartPhase};
pub(crate) use placeholder::substitute;
pub use placeholder::{
    PLACEHOLDERS, PlaceholderError, PlaceholderValues, check_command_word, check_word, has_placeholder,
};
pub use python::python_of;
pub use recipe_format::{RecipeFormat, RecipeStrategy};
pub use reported::ReportedConfig;
pub use serving::{ChartKey, ServingProjects};
pub use simulated::SimulatedLaunch;
pub use starts::ServerStarts;

/// The inputs of a launch's command line.
#[derive(Clone, Copy, Debug)]
pub struct LaunchSpec<'a> {
    /// The program and its leading arguments, which may be a wrapper.
    pub command: &'a [String],
    /// The model's name for the engine: a directory or a hub name.
    pub model: &'a str,
    pub config: &'a Config,
    /// Arguments of the study, which follow the flags. A launch fills their placeholders.
    pub args: &'a [String],
    pub version: EngineVersion,
    /// The host name or address to listen on, and the values of the placeholders, among them the port. `None` if
    /// nothing is launched. Then placeholders stay unchanged, and no `--host` and `--port` are added.
    pub launch: Option<(&'a str, &'a PlaceholderValues)>,
}

impl LaunchSpec<'_> {
    /// Returns `COMMAND MODEL [flags of the configuration] [args of the study] [--host --port]`.
    ///
    /// A study that uses `{port}` may set `--host` or `--port` in its own arguments, for instance `--host 0.0.0.0`
    /// within a container. A flag that the study sets is not added again.
    ///
    /// # Errors
    /// If the release does not have a flag of the configuration, or does not accept its value.
    pub(crate) fn command_line(&self, table: FlagTable) -> Result<CommandLine, FlagError> {
        let fill = |words: &[String]| {
            self.launch.map_or_else(|| words.to_vec(), |(_, placeholders)| placeholders.fill_words(words))
        };
        let mut address = Vec::new();
        if let Some((host, placeholders)) = self.launch {
            let port = placeholders.port.to_string();
            for (flag, value) in [("--host", host), ("--port", port.as_str())] {
                if !self.sets_argument(flag) {
                    address.extend([flag.to_owned(), value.to_owned()]);
                }
            }
        }
        let flags = table.render(self.config)?;
        Ok(CommandLine::from_parts(fill(self.command), self.model, flags, fill(self.args), address))
    }

    /// Returns whether the study's arguments set this flag, and the study uses `{port}`.
    fn sets_argument(&self, flag: &str) -> bool {
        let is = |word: &String| word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
        self.args.iter().any(is) && self.command.iter().chain(self.args).any(|word| has_placeholder(word, "port"))
    }
}

/// An engine with its capabilities. The trait has a default for each capability that an engine may lack.
pub trait Engine: Send + Sync + fmt::Debug {
    /// Returns the name in study files.
    fn kind(&self) -> &'static str;

    /// Returns the command for studies that have none.
    ///
    /// # Errors
    /// If the command cannot be determined.
    fn default_command(&self) -> std::io::Result<Vec<String>>;

    /// Checks the arguments of the study's command.
    ///
    /// # Errors
    /// If a placeholder does not exist, or if a placeholder for several arguments is only a part of an argument.
    fn check_command(&self, command: &[String]) -> Result<(), PlaceholderError> {
        command.iter().try_for_each(|word| check_command_word(word))
    }

    /// Returns whether the study has to place `{port}` itself, because the launch adds no address.
    fn needs_port(&self) -> bool {
        false
    }

    /// Returns the command line of a configuration.
    ///
    /// # Errors
    /// If the release does not have a flag of the configuration, or does not accept its value.
    fn command_line(&self, spec: &LaunchSpec<'_>) -> Result<CommandLine, FlagError>;

    /// Returns environment variables that set parameters of the configuration.
    fn variables(&self, _config: &Config) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Returns the engine's own keys of the study file that change the meaning of a measurement, with their values.
    /// `None` if it has no such keys.
    fn definition(&self) -> Option<Json> {
        None
    }

    /// Returns the flags of the engine's releases. `None` if the engine has no known releases. Then a parameter may
    /// have any name.
    fn flags(&self) -> Option<&'static FlagBook> {
        None
    }

    /// Returns the engine's name in messages.
    fn display_name(&self) -> &'static str {
        self.flags().map_or(self.kind(), FlagBook::engine)
    }

    /// Returns the flags of one release. `None` if `flags` returns `None`.
    fn flag_table(&self, version: EngineVersion) -> Option<FlagTable> {
        Some(self.flags()?.for_version(version))
    }

    /// Returns the newest known release. It is assumed if the installed release is unknown.
    fn newest_release(&self) -> EngineVersion {
        self.flags().map_or(EngineVersion::LATEST, FlagBook::newest_release)
    }

    /// Replaces an argument that names a file of flags by its flags. `find` locates the file.
    ///
    /// # Errors
    /// The reason why the file cannot be read, with its line.
    fn inline_config_file(
        &self,
        words: Vec<String>,
        _version: EngineVersion,
        _find: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Result<Vec<String>, String> {
        Ok(words)
    }

    /// Reads the text of a file of flags. `None` if the engine has no such files.
    fn read_config_file(
        &self,
        _text: &str,
        _version: EngineVersion,
    ) -> Option<Result<ConfigFileFlags, ConfigFileProblem>> {
        None
    }

    /// Returns the entries of a file of flags that sets the same as these arguments. `None` if the engine has no such
    /// files.
    ///
    /// # Errors
    /// The argument that such a file cannot contain, with the reason.
    fn config_file_entries(
        &self,
        _arguments: &[String],
        _version: EngineVersion,
    ) -> Option<Result<ConfigFileEntries, String>> {
        None
    }

    /// Returns the commands and images that start the engine's server. `None` if they are not known.
    fn server_starts(&self) -> Option<&'static ServerStarts> {
        None
    }

    /// Returns the format of the recipes that people publish for the engine. `None` if there are none.
    fn recipes(&self) -> Option<&'static RecipeFormat> {
        None
    }

    /// Returns the entries of a preset with these arguments, in the engine's own file of presets. `None` if it has no such
    /// file.
    ///
    /// # Errors
    /// The argument that such a file cannot contain, with the reason.
    fn preset(&self, _arguments: &[String], _version: EngineVersion) -> Option<Result<Vec<(String, String)>, String>> {
        None
    }

    /// Returns the word before the model on the command line. `None` if the model is the first argument.
    fn model_flag(&self) -> Option<&'static str> {
        None
    }

    /// Returns the container image with the release that the server `reported`. `has_gpu` is whether it computes on GPUs.
    /// `None` if no image is known.
    fn container_image(&self, _reported: &str, _has_gpu: bool) -> Option<String> {
        None
    }

    /// Returns the arguments of a launch without those that only this program's own server understands.
    fn deployed_arguments(&self, arguments: &[String]) -> Vec<String> {
        arguments.to_vec()
    }

    /// Returns the names that projects which serve this engine on Kubernetes give to its arguments. `None` if they
    /// serve other engines only.
    fn serving_projects(&self) -> Option<&'static ServingProjects> {
        None
    }

    /// Returns whether the command itself passes a file of flags, which `inline_config_file` does not receive.
    fn passes_config_file(&self, _command: &[String]) -> bool {
        false
    }

    /// Returns the rules of the engine's configurations, with a model of the device's memory.
    fn rules(&self) -> Option<&'static dyn EngineRules> {
        None
    }

    /// Returns the flags that may change the output of the model, such as number formats. Empty if they are not known.
    fn lossy_flags(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the simulation of this engine by the twin. Without it there are no predictions and no priors.
    fn twin(&self) -> Option<&'static dyn TwinModel> {
        None
    }

    /// Returns the reader of phases, memory and configuration in the engine's log, if the log's lines are known.
    fn log_reader(&self) -> Option<&dyn LogReader> {
        None
    }

    /// Returns the cause of the engine's end.
    fn diagnose(&self, evidence: &EngineEvidence<'_>) -> Failure;

    /// Returns the conditions that a started server must meet before it receives load.
    fn readiness(&self) -> Readiness;

    /// Returns the name of the server's dialect: its differences from OpenAI's interface, as `load` defines them.
    fn dialect(&self) -> &str;

    /// Returns the server's metrics page. `None` if it has none.
    fn metrics(&self) -> Option<MetricsPage>;

    /// Returns the name of the environment variable that contains the server's API key.
    fn api_key_variable(&self) -> Option<&str> {
        None
    }

    /// Returns the names of the environment variables that influence the memory of a launch.
    fn memory_variables(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the prefix of the titles of the engine's processes.
    fn process_title(&self) -> Option<&'static str> {
        None
    }

    /// Returns arguments that make a simulated engine behave as the given release. Empty for a real engine.
    fn version_args(&self, _version: EngineVersion) -> Vec<String> {
        Vec::new()
    }

    /// Returns a short command that prints the installed release, if there is one.
    fn version_probe(&self, _command: &[String]) -> Option<Vec<String>> {
        None
    }

    /// Reads the release in the output of `version_probe`, or in a server's report. An engine that learns its flags from
    /// this output keeps them.
    fn read_release(&self, reported: &str) -> Option<EngineVersion> {
        parse_reported_release(reported)
    }

    /// Returns whether the engine serves GGUF files, which contain a model's shape.
    fn reads_gguf(&self) -> bool {
        false
    }

    /// Returns the program that requests an installed engine's verdict on a command line.
    fn preflight(&self) -> Option<PreflightProgram> {
        None
    }

    /// Returns the executable on this machine that the preflight of the command needs: the Python interpreter that runs the
    /// engine, or the engine's own program. `None` if the command runs it elsewhere.
    fn preflight_executable(&self, _command: &[String]) -> Option<String> {
        None
    }

    /// Returns the helper that sets live knobs in a server of this release, which `command` starts with `arguments`. `None`
    /// if there is none, or if the server runs elsewhere.
    fn live_helper(
        &self,
        _command: &[String],
        _arguments: &[String],
        _version: EngineVersion,
    ) -> Option<&'static LiveHelper> {
        None
    }

    /// Returns the fast start of a launch with this command line. `None` if the engine is not in Python, or if a wrapper
    /// starts it.
    fn fast_start(&self, _command: &[String]) -> Option<FastStart> {
        None
    }

    /// Returns the environment variable with the first port for communication between the engine's processes. `None` if
    /// there is none, or if two processes of this configuration could then choose the same port.
    fn port_variable(&self, _config: &Config) -> Option<&'static str> {
        None
    }

    /// Returns the device that the engine computes on. `None` if neither its arguments nor its version text reveal it.
    fn device(&self, _args: &[String], _version: Option<&str>) -> Option<Device> {
        None
    }

    /// Returns whether the engine really runs the model. A simulated engine uses no device, and the limits of its host
    /// do not apply to it.
    fn runs_model(&self) -> bool {
        true
    }

    /// Returns the launch that a simulated engine simulates. `None` if the engine computes, or if it would refuse its
    /// arguments.
    fn simulated(&self, _args: &[String]) -> Option<SimulatedLaunch> {
        None
    }

    /// Returns environment variables: a simulated engine draws the speed of a launch by them. `study_age` is the time
    /// since the study was created. They belong to no configuration, and are neither stored nor exported. Empty for a
    /// real engine.
    fn launch_variables(&self, _launch: LaunchDraw, _study_age: Duration) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Returns the search space for a first study on this device, as the path of a built-in file. `None` if the engine
    /// has none.
    fn first_space(&self, _device: Device, _has_experts: bool) -> Option<&'static str> {
        None
    }

    /// Returns whether the engine accepts the flags in search spaces of the engine `kind`.
    fn takes_space_of(&self, kind: &str) -> bool {
        kind == self.kind()
    }
}

/// Returns the program file that a command would run: a path unchanged, a name by a search of `PATH`.
#[must_use]
pub fn resolve_program(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        let path = PathBuf::from(program);
        return path.is_file().then_some(path);
    }
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories).map(|directory| directory.join(program)).find(|path| path.is_file())
}
