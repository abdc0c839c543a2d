//! An engine: how a configuration becomes a command line, and what its log says when it fails.
//!
//! Every engine is one file and one line in [`ENGINES`].

mod diagnose;
mod environment;
mod phases;
mod python;
mod python_text;
mod resolved;
#[cfg(test)]
mod resolved_tests;
mod sim;
mod startup;
mod vllm;

use std::path::PathBuf;

use crate::config::Config;
use crate::facts::{Device, EngineVersion};
use crate::flag::FlagError;

pub use diagnose::diagnose;
pub use environment::{environment, is_variable};
pub use phases::{StartPhase, Timeline};
pub use python::python_of;
pub use resolved::{Resolved, differences, resolved};
pub use startup::observe;

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
    /// `None` in exported commands, which keep the engine's own default.
    pub address: Option<(&'a str, u16)>,
}

impl LaunchSpec<'_> {
    /// `COMMAND MODEL [flags of the configuration] [args of the study] [--host --port]`.
    ///
    /// # Errors
    /// When the release does not have a flag of the configuration.
    pub fn command_line(&self) -> Result<Vec<String>, FlagError> {
        let mut line = self.command.to_vec();
        line.push(self.model.to_owned());
        line.extend(crate::flag::FlagTable::for_version(self.version).render(self.config)?);
        line.extend_from_slice(self.args);
        if let Some((host, port)) = self.address {
            line.extend(["--host".to_owned(), host.to_owned(), "--port".to_owned(), port.to_string()]);
        }
        Ok(line)
    }
}

pub trait Engine: Sync {
    /// The name in study files.
    fn kind(&self) -> &'static str;

    /// The command where the study names none.
    ///
    /// # Errors
    /// When it cannot be found out.
    fn default_command(&self) -> std::io::Result<Vec<String>>;

    /// Arguments that this engine needs to be the given release.
    fn version_args(&self, version: EngineVersion) -> Vec<String>;

    /// A short command that prints the installed release, where there is one.
    fn version_probe(&self, command: &[String]) -> Option<Vec<String>>;

    /// Whether an installed engine can be asked what it would say of a command line.
    fn has_preflight(&self) -> bool;

    /// The Python of this machine that runs the command, where it is known.
    fn preflight_python(&self, command: &[String]) -> Option<String>;

    /// The device that the engine computes on, as far as its arguments and its version's text tell.
    fn device(&self, args: &[String], version: Option<&str>) -> Option<Device>;
}

pub const ENGINES: [&dyn Engine; 2] = [&vllm::Vllm, &sim::Sim];

#[must_use]
pub fn find(kind: &str) -> Option<&'static dyn Engine> {
    ENGINES.into_iter().find(|engine| engine.kind() == kind)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_before_the_studys_own_arguments_and_the_address_last() {
        let command = ["vllm".to_owned(), "serve".to_owned()];
        let config = Config::new().with("max-num-seqs", 8_i64).with("enable-prefix-caching", false);
        let mut spec = LaunchSpec {
            command: &command,
            model: "m",
            config: &config,
            args: &["--enforce-eager".to_owned()],
            version: EngineVersion::new(0, 32, 0),
            address: Some(("127.0.0.1", 8123)),
        };
        let line = |spec: LaunchSpec<'_>| spec.command_line().unwrap().join(" ");
        let expected = "vllm serve m --no-enable-prefix-caching --max-num-seqs 8 --enforce-eager";
        assert_eq!(line(spec), format!("{expected} --host 127.0.0.1 --port 8123"));
        spec.address = None;
        assert_eq!(line(spec), expected);
    }

    #[test]
    fn engines_have_names_of_their_own() {
        for engine in ENGINES {
            assert_eq!(find(engine.kind()).map(Engine::kind), Some(engine.kind()));
        }
    }
}
