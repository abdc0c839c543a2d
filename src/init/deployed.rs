//! Today's deployment as a part of a study: its flags, its variables and its command.

use std::collections::BTreeMap;
use std::path::Path;

use super::InitError;
use crate::config::{Config, Value};
use crate::deployment::{Deployment, DeploymentKind};
use crate::engine::{Engine, resolve_program};
use crate::facts::EngineVersion;
use crate::job::{FirstPoint, is_connection_flag};
use crate::space::Space;
use crate::trial::REDACTED;

/// Wrappers that replace themselves by the server on this machine. Others run it elsewhere, or as another user.
const LOCAL_WRAPPERS: [&str; 8] = ["chrt", "ionice", "nice", "numactl", "prlimit", "setarch", "stdbuf", "taskset"];

/// The flags of a deployment that a launch of the tuner can have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DeployedFlags {
    pub config: Config,
    /// The names of the `LoRA` adapters.
    pub adapters: Vec<String>,
    /// The flags that are left out, with the reason. One line each.
    pub notes: Vec<String>,
}

/// The command and the variables of a deployment that a launch on this machine can have.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DeployedProcess {
    /// `None`: the engine's own command.
    pub command: Option<Vec<String>>,
    pub env: BTreeMap<String, String>,
    pub notes: Vec<String>,
}

impl DeployedFlags {
    /// Reads the flags of a deployment as this release of the engine does. Flags of the connection and flags with a
    /// secret are left out.
    ///
    /// # Errors
    /// If the engine has no known flags, the release lacks one of the deployment's flags, or it refuses a value.
    pub(crate) fn read(
        deployment: &Deployment,
        engine: &dyn Engine,
        version: EngineVersion,
    ) -> Result<Self, InitError> {
        let table = engine.flag_table(version).ok_or_else(|| {
            let problem = format!("{} has no known flags, so --from cannot read those of a deployment", engine.kind());
            InitError::new(problem, "write the flags into [deployment] of the study file")
        })?;
        let read = deployment.configuration(table)?;
        let (mut config, mut notes) = (Config::new(), Vec::new());
        let mut connection = Vec::new();
        for (name, value) in read.config.iter() {
            if is_connection_flag(name) {
                connection.push(name);
            } else if value.as_str().is_some_and(|text| text.contains(REDACTED)) {
                notes.push(format!("left out: {name} contains a secret, which is not copied"));
            } else {
                config.set(name, value.clone());
            }
        }
        if !connection.is_empty() {
            let names = connection.join(", ");
            notes.push(format!("left out: {names}; every launch gets an address of its own and the model's own name"));
        }
        Ok(Self { config, adapters: read.adapters, notes })
    }

    /// Divides the flags: the first ones are parameters of the space, the second ones are fixed for every launch.
    pub(super) fn divide(&self, space: &Space) -> (Config, Config) {
        let is_parameter = |name: &str| space.parameters.iter().any(|parameter| parameter.name == name);
        let (varied, fixed): (Vec<_>, Vec<_>) = self.config.iter().partition(|(name, _)| is_parameter(name));
        let owned = |flags: Vec<(&str, &Value)>| {
            flags.into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect()
        };
        (owned(varied), owned(fixed))
    }

    /// Returns the first point of a study that has its own space and fixed flags.
    pub(crate) fn first_point(&self, deployment: &Deployment) -> FirstPoint {
        FirstPoint::deployment(deployment.source.to_string(), self.config.clone())
    }
}

impl DeployedProcess {
    /// Returns the command and the variables for launches of `engine` on this machine.
    pub(super) fn of(deployment: &Deployment, engine: &dyn Engine) -> Self {
        let (env, mut notes) = local_variables(deployment);
        let is_contained = deployment.image.is_some() || deployment.source.kind == DeploymentKind::ConfigFile;
        let is_simulated = !engine.runs_model();
        let command = if is_contained || is_simulated { None } else { command(deployment, engine, &mut notes) };
        Self { command, env, notes }
    }
}

/// Returns the variables that mean the same to a launch of the tuner, and notes about the others.
fn local_variables(deployment: &Deployment) -> (BTreeMap<String, String>, Vec<String>) {
    let (mut env, mut notes) = (BTreeMap::new(), Vec::new());
    for (name, value) in &deployment.env {
        // The deployment has a note about each secret.
        if value.contains(REDACTED) {
            continue;
        }
        if deployment.image.is_some() && value.starts_with('/') {
            notes.push(format!("left out: the variable {name}, {value} is a path inside of the container"));
        } else {
            env.insert(name.clone(), value.clone());
        }
    }
    (env, notes)
}

