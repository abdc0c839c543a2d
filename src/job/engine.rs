//! `[engine]`: the engine's command, environment and time limits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::device;
use super::paths::StudyPaths;
use crate::config::Config;
use crate::document::{DocumentError, Section, nearest};
use crate::engine::{self, Engine, PlaceholderError, check_word, has_placeholder, take_api_keys};
use crate::engines::{ENGINES, find, variable_prefixes};
use crate::facts::{Device, EngineVersion};
use crate::load::Dialect;
use crate::trial::is_secret;

/// The engine of a study: the command of its launches and their limits.
pub struct EngineJob {
    pub engine: Arc<dyn Engine>,
    /// The dialect of the engine's server.
    pub dialect: Dialect,
    /// The program and its leading arguments.
    pub command: Vec<String>,
    /// The command as the study file spells it; `None` if the file has none.
    pub written_command: Option<Vec<String>>,
    /// Arguments that every launch gets unchanged.
    pub args: Vec<String>,
    /// A command that ends a launch that signals do not reach. It runs before the signals.
    pub stop_command: Option<Vec<String>>,
    /// Whether the port may belong to a program outside the launch that forwards connections, such as a container's
    /// proxy.
    pub has_forwarded_port: bool,
    /// The study's variables, set in every launch.
    pub env: BTreeMap<String, String>,
    /// `env` merged over those variables of the tuner's own environment that engines read: the environment of a launch.
    pub environment: BTreeMap<String, String>,
    /// The release, if the study states it.
    pub version: Option<EngineVersion>,
    /// The device, as far as the study describes it.
    pub device: Option<Device>,
    /// Whether the preflight checks each configuration with the installed engine before its launch.
    pub preflight: bool,
    /// The longest time from the launch to readiness.
    pub startup_timeout: Duration,
    /// The longest time without a sign of life, in start-up or under load, before an idle server counts as hanging. A
    /// server that is busy under load may have a longer limit. Zero disables the check.
    pub stall_timeout: Duration,
    /// The longest time that a server may take to end after SIGTERM.
    pub stop_timeout: Duration,
    /// The first pause before a trial is launched again after a failure of its environment.
    pub retry_after: Duration,
}

impl std::fmt::Debug for EngineJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The environment is left out because it may contain secrets.
        f.debug_struct("EngineJob")
            .field("kind", &self.engine.kind())
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

impl EngineJob {
    pub(super) fn read(section: &Section<'_>, paths: &StudyPaths) -> Result<Self, DocumentError> {
        let (engine, dialect) = read_kind(section)?;
        let command: Option<Vec<String>> = section.optional("command")?;
        let mut written_command = command.clone();
        let mut command = match command {
            Some(command) => command,
            None => engine.default_command().map_err(|error| {
                section.error("command", format!("the default is unknown: {error}"), Some("set it".to_owned()))
            })?,
        };
        find_program(section, "command", &mut command, paths)?;
        let mut stop_command: Option<Vec<String>> = section.optional("stop_command")?;
        if let Some(stop_command) = &mut stop_command {
            find_program(section, "stop_command", stop_command, paths)?;
        }
        let forwarded = is_forwarded(section)?;
        let version: Option<String> = section.optional("version")?;
        let version = version.map(|text| {
            text.parse().map_err(|error: crate::facts::VersionError| section.error("version", error.to_string(), None))
        });
        let device = device::read(section)?;
        let args: Vec<String> = section.optional_or("args", Vec::new())?;
        // Without a stated release the newest table is used: only the spelling of disabled switches depends on the
        // release.
        let release = version.as_ref().and_then(|version| version.as_ref().ok());
        let release = release.copied().unwrap_or_else(|| engine.newest_release());
        let (mut args, mut keys) = (args, Vec::new());
        // Arguments of an engine without known flags stay unchanged.
        if engine.flags().is_some() {
            args = engine.inline_config_file(args, release, &|file| paths.find(file)).map_err(|error| {
                let hint = "name a file on this machine: setpoint passes its flags instead of the file".to_owned();
                section.error("args", error, Some(hint))
            })?;
            if engine.passes_config_file(&command) {
                let hint = "move --config and its file to engine.args".to_owned();
                let problem = "the engine's --config is supported in engine.args only".to_owned();
                return Err(section.error("command", problem, Some(hint)));
            }
            keys.extend(take_api_keys(&mut args));
            keys.extend(take_api_keys(&mut command));
            if let Some(words) = &mut written_command {
                take_api_keys(words);
            }
        }
        // A word that holds a secret, such as `HF_TOKEN=...` after `env`.
        let secret = |word: &&String| (word.starts_with('-') || word.contains('=')) && is_secret(word);
        if let Some(word) = args.iter().chain(&command).chain(stop_command.iter().flatten()).find(secret) {
            let hint = "set it in [engine.env] or in the tuner's own environment".to_owned();
            let name = word.split('=').next().unwrap_or(word);
            let problem = format!("`{name}` would be stored, and visible to every user of this machine");
            return Err(section.error("args", problem, Some(hint)));
        }
        let mut env: BTreeMap<String, String> = section.optional_or("env", BTreeMap::new())?;
        // vLLM prefers the argument to the variable. One key is enough for the tuner's own requests.
        if let (Some(key), Some(variable)) = (keys.into_iter().next(), engine.api_key_variable()) {
            env.insert(variable.to_owned(), key);
        }
        if let Some(name) = env.keys().find(|name| !engine::is_variable(name)) {
            return Err(section.error("env", format!("{name:?} is not a valid name of an environment variable"), None));
        }
        let refused = |key, error: PlaceholderError| section.error(key, error.to_string(), Some(error.hint()));
        engine.check_command(&command).map_err(|error| refused("command", error))?;
        if engine.needs_port()
            && !command.iter().chain(&args).chain(env.values()).any(|word| has_placeholder(word, "port"))
        {
            let hint = "add {port} where the server takes its port, such as [..., \"--port\", \"{port}\"]".to_owned();
            let problem = "{port} is missing, but every launch gets another port".to_owned();
            return Err(section.error("command", problem, Some(hint)));
        }
        let (stop_words, values) = (stop_command.iter().flatten(), env.values());
        for (key, words) in [
            ("args", args.iter().collect::<Vec<_>>()),
            ("stop_command", stop_words.collect()),
            ("env", values.collect()),
        ] {
            words.into_iter().try_for_each(|word| check_word(word)).map_err(|error| refused(key, error))?;
        }
        if forwarded && stop_command.is_none() {
            let hint = "give the command that ends a launch, such as [\"docker\", \"stop\", \"{name}\"]".to_owned();
            return Err(section.error("stop_command", "is missing, but listener is \"forwarded\"", Some(hint)));
        }
        Ok(Self {
            engine,
            dialect,
            command,
            written_command,
            args,
            stop_command,
            has_forwarded_port: forwarded,
            environment: engine::environment(&env, &variable_prefixes()),
            env,
            version: version.transpose()?,
            device,
            preflight: section.optional_or("preflight", true)?,
            startup_timeout: section.optional_or("startup_timeout", Duration::from_mins(15))?,
            stall_timeout: section.optional_or("stall_timeout", Duration::from_mins(1))?,
            stop_timeout: section.optional_or("stop_timeout", Duration::from_secs(30))?,
            retry_after: section.optional_or("retry_after", Duration::from_secs(10))?,
        })
    }

