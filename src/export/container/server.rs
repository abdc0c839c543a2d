//! The server that a container starts, from the parts of a measured launch.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::PORT;
use super::word::ServerWord;
use crate::config::Config;
use crate::engine::{Engine, ServerStarts, is_variable};
use crate::engines;
use crate::export::ExportedTrial;
use crate::facts::{Device, EngineVersion};
use crate::stats::f64_to_u64;
use crate::trial::{LaunchWords, REDACTED};

/// The start-up may take this many times as long as the measured one.
pub(super) const STARTUP_FACTOR: f64 = 3.0;

/// The shortest allowed start-up, in seconds.
pub(super) const MIN_STARTUP_S: u64 = 300;

/// The time for the download of a model from the hub, in seconds. It is not part of a measured start-up.
pub(super) const DOWNLOAD_S: u64 = 1800;

/// The allowed start-up in seconds if none was measured.
const DEFAULT_STARTUP_S: u64 = 3600;

/// Shared memory of each device, and of a server without devices, in GiB. vLLM's own manifest has 2 GiB for one GPU,
/// and its documentation 4 GiB for processors.
const SHARED_MEMORY_GIB: (u64, u64) = (2, 4);

/// The longest name. Helm charts and KServe append up to 30 characters of the 63 of a DNS label.
const MAX_NAME: usize = 33;

/// Variables that select among the devices of the measured host. A container gets devices of its own.
const DEVICE_VARIABLES: [&str; 2] = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"];

/// Flags with the address of a server. A container has an address of its own.
const ADDRESS: [&str; 2] = ["--host", "--port"];

/// The reason why a launch cannot be written as a container.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContainerError {
    #[error(
        "the parts of the command line of trial {0} are unknown: it was imported or measured by an earlier release, or \
         the command line of its engine has no fixed parts"
    )]
    NoParts(u32),
    #[error("the engine {kind:?}, version {version}, has no known container image")]
    NoImage { kind: String, version: String },
    #[error("{project} does not serve the engine {kind:?}")]
    NotServed { project: &'static str, kind: String },
}

impl ContainerError {
    /// Returns the next step for the user.
    pub(crate) fn hint(&self) -> &'static str {
        match self {
            Self::NoParts(_) | Self::NotServed { .. } => "export it as a script: export --format sh",
            Self::NoImage { .. } => "name an image of this engine with --image IMAGE, or export --format sh",
        }
    }
}

/// The model of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ModelPlace {
    /// The name of a model on the hub.
    Hub(String),
    /// A directory or file of the host.
    Local(String),
}

/// A server to deploy: everything that the formats of containers have in common.
#[derive(Debug)]
pub(super) struct ExportedServer {
    engine: Arc<dyn Engine>,
    version: EngineVersion,
    /// A DNS label.
    pub name: String,
    pub image: String,
    /// The commands of the engine.
    pub starts: &'static ServerStarts,
    pub model: ModelPlace,
    /// The flags of the configuration, as words.
    pub flags: Vec<ServerWord>,
    /// The study's own arguments, without an address.
    pub arguments: Vec<ServerWord>,
    /// The configuration that the flags render.
    pub config: Config,
    /// The configuration of all arguments, as far as they are flags of the release.
    pub effective: Config,
    pub env: BTreeMap<String, String>,
    /// The names of variables whose values are secrets.
    pub secrets: Vec<String>,
    /// The path of the health page. `None` if an open port shows that the server is up.
    pub health: Option<String>,
    /// Zero for a server that computes on processors.
    pub gpus: u64,
    pub shared_memory_gib: u64,
    /// The longest start-up that is not a failure, in seconds.
    pub startup_budget_s: u64,
    /// The measured start-up, in seconds.
    pub startup_s: Option<f64>,
    /// The comments at the top of a file.
    pub comments: Vec<String>,
}

