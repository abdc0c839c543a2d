//! The flags in the file of vLLM's `--config FILE.yaml`, as `load_config_file` of `vllm/utils/argparse_utils.py`
//! derives them.

use std::path::{Path, PathBuf};

use saphyr::{MarkedYaml, ScalarStyle, YamlData, YamlLoader};
use saphyr_parser::Parser;
use serde_json::{Map, Value as Json};

use crate::engine::{ConfigFileFlags, ConfigFileProblem};
use crate::flag::FlagTable;

pub(super) const FLAG: &str = "--config";

/// The reason why a file's flags cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigFileError {
    #[error("--config is given {0} times, but vLLM reads only one file")]
    Several(usize),
    #[error("--config has no file name")]
    NoFile,
    #[error("--config {0}: the file does not exist")]
    Missing(String),
    #[error("--config {0}: vLLM reads only files that end with .yaml or .yml")]
    Extension(String),
    #[error("--config {}: cannot be read: {error}", .file.display())]
    Read { file: PathBuf, error: std::io::Error },
    #[error("--config {}:{line}: {problem}", .file.display())]
    Line { file: PathBuf, line: usize, problem: String },
}

/// Replaces `--config` by the flags of its file, before all other arguments. The other arguments override the file's,
/// as they do in vLLM. `find` locates the file.
///
/// # Errors
/// If there is more than one such file, or it cannot be read. The error contains the line.
pub(super) fn inline_config_file(
    words: Vec<String>,
    table: FlagTable,
    find: &dyn Fn(&str) -> Option<PathBuf>,
) -> Result<Vec<String>, ConfigFileError> {
    let count = words.iter().filter(|word| is_config_flag(word)).count();
    if count > 1 {
        return Err(ConfigFileError::Several(count));
    }
    let Some(at) = words.iter().position(|word| is_config_flag(word)) else { return Ok(words) };
    let inline = words[at].split_once('=').map(|(_, file)| file);
    let behind = words.get(at + 1).filter(|word| inline.is_none() && !word.starts_with('-'));
    let written = inline.or(behind.map(String::as_str)).filter(|file| !file.is_empty());
    let written = written.ok_or(ConfigFileError::NoFile)?;
    if !matches!(Path::new(written).extension().and_then(|end| end.to_str()), Some("yaml" | "yml")) {
        return Err(ConfigFileError::Extension(written.to_owned()));
    }
    let file = find(written).ok_or_else(|| ConfigFileError::Missing(written.to_owned()))?;
    let text = std::fs::read_to_string(&file).map_err(|error| ConfigFileError::Read { file: file.clone(), error })?;
    let read = read_config_file(&text, table);
    let read = read.map_err(|ConfigFileProblem { line, problem }| ConfigFileError::Line { file, line, problem })?;
    let mut all = read.words;
    let taken = if behind.is_some() { 2 } else { 1 };
    all.extend(words[..at].iter().chain(&words[at + taken..]).cloned());
    Ok(all)
}

fn is_config_flag(word: &str) -> bool {
    word == FLAG || word.strip_prefix(FLAG).is_some_and(|rest| rest.starts_with('='))
}

/// Returns whether a command passes a `--config` file to the engine. A `--config` before the engine's own program
/// belongs to a wrapper and does not count.
pub(super) fn passes_config_file(command: &[String]) -> bool {
    let engine = command.iter().rposition(|word| word == "serve" || word.ends_with("api_server"));
    engine.is_some_and(|at| command[at..].iter().any(|word| is_config_flag(word)))
}

/// The number of a line and its problem.
type Problem = (usize, String);

/// Reads the text of a file of flags.
///
/// # Errors
/// If the text is not a mapping of flags to values that vLLM reads.
pub(super) fn read_config_file(text: &str, table: FlagTable) -> Result<ConfigFileFlags, ConfigFileProblem> {
    flags(text, table).map_err(|(line, problem)| ConfigFileProblem { line, problem })
}

