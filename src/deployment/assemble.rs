//! Makes a deployment of the start of a server: files of flags, release, environment, and the removal of secrets.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::arguments::{divide, is_flag};
use super::call::ServerCall;
use super::error::LineProblem;
use super::field::WordField;
use super::opened::template_problem;
use super::secrets::SecretValues;
use super::{Deployment, DeploymentKind, DeploymentSource};
use crate::engine::Engine;
use crate::facts::EngineVersion;
use crate::trial::{REDACTED, is_secret};

/// The flag with a file of flags.
const CONFIG: &str = "--config";

/// Makes a deployment of a server's start.
///
/// # Errors
/// If an argument or a file of flags is unknown. The error contains no secrets.
pub(super) fn assemble(
    call: ServerCall,
    source: DeploymentSource,
    engine: &dyn Engine,
) -> Result<Deployment, LineProblem> {
    let mut secrets = call.secrets.clone();
    for (name, value) in &call.env {
        secrets.add_variable(name, &value.text);
    }
    let made = make(call, source, engine, &mut secrets);
    made.map(|deployment| deployment.scrubbed(&secrets))
        .map_err(|problem| LineProblem { problem: secrets.scrub(&problem.problem), ..problem })
}

fn make(
    call: ServerCall,
    source: DeploymentSource,
    engine: &dyn Engine,
    secrets: &mut SecretValues,
) -> Result<Deployment, LineProblem> {
    let is_manifest = !matches!(source.kind, DeploymentKind::CommandLine | DeploymentKind::Script);
    let is_template = |word: &WordField| word.text.contains("{{");
    if is_manifest && call.arguments.iter().chain(&call.image).any(is_template) {
        return Err(template_problem(call.line));
    }
    let mut notes = call.notes;
    let (image, release) = image_and_release(call.image.as_ref(), engine, &mut notes);
    // An argument that is only a note stands for something that is left out, such as `"$@"`.
    let words = call.arguments.iter().chain(&call.wrapper);
    notes.extend(words.filter_map(|word| word.note.clone()));
    let is_present = |word: &&WordField| !(word.text.is_empty() && word.note.is_some());
    let arguments: Vec<_> = call.arguments.iter().filter(is_present).cloned().collect();
    let directory = Path::new(&source.place).parent().unwrap_or(Path::new(""));
    let arguments = with_config_file(arguments, call.line, directory, release, engine)?;
    let divided = divide(&arguments, call.line, engine, secrets)?;
    notes.extend(divided.notes);
    let env = environment(&call.env, &mut notes);
    let mut shown = Vec::new();
    for note in notes {
        if !shown.contains(&note) {
            shown.push(note);
        }
    }
    Ok(Deployment {
        source,
        wrapper: call.wrapper.into_iter().map(|word| word.text).collect(),
        program: call.program,
        model: divided.model,
        args: divided.args,
        env,
        image,
        release,
        notes: shown,
    })
}

/// Reads the release from the tag of an image. A tag such as `latest` names none.
fn image_and_release(
    image: Option<&WordField>,
    engine: &dyn Engine,
    notes: &mut Vec<String>,
) -> (Option<String>, Option<EngineVersion>) {
    let Some(image) = image else { return (None, None) };
    let text = image.text.as_str();
    if let Some(reason) = &image.trouble {
        notes.push(format!("the image {text} is not known: {reason}"));
        return (Some(text.to_owned()), None);
    }
    notes.extend(image.note.clone());
    let name = text.split('@').next().unwrap_or(text).rsplit('/').next().unwrap_or(text);
    let tag = name.split_once(':').map(|(_, tag)| tag);
    let release = tag.and_then(|tag| tag.strip_prefix('v').unwrap_or(tag).parse().ok());
    notes.push(match release {
        Some(release) => format!("the image {text} contains {} {release} by its tag", engine.display_name()),
        None => format!("the tag of the image {text} does not name a release of {}", engine.display_name()),
    });
    (Some(text.to_owned()), release)
}

