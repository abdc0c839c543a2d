//! The study file, resolved and validated: the input of `setpoint tune STUDY.toml`.

mod budget;
mod comparison;
mod defaults;
mod definition;
mod description;
mod device;
mod engine;
mod first_point;
mod guard;
mod installed;
mod known_outcome;
mod load;
mod load_goal;
mod load_level;
mod load_watch;
mod model;
mod objective;
mod paths;
mod profile;
mod question;
#[cfg(test)]
mod reference;
mod rule_test;
mod search;
mod slots;
mod space;
mod workload;
mod workloads;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::document::{Document, DocumentError, Section, nearest};
pub use crate::engine::is_connection_flag;
use crate::engine::{ADAPTERS_FLAG, adapter_names};
use crate::facts::{Device, EngineVersion, HostLimits};
use crate::objective::Objective;
use crate::rule::Facts;
use crate::sampler::{self, SAMPLERS, Sampler};
use crate::space::Space;
use crate::trial::{CommandLine, LaunchCommand, Origin};

pub use budget::{StopRule, StudyBudget};
pub use comparison::{EngineComparison, Entrant, StudyFile};
pub use definition::differences;
pub use description::JobDescription;
pub use engine::EngineJob;
pub use first_point::FirstPoint;
pub use guard::GuardJob;
pub use known_outcome::past_trial;
pub use load::{LoadJob, repeated_prompts, repetition_warning, start_after};
pub use model::ModelJob;
pub use profile::{BenchProfile, BenchTest, ProfileRun};
pub use question::SamplerQuestion;
pub use search::JobSearch;
pub use slots::SlotsJob;
pub use space::SpaceJob;
pub use workload::WorkloadJob;
pub use workloads::{NamedWorkload, WorkloadPart};

/// The content of a study file, with defaults filled in.
#[derive(Debug)]
pub struct Job {
    /// The study file's path; empty for a described study.
    pub file: PathBuf,
    /// The study's name in the database.
    pub name: String,
    /// The seed of the sampler, the workload and the arrivals.
    pub seed: u64,
    pub sampler: &'static dyn Sampler,
    /// Sources of the sampler's prior: [`TWIN_PRIOR`] or names of earlier studies, the most trusted first.
    pub priors: Vec<String>,
    /// Whether the study's trials calibrate the twin, and its prior is computed anew.
    pub calibrate_prior: bool,
    /// Whether the servers of the search take live looks, if the engine offers them.
    pub live_looks: bool,
    /// Whether launches of the search are forks of a process that has imported the engine.
    pub fast_starts: bool,
    pub engine: EngineJob,
    pub model: ModelJob,
    pub space: SpaceJob,
    /// The workload, the first one if there are several.
    pub workload: WorkloadJob,
    /// The load of `workload`.
    pub load: LoadJob,
    /// All workloads with their loads, if there are several. Empty for one.
    pub workloads: Vec<NamedWorkload>,
    pub objective: Objective,
    pub budget: StudyBudget,
    /// The slots that trials run on. `None`: one trial at a time, with the whole host.
    pub slots: Option<SlotsJob>,
    /// Today's deployment, which is measured beside the defaults.
    pub deployment: Option<FirstPoint>,
    /// Further first points of the search, in their order.
    pub starts: Vec<FirstPoint>,
    /// The guard for flags that may change the output.
    pub guard: GuardJob,
    /// A configuration that the next run launches once, in place of the search. The file does not set it: a comparison of
    /// engines measures its winners in turn.
    pub repeat: Option<Config>,
}

impl std::fmt::Debug for dyn Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Job {
    /// Reads and validates a study file.
    ///
    /// # Errors
    /// The error names the file, the line, the key, and the nearest valid key.
    pub fn read(file: &Path) -> Result<Self, DocumentError> {
        Document::read(file)?.parse(|root| Self::resolve(root, file))
    }

    /// Resolves a parsed study file. `file` is its path, which need not exist yet.
    ///
    /// # Errors
    /// If a key is missing or has an invalid value, or if the study compares engines.
    pub fn resolve(root: &Section<'_>, file: &Path) -> Result<Self, DocumentError> {
        if root.is_array(comparison::ENGINES) {
            let hint = "`setpoint tune` and `setpoint check` read it; name one of its studies elsewhere".to_owned();
            return Err(root.error(comparison::ENGINES, "the file compares several engines", Some(hint)));
        }
        Self::resolve_parts(root, root, file)
    }