fn flags(text: &str, table: FlagTable) -> Result<ConfigFileFlags, Problem> {
    let mut loader = YamlLoader::<MarkedYaml<'_>>::default();
    // The library resolves scalars by YAML 1.2, but PyYAML by 1.1. Of two equal keys PyYAML uses the later.
    loader.early_parse(false);
    loader.allow_duplicate_keys(true);
    let loaded = Parser::new_from_str(text).load(&mut loader, true);
    if let Some(error) = loaded.as_ref().err().or(loader.error()) {
        return Err((error.marker().line(), error.info().to_owned()));
    }
    let mut documents = loader.into_documents();
    let root = match (documents.pop(), documents.len()) {
        (Some(root), 0) => root,
        (None, _) => return Err((1, "the file contains no flag".to_owned())),
        (Some(second), _) => return Err((line(&second), "the file contains a second document".to_owned())),
    };
    let YamlData::Mapping(mapping) = &root.data else {
        return Err((line(&root), "the file is not a mapping of flags to values".to_owned()));
    };
    let (mut model, mut words) = (None, Vec::new());
    for (key, value) in mapping {
        let name = name(key)?;
        // The model of the command line takes precedence over the file's, and every launch has one there.
        if name == "model" {
            model = Some(python_text(&value_of(value)?));
            continue;
        }
        let flag = format!("--{name}");
        match value_of(value)? {
            Json::Bool(true) => words.push(flag),
            Json::Bool(false) => {
                // A switch without a `--no-` form is off without any argument.
                let switch = [format!("--no-{name}")];
                words.extend(table.parse(&switch).is_ok().then(|| switch[0].clone()));
            }
            Json::Array(items) if items.is_empty() => {}
            Json::Array(items) => {
                if items.iter().any(|item| item.is_array() || item.is_object()) {
                    let problem = format!("{name}: vLLM cannot read a list or mapping within a list; quote it as JSON");
                    return Err((line(value), problem));
                }
                words.push(flag);
                words.extend(items.iter().map(python_text));
            }
            object @ Json::Object(_) => words.extend([flag, object.to_string()]),
            scalar => words.extend([flag, python_text(&scalar)]),
        }
    }
    Ok(ConfigFileFlags { model, words })
}

fn line(node: &MarkedYaml<'_>) -> usize {
    node.span.start.line()
}

fn name(key: &MarkedYaml<'_>) -> Result<String, Problem> {
    match &key.data {
        YamlData::Representation(text, ..) if text == "<<" => {
            Err((line(key), "merge keys (`<<`) are not supported; write the flags out".to_owned()))
        }
        YamlData::Representation(text, ..) => Ok(text.clone().into_owned()),
        _ => Err((line(key), "a key is not the name of a flag".to_owned())),
    }
}

fn value_of(node: &MarkedYaml<'_>) -> Result<Json, Problem> {
    match &node.data {
        YamlData::Representation(text, style, tag) => {
            let is_text = *style != ScalarStyle::Plain || tag.as_ref().is_some_and(|tag| tag.suffix == "str");
            Ok(if is_text { Json::String(text.clone().into_owned()) } else { plain(text) })
        }
        YamlData::Sequence(items) => items.iter().map(value_of).collect(),
        YamlData::Mapping(mapping) => {
            let entries = mapping.iter().map(|(key, value)| Ok((name(key)?, value_of(value)?)));
            Ok(Json::Object(entries.collect::<Result<Map<_, _>, Problem>>()?))
        }
        _ => Err((line(node), "values with a custom tag are not supported".to_owned())),
    }
}

/// Converts a scalar without quotes like the resolver of `PyYAML`.
pub(super) fn plain(text: &str) -> Json {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Json::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Json::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => return Json::Bool(false),
        _ => {}
    }
    let integer = integer(text).map(Json::from);
    integer.or_else(|| float(text).map(Json::from)).unwrap_or_else(|| Json::String(text.to_owned()))
}

fn integer(text: &str) -> Option<i64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (digits, radix) = match unsigned.as_bytes() {
        [b'0', b'x', ..] => (&unsigned[2..], 16),
        [b'0', b'b', ..] => (&unsigned[2..], 2),
        [b'0', _, ..] => (&unsigned[1..], 8),
        [b'0'..=b'9', ..] => (unsigned, 10),
        _ => return None,
    };
    let value = i64::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    Some(if text.starts_with('-') { -value } else { value })
}

/// Parses a number with a decimal point. An exponent needs a sign.
fn float(text: &str) -> Option<f64> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let digits = mantissa.strip_prefix(['-', '+']).unwrap_or(mantissa);
    let (whole, part) = digits.split_once('.')?;
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let is_number = are_digits(whole) && are_digits(part) && digits.len() > 1 && !whole.starts_with('_');
    let is_signed = exponent.is_none_or(|exponent| exponent.starts_with(['-', '+']) && are_digits(&exponent[1..]));
    (is_number && is_signed).then(|| text.replace('_', "").parse().ok())?
}

