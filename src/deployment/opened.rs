//! Opens the source of a deployment, recognises its format, and selects one of its servers.

use std::path::Path;

use super::assemble::assemble;
use super::call::{ServerCall, ServerSearch};
use super::compose::{read_dot_env, servers_of_compose};
use super::error::{DeploymentError, LineProblem};
use super::field::WordField;
use super::kubernetes::servers_of_manifest;
use super::shell::{ShellVariables, servers_of_script};
use super::yaml::{YamlNode, YamlValue, read_documents};
use super::{Deployment, DeploymentKind, DeploymentSource};
use crate::engine::{ConfigFileProblem, Engine};

/// The largest size of a file.
const MAX_BYTES: u64 = 1 << 20;

/// The place of a text without a file.
const COMMAND_LINE: &str = "command line";

/// The first lines of the hint for a source that starts no server.
const FORMS: &str = "give a command line, or a script, a configuration file of the engine, a Compose file or a \
                     Kubernetes manifest with one";

/// The text of a deployment.
pub(super) struct OpenedSource<'e> {
    pub(super) place: String,
    text: String,
    /// The name behind `#`.
    selected: Option<String>,
    is_file: bool,
    pub(super) engine: &'e dyn Engine,
}

impl<'e> OpenedSource<'e> {
    /// Reads the file of this path, or takes the text as a command line.
    pub(super) fn open(source: &str, engine: &'e dyn Engine) -> Result<Self, DeploymentError> {
        let (path, selected) = match source.rsplit_once('#') {
            Some((path, name)) if !Path::new(source).exists() && Path::new(path).is_file() => (path, Some(name)),
            _ => (source, None),
        };
        if Path::new(path).is_file() {
            let text = read_file(path).map_err(|problem| problem.at(path))?;
            return Ok(Self::of_file(path, text, selected, engine));
        }
        let problem = if Path::new(path).is_dir() {
            LineProblem::new(None, "is a directory").with_hint("give the file that starts the server")
        } else if source.trim().contains(char::is_whitespace) {
            return Ok(Self {
                text: source.to_owned(),
                is_file: false,
                ..Self::of_file(COMMAND_LINE, String::new(), None, engine)
            });
        } else {
            let problem = format!("there is no such file, and it is no command that starts {}", engine.display_name());
            LineProblem::new(None, problem).with_hint(FORMS)
        };
        let place = if source.trim().is_empty() { "deployment" } else { source };
        Err(problem.at(crate::trial::redact(place)))
    }

    pub(super) fn of_file(path: &str, text: String, selected: Option<&str>, engine: &'e dyn Engine) -> Self {
        Self { place: path.to_owned(), text, selected: selected.map(str::to_owned), is_file: true, engine }
    }

    /// Returns the one server of this source, or the selected one.
    pub(super) fn deployment(&self) -> Result<Deployment, DeploymentError> {
        self.read().map_err(|problem| problem.at(&*self.place))
    }

    fn read(&self) -> Result<Deployment, LineProblem> {
        let Some(starts) = self.engine.server_starts() else { return Err(self.nothing()) };
        let search = ServerSearch::new(self.engine, starts);
        let (kind, calls) = self.servers(search)?;
        let call = self.select(kind, calls)?;
        // A command is named by its line.
        let is_named = !matches!(kind, DeploymentKind::Script | DeploymentKind::CommandLine);
        let source = DeploymentSource {
            kind,
            place: self.place.clone(),
            line: call.line,
            name: call.names.first().filter(|_| is_named).cloned(),
        };
        assemble(call, source, self.engine)
    }

    /// Recognises the format, and returns the servers.
    fn servers(&self, search: ServerSearch<'_>) -> Result<(DeploymentKind, Vec<ServerCall>), LineProblem> {
        let kind = if self.is_file { DeploymentKind::Script } else { DeploymentKind::CommandLine };
        let ending = Path::new(&self.place).extension().and_then(|ending| ending.to_str());
        let is_yaml = self.is_file && matches!(ending, Some("yaml" | "yml" | "json"));
        let documents = match read_documents(&self.text) {
            Ok(documents) => documents,
            Err(_) if !is_yaml => Vec::new(),
            Err(_) if self.text.contains("{{") => return Err(template_problem(None)),
            Err(problem) => return Err(problem),
        };
        let first = documents.iter().find(|document| matches!(document.value, YamlValue::Map(_)));
        let is_object = |document: &YamlNode| document.get("kind").is_some() && document.get("apiVersion").is_some();
        match first.filter(|_| self.is_file) {
            Some(root) if matches!(root.get("services").map(|node| &node.value), Some(YamlValue::Map(_))) => {
                Ok((DeploymentKind::Compose, servers_of_compose(root, &self.dot_env(), search)?))
            }
            Some(_) if documents.iter().any(is_object) => {
                Ok((DeploymentKind::Kubernetes, servers_of_manifest(&documents, search)))
            }
            Some(root) if is_yaml && root.get("servingEngineSpec").is_some() => Err(values_problem(root)),
            Some(root) if is_yaml => Ok((DeploymentKind::ConfigFile, self.config_file(root, search)?)),
            _ if is_yaml => Err(self.nothing()),
            _ => {
                let mut calls = servers_of_script(&self.text, 1, ShellVariables::default(), search);
                for call in &mut calls {
                    call.names = call.line.iter().map(ToString::to_string).collect();
                }
                Ok((kind, calls))
            }
        }
    }

