//! The door to engines: what one can do, from the command line of a configuration to the cause of a failure. The engines
//! themselves are `engines`.

mod access;
mod capability;
mod environment;
mod evidence;
mod own_models;
mod phases;
mod placeholder;
mod python;
mod reported;
mod root_line;
mod simulated;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde_json::Value as Json;

use crate::config::Config;
use crate::facts::{Device, EngineVersion};
use crate::flag::{FlagBook, FlagError, FlagTable};
use crate::rule::EngineRules;
use crate::trial::Failure;

pub use access::take_api_keys;
pub use capability::{LogReader, MetricsPage, ModelNameCheck, PreflightProgram, QUANTITIES, Readiness, TwinModel};
pub use environment::{environment, is_variable};
pub(crate) use evidence::FROM_OUTSIDE;
pub use evidence::{Evidence, Exit};
pub use own_models::own_models;
pub use phases::{PhaseMark, StartPhase, Timeline};
pub(crate) use placeholder::substitute;
pub use placeholder::{Filling, PLACEHOLDERS, PlaceholderError, asks_for, check_command_word, check_word};
pub use python::python_of;
pub use reported::ReportedConfig;
pub use root_line::root_line;
pub use simulated::Simulated;

/// Everything that decides a launch's command line.
#[derive(Clone, Copy, Debug)]
pub struct LaunchSpec<'a> {
    /// The program and its leading arguments, which may be a wrapper.
    pub command: &'a [String],
    /// The model as the engine is told it: a directory or a hub name.
    pub model: &'a str,
    pub config: &'a Config,
    /// Arguments of the study that are passed on as they are.
    pub args: &'a [String],
    pub version: EngineVersion,
    /// The address to listen on, with what the launch fills into the study's words. `None` where nothing is launched:
    /// placeholders then stay, and the address is the engine's own default.
    pub launch: Option<(&'a str, &'a Filling)>,
}

impl LaunchSpec<'_> {
    /// `COMMAND MODEL [flags of the configuration] [args of the study] [--host --port]`.
    ///
    /// A study that names `{port}` may say `--host` or `--port` in its own arguments, for instance `--host 0.0.0.0` within
    /// a container; these are then not added.
    ///
    /// # Errors
    /// When the release does not have a flag of the configuration.
    pub(crate) fn command_line(&self, table: FlagTable) -> Result<Vec<String>, FlagError> {
        let fill = |words: &[String]| self.launch.map_or_else(|| words.to_vec(), |(_, filling)| filling.words(words));
        let mut line = fill(self.command);
        line.push(self.model.to_owned());
        line.extend(table.render(self.config)?);
        line.extend(fill(self.args));
        if let Some((host, filling)) = self.launch {
            let port = filling.port.to_string();
            for (flag, value) in [("--host", host), ("--port", port.as_str())] {
                if !self.says(flag) {
                    line.extend([flag.to_owned(), value.to_owned()]);
                }
            }
        }
        Ok(line)
    }

    /// Whether the study itself says where the engine listens.
    fn says(&self, flag: &str) -> bool {
        let is = |word: &String| word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
        self.args.iter().any(is) && self.command.iter().chain(self.args).any(|word| asks_for(word, "port"))
    }
}

/// An engine with its capabilities. Those that an engine may lack have a default in the trait.
pub trait Engine: Send + Sync + fmt::Debug {
    /// The name in study files.
    fn kind(&self) -> &'static str;

    /// The command where the study names none.
    ///
    /// # Errors
    /// When it cannot be found out.
    fn default_command(&self) -> std::io::Result<Vec<String>>;

    /// Checks the words of the study's command.
    ///
    /// # Errors
    /// When a placeholder does not exist, or one that stands for several words is a part of a word.
    fn check_command(&self, command: &[String]) -> Result<(), PlaceholderError> {
        command.iter().try_for_each(|word| check_command_word(word))
    }

    /// Returns whether the study has to place `{port}` itself, because the launch adds no address.
    fn needs_port(&self) -> bool {
        false
    }

