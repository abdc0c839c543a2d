//! The command line of a launch with its parts, and its environment.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{REDACTED, is_secret, redact};

/// A command line. `parts` is known for engines whose command lines have [`CommandParts`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    pub words: Vec<String>,
    pub parts: Option<CommandParts>,
    /// Whether the last words are those of the engine's helper for live looks.
    pub is_prepared: bool,
}

/// The number of words of each part of a command line, in the order of the line. One word, the model, follows the
/// program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandParts {
    /// The program and its leading arguments. It may be a wrapper.
    pub program: usize,
    /// The flags of the configuration.
    pub flags: usize,
    /// The study's own arguments.
    pub arguments: usize,
    /// The words that a launch adds: `--host` and `--port` with their values, and those of a helper for live looks.
    pub address: usize,
}

/// The words of each part of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchWords<'a> {
    pub program: &'a [String],
    /// The model as given to the engine: a directory or a hub name.
    pub model: &'a str,
    pub flags: &'a [String],
    pub arguments: &'a [String],
    pub address: &'a [String],
}

/// The exact command line and the environment variables that were added to the tuner's own.
///
/// It contains no secrets: values of variables with the name of a secret are [`REDACTED`], and [`redact`] replaces
/// values that look like one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchCommand {
    pub command: Vec<String>,
    /// `None` for engines whose command lines have other parts, and in databases of older releases.
    pub parts: Option<CommandParts>,
    pub env: BTreeMap<String, String>,
    /// Whether the launch had the engine's helper for live looks. Its words are part of the address.
    pub is_prepared: bool,
    /// Whether a process that had imported the engine forked the launch.
    pub is_fast: bool,
}

impl CommandLine {
    /// Joins the parts of a command line.
    #[must_use]
    pub fn from_parts(
        program: Vec<String>,
        model: &str,
        flags: Vec<String>,
        arguments: Vec<String>,
        address: Vec<String>,
    ) -> Self {
        let parts = CommandParts {
            program: program.len(),
            flags: flags.len(),
            arguments: arguments.len(),
            address: address.len(),
        };
        let mut words = program;
        words.push(model.to_owned());
        words.extend(flags.into_iter().chain(arguments).chain(address));
        Self { words, parts: Some(parts), is_prepared: false }
    }

    /// Adds the words of the engine's helper for live looks.
    #[must_use]
    pub fn with_helper(mut self, words: Vec<String>) -> Self {
        if let Some(parts) = &mut self.parts {
            parts.address += words.len();
        }
        self.words.extend(words);
        Self { is_prepared: true, ..self }
    }

    /// Adds a word behind the address.
    #[must_use]
    pub fn with_address_word(mut self, word: &str) -> Self {
        if let Some(parts) = &mut self.parts {
            parts.address += 1;
        }
        self.words.push(word.to_owned());
        self
    }

    /// Creates a command line without parts.
    #[must_use]
    pub fn from_words(words: Vec<String>) -> Self {
        Self { words, parts: None, is_prepared: false }
    }
}

impl CommandParts {
    /// Splits a command line. `None` if the line has another number of words.
    #[must_use]
    pub fn split(self, words: &[String]) -> Option<LaunchWords<'_>> {
        let (program, rest) = words.split_at_checked(self.program)?;
        let (model, rest) = rest.split_first()?;
        let (flags, rest) = rest.split_at_checked(self.flags)?;
        let (arguments, address) = rest.split_at_checked(self.arguments)?;
        (address.len() == self.address).then_some(LaunchWords { program, model, flags, arguments, address })
    }
}

impl LaunchCommand {
    /// Redacts words that look like secrets. The launch itself gets the original words.
    #[must_use]
    pub fn redacted(line: &CommandLine, env: BTreeMap<String, String>) -> Self {
        let env = env.into_iter().map(|(name, value)| {
            let value = if is_secret(&name) { REDACTED.to_owned() } else { redact(&value).into_owned() };
            (name, value)
        });
        Self {
            command: redacted_words(&line.words),
            parts: line.parts,
            env: env.collect(),
            is_prepared: line.is_prepared,
            is_fast: false,
        }
    }

    /// Returns the parts of the command line; `None` if they are unknown.
    #[must_use]
    pub fn words(&self) -> Option<LaunchWords<'_>> {
        self.parts?.split(&self.command)
    }
}

/// Redacts `--api-key VALUE` and `--api-key=VALUE`, `TOKEN=VALUE` after `env` or `docker run -e`, and words that look
/// like a secret. The number of words stays.
fn redacted_words(words: &[String]) -> Vec<String> {
    let is_named = |word: &String| word.starts_with('-') && !word.contains('=') && is_secret(word);
    let previous = std::iter::once(None).chain(words.iter().map(Some));
    let redact_word = |(previous, word): (Option<&String>, &String)| match word.split_once('=') {
        _ if previous.is_some_and(is_named) => REDACTED.to_owned(),
        Some((name, _)) if !name.contains(char::is_whitespace) && is_secret(name) => format!("{name}={REDACTED}"),
        _ => redact(word).into_owned(),
    };
    previous.zip(words).map(redact_word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_redacted_command_line_keeps_its_parts() {
        let line = CommandLine::from_parts(
            words("env HF_TOKEN=a vllm serve"),
            "org/model",
            words("--max-num-seqs 64"),
            words("--api-key b"),
            words("--host 127.0.0.1 --port 8123"),
        );
        let launch = LaunchCommand::redacted(&line, BTreeMap::new());
        let parts = launch.words().unwrap();
        assert_eq!(parts.program, words("env HF_TOKEN=(redacted) vllm serve"));
        assert_eq!((parts.model, parts.flags), ("org/model", &*words("--max-num-seqs 64")));
        assert_eq!(parts.arguments, ["--api-key", REDACTED]);
        assert_eq!(parts.address, words("--host 127.0.0.1 --port 8123"));
    }

    #[test]
    fn a_command_line_of_another_length_has_no_parts() {
        let parts = CommandParts { program: 2, flags: 0, arguments: 0, address: 0 };
        assert!(parts.split(&words("vllm serve m")).is_some());
        for line in ["", "vllm", "vllm serve", "vllm serve m --enforce-eager"] {
            assert_eq!(parts.split(&words(line)), None, "{line}");
        }
        let launch = LaunchCommand::redacted(&CommandLine::from_words(words("vllm serve m")), BTreeMap::new());
        assert_eq!(launch.words(), None);
    }
}