    /// Reads the file `.env` beside a Compose file, as Compose does.
    fn dot_env(&self) -> std::collections::BTreeMap<String, String> {
        let file = Path::new(&self.place).with_file_name(".env");
        file.to_str().and_then(|file| read_file(file).ok()).map(|text| read_dot_env(&text)).unwrap_or_default()
    }

    /// Reads a file of the engine's own flags.
    fn config_file(&self, root: &YamlNode, search: ServerSearch<'_>) -> Result<Vec<ServerCall>, LineProblem> {
        let releases = self.engine.flags().into_iter().flat_map(|book| book.releases(None, None));
        let tables: Vec<_> = releases.filter_map(|release| self.engine.flag_table(release)).collect();
        let is_flag = |name: &str| tables.iter().any(|table| table.find(name).is_some());
        if !root.entries().iter().any(|(name, _)| is_flag(name)) {
            return Ok(Vec::new());
        }
        let Some(read) = self.engine.read_config_file(&self.text, self.engine.newest_release()) else {
            return Ok(Vec::new());
        };
        let read = read.map_err(|ConfigFileProblem { line, problem }| LineProblem::new(line, problem))?;
        let model = read.model.map(|model| vec!["--model".to_owned(), model]);
        Ok(vec![ServerCall {
            program: search.starts.program.iter().map(|word| (*word).to_owned()).collect(),
            arguments: read.words.into_iter().chain(model.into_iter().flatten()).map(WordField::new).collect(),
            ..ServerCall::default()
        }])
    }

    fn select(&self, kind: DeploymentKind, mut calls: Vec<ServerCall>) -> Result<ServerCall, LineProblem> {
        if calls.is_empty() {
            return Err(self.nothing());
        }
        let names: Vec<_> = calls.iter().filter_map(|call| call.names.first()).map(String::as_str).collect();
        if let Some(selected) = &self.selected {
            let matching: Vec<_> = calls.iter().filter(|call| call.names.contains(selected)).collect();
            return match matching.as_slice() {
                [one] => Ok((*one).clone()),
                [] => Err(LineProblem::new(None, format!("no server is named `{selected}`"))
                    .with_hint(format!("choose one of {}", names.join(", ")))),
                [first, ..] => Err(LineProblem::new(first.line, format!("several servers are named `{selected}`"))
                    .with_hint(format!("choose one of {}", names.join(", ")))),
            };
        }
        if calls.len() == 1 {
            return Ok(calls.remove(0));
        }
        let what = if matches!(kind, DeploymentKind::Script | DeploymentKind::CommandLine) { "lines" } else { "names" };
        let problem = format!("{} servers are started here; their {what} are {}", calls.len(), names.join(", "));
        let hint = match kind {
            DeploymentKind::CommandLine => "give one of the commands alone".to_owned(),
            _ => format!("choose one, for instance {}#{}", self.place, names.first().copied().unwrap_or_default()),
        };
        Err(LineProblem::new(None, problem).with_hint(hint))
    }

    fn nothing(&self) -> LineProblem {
        LineProblem::new(None, format!("nothing here starts {}", self.engine.display_name())).with_hint(FORMS)
    }
}

/// Returns the error for a template of a package manager.
pub(super) fn template_problem(line: Option<usize>) -> LineProblem {
    LineProblem::new(line, "is a template with `{{ ... }}` and not plain YAML")
        .with_hint("render it first, for instance: helm template RELEASE CHART > rendered.yaml")
}

fn values_problem(root: &YamlNode) -> LineProblem {
    LineProblem::new(root.line, "contains the values of a Helm chart and not a manifest")
        .with_hint("render the chart first: helm template RELEASE CHART -f VALUES.yaml > rendered.yaml")
}

/// Reads the text of a file.
///
/// # Errors
/// If it cannot be read, is larger than the limit, or is not a text.
pub(super) fn read_file(path: &str) -> Result<String, LineProblem> {
    let problem = |error: std::io::Error| LineProblem::new(None, format!("cannot be read: {error}"));
    let size = std::fs::metadata(path).map_err(problem)?.len();
    if size > MAX_BYTES {
        return Err(LineProblem::new(None, format!("has {size} bytes, and at most {MAX_BYTES} are read"))
            .with_hint("give the script or manifest that starts the server"));
    }
    let bytes = std::fs::read(path)
        .map_err(|error| problem(error).with_hint("make the file readable for this user, or give its command line"))?;
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()].split(|byte| *byte == b'\n').count();
        LineProblem::new(line, "is not a text in UTF-8").with_hint("give the script or manifest that starts the server")
    })
}