    /// The command line of a configuration.
    ///
    /// # Errors
    /// When the release does not have a flag of the configuration.
    fn command_line(&self, spec: &LaunchSpec<'_>) -> Result<Vec<String>, FlagError>;

    /// Variables that set parameters of the configuration.
    fn variables(&self, _config: &Config) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// The keys of the study file that change the meaning of a measurement.
    fn definition(&self) -> Option<Json> {
        None
    }

    /// The flags of the engine's releases. `None`: any name is a parameter, and the engine has no releases.
    fn flags(&self) -> Option<&'static FlagBook> {
        None
    }

    /// The engine's name in messages.
    fn product(&self) -> &'static str {
        self.flags().map_or(self.kind(), FlagBook::engine)
    }

    /// The flags of a release.
    fn flag_table(&self, version: EngineVersion) -> Option<FlagTable> {
        Some(self.flags()?.for_version(version))
    }

    /// The newest release that is known: the one that is assumed if nothing says which it is.
    fn newest_release(&self) -> EngineVersion {
        self.flags().map_or(EngineVersion::LATEST, FlagBook::newest_release)
    }

    /// Replaces an argument that names a file of flags by its flags. `find` looks for the file.
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

    /// Returns whether a command gives the engine a file of flags, which `inline_config_file` would not see.
    fn passes_config_file(&self, _command: &[String]) -> bool {
        false
    }

    /// The rules of the engine's configurations, with a model of the device's memory.
    fn rules(&self) -> Option<&'static dyn EngineRules> {
        None
    }

    /// How the twin simulates this engine. Without it there are no predictions and no priors.
    fn twin(&self) -> Option<&'static dyn TwinModel> {
        None
    }

    /// Reads the phases, the memory and the configuration from the engine's log, if its lines are known.
    fn log_reader(&self) -> Option<&dyn LogReader> {
        None
    }

    /// Tells why the engine ended.
    fn diagnose(&self, evidence: &Evidence<'_>) -> Failure;

    /// How a server of this engine shows that it serves.
    fn readiness(&self) -> Readiness;

    /// The name of the dialect that its server speaks, as `load` has it.
    fn dialect(&self) -> &str;

    /// The server's page of numbers.
    fn metrics(&self) -> Option<MetricsPage>;

    /// The variable from which the server takes its API key.
    fn api_key_variable(&self) -> Option<&str> {
        None
    }

    /// Variables of the environment that decide the memory of a launch.
    fn memory_variables(&self) -> &'static [&'static str] {
        &[]
    }

    /// The prefix of the titles of the engine's processes.
    fn process_title(&self) -> Option<&'static str> {
        None
    }

    /// Arguments that this engine needs to be the given release.
    fn version_args(&self, _version: EngineVersion) -> Vec<String> {
        Vec::new()
    }

    /// A short command that prints the installed release, where there is one.
    fn version_probe(&self, _command: &[String]) -> Option<Vec<String>> {
        None
    }

    /// The program that asks an installed engine what it would say of a command line.
    fn preflight(&self) -> Option<PreflightProgram> {
        None
    }

    /// The Python of this machine that runs the command, where it is known.
    fn preflight_python(&self, _command: &[String]) -> Option<String> {
        None
    }

    /// The variable that says from which port on the engine looks for those on which its processes talk to each other.
    /// `None` where it would have two of them take the same one.
    fn port_variable(&self, _config: &Config) -> Option<&'static str> {
        None
    }

    /// The device that the engine computes on, as far as its arguments and its version's text tell.
    fn device(&self, _args: &[String], _version: Option<&str>) -> Option<Device> {
        None
    }

    /// Returns whether the engine computes. One that simulates uses no device, and the limits of its host are not its own.
    fn computes(&self) -> bool {
        true
    }

    /// What an engine simulates that computes nothing. `None` of an engine that computes, and if it would refuse its arguments.
    fn simulated(&self, _args: &[String]) -> Option<Simulated> {
        None
    }

    /// Returns whether the engine takes the flags for which a search space of the engine `kind` is written.
    fn takes_space_of(&self, kind: &str) -> bool {
        kind == self.kind()
    }
}

/// The program file that a command would run: a path as it is, a name by way of `PATH`.
#[must_use]
pub fn resolve_program(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        let path = PathBuf::from(program);
        return path.is_file().then_some(path);
    }
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories).map(|directory| directory.join(program)).find(|path| path.is_file())
}
