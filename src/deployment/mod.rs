//! Today's deployment of an engine: a command line, a script, a configuration file, or a manifest that starts a server.
//! Beside it the deployments that recipes recommend.
//!
//! Texts are parsed and never executed. Values of secrets are neither kept nor shown.

mod arguments;
mod assemble;
mod call;
mod compose;
mod container;
mod error;
mod field;
mod flags;
mod interpolation;
mod kubernetes;
#[cfg(test)]
mod manifest_tests;
mod opened;
mod recipe;
mod secrets;
mod shell;
#[cfg(test)]
mod tests;
mod yaml;

use std::collections::BTreeMap;
use std::fmt;

pub use error::DeploymentError;
pub use flags::DeploymentFlags;
use opened::OpenedSource;
pub(crate) use recipe::recipe_model;
pub use recipe::{Recipe, RecipeError, RecipePoint, RecipePoints, RecipeTarget, read_recipe};

use crate::engines;
use crate::facts::EngineVersion;

/// The form of a deployment's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeploymentKind {
    CommandLine,
    Script,
    /// A file of the engine's own `--config`.
    ConfigFile,
    Compose,
    Kubernetes,
}

/// The place of a deployment, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentSource {
    pub kind: DeploymentKind,
    /// The path of the file, or `command line`.
    pub place: String,
    /// The line of the server's command, counted from 1.
    pub line: Option<usize>,
    /// The name of the service or of the container.
    pub name: Option<String>,
}

impl fmt::Display for DeploymentSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)?;
        if let Some(line) = self.line.filter(|_| self.kind != DeploymentKind::CommandLine) {
            write!(f, ":{line}")?;
        }
        if let Some(name) = &self.name {
            write!(f, " ({name})")?;
        }
        Ok(())
    }
}

/// One server as it is deployed today. It contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    pub source: DeploymentSource,
    /// The words before the program, such as `numactl -N 0`. Empty for a server in a container.
    pub wrapper: Vec<String>,
    /// The program with its leading arguments, such as `vllm serve`.
    pub program: Vec<String>,
    /// The model. `None` if the engine's default is served.
    pub model: Option<String>,
    /// The flags of the engine with their values. The model, the address and secrets are left out.
    pub args: Vec<String>,
    /// Environment variables that the deployment sets. Values of secrets are [`REDACTED`](crate::trial::REDACTED).
    pub env: BTreeMap<String, String>,
    /// The image of the container.
    pub image: Option<String>,
    /// The release of the engine, by the tag of the image.
    pub release: Option<EngineVersion>,
    /// Remarks for the user: assumptions, and parts of the deployment that are left out.
    pub notes: Vec<String>,
}

/// Reads a deployment: a command line, or the path of a script, of a file of the engine's `--config`, of a Compose file
/// or of a Kubernetes manifest. `FILE#NAME` selects one of several servers in a file: a service, a container, or the
/// line of a command.
///
/// # Errors
/// If the file cannot be read, does not start exactly one server, or if an argument of the server is unknown without an
/// execution of the text.
pub fn read_deployment(text_or_path: &str) -> Result<Deployment, DeploymentError> {
    OpenedSource::open(text_or_path, &*engines::default_engine())?.deployment()
}

/// Reads the text of a file as [`read_deployment`] does. `name` is its path: the ending decides on the format.
///
/// # Errors
/// As [`read_deployment`].
pub fn read_deployment_text(name: &str, text: &str) -> Result<Deployment, DeploymentError> {
    OpenedSource::of_file(name, text.to_owned(), None, &*engines::default_engine()).deployment()
}
