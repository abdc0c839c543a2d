//! Launch lines: `vllm serve MODEL --flag value ...` with its flags as values.
//!
//! Old lines have flags that later releases lack. So each flag is read by the newest release that accepts it. A flag
//! of no known release keeps its value as a number or a text.

use crate::config::{Config, Value};
use crate::engine::is_variable;
use crate::engines::default_engine;
use crate::flag::FlagBook;
use crate::trial::{REDACTED, is_secret, redact};

use super::ImportedLaunch;

/// The module that older lines start with Python.
const MODULE: &str = "vllm.entrypoints.openai.api_server";

/// The subcommand that serves a model.
const SUBCOMMAND: &str = "serve";

/// The reason for which a line is not read.
const OPEN_QUOTE: &str = "a launch line with an open quote";

/// Flags of the address, which is no part of a configuration.
const ADDRESS: [&str; 2] = ["host", "port"];

/// Flags that name the model.
const MODEL: [&str; 2] = ["model", "model-tag"];

/// Reads a launch line. `None` if the line does not start an engine; an error if it does, but has an open quote.
pub(super) fn parse(line: &str) -> Option<Result<ImportedLaunch, &'static str>> {
    let line = line.trim().trim_start_matches(['$', '>']).trim_start();
    let line = line.trim_matches('`').trim_end_matches(" &");
    if !line.contains("vllm serve ") && !line.contains(MODULE) {
        return None;
    }
    let Some(words) = shlex::split(line) else { return Some(Err(OPEN_QUOTE)) };
    let at = words.iter().take_while(|word| is_setting(word)).count();
    let first = words.get(at)?;
    let is_engine = first.rsplit('/').next() == Some(default_engine().kind());
    // A sentence about a launch line begins with another word.
    let is_launch = is_engine || first.contains("python") && words.iter().any(|word| word == MODULE);
    is_launch.then(|| Ok(launch(words))).filter(|launch| launch.as_ref().is_ok_and(|launch| launch.command.len() > 2))
}

/// Reads a line that is known to be a command, of any program. `None` if it does not serve a model.
pub(super) fn parse_command(line: &str) -> Option<Result<ImportedLaunch, &'static str>> {
    match shlex::split(line) {
        Some(words) if words.iter().any(|word| word == SUBCOMMAND || word == MODULE) => Some(Ok(launch(words))),
        Some(_) => None,
        None => Some(Err(OPEN_QUOTE)),
    }
}

/// Returns whether a word before a command sets an environment variable.
fn is_setting(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| is_variable(name))
}

/// Splits a command into its variables, the words of its program, and the engine's flags.
fn launch(mut words: Vec<String>) -> ImportedLaunch {
    let settings = words.iter().take_while(|word| is_setting(word)).count();
    let env = words.drain(..settings).collect::<Vec<_>>();
    let env = env.iter().filter_map(|word| word.split_once('=')).map(|(name, value)| {
        let value = if is_secret(name) { REDACTED.to_owned() } else { redact(value).into_owned() };
        (name.to_owned(), value)
    });
    let at = words.iter().position(|word| word == SUBCOMMAND || word == MODULE).map_or(0, |at| at + 1);
    let (config, model) = read_flags(&words[at..]);
    ImportedLaunch { env: env.collect(), config, model, command: words }
}

/// Returns the model of a command, if it is a launch line.
#[must_use]
pub(super) fn model_of(command: &[String]) -> Option<String> {
    command.iter().any(|word| word == SUBCOMMAND || word == MODULE).then(|| launch(command.to_vec()).model)?
}

/// Reads the flags behind the command, and the model before or among them.
#[must_use]
pub(super) fn read_flags(words: &[String]) -> (Config, Option<String>) {
    let book = default_engine().flags();
    let (mut config, mut model, mut at) = (Config::new(), None, 0);
    while let Some(word) = words.get(at) {
        at += 1;
        if !is_flag(word) {
            model = model.or_else(|| Some(word.clone()));
            continue;
        }
        let begin = at - 1;
        while words.get(at).is_some_and(|word| !is_flag(word)) {
            at += 1;
        }
        for (name, value) in
            book.and_then(|book| by_release(book, &words[begin..at])).unwrap_or_else(|| plain(&words[begin..at]))
        {
            if MODEL.contains(&name.as_str()) {
                model = Some(value.to_string());
            } else if !ADDRESS.contains(&name.as_str()) {
                let value = if is_secret(&name) { Value::from(REDACTED) } else { value };
                config.set(name, value);
            }
        }
    }
    (config, model)
}