    /// Resolves a study whose engine, model, space, first points and guard are sections of `own`. All other sections are
    /// in `root`.
    fn resolve_parts(root: &Section<'_>, own: &Section<'_>, file: &Path) -> Result<Self, DocumentError> {
        let StudyHead { name, seed, sampler, priors, calibrate_prior, live_looks, fast_starts } =
            root.section("study", StudyHead::read)?;
        let paths = paths::StudyPaths::of(file);
        let engine = own.section("engine", |section| EngineJob::read(section, &paths))?;
        let model = own.section("model", |section| ModelJob::read(section, &paths, &engine))?;
        let space = own.section("space", |section| SpaceJob::read(section, &paths, &engine, &model.shape))?;
        let mut workloads = Vec::new();
        if root.is_array("workload") {
            workloads = workloads::read(root, &paths, seed, &model, &engine)?;
        }
        let (workload, load) = if let Some(first) = workloads.first() {
            (first.workload.clone(), first.load.clone())
        } else {
            let mut load = root.section("load", LoadJob::read)?;
            let workload = root.section("workload", |section| {
                let requests = load.total();
                WorkloadJob::read(section, &paths, seed, &model, &engine, &mut load, requests)
            })?;
            (workload, load)
        };
        let objective = root.section("objective", |section| objective::read(section, &load, &workloads))?;
        let budget = root.section("budget", budget::read)?;
        let slots = root.optional_section("slots", SlotsJob::read)?;
        let deployment = own
            .optional_section("deployment", |section| FirstPoint::read(section, Origin::Deployment, &engine, &space))?;
        let starts = own.sections("start", |section| FirstPoint::read(section, Origin::Start, &engine, &space))?;
        let varied = guard::varied_flags(&space, deployment.iter().chain(&starts));
        let guard = GuardJob::read(own, &engine, &varied, &objective)?;
        Ok(Self {
            file: file.to_owned(),
            name,
            seed,
            sampler,
            priors,
            calibrate_prior,
            live_looks,
            fast_starts,
            engine,
            model,
            space,
            workload,
            load,
            workloads,
            objective,
            budget,
            slots,
            deployment,
            starts,
            guard,
            repeat: None,
        })
    }

    /// Replaces the seed of the sampler, the workload and the arrivals.
    ///
    /// # Errors
    /// If a file of the workload can no longer be read.
    pub fn reseed(&mut self, seed: u64) -> Result<(), DocumentError> {
        self.seed = seed;
        let mut reseeded = self.workload.reseed(seed);
        for entry in &mut self.workloads {
            reseeded = reseeded.and_then(|()| entry.reseed(seed));
        }
        reseeded.map_err(|error| DocumentError {
            file: self.file.clone(),
            line: None,
            key: format!("workload.{}", error.key()),
            problem: error.problem(),
            hint: error.hint().map(str::to_owned),
        })
    }

