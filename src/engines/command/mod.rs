//! An engine that only the study file describes: any server with an OpenAI-compatible interface.
//!
//! It has no rules, no twin, no flag table and no log reader. The study file describes its command, its flags, its
//! health page and its failures.

mod failures;
mod spelling;

use std::collections::BTreeMap;
use std::sync::Arc;

use regex::Regex;
use serde_json::{Value as Json, json};

use self::failures::FailurePattern;
use self::spelling::{FlagStyle, ParameterSpelling, RenderedFlags};
use super::EngineKind;
use crate::config::Config;
use crate::document::{DocumentError, Section, nearest};
use crate::engine::{
    Engine, EngineEvidence, LaunchSpec, MetricsPage, ModelNameCheck, PlaceholderError, QUANTITIES, Readiness,
    ReleasePage, check_command_word, has_placeholder, is_variable, substitute,
};
use crate::flag::FlagError;
use crate::trial::{CommandLine, Failure};

/// The name in study files.
const KIND: &str = "command";

/// The described engine in the registry.
pub(super) static ENGINE: EngineKind = EngineKind { name: KIND, variables: &[], read, built_in: None };

/// The argument of `command` that is replaced by the flags of a configuration.
const FLAGS: &str = "{flags}";

/// The placeholder of the model.
const MODEL: &str = "model";

/// The default path of the health page.
const HEALTH: &str = "/health";

/// The default dialect: only the interface that OpenAI documents.
const DIALECT: &str = "openai";

#[derive(Debug)]
struct CommandEngine {
    style: FlagStyle,
    spellings: BTreeMap<String, ParameterSpelling>,
    dialect: String,
    readiness: Readiness,
    metrics: Option<MetricsPage>,
    failures: Vec<FailurePattern>,
    api_key_variable: Option<String>,
}

/// Reads the keys of `[engine]` that only this engine has.
///
/// # Errors
/// If a key is missing, or its value is invalid.
fn read(section: &Section<'_>) -> Result<Arc<dyn Engine>, DocumentError> {
    let style = section.optional_or("flag_style", FlagStyle::Separate.name().to_owned())?;
    let style = FlagStyle::from_name(&style).ok_or_else(|| {
        let known = FlagStyle::ALL.map(FlagStyle::name);
        let hint = nearest(&style, known).map(|near| format!("did you mean {near:?}?"));
        let problem = format!("{style:?} is not a style of flags; there are {}", known.join(", "));
        section.error("flag_style", problem, hint)
    })?;
    let spellings = section.optional_section("flags", |table| {
        table.keys().map(|name| Ok((name.to_owned(), table.required::<ParameterSpelling>(name)?))).collect()
    })?;
    let metric_names = section.optional_section("metric_names", read_metric_names)?;
    let metrics = match (path(section, "metrics")?, metric_names) {
        (None, None) => None,
        (None, Some(_)) => {
            let hint = "set the page with these series, such as metrics = \"/metrics\"".to_owned();
            return Err(section.error("metric_names", "needs engine.metrics, which is missing", Some(hint)));
        }
        (Some(path), names) => Some(MetricsPage { path, names: names.unwrap_or_default() }),
    };
    let log = section.optional::<String>("ready_log")?;
    let log = log.map(|text| regex(section, "ready_log", &text)).transpose()?;
    let health = match path(section, "health")? {
        // If the log shows the readiness, the server may have no health page.
        None => log.is_none().then(|| HEALTH.to_owned()),
        named => named,
    };
    let api_key_variable: Option<String> = section.optional("api_key_variable")?;
    if let Some(name) = api_key_variable.iter().find(|name| !is_variable(name)) {
        return Err(section.error(
            "api_key_variable",
            format!("{name:?} is not the name of an environment variable"),
            None,
        ));
    }
    Ok(Arc::new(CommandEngine {
        style,
        spellings: spellings.unwrap_or_default(),
        dialect: section.optional_or("dialect", DIALECT.to_owned())?,
        readiness: Readiness { health, log, model_name: ModelNameCheck::IfListed, release: ReleasePage::USUAL },
        metrics,
        failures: section.sections("failures", FailurePattern::read)?,
        api_key_variable,
    }))
}

