//! The first points of a composed study: today's deployment, and the points of further sources.

use std::path::Path;

use super::deployed::{DeployedFlags, DeployedProcess};
use super::{InitError, StudyRequest};
use crate::config::Config;
use crate::document::Document;
use crate::engine::Engine;
use crate::execution::ExecutionEnvironment;
use crate::facts::EngineVersion;
use crate::job::{FirstPoint, Job};
use crate::space::{Space, SpaceFile, built_in};

/// The first points of a study, and the flags that all of its launches get.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstPoints {
    /// Flags of the deployment that are no parameters of the space.
    pub fixed: Config,
    pub deployment: Option<FirstPoint>,
    pub starts: Vec<FirstPoint>,
    /// The names of the deployment's adapters.
    pub adapters: Vec<String>,
    pub notes: Vec<String>,
}

impl StudyRequest {
    /// Returns the first points for this release and space. The draft of a study has none: the release and the space are
    /// not known yet.
    pub(super) fn first_points(
        &self,
        engine: &dyn Engine,
        space: &str,
        environment: Option<(&ExecutionEnvironment, &Job)>,
    ) -> Result<FirstPoints, InitError> {
        let Some((installed, draft)) = environment else { return Ok(FirstPoints::default()) };
        let mut found = FirstPoints::default();
        if let Some(deployment) = &self.deployment {
            let flags = DeployedFlags::read(deployment, engine, installed.version)?;
            let (varied, fixed) = flags.divide(&parameters(space, draft)?);
            found.deployment = Some(FirstPoint::deployment(deployment.source.to_string(), varied));
            (found.fixed, found.adapters, found.notes) = (fixed, flags.adapters, flags.notes);
        }
        for start in &self.starts {
            let points = start.points(engine, installed, &self.model, &found.fixed)?;
            found.starts.extend(points.points);
            found.notes.extend(points.notes);
        }
        self.check_adapter(&found.adapters)?;
        Ok(found)
    }

    /// Checks that the deployment serves the adapter.
    fn check_adapter(&self, adapters: &[String]) -> Result<(), InitError> {
        let Some(adapter) = self.adapter.as_ref().filter(|adapter| !adapters.contains(adapter)) else { return Ok(()) };
        let problem = if adapters.is_empty() {
            format!("--adapter {adapter:?}: no deployment with LoRA adapters is given")
        } else {
            format!("--adapter {adapter:?} is not served by the deployment; it serves {}", adapters.join(", "))
        };
        Err(InitError::new(problem, "name the deployment with --from, and one of its adapters with --adapter"))
    }

    /// Returns the decisions about the deployment and the first points, one line each.
    pub(super) fn deployment_assumptions(
        &self,
        process: &DeployedProcess,
        first_points: &FirstPoints,
        version: EngineVersion,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        if let (Some(deployment), Some(point)) = (&self.deployment, &first_points.deployment) {
            lines.push(format!("today's deployment: {}; {}", deployment.source, listed(&point.flags, "the defaults")));
            if !first_points.fixed.is_empty() {
                lines.push(format!("fixed for every launch, as deployed: {}", listed(&first_points.fixed, "")));
            }
            if let Some(command) = &process.command {
                lines.push(format!("command, as deployed: {}", command.join(" ")));
            }
            if !process.env.is_empty() {
                let names: Vec<_> = process.env.keys().map(String::as_str).collect();
                lines.push(format!("variables, as deployed: {}", names.join(", ")));
            }
            if let Some(release) = deployment.release.filter(|release| *release != version) {
                lines.push(format!("the deployment runs release {release}; launches here run {version}"));
            }
            lines.extend(deployment.notes.iter().map(|note| format!("deployment: {note}")));
            lines.extend(process.notes.iter().map(|note| format!("deployment: {note}")));
            if self.adapter.is_none() && !first_points.adapters.is_empty() {
                let names = first_points.adapters.join(", ");
                lines.push(format!("requests address the base model; --adapter addresses one of {names}"));
            }
        }
        if let Some(adapter) = &self.adapter {
            lines.push(format!("requests address the adapter {adapter}"));
        }
        lines.extend(first_points.starts.iter().map(|point| format!("{}; {}", point.why(), listed(&point.flags, ""))));
        lines.extend(first_points.notes.iter().cloned());
        lines
    }
}

/// Lists the flags as `name value`.
fn listed(config: &Config, empty: &str) -> String {
    let flags: Vec<_> = config.iter().map(|(name, value)| format!("{name} {value}")).collect();
    if flags.is_empty() { empty.to_owned() } else { flags.join(", ") }
}

/// Returns the parameters of a built-in space for the model of the draft.
fn parameters(path: &str, draft: &Job) -> Result<Space, InitError> {
    let text = built_in(Path::new(path)).unwrap_or_default();
    let file = Document::from_text(path, text).parse(|root| SpaceFile::read(root, &draft.model.shape))?;
    Ok(file.space)
}
