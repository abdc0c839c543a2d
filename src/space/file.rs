//! Search spaces as files: the format of `search_spaces/<engine>/*.toml`.

use std::path::Path;

use super::{Condition, Domain, IntScale, Parameter, Space, expression};
use crate::config::{Config, Value};
use crate::document::{Document, DocumentError, FromToml, Section};
use crate::facts::{EngineVersion, ModelShape};
use crate::stats::f64_to_i64;

/// Generates pairs of a file's path in the project and its text.
macro_rules! files {
    ($($path:literal),* $(,)?) => { &[$(($path, include_str!(concat!("../../", $path)))),*] };
}

/// The spaces that ship in the binary, by their path in the project. A test compares them with the folder.
const BUILT_IN: &[(&str, &str)] = files![
    "search_spaces/llama.cpp/cpu-full.toml",
    "search_spaces/llama.cpp/cpu.toml",
    "search_spaces/llama.cpp/draft.toml",
    "search_spaces/llama.cpp/gpu.toml",
    "search_spaces/llama.cpp/speculation.toml",
    "search_spaces/sim/core.toml",
    "search_spaces/vllm/core-0.8.toml",
    "search_spaces/vllm/core.toml",
    "search_spaces/vllm/cpu.toml",
    "search_spaces/vllm/full-0.20.toml",
    "search_spaces/vllm/full-0.32.toml",
    "search_spaces/vllm/full-0.8.toml",
    "search_spaces/vllm/full.toml",
    "search_spaces/vllm/long-context-0.8.toml",
    "search_spaces/vllm/long-context.toml",
    "search_spaces/vllm/moe-0.20.toml",
    "search_spaces/vllm/moe.toml",
    "search_spaces/vllm/multi-gpu-0.8.toml",
    "search_spaces/vllm/multi-gpu.toml",
    "search_spaces/vllm/speculative-0.32.toml",
    "search_spaces/vllm/speculative.toml",
    "search_spaces/vllm/v0-full.toml",
    "search_spaces/vllm/v0-multi-gpu.toml",
    "search_spaces/vllm/v0-speculative.toml",
    "search_spaces/vllm/v0.toml",
];

/// Returns the paths of the spaces that ship with `setpoint`.
pub fn built_in_paths() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(path, _)| *path)
}

/// Returns the text of a space that ships with `setpoint`.
#[must_use]
pub fn built_in(path: &Path) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| path == Path::new(known)).map(|(_, text)| *text)
}

/// Reads a space that ships with `setpoint`. Its bounds that name facts of the model hold for a model of one layer.
///
/// # Errors
/// For a text that is no space, which a test excludes.
pub fn read_built_in(path: &str) -> Result<SpaceFile, DocumentError> {
    let model = ModelShape::from_json(&serde_json::json!({"num_hidden_layers": 1}));
    let text = built_in(Path::new(path)).unwrap_or_default();
    Document::from_text(path, text).parse(|root| SpaceFile::read(root, &model))
}

/// Returns the built-in space of the family of `path` for this release: for instance `core-0.8.toml` instead of
/// `core.toml`.
#[must_use]
pub fn built_in_for(path: &str, version: EngineVersion) -> Option<&'static str> {
    let (folder, name) = path.trim_end_matches(".toml").rsplit_once('/')?;
    let family = name.rsplit_once('-').filter(|(_, end)| end.starts_with("0.")).map_or(name, |(family, _)| family);
    let suits = |candidate: &&str| {
        let Some((other, name)) = candidate.trim_end_matches(".toml").rsplit_once('/') else { return false };
        let rest = name.strip_prefix(family).or_else(|| name.strip_prefix(&format!("v0-{family}")));
        let is_kin = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("-0.")) || name == "v0";
        let is_for = |file: SpaceFile| {
            file.first_version.is_none_or(|first| version >= first)
                && file.last_version.is_none_or(|last| version <= last)
        };
        other == folder && is_kin && read_built_in(candidate).is_ok_and(is_for)
    };
    // Among the suitable spaces, those for V1 come before those for V0.
    let mut found: Vec<_> = built_in_paths().filter(suits).collect();
    found.sort_by_key(|path| path.contains("/v0"));
    found.first().copied()
}

/// A space file, resolved for one model.
#[derive(Clone, Debug, PartialEq)]
pub struct SpaceFile {
    pub description: String,
    /// The name of the engine that has the parameters as flags.
    pub engine: String,
    /// The range of releases that have the flags, inclusive.
    pub first_version: Option<EngineVersion>,
    pub last_version: Option<EngineVersion>,
    pub space: Space,
}

impl SpaceFile {
    /// Reads the root of a space file; bounds that name facts of the model are evaluated for `model`.
    ///
    /// # Errors
    /// If a key is missing or unknown, or a range contains no value for this model. Also if a condition names a
    /// parameter that is neither fixed nor above.
    pub fn read(root: &Section<'_>, model: &ModelShape) -> Result<Self, DocumentError> {
        let version = |key: &str| {
            let text: Option<String> = root.optional(key)?;
            text.map(|text| {
                text.parse().map_err(|error: crate::facts::VersionError| root.error(key, error.to_string(), None))
            })
            .transpose()
        };
        let fixed: Config = root.optional("fixed")?.unwrap_or_default();
        let parameters = root.section("parameters", |section| read_parameters(section, &fixed, model))?;
        Ok(Self {
            description: root.required("description")?,
            engine: root.required("engine")?,
            first_version: version("first_version")?,
            last_version: version("last_version")?,
            space: Space { parameters, fixed },
        })
    }
}