fn read_metric_names(table: &Section<'_>) -> Result<BTreeMap<String, String>, DocumentError> {
    let name = |quantity: &str| {
        if QUANTITIES.contains(&quantity) {
            return Ok((quantity.to_owned(), table.required(quantity)?));
        }
        let hint = nearest(quantity, QUANTITIES).map(|near| format!("did you mean `{near}`?"));
        Err(table.error(quantity, format!("is not a quantity; there are {}", QUANTITIES.join(", ")), hint))
    };
    table.keys().map(name).collect()
}

/// Reads a path on the server.
fn path(section: &Section<'_>, key: &str) -> Result<Option<String>, DocumentError> {
    let path: Option<String> = section.optional(key)?;
    match path.iter().find(|path| !path.starts_with('/')) {
        None => Ok(path),
        Some(path) => {
            let hint = format!("a path of the server begins with a slash, such as \"/{}\"", path.trim_matches('/'));
            Err(section.error(key, format!("{path:?} is not a path"), Some(hint)))
        }
    }
}

fn regex(section: &Section<'_>, key: &str, text: &str) -> Result<Regex, DocumentError> {
    Regex::new(text).map_err(|error| {
        // The library marks the place of the error in several lines. The last line is the message.
        let text = error.to_string();
        let problem = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        section.error(key, format!("is not a regular expression: {problem}"), None)
    })
}

impl Engine for CommandEngine {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn default_command(&self) -> std::io::Result<Vec<String>> {
        Err(std::io::Error::other("an engine of this kind has no default command"))
    }

    fn check_command(&self, command: &[String]) -> Result<(), PlaceholderError> {
        for word in command.iter().filter(|word| *word != FLAGS) {
            if has_placeholder(word, "flags") {
                return Err(PlaceholderError::FlagsNotAlone(word.clone()));
            }
            check_command_word(&substitute(word, MODEL, ""))?;
        }
        Ok(())
    }

    fn needs_port(&self) -> bool {
        true
    }

    /// Returns the study's command and arguments. The flags replace `{flags}`, or else follow the command.
    fn command_line(&self, spec: &LaunchSpec<'_>) -> Result<CommandLine, FlagError> {
        let flags = RenderedFlags::render(spec.config, self.style, &self.spellings).words;
        let fill = |word: &String| {
            let word = [substitute(word, MODEL, spec.model)];
            spec.launch.map_or_else(|| word.to_vec(), |(_, filling)| filling.fill_words(&word))
        };
        let mut line = Vec::new();
        let has_place = spec.command.iter().any(|word| word == FLAGS);
        for word in spec.command {
            if word == FLAGS {
                line.extend(flags.iter().cloned());
            } else {
                line.extend(fill(word));
            }
        }
        if !has_place {
            line.extend(flags);
        }
        line.extend(spec.args.iter().flat_map(fill));
        Ok(CommandLine::from_words(line))
    }

    fn variables(&self, config: &Config) -> BTreeMap<String, String> {
        RenderedFlags::render(config, self.style, &self.spellings).variables
    }

    fn definition(&self) -> Option<Json> {
        let spellings: BTreeMap<_, _> = self.spellings.iter().map(|(name, one)| (name, one.definition())).collect();
        Some(json!({"flag_style": self.style.name(), "flags": spellings, "dialect": self.dialect}))
    }

    fn diagnose(&self, evidence: &EngineEvidence<'_>) -> Failure {
        failures::diagnose(evidence, &self.failures)
    }

    fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    fn dialect(&self) -> &str {
        &self.dialect
    }

    fn metrics(&self) -> Option<MetricsPage> {
        self.metrics.clone()
    }

    fn api_key_variable(&self) -> Option<&str> {
        self.api_key_variable.as_deref()
    }
}

#[cfg(test)]
mod tests;
