//! Every engine, a folder each, and the registry of their names. One line in [`ENGINES`] adds an engine.

mod command;
mod llama_cpp;
pub mod sim;
pub mod vllm;

use std::sync::Arc;

use crate::document::{DocumentError, Section};
use crate::engine::Engine;

/// A kind of engine: its name in study files, and the reader of its keys.
#[derive(Debug)]
pub struct EngineKind {
    /// The name in study files.
    pub name: &'static str,
    /// Prefixes of the engine's environment variables.
    variables: &'static [&'static str],
    read: fn(&Section<'_>) -> Result<Arc<dyn Engine>, DocumentError>,
    /// The constructor, for an engine that needs no keys of a study file.
    built_in: Option<fn() -> Arc<dyn Engine>>,
}

impl EngineKind {
    /// Reads the engine's own keys of `[engine]`.
    ///
    /// # Errors
    /// If a key is missing or has an invalid value.
    pub fn read(&self, section: &Section<'_>) -> Result<Arc<dyn Engine>, DocumentError> {
        (self.read)(section)
    }

    /// Returns whether the engine's flags and rules are available without a study.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.built_in.is_some_and(|build| build().rules().is_some())
    }
}

/// The registry: every kind of engine.
pub static ENGINES: &[&EngineKind] = &[&vllm::ENGINE, &sim::ENGINE, &llama_cpp::ENGINE, &command::ENGINE];

/// Returns the prefixes of the environment variables of all engines. The kind of an engine does not restrict them,
/// because an engine that only the study file describes may be any of these.
#[must_use]
pub fn variable_prefixes() -> Vec<&'static str> {
    ENGINES.iter().flat_map(|kind| kind.variables).copied().collect()
}

/// Returns the engine that is assumed if none is named.
#[must_use]
pub fn default_engine() -> Arc<dyn Engine> {
    vllm::engine()
}

/// Returns the kind with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static EngineKind> {
    ENGINES.iter().copied().find(|kind| kind.name == name)
}

/// Returns the engine with this name, if it exists and needs no keys of a study file.
#[must_use]
pub fn built_in(name: &str) -> Option<Arc<dyn Engine>> {
    Some(find(name)?.built_in?())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::Config;
    use crate::engine::{LaunchSpec, PlaceholderValues};
    use crate::facts::EngineVersion;

    #[test]
    fn an_engine_that_simulates_computes_nothing_and_takes_the_spaces_of_what_it_simulates() {
        let [vllm, sim] = ["vllm", "sim"].map(|kind| built_in(kind).unwrap());
        assert_eq!((vllm.runs_model(), vllm.simulated(&[])), (true, None));
        assert!(!sim.runs_model() && sim.simulated(&[]).is_some_and(|simulated| simulated.devices == 1));
        assert_eq!(sim.simulated(&["--sim-devices".to_owned(), "none".to_owned()]), None);
        assert!(sim.takes_space_of("vllm") && sim.takes_space_of("sim") && !sim.takes_space_of("other"));
        assert!(vllm.takes_space_of("vllm") && !vllm.takes_space_of("sim"));
    }

    #[test]
    fn flags_come_before_the_studys_own_arguments_and_the_address_last() {
        let command = ["vllm".to_owned(), "serve".to_owned()];
        let config = Config::new().with("max-num-seqs", 8_i64).with("enable-prefix-caching", false);
        let filling = filling();
        let mut spec = LaunchSpec {
            command: &command,
            model: "m",
            config: &config,
            args: &["--enforce-eager".to_owned()],
            version: EngineVersion::new(0, 32, 0),
            launch: Some(("127.0.0.1", &filling)),
        };
        let line = |spec: LaunchSpec<'_>| default_engine().command_line(&spec).unwrap().words.join(" ");
        let expected = "vllm serve m --no-enable-prefix-caching --max-num-seqs 8 --enforce-eager";
        assert_eq!(line(spec), format!("{expected} --host 127.0.0.1 --port 8123"));
        spec.launch = None;
        assert_eq!(line(spec), expected);
    }

    #[test]
    fn a_study_that_names_the_port_may_set_the_host() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (config, filling) = (Config::new(), filling());
        let line = |command: &str, args: &str| {
            let (command, args) = (words(command), words(args));
            let spec = LaunchSpec {
                command: &command,
                model: "m",
                config: &config,
                args: &args,
                version: EngineVersion::new(0, 32, 0),
                launch: Some(("127.0.0.1", &filling)),
            };
            default_engine().command_line(&spec).unwrap().words.join(" ")
        };
        let docker = "docker run -p 127.0.0.1:{port}:{port} image";
        let begin = "docker run -p 127.0.0.1:8123:8123 image m";
        assert_eq!(line(docker, "--host 0.0.0.0"), format!("{begin} --host 0.0.0.0 --port 8123"));
        assert_eq!(line(docker, "--host=::"), format!("{begin} --host=:: --port 8123"));
        assert_eq!(line(docker, ""), format!("{begin} --host 127.0.0.1 --port 8123"));
        let fixed = "docker run -p 127.0.0.1:{port}:8000 image";
        let expected = "docker run -p 127.0.0.1:8123:8000 image m --host 0.0.0.0 --port 8000";
        assert_eq!(line(fixed, "--host 0.0.0.0 --port 8000"), expected);
        // Without the placeholder the last arguments win, as in the engine's own parser.
        let expected = "vllm serve m --port 8000 --host 127.0.0.1 --port 8123";
        assert_eq!(line("vllm serve", "--port 8000"), expected);
    }

    fn filling() -> PlaceholderValues {
        let (name, log) = ("n".to_owned(), PathBuf::from("/log"));
        let (devices, processors) = ("all".to_owned(), "0".to_owned());
        PlaceholderValues { port: 8123, name, log, trial: 1, devices, processors, variables: Vec::new() }
    }

    #[test]
    fn engines_have_names_of_their_own() {
        for engine in ENGINES {
            assert_eq!(find(engine.name).map(|found| found.name), Some(engine.name));
            assert!(built_in(engine.name).is_none_or(|built| built.kind() == engine.name));
        }
    }
}