impl ExportedServer {
    /// Describes the server of a trial.
    ///
    /// # Errors
    /// If the launch has no known parts, or its engine has no container image.
    pub(super) fn of(winner: &ExportedTrial<'_>) -> Result<Self, ContainerError> {
        let trial = &winner.scored.trial;
        let no_parts = || ContainerError::NoParts(trial.proposal.number);
        let kind = winner.report.study.definition["engine"]["kind"].as_str().unwrap_or_default();
        let words = trial.launch.words().ok_or_else(no_parts)?;
        let engine = engines::built_in(kind).ok_or_else(no_parts)?;
        let starts = engine.server_starts().ok_or_else(no_parts)?;
        let reported = trial.engine_version.as_deref().unwrap_or_default();
        let version = engine.read_release(reported).unwrap_or_else(|| engine.newest_release());
        let (flags, arguments) = (words.flags, without_address(engine.deployed_arguments(words.arguments)));
        let all: Vec<_> = flags.iter().chain(&arguments).cloned().collect();
        let effective = engine.flag_table(version).map(|table| table.parse_lenient(&all).0).unwrap_or_default();
        let (mut read, mut secrets) = ServerWord::read_all(&all);
        let arguments = read.split_off(flags.len());
        let env = environment(&trial.launch.env, &mut secrets);
        let gpus = gpus(winner, &*engine, &words, &effective);
        let image = image(winner, &*engine, words.program, reported, gpus > 0)?;
        let model = match words.model.replace('\0', "") {
            path if is_path(&path) => ModelPlace::Local(path),
            name => ModelPlace::Hub(name),
        };
        let budget = startup_budget_s(trial.startup_s, &model);
        let mut server = Self {
            name: dns_label(&winner.report.study.name),
            image,
            starts,
            flags: read,
            arguments,
            config: without_imported(&trial.proposal.config),
            effective,
            env,
            secrets,
            health: engine.readiness().health,
            gpus,
            shared_memory_gib: SHARED_MEMORY_GIB.1.max(gpus.saturating_mul(SHARED_MEMORY_GIB.0)),
            startup_budget_s: budget,
            startup_s: trial.startup_s,
            comments: winner.description(),
            model,
            engine,
            version,
        };
        server.comments.extend(server.remarks(&trial.launch.env, words.program, starts));
        Ok(server)
    }

    pub(super) fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    pub(super) fn version(&self) -> EngineVersion {
        self.version
    }

    /// Returns the name of the served model as the engine gets it.
    pub(super) fn model_word(&self) -> &str {
        match &self.model {
            ModelPlace::Hub(name) | ModelPlace::Local(name) => name,
        }
    }

    /// Returns the name of the model in requests.
    pub(super) fn served_name(&self) -> &str {
        let given = self.effective.get_str("served-model-name").and_then(|names| names.split_whitespace().next());
        given.unwrap_or_else(|| self.model_word())
    }

    /// Returns all arguments behind the program: the model, flags, the study's arguments and the address.
    pub(super) fn words(&self) -> Vec<ServerWord> {
        self.words_at(PORT)
    }

    /// Returns the same with another port.
    pub(super) fn words_at(&self, port: u16) -> Vec<ServerWord> {
        let port = port.to_string();
        let address = ["--host", "0.0.0.0", "--port", &port].map(ServerWord::from);
        let model = self.engine.model_flag().into_iter().chain([self.model_word()]).map(ServerWord::from);
        model.chain(self.flags.iter().cloned()).chain(self.arguments.iter().cloned()).chain(address).collect()
    }

    /// Returns a number that a flag sets. It is one by default.
    pub(super) fn size(&self, flag: &str) -> i64 {
        self.effective.get_i64(flag).unwrap_or(1)
    }

    pub(super) fn secret_name(&self) -> String {
        format!("{}-secrets", self.name)
    }
}

/// Returns the image that the user named, the one of the measured launch, or the one of the release.
fn image(
    winner: &ExportedTrial<'_>,
    engine: &dyn Engine,
    program: &[String],
    reported: &str,
    has_gpu: bool,
) -> Result<String, ContainerError> {
    let starts = engine.server_starts();
    let is_image =
        |word: &&String| !word.starts_with(['-', '/', '.']) && starts.is_some_and(|starts| starts.runs_in_image(word));
    let measured = program.iter().find(is_image).cloned();
    let named = winner.image.map(str::to_owned);
    named.or(measured).or_else(|| engine.container_image(reported, has_gpu)).ok_or_else(|| {
        let version = if reported.is_empty() { "unknown" } else { reported };
        ContainerError::NoImage { kind: engine.kind().to_owned(), version: version.to_owned() }
    })
}

/// Returns whether a model is a path and not the name of a model on the hub, `NAME` or `OWNER/NAME`.
fn is_path(model: &str) -> bool {
    model.starts_with(['/', '.', '~']) || model.matches('/').count() > 1
}