    /// Returns the configuration that `args` set, as far as the release has their flags. Other arguments are for a
    /// wrapper or for the simulation.
    #[must_use]
    pub fn arguments(&self, version: EngineVersion) -> Config {
        let Some(table) = self.engine.flag_table(version) else { return Config::new() };
        let flags = self.args.chunk_by(|_, next| !next.starts_with("--"));
        let known = flags.filter(|words| words.first().is_some_and(|word| table.is_flag_argument(word)));
        known.filter_map(|flag| table.parse(flag).ok()).fold(Config::new(), |all, flag| all.merged(&flag))
    }

    /// Returns the API key that the server requires.
    #[must_use]
    pub fn api_key(&self) -> Option<&str> {
        let key = self.environment.get(self.engine.api_key_variable()?)?;
        Some(key.as_str()).filter(|key| !key.is_empty())
    }

    /// Returns an error with a hint if the command cannot be run here.
    #[must_use]
    pub fn missing_program(&self, file: &std::path::Path) -> Option<DocumentError> {
        let words = [("engine.command", Some(&self.command)), ("engine.stop_command", self.stop_command.as_ref())];
        let mut programs = words.into_iter().filter_map(|(key, words)| Some((key, words?.first()?)));
        let (key, program) = programs.find(|(_, program)| engine::resolve_program(program).is_none())?;
        let (problem, hint) = if program.contains('/') {
            (
                format!("the program {program} does not exist"),
                "paths are relative to the study file or the working directory",
            )
        } else {
            (format!("the program {program:?} is not on the PATH"), "activate its environment, or give its path here")
        };
        Some(DocumentError {
            file: file.to_owned(),
            line: None,
            key: key.to_owned(),
            problem,
            hint: Some(hint.to_owned()),
        })
    }
}

/// Reads the engine with its own keys, and the dialect of its server.
fn read_kind(section: &Section<'_>) -> Result<(Arc<dyn Engine>, Dialect), DocumentError> {
    let kind: String = section.required("kind")?;
    let kind = find(&kind).ok_or_else(|| {
        let known: Vec<_> = ENGINES.iter().map(|engine| engine.name).collect();
        section.error("kind", format!("{kind:?} is not an engine; there are {}", known.join(", ")), None)
    })?;
    let engine = kind.read(section)?;
    let dialect = Dialect::from_name(engine.dialect()).ok_or_else(|| {
        let known = Dialect::ALL.map(Dialect::name);
        let hint = nearest(engine.dialect(), known).map(|near| format!("did you mean {near:?}?"));
        let problem = format!("{:?} is not a dialect; there are {}", engine.dialect(), known.join(", "));
        section.error("dialect", problem, hint)
    })?;
    Ok((engine, dialect))
}

/// Reads whether a program outside the launch forwards connections to the server.
fn is_forwarded(section: &Section<'_>) -> Result<bool, DocumentError> {
    match section.optional_or("listener", "own".to_owned())?.as_str() {
        "own" => Ok(false),
        "forwarded" => Ok(true),
        other => {
            let problem = format!("{other:?} is not a kind of listener; there are \"own\" and \"forwarded\"");
            let hint = "use \"forwarded\" if the proxy of a container or of a tunnel owns the port".to_owned();
            Err(section.error("listener", problem, Some(hint)))
        }
    }
}

/// Resolves a program that is named by a path: beside the study first, then in the working directory.
fn find_program(
    section: &Section<'_>,
    key: &str,
    command: &mut [String],
    paths: &StudyPaths,
) -> Result<(), DocumentError> {
    let Some(program) = command.first_mut() else { return Err(section.error(key, "is empty", None)) };
    if program.contains('/')
        && let Some(path) = paths.find(program)
    {
        *program = path.to_string_lossy().into_owned();
    }
    Ok(())
}