/// Returns the deployment's command if it differs from the engine's own and this machine has its program.
fn command(deployment: &Deployment, engine: &dyn Engine, notes: &mut Vec<String>) -> Option<Vec<String>> {
    let wrapper = deployment.wrapper.as_slice();
    let is_local = wrapper.first().is_none_or(|word| {
        Path::new(word).file_name().is_some_and(|name| LOCAL_WRAPPERS.iter().any(|local| name == *local))
    });
    let has_secret = wrapper.iter().chain(&deployment.program).any(|word| word.contains(REDACTED));
    if !is_local || has_secret {
        let reason = if has_secret { "it contains a secret" } else { "it may run the server elsewhere" };
        notes.push(format!(
            "left out: the wrapper `{}`, {reason}; set engine.command in the study file to use it",
            wrapper.join(" ")
        ));
    }
    let wrapper = if is_local && !has_secret { wrapper } else { &[] };
    let command: Vec<String> = wrapper.iter().chain(&deployment.program).cloned().collect();
    let own = engine.default_command().ok()?;
    if command == own {
        return None;
    }
    // A program that is not installed, such as `python` of a virtual environment of another machine.
    let programs = [wrapper.first(), deployment.program.first()];
    if let Some(missing) = programs.into_iter().flatten().find(|program| resolve_program(program).is_none()) {
        notes.push(format!("{missing} is not on this machine; launches use `{}`", own.join(" ")));
        return None;
    }
    engine.check_command(&command).is_ok().then_some(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployment::{read_deployment, read_deployment_text};
    use crate::engines::default_engine;

    fn process(line: &str) -> DeployedProcess {
        DeployedProcess::of(&read_deployment(line).unwrap(), &*default_engine())
    }

    #[test]
    fn a_command_is_used_if_it_differs_from_the_engine_and_runs_here() {
        assert_eq!(process("vllm serve m"), DeployedProcess::default());
        let missing = process("/no/such/vllm serve m");
        assert_eq!(missing.command, None);
        assert_eq!(missing.notes, ["/no/such/vllm is not on this machine; launches use `vllm serve`"]);
        let elsewhere = process("ssh gpu7 vllm serve m");
        assert_eq!(elsewhere.command, None);
        assert!(elsewhere.notes[0].starts_with("left out: the wrapper `ssh gpu7`"), "{:?}", elsewhere.notes);
        // A wrapper and a program of this machine.
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("vllm");
        std::fs::write(&program, "").unwrap();
        let wrapped = process(&format!("nice -n 5 {} serve m", program.display()));
        let expected = ["nice", "-n", "5", program.to_str().unwrap(), "serve"].map(str::to_owned).to_vec();
        assert_eq!((wrapped.command, wrapped.notes), (Some(expected), Vec::new()));
    }

    #[test]
    fn variables_of_a_container_and_secrets_are_left_out() {
        let compose = "services:\n  a:\n    image: vllm/vllm-openai:v0.32.0\n    command: --model m\n    environment:\n      \
                       HF_HOME: /data\n      HF_TOKEN: abc\n      OMP_NUM_THREADS: \"4\"\n";
        let deployment = read_deployment_text("compose.yaml", compose).unwrap();
        let process = DeployedProcess::of(&deployment, &*default_engine());
        assert_eq!(process.command, None, "the program of a container is not run");
        assert_eq!(process.env, BTreeMap::from([("OMP_NUM_THREADS".to_owned(), "4".to_owned())]));
        assert_eq!(process.notes, ["left out: the variable HF_HOME, /data is a path inside of the container"]);
    }

    #[test]
    fn flags_of_the_connection_and_secrets_are_left_out() {
        let line = r#"vllm serve m --max-num-seqs 8 --ssl-keyfile k --served-model-name a --hf-overrides '{"api_key":"sk-0123456789abcdefghij"}'"#;
        let engine = default_engine();
        let flags =
            DeployedFlags::read(&read_deployment(line).unwrap(), &*engine, EngineVersion::new(0, 32, 0)).unwrap();
        assert_eq!(flags.config, Config::new().with("max-num-seqs", 8_i64), "{:?}", flags.notes);
        assert_eq!(flags.notes.len(), 2, "{:?}", flags.notes);
    }
}