/// Replaces `--config FILE` by the file's flags and model, before all other arguments. A relative path is relative to
/// the directory of the source.
fn with_config_file(
    arguments: Vec<WordField>,
    line: Option<usize>,
    directory: &Path,
    release: Option<EngineVersion>,
    engine: &dyn Engine,
) -> Result<Vec<WordField>, LineProblem> {
    let (mut config, mut others) = (Vec::new(), Vec::new());
    let mut words = arguments.into_iter().peekable();
    while let Some(word) = words.next() {
        if word.text != CONFIG && !word.text.starts_with("--config=") {
            others.push(word);
            continue;
        }
        let value = words.next_if(|next| word.text == CONFIG && !is_flag(&next.text));
        config.extend(std::iter::once(word).chain(value));
    }
    if config.is_empty() {
        return Ok(others);
    }
    if let Some(reason) = config.iter().find_map(|word| word.trouble.as_ref()) {
        return Err(LineProblem::new(line, format!("{CONFIG}: {reason}")).with_hint("give the file itself"));
    }
    let release = release.unwrap_or_else(|| engine.newest_release());
    let found = RefCell::new(None);
    let find = |file: &str| {
        let path = directory.join(file);
        path.is_file().then(|| found.replace(Some(path.clone()))).map(|_| path)
    };
    let problem = |problem: String| {
        let hint = "repair that file, or give it itself if it is elsewhere on this machine";
        LineProblem::new(line, problem).with_hint(hint)
    };
    let texts = config.into_iter().map(|word| word.text).collect();
    let flags = engine.inline_config_file(texts, release, &find).map_err(problem)?;
    let model = found.into_inner().and_then(|file| model_of_file(&file, release, engine));
    let model = model.map(|model| vec!["--model".to_owned(), model]).unwrap_or_default();
    Ok(flags.into_iter().chain(model).map(WordField::new).chain(others).collect())
}

fn model_of_file(file: &PathBuf, release: EngineVersion, engine: &dyn Engine) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    engine.read_config_file(&text, release)?.ok()?.model
}

/// Returns the variables of the deployment. A variable without a known value is left out with a note.
fn environment(env: &BTreeMap<String, WordField>, notes: &mut Vec<String>) -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    for (name, value) in env {
        if is_secret(name) {
            kept.insert(name.clone(), REDACTED.to_owned());
            notes.push(format!(
                "the value of {name} is a secret and is not kept; launches inherit it from this environment"
            ));
        } else if let Some(reason) = &value.trouble {
            notes.push(format!("the variable {name} is left out: {reason}"));
        } else {
            kept.insert(name.clone(), value.text.clone());
            notes.extend(value.note.clone());
        }
    }
    kept
}

impl Deployment {
    /// Removes the values of secrets, and everything that has the shape of one.
    fn scrubbed(mut self, secrets: &SecretValues) -> Self {
        let words = |words: &mut Vec<String>| {
            for word in &mut *words {
                *word = secrets.scrub(word);
            }
            redact_named(words);
        };
        [&mut self.wrapper, &mut self.program, &mut self.args].into_iter().for_each(words);
        self.notes.iter_mut().for_each(|note| *note = secrets.scrub(note));
        self.env.values_mut().for_each(|value| *value = secrets.scrub(value));
        self.model = self.model.map(|model| secrets.scrub(&model));
        self.image = self.image.map(|image| secrets.scrub(&image));
        self.source.name = self.source.name.map(|name| secrets.scrub(&name));
        self
    }
}

/// Redacts `NAME=VALUE` if the name indicates a secret, as in the words of a wrapper.
fn redact_named(words: &mut [String]) {
    for word in words {
        if let Some((name, _)) = word.split_once('=').filter(|(name, _)| !name.starts_with('-') && is_secret(name)) {
            *word = format!("{name}={REDACTED}");
        }
    }
}
