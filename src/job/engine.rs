//! `[engine]`: what is launched.

use std::collections::BTreeMap;
use std::time::Duration;

use super::device;
use super::paths::Paths;
use crate::config::Config;
use crate::document::{DocumentError, Section};
use crate::engine::{self, ENGINES, Engine};
use crate::facts::{Device, EngineVersion};
use crate::flag::FlagTable;
use crate::trial::is_secret;

pub struct EngineJob {
    pub engine: &'static dyn Engine,
    /// The program and its leading arguments.
    pub command: Vec<String>,
    /// The command as the study file spells it, where it does.
    pub written_command: Option<Vec<String>>,
    /// Arguments that every launch gets as they are.
    pub args: Vec<String>,
    /// Variables of the study, which every launch gets.
    pub env: BTreeMap<String, String>,
    /// These over what the tuner's own environment has that engines heed: what a launch will find.
    pub environment: BTreeMap<String, String>,
    /// The release, where the study states it.
    pub version: Option<EngineVersion>,
    /// The device, as far as the study describes it.
    pub device: Option<Device>,
    /// Whether the installed engine is asked before each launch.
    pub preflight: bool,
    pub startup_timeout: Duration,
    /// How long a server may show no sign of life, in its start or under load, before it counts as hanging; zero: for ever.
    pub stall_timeout: Duration,
    /// How long a server may take to end after TERM.
    pub stop_timeout: Duration,
}

impl std::fmt::Debug for EngineJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The environment is left out: it may hold secrets.
        f.debug_struct("EngineJob")
            .field("kind", &self.engine.kind())
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

impl EngineJob {
    pub(super) fn read(section: &Section<'_>, paths: &Paths) -> Result<Self, DocumentError> {
        let kind: String = section.required("kind")?;
        let engine = engine::find(&kind).ok_or_else(|| {
            let known: Vec<_> = ENGINES.iter().map(|engine| engine.kind()).collect();
            section.error("kind", format!("{kind:?} is not an engine; there are {}", known.join(", ")), None)
        })?;
        let command: Option<Vec<String>> = section.optional("command")?;
        let written_command = command.clone();
        let mut command = match command {
            Some(command) => command,
            None => engine.default_command().map_err(|error| {
                section.error("command", format!("cannot be found out: {error}"), Some("state it".to_owned()))
            })?,
        };
        let Some(program) = command.first_mut() else { return Err(section.error("command", "is empty", None)) };
        if program.contains('/')
            && let Some(path) = paths.find(program)
        {
            *program = path.to_string_lossy().into_owned();
        }
        let version: Option<String> = section.optional("version")?;
        let version = version.map(|text| {
            text.parse().map_err(|error: crate::facts::VersionError| section.error("version", error.to_string(), None))
        });
        let device = device::read(section)?;
        let args: Vec<String> = section.optional("args")?.unwrap_or_default();
        // `--api-key` of the engine, or `HF_TOKEN=...` behind `env`.
        let secret = |word: &&String| (word.starts_with('-') || word.contains('=')) && is_secret(word);
        if let Some(word) = args.iter().chain(&command).find(secret) {
            let hint = "give it to the engine in [engine.env] or in the tuner's own environment".to_owned();
            let name = word.split('=').next().unwrap_or(word);
            let problem = format!("`{name}` would be stored, and shown to every user of this machine");
            return Err(section.error("args", problem, Some(hint)));
        }
        let env: BTreeMap<String, String> = section.optional("env")?.unwrap_or_default();
        if let Some(name) = env.keys().find(|name| !engine::is_variable(name)) {
            return Err(section.error("env", format!("{name:?} is not a variable that a shell could set"), None));
        }
        Ok(Self {
            engine,
            command,
            written_command,
            args,
            environment: engine::environment(&env),
            env,
            version: version.transpose()?,
            device,
            preflight: section.optional("preflight")?.unwrap_or(true),
            startup_timeout: section.optional("startup_timeout")?.unwrap_or(Duration::from_mins(15)),
            stall_timeout: section.optional("stall_timeout")?.unwrap_or(Duration::from_mins(1)),
            stop_timeout: section.optional("stop_timeout")?.unwrap_or(Duration::from_secs(30)),
        })
    }

    /// What `args` set, as far as the release knows them: other arguments are for a wrapper or for the simulation.
    #[must_use]
    pub fn arguments(&self, version: EngineVersion) -> Config {
        let table = FlagTable::for_version(version);
        let flags = self.args.chunk_by(|_, next| !next.starts_with("--"));
        flags.filter_map(|flag| table.parse(flag).ok()).fold(Config::new(), |all, flag| all.merged(&flag))
    }

    /// Why the command cannot be run here, and what to do.
    #[must_use]
    pub fn missing_program(&self, file: &std::path::Path) -> Option<DocumentError> {
        let program = self.command.first()?;
        if engine::resolve_program(program).is_some() {
            return None;
        }
        let (problem, hint) = if program.contains('/') {
            (format!("the program {program} does not exist"), "paths begin at the study file or the working directory")
        } else {
            (format!("the program {program:?} is not on the PATH"), "activate its environment, or give its path here")
        };
        Some(DocumentError {
            file: file.to_owned(),
            line: None,
            key: "engine.command".to_owned(),
            problem,
            hint: Some(hint.to_owned()),
        })
    }
}