/// Formats a value like Python's `str`.
fn python_text(value: &Json) -> String {
    match value {
        Json::Null => "None".to_owned(),
        Json::Bool(true) => "True".to_owned(),
        Json::Bool(false) => "False".to_owned(),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::FLAGS;

    fn table() -> FlagTable {
        FLAGS.for_version(FLAGS.newest_release())
    }

    fn read(text: &str) -> Result<String, Problem> {
        flags(text, table()).map(|flags| flags.words.join(" "))
    }

    #[test]
    fn a_file_in_a_command_is_the_engines_behind_serve_only() {
        let passes = |line: &str| passes_config_file(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(
            passes("vllm serve --config a.yaml")
                && passes("python -m vllm.entrypoints.openai.api_server --config=a.yaml")
        );
        assert!(!passes("docker --config dir run image serve") && !passes("vllm serve --config-format auto"));
    }

    #[test]
    fn a_file_becomes_the_flags_that_vllm_makes_of_it() {
        for (text, expected) in [
            ("port: 12323\ntensor-parallel-size: 4\n", "--port 12323 --tensor-parallel-size 4"),
            ("model: org/name\nmax_num_seqs: 8", "--max_num_seqs 8"),
            ("served-model-name: [a, b]", "--served-model-name a b"),
            ("served-model-name:\n- a\n- 'yes'\n- yes", "--served-model-name a yes True"),
            ("middleware: []\nseed: 3", "--seed 3"),
            ("enforce-eager: yes\nenable-prefix-caching: off", "--enforce-eager --no-enable-prefix-caching"),
            ("headless: false", ""),
            ("dtype: 'on'\nseed: 0x10\nswap-space: 1_000", "--dtype on --seed 16 --swap-space 1000"),
            ("gpu-memory-utilization: 0.90 # of it\nrope-theta: 1e6", "--gpu-memory-utilization 0.9 --rope-theta 1e6"),
            ("seed: 1\nseed: 2", "--seed 2"),
            ("quantization:\nkv-cache-dtype: !!str 8", "--quantization None --kv-cache-dtype 8"),
            (
                "compilation-config:\n  pass_config:\n    fuse_allreduce_rms: true\n  level: 3",
                r#"--compilation-config {"level":3,"pass_config":{"fuse_allreduce_rms":true}}"#,
            ),
            ("x: &a [1, 2]\ny: *a", "--x 1 2 --y 1 2"),
        ] {
            assert_eq!(read(text).map_err(|(_, problem)| problem), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn an_error_in_the_file_is_reported_with_its_line() {
        for (text, line, problem) in [
            ("", 1, "contains no flag"),
            ("- a", 1, "not a mapping"),
            ("seed: 1\n---\nseed: 2", 3, "second document"),
            ("seed: 1\ndtype: [a", 2, ""),
            ("seed: 1\n\tdtype: a", 2, ""),
            ("seed: 1\nlora-modules: [{name: a}]", 2, "quote it as JSON"),
            ("seed: 1\n<<: {a: 1}", 2, "write the flags out"),
            ("? [a]\n: 1", 1, "not the name of a flag"),
        ] {
            let (at, told) = read(text).unwrap_err();
            assert!(at.abs_diff(line) <= 1 && told.contains(problem), "{text}: {at}: {told}");
        }
    }

    #[test]
    fn the_files_flags_stand_before_the_arguments() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("serve.yaml");
        std::fs::write(&file, "seed: 1\n").unwrap();
        let inline = |line: &str| {
            let words = line.split_whitespace().map(str::to_owned).collect();
            inline_config_file(words, table(), &|name| (name == "serve.yaml").then(|| file.clone()))
                .map(|words| words.join(" "))
                .map_err(|error| error.to_string())
        };
        assert_eq!(inline("--a 1 --config serve.yaml --b"), Ok("--seed 1 --a 1 --b".to_owned()));
        assert_eq!(inline("--config=serve.yaml --b"), Ok("--seed 1 --b".to_owned()));
        assert_eq!(inline("--config-format hf"), Ok("--config-format hf".to_owned()));
        for (line, problem) in [
            ("--config serve.yaml --config=serve.yaml", "--config is given 2 times"),
            ("--config", "--config has no file name"),
            ("--config --b", "--config has no file name"),
            ("--config other.yaml", "--config other.yaml: the file does not exist"),
            ("--config serve.json", "--config serve.json: vLLM reads only files that end with .yaml or .yml"),
        ] {
            let told = inline(line).unwrap_err();
            assert!(told.starts_with(problem), "{told}");
        }
    }
}