/// Removes `--host H`, `--port=P` and their like.
fn without_address(words: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut rest = words.into_iter();
    while let Some(word) = rest.next() {
        match word.split_once('=').map_or(word.as_str(), |(flag, _)| flag) {
            flag if !ADDRESS.contains(&flag) => kept.push(word),
            flag if flag == word => drop(rest.next()),
            _ => {}
        }
    }
    kept
}

/// Returns the configuration without the keys of an import, which are no flags.
fn without_imported(config: &Config) -> Config {
    let mut kept = Config::new();
    for (name, value) in config.iter().filter(|(name, _)| !name.starts_with("import.")) {
        kept.set(name, value.clone());
    }
    kept
}

/// Returns the variables with their values. Names of secrets are added to `secrets`.
fn environment(env: &BTreeMap<String, String>, secrets: &mut Vec<String>) -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    for (name, value) in env.iter().filter(|(name, _)| is_variable(name) && !DEVICE_VARIABLES.contains(&name.as_str()))
    {
        if !value.contains(REDACTED) {
            kept.insert(name.clone(), value.replace('\0', ""));
        } else if !secrets.contains(name) {
            secrets.push(name.clone());
        }
    }
    kept
}

/// Returns the number of GPUs that the launch computed on.
fn gpus(winner: &ExportedTrial<'_>, engine: &dyn Engine, words: &LaunchWords<'_>, effective: &Config) -> u64 {
    let reported = winner.scored.trial.engine_version.as_deref();
    let measured = winner.context.and_then(|context| context.device.name.as_deref());
    if engine.device(words.arguments, reported) == Some(Device::Cpu) || measured == Some("cpu") {
        return 0;
    }
    engine.rules().map_or(1, |rules| rules.devices_needed(effective))
}

fn startup_budget_s(measured: Option<f64>, model: &ModelPlace) -> u64 {
    let Some(measured) = measured else { return DEFAULT_STARTUP_S };
    let start = f64_to_u64((measured * STARTUP_FACTOR).ceil()).max(MIN_STARTUP_S);
    start + if matches!(model, ModelPlace::Hub(_)) { DOWNLOAD_S } else { 0 }
}

/// Returns a name for objects of Kubernetes: lower-case letters, digits and dashes, with a letter at its begin.
fn dns_label(study: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = study.chars().map(letter).collect();
    let parts: Vec<_> = name.split('-').filter(|part| !part.is_empty()).collect();
    let mut name = parts.join("-");
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        name.insert_str(0, "study-");
    }
    name.truncate(MAX_NAME);
    name.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_studies_become_dns_labels() {
        for (study, expected) in [
            ("chat", "chat"),
            ("Llama 3.1: Chät!", "llama-3-1-ch-t"),
            ("70b", "study-70b"),
            ("", "study"),
            ("\u{65e5}", "study"),
            ("a-long-name-of-a-study-of-the-model-qwen3", "a-long-name-of-a-study-of-the-mod"),
            ("a-long-name-of-a-study-of-a-good-model", "a-long-name-of-a-study-of-a-good"),
        ] {
            assert_eq!(dns_label(study), expected, "{study}");
        }
    }

    #[test]
    fn the_address_of_a_study_is_left_out() {
        let words = "--host 0.0.0.0 --seed 1 --port=8000 --host=:: --port 1 --portal x".split(' ').map(str::to_owned);
        assert_eq!(without_address(words.collect()), ["--seed", "1", "--portal", "x"]);
    }

    #[test]
    fn names_of_the_hub_are_no_paths() {
        for (model, expected) in
            [("gpt2", false), ("org/name", false), ("/m", true), ("./m", true), ("a/b/c", true), ("~/m", true)]
        {
            assert_eq!(is_path(model), expected, "{model}");
        }
    }

    #[test]
    fn a_start_gets_three_times_its_time_and_the_download() {
        let hub = ModelPlace::Hub(String::new());
        let local = ModelPlace::Local(String::new());
        let budgets = [Some(31.5), Some(200.2), None].map(|measured| startup_budget_s(measured, &local));
        assert_eq!(budgets, [300, 601, DEFAULT_STARTUP_S]);
        assert_eq!(startup_budget_s(Some(200.2), &hub), 2401);
    }
}