    /// Returns the facts for the rules: those of the study, and this release, device and host.
    #[must_use]
    pub fn facts(&self, version: EngineVersion, device: Device, host: HostLimits) -> Facts<'_> {
        Facts {
            env: &self.engine.environment,
            longest_request: self.parts().iter().map(|part| part.workload.source.longest()).max(),
            host,
            ..Facts::new(self.engine.engine.rules(), &self.model.shape, version, device)
        }
    }

    /// Merges the study's own arguments into a configuration. Arguments that are no flags of the release are left out.
    /// The rules check the result.
    #[must_use]
    pub fn with_arguments(&self, config: &Config, version: EngineVersion) -> Config {
        config.merged(&self.engine.arguments(version))
    }

    /// Returns whether the study's servers speak TLS: uvicorn does if it has a key or a certificate.
    #[must_use]
    pub fn speaks_tls(&self, version: EngineVersion) -> bool {
        let set = self.with_arguments(&self.search_space().fixed, version);
        ["ssl-keyfile", "ssl-certfile"].iter().any(|flag| set.get_str(flag).is_some())
    }

    /// Returns the search space: the parameters and the fixed flags.
    #[must_use]
    pub fn search_space(&self) -> &Space {
        &self.space.space
    }

    /// Checks the flags and the search space against the engine's release. An engine without known flags passes.
    ///
    /// # Errors
    /// If the space file is for other releases, or the release lacks a flag or refuses a fixed value. Also if an
    /// argument would override the space, or a flag would keep the tuner's requests from the server.
    pub fn check_release(&self, version: EngineVersion) -> Result<(), DocumentError> {
        let Some(table) = self.engine.engine.flag_table(version) else { return Ok(()) };
        let error = |key: String, problem: String, hint: Option<&str>| DocumentError {
            file: self.file.clone(),
            line: None,
            key,
            problem,
            hint: hint.map(str::to_owned),
        };
        if let Some(problem) = self.space.mismatch(self.engine.engine.display_name(), version) {
            let hint = match self.space.built_in_for(version) {
                Some(other) => format!("name {other}, which is for this release"),
                None => "name a space file for this release".to_owned(),
            };
            return Err(error("space.file".to_owned(), problem, Some(&hint)));
        }
        for (name, _) in self.engine.arguments(version).iter() {
            let varies = self.search_space().parameters.iter().any(|parameter| parameter.name == name);
            if varies || self.search_space().fixed.get(name).is_some() {
                let problem = format!("--{name} would override the value of the search space");
                return Err(error("engine.args".to_owned(), problem, Some("set it in [space] only, as `fixed`")));
            }
        }
        let arguments = self.engine.arguments(version);
        let set = arguments.iter().map(|(name, _)| ("engine.args", name));
        let fixed = self.search_space().fixed.iter().map(|(name, _)| ("space.fixed", name));
        for (key, name) in set.chain(fixed) {
            if let Some((_, why)) = UNREACHABLE.iter().find(|(flag, _)| *flag == name) {
                let hint =
                    "remove it here: setpoint gives every launch an address of its own; use it in the deployment";
                return Err(error(key.to_owned(), format!("--{name} {why}"), Some(hint)));
            }
        }
        self.check_adapter(version)
            .map_err(|(problem, hint)| error("model.adapter".to_owned(), problem, Some(&hint)))?;
        if self
            .with_arguments(&self.search_space().fixed, version)
            .get_i64("ssl-cert-reqs")
            .is_some_and(|mode| mode > 0)
        {
            let problem = "--ssl-cert-reqs requires a certificate of every client, and the tuner has none".to_owned();
            return Err(error("engine.args".to_owned(), problem, Some("remove it here; use it in the deployment")));
        }
        for (name, value) in self.search_space().fixed.iter() {
            let one = [(name.to_owned(), value.clone())].into_iter().collect();
            table.render(&one).map_err(|problem| error(format!("space.fixed.{name}"), problem.to_string(), None))?;
        }
        for parameter in &self.search_space().parameters {
            if table.find(&parameter.name).is_none() {
                let problem =
                    format!("{} ({} {version})", table.unknown(&parameter.name), self.engine.engine.display_name());
                return Err(error(format!("space.parameters.{}", parameter.name), problem, None));
            }
        }
        self.check_first_points(version, table)
    }

    /// Returns the problem of an adapter that the study's launches do not serve, with a hint.
    fn check_adapter(&self, version: EngineVersion) -> Result<(), (String, String)> {
        let Some(adapter) = &self.model.adapter else { return Ok(()) };
        let set = self.with_arguments(&self.search_space().fixed, version);
        let known = set.get_str(ADAPTERS_FLAG).map(adapter_names).unwrap_or_default();
        if known.contains(adapter) {
            return Ok(());
        }
        let problem = if known.is_empty() {
            format!("{adapter:?} is not served: {ADAPTERS_FLAG} is not set")
        } else {
            format!("{adapter:?} is not served: {ADAPTERS_FLAG} has {}", known.join(", "))
        };
        Err((problem, format!("set {ADAPTERS_FLAG} = \"NAME=PATH\" and enable-lora = true in space.fixed")))
    }

    /// Returns the environment of a launch for storage and display, without secrets. It consists of the study's
    /// variables, those variables of the tuner's own environment that engines read, the variables that the engine
    /// derives from `config`, and `device_order`.
    #[must_use]
    pub fn launch_env(&self, device: Device, config: &Config) -> BTreeMap<String, String> {
        let mut environment = self.engine.environment.clone();
        environment.extend(self.engine.engine.variables(config));
        environment.extend(self.device_order(device));
        redacted(environment)
    }

    /// Returns the variable that makes an engine count devices in the driver's order. By default CUDA counts the
    /// fastest ones first. Facts, memory and telemetry would then be those of another device. `None` if the study or
    /// the user's environment sets the variable, and for an engine that does not compute on GPUs.
    #[must_use]
    pub fn device_order(&self, device: Device) -> Option<(String, String)> {
        let on_gpu = device != Device::Cpu && self.engine.engine.runs_model();
        let is_set = self.engine.environment.contains_key(DEVICE_ORDER.0);
        (on_gpu && !is_set).then(|| (DEVICE_ORDER.0.to_owned(), DEVICE_ORDER.1.to_owned()))
    }
}