/// Reads `[parameters.NAME]` tables in the file's order. Parents must come before their children.
pub(crate) fn read_parameters(
    section: &Section<'_>,
    fixed: &Config,
    model: &ModelShape,
) -> Result<Vec<Parameter>, DocumentError> {
    let mut parameters: Vec<Parameter> = Vec::new();
    for name in section.keys() {
        let parameter = section.section(name, |table| read_parameter(table, name, model))?;
        for condition in &parameter.conditions {
            let parent = &condition.parameter;
            if fixed.get(parent).is_none() && !parameters.iter().any(|known| known.name == *parent) {
                let problem = format!("depends on `{parent}`, which is neither fixed nor a parameter above it");
                return Err(section.error(name, problem, None));
            }
        }
        parameters.push(parameter);
    }
    Ok(parameters)
}

fn read_parameter(table: &Section<'_>, name: &str, model: &ModelShape) -> Result<Parameter, DocumentError> {
    let kind: String = table.required("kind")?;
    let domain = match kind.as_str() {
        "int" => {
            let scale = match table.optional_or("scale", "linear".to_owned())?.as_str() {
                "linear" => IntScale::Linear,
                "log" => IntScale::Log,
                "pow2" => IntScale::PowerOfTwo,
                other => {
                    return Err(table.error("scale", format!("{other:?} is not one of linear, log, pow2"), None));
                }
            };
            let multiple_of = table.optional_or::<i64>("multiple_of", 1)?;
            if multiple_of < 1 || (multiple_of > 1 && scale == IntScale::PowerOfTwo) {
                return Err(table.error(
                    "multiple_of",
                    format!("{multiple_of} is below 1, or above 1 with pow2"),
                    None,
                ));
            }
            let (low, high) = (bound(table, "low", model)?, bound(table, "high", model)?);
            if scale != IntScale::Linear && low < 1.0 {
                return Err(table.error("low", format!("{low} is below 1, the least value of this scale"), None));
            }
            Domain::int(f64_to_i64(low.ceil()), f64_to_i64(high.floor()), scale, multiple_of)
        }
        "float" => {
            let log = match table.optional_or("scale", "linear".to_owned())?.as_str() {
                "linear" => false,
                "log" => true,
                other => return Err(table.error("scale", format!("{other:?} is not one of linear, log"), None)),
            };
            let (low, high) = (bound(table, "low", model)?, bound(table, "high", model)?);
            if log && low <= 0.0 {
                return Err(table.error("low", format!("{low} is not above 0, as a logarithmic scale requires"), None));
            }
            Domain::Float { low, high, log }
        }
        "bool" => Domain::Bool,
        "categorical" => Domain::Categorical(table.required("choices")?),
        other => {
            return Err(table.error("kind", format!("{other:?} is not one of int, float, bool, categorical"), None));
        }
    };
    if domain.is_empty() {
        let hint = "the range is empty for this model: widen it, or fix the parameter".to_owned();
        return Err(table.error("high", format!("no value of `{name}` lies in {domain}"), Some(hint)));
    }
    let when = table.optional_section("when", |conditions| {
        let condition = |parent: &str| {
            let values = conditions.required::<OneOrMore>(parent)?.0;
            Ok(Condition { parameter: parent.to_owned(), values })
        };
        conditions.keys().map(condition).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(Parameter { name: name.to_owned(), domain, conditions: when.unwrap_or_default(), help: table.optional("help")? })
}

fn bound(table: &Section<'_>, key: &str, model: &ModelShape) -> Result<f64, DocumentError> {
    let bound = match table.required::<Value>(key)? {
        Value::Text(text) => expression::evaluate(&text, model).map_err(|problem| table.error(key, problem, None)),
        value => value.as_f64().ok_or_else(|| table.error(key, "expected a number or an expression", None)),
    }?;
    if bound.abs() <= LARGEST_BOUND {
        return Ok(bound);
    }
    Err(table.error(key, format!("{bound} is not a number between -2^53 and 2^53"), None))
}

/// Up to this bound every integer is exactly representable as a double, and the length of a range fits into 64 bits.
const LARGEST_BOUND: f64 = 9_007_199_254_740_992.0;

/// One value or a list: `true` or `[true, "auto"]`.
struct OneOrMore(Vec<Value>);

impl FromToml for OneOrMore {
    fn from_toml(value: &toml::de::DeValue<'_>) -> Result<Self, String> {
        if value.is_array() { Vec::from_toml(value).map(Self) } else { Value::from_toml(value).map(|v| Self(vec![v])) }
    }

    fn kind() -> String {
        "a value, or an array of values".to_owned()
    }
}