/// Reads one flag as the newest release that accepts it.
fn by_release(book: &'static FlagBook, words: &[String]) -> Option<Vec<(String, Value)>> {
    let releases: Vec<_> = book.releases(None, None).collect();
    let is_known = |words: &[String]| words.first().is_some_and(|word| !word.is_empty());
    if !is_known(words) {
        return None;
    }
    releases.into_iter().rev().find_map(|release| {
        let table = book.for_version(release);
        if !table.is_flag_argument(&words[0]) {
            return None;
        }
        // A switch may stand before the model: `--enable-prefix-caching MODEL`.
        let config = table.parse(words).ok()?;
        Some(config.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect())
    })
}

/// Reads a flag without knowledge of it: a switch without a value, a number, or a text.
fn plain(words: &[String]) -> Vec<(String, Value)> {
    let Some((flag, values)) = words.split_first() else { return Vec::new() };
    let (name, attached) = match flag.split_once('=') {
        Some((name, value)) => (name, vec![value.to_owned()]),
        None => (flag.as_str(), Vec::new()),
    };
    let values: Vec<_> = attached.into_iter().chain(values.iter().cloned()).collect();
    let name = name.trim_start_matches('-').replace('_', "-");
    let value = if values.is_empty() { Value::Bool(true) } else { value_of(&values.join(" ")) };
    vec![(name, value)]
}

/// Reads a value without knowledge of its type.
#[must_use]
pub(super) fn value_of(text: &str) -> Value {
    let number = || text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::Float);
    match text {
        "true" | "True" => Value::Bool(true),
        "false" | "False" => Value::Bool(false),
        _ => text.parse().map(Value::Int).ok().or_else(number).unwrap_or_else(|| Value::from(text)),
    }
}

/// Returns whether a word begins a flag. `-1` is a value.
fn is_flag(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| !rest.is_empty() && rest.parse::<f64>().is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(line: &str) -> ImportedLaunch {
        parse(line).unwrap().unwrap()
    }

    #[test]
    fn a_line_of_an_old_release_has_typed_values() {
        let launch = launch(
            "vllm serve llm/qwen/Qwen2-0.5B-Instruct --max-num-seqs 3563 --scheduler-delay-factor 1.675 \
             --enable-chunked-prefill --port 9 --made-up 1e3 --use-v2-block-manager",
        );
        assert_eq!(launch.model.as_deref(), Some("llm/qwen/Qwen2-0.5B-Instruct"));
        let expected = Config::new()
            .with("max-num-seqs", 3563_i64)
            .with("scheduler-delay-factor", 1.675)
            .with("enable-chunked-prefill", true)
            .with("made-up", 1000.0)
            .with("use-v2-block-manager", true);
        assert_eq!(launch.config, expected);
    }

    #[test]
    fn python_and_variables_before_the_command_are_read_and_secrets_are_not_kept() {
        let launch = launch(
            "$ HF_TOKEN=hf_abc OMP_NUM_THREADS=8 python3 -m vllm.entrypoints.openai.api_server --model m -tp 2 \
             --api-key secret",
        );
        assert_eq!(launch.model.as_deref(), Some("m"));
        assert_eq!(launch.env["OMP_NUM_THREADS"], "8");
        assert_eq!(launch.env["HF_TOKEN"], REDACTED);
        assert_eq!(launch.config.get_i64("tensor-parallel-size"), Some(2));
        assert!(!launch.config.to_string().contains("secret"), "{}", launch.config);
    }

    #[test]
    fn a_sentence_is_no_launch_and_an_open_quote_is_named() {
        assert_eq!(parse("Run vllm serve MODEL to start it."), None);
        assert!(parse("vllm serve m --chat-template 'a").unwrap().is_err());
    }
}