const DEVICE_ORDER: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");

/// Flags that keep the tuner's requests from reaching the server.
const UNREACHABLE: [(&str, &str); 2] = [
    ("uds", "makes the server listen on a socket file, but the tuner sends requests to an address and port"),
    ("headless", "starts no API server, so that no request is answered"),
];

fn redacted(env: BTreeMap<String, String>) -> BTreeMap<String, String> {
    LaunchCommand::redacted(&CommandLine::default(), env).env
}

/// The name of the prior that the simulated engine provides.
pub const TWIN_PRIOR: &str = "twin";

/// The section `[study]`.
struct StudyHead {
    name: String,
    seed: u64,
    sampler: &'static dyn Sampler,
    priors: Vec<String>,
    calibrate_prior: bool,
    live_looks: bool,
    fast_starts: bool,
}

impl StudyHead {
    fn read(section: &Section<'_>) -> Result<Self, DocumentError> {
        let name: String = section.required("name")?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || !name.chars().all(allowed) || name.starts_with('.') {
            let hint =
                "use letters, digits, '.', '_' and '-', and no '.' at the start: it also names the folder of the logs"
                    .to_owned();
            return Err(section.error("name", format!("{name:?} is not a study name"), Some(hint)));
        }
        let sampler = section.optional_or("sampler", SAMPLERS[0].name().to_owned())?;
        let sampler =
            sampler::find(&sampler).ok_or_else(|| section.error("sampler", unknown_sampler(&sampler), None))?;
        let priors = section.optional_or("prior", vec![TWIN_PRIOR.to_owned()])?;
        if name != TWIN_PRIOR && priors.contains(&name) {
            let hint = "name earlier studies, or \"twin\"; a study always uses its own trials".to_owned();
            return Err(section.error("prior", format!("{name:?} is this study itself"), Some(hint)));
        }
        let calibrate_prior = section.optional_or("calibrate_prior", true)?;
        let live_looks = section.optional_or("live_looks", true)?;
        let fast_starts = section.optional_or("fast_starts", true)?;
        let seed = section.optional_or("seed", 0)?;
        Ok(Self { name, seed, sampler, priors, calibrate_prior, live_looks, fast_starts })
    }
}

/// Returns the error message for a sampler that does not exist.
#[must_use]
pub fn unknown_sampler(name: &str) -> String {
    let known: Vec<_> = SAMPLERS.iter().map(|sampler| sampler.name()).collect();
    let near = nearest(name, known.iter().copied()).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    format!("{name:?} is not a sampler; there are {}{near}", known.join(", "))
}

/// Reads a required number of at least 1.
fn positive(section: &Section<'_>, key: &str) -> Result<u32, DocumentError> {
    match section.required(key)? {
        0 => Err(section.error(key, "must be at least 1", None)),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priors_are_the_twin_or_other_studies() {
        let read = |text: &str| Document::from_text("study.toml", text).parse(StudyHead::read).map(|head| head.priors);
        assert_eq!(read("name = \"a\"").unwrap(), [TWIN_PRIOR]);
        assert_eq!(read("name = \"twin\"").unwrap(), [TWIN_PRIOR], "a study may have this name as well");
        assert_eq!(read("name = \"a\"\nprior = [\"b\", \"twin\"]").unwrap(), ["b", TWIN_PRIOR]);
        assert_eq!(read("name = \"a\"\nprior = []").unwrap(), [] as [&str; 0]);
        let error = read("name = \"a\"\nprior = [\"twin\", \"a\"]").unwrap_err();
        assert!(error.key.ends_with("prior") && error.problem == "\"a\" is this study itself", "{error:?}");
    }
}
