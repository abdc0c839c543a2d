//! The start of a server within a command: behind wrappers, in a container, or in the text of a nested shell.

use std::collections::BTreeMap;

use super::container::{Container, container_of_words};
use super::field::WordField;
use super::secrets::SecretValues;
use super::shell::{ShellValue, ShellVariables, servers_of_script};
use crate::engine::{Engine, ServerStarts};

/// The largest depth of shells within shells.
const MAX_SHELLS: usize = 4;

/// Programs whose arguments are text and not a command.
const TEXT_PROGRAMS: [&str; 24] = [
    "[", "[[", "alias", "awk", "cat", "echo", "egrep", "git", "grep", "head", "history", "kill", "killall", "logger",
    "man", "pgrep", "pip", "pkill", "printf", "sed", "tail", "test", "type", "which",
];

/// Wrappers that set variables in their own arguments.
const SETS_VARIABLES: [&str; 2] = ["env", "sudo"];

/// Programs that run a text as a shell script.
const SHELLS: [&str; 6] = ["ash", "bash", "dash", "ksh", "sh", "zsh"];

/// The start of one server as it was found.
#[derive(Clone, Debug, Default)]
pub(super) struct ServerCall {
    pub(super) line: Option<usize>,
    /// The names that select this server in its file. The first is shown.
    pub(super) names: Vec<String>,
    /// The words before the program.
    pub(super) wrapper: Vec<WordField>,
    pub(super) program: Vec<String>,
    pub(super) arguments: Vec<WordField>,
    pub(super) env: BTreeMap<String, WordField>,
    pub(super) image: Option<WordField>,
    pub(super) notes: Vec<String>,
    pub(super) secrets: SecretValues,
}

/// The search for starts of an engine's server.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerSearch<'e> {
    pub(super) engine: &'e dyn Engine,
    pub(super) starts: &'static ServerStarts,
    depth: usize,
}

impl<'e> ServerSearch<'e> {
    pub(super) fn new(engine: &'e dyn Engine, starts: &'static ServerStarts) -> Self {
        Self { engine, starts, depth: 0 }
    }

    /// Returns the search within a nested shell, or `None` if the shells are nested too deep.
    pub(super) fn nested(self) -> Option<Self> {
        (self.depth < MAX_SHELLS).then_some(Self { depth: self.depth + 1, ..self })
    }

    /// Returns the servers that a command starts. It is more than one only for the script of a nested shell.
    pub(super) fn servers_of_words(
        self,
        words: &[WordField],
        line: usize,
        variables: &ShellVariables,
    ) -> Vec<ServerCall> {
        let Some(first) = words.first() else { return Vec::new() };
        if TEXT_PROGRAMS.contains(&file_name(&first.text)) {
            return Vec::new();
        }
        if let Some(container) = container_of_words(words, |image| self.starts.runs_in_image(image)) {
            let mut calls = self.nested().map_or_else(Vec::new, |nested| nested.servers_of_container(&container, line));
            for call in &mut calls {
                call.line = Some(line);
            }
            return calls;
        }
        if let Some(program) = self.starts.find(words) {
            let (wrapper, env) = divide_wrapper(&words[..program.start]);
            return vec![ServerCall {
                line: Some(line),
                wrapper,
                program: words[program.clone()].iter().map(|word| word.text.clone()).collect(),
                arguments: words[program.end..].to_vec(),
                env,
                ..ServerCall::default()
            }];
        }
        self.servers_of_texts(words, line, variables)
    }

    /// Returns the servers in arguments that are scripts themselves, such as that of `bash -c`.
    fn servers_of_texts(self, words: &[WordField], line: usize, variables: &ShellVariables) -> Vec<ServerCall> {
        let Some(nested) = self.nested() else { return Vec::new() };
        let shell = words.iter().position(|word| SHELLS.contains(&file_name(&word.text)));
        let of_shell = shell.and_then(|at| {
            let option = words[at + 1..].iter().position(|word| is_command_option(&word.text))?;
            words.get(at + 1 + option + 1)
        });
        let texts: Vec<_> = match of_shell {
            Some(text) => vec![text],
            // `tmux new-session 'COMMAND'`, `ssh HOST 'COMMAND'`.
            None => words[1..].iter().filter(|word| word.text.contains(char::is_whitespace)).collect(),
        };
        let (wrapper, env) = divide_wrapper(&words[..shell.unwrap_or(0)]);
        let mut calls: Vec<_> =
            texts.iter().flat_map(|text| servers_of_script(&text.text, line, variables.clone(), nested)).collect();
        for call in &mut calls {
            call.wrapper.splice(0..0, wrapper.iter().cloned());
            for (name, value) in &env {
                call.env.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        calls
    }

    /// Returns the servers that a container starts.
    pub(super) fn servers_of_container(self, container: &Container, line: usize) -> Vec<ServerCall> {
        let values = container.env.iter().map(|(name, field)| (name.clone(), ShellValue::Text(field.clone())));
        let variables = ShellVariables { values: values.collect(), other_source: None };
        let words: Vec<_> = container.entry_point.iter().flatten().chain(&container.arguments).cloned().collect();
        let mut calls = self.servers_of_words(&words, line, &variables);
        let image = container.image.as_ref().map(|image| image.text.as_str()).unwrap_or_default();
        if calls.is_empty() && container.entry_point.is_none() {
            let is_known = self.starts.runs_in_image(image);
            if is_known || self.is_likely_image(image, &words) {
                let program = self.starts.program.iter().map(|word| (*word).to_owned()).collect();
                let mut call = ServerCall { program, arguments: words, ..ServerCall::default() };
                if !is_known {
                    let program = self.starts.program.join(" ");
                    call.notes.push(format!("the entry point of the image {image} is assumed to be `{program}`"));
                }
                calls.push(call);
            }
        }
        for call in &mut calls {
            call.image.clone_from(&container.image);
            call.notes.extend(container.notes.iter().cloned());
            for (name, value) in &container.env {
                call.env.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        calls
    }

    /// Returns whether an image is named like the engine, and its arguments contain a flag of the engine's own.
    fn is_likely_image(self, image: &str, words: &[WordField]) -> bool {
        let named = self.starts.program.first().is_some_and(|program| image.contains(program));
        let table = self.engine.flag_table(self.engine.newest_release());
        let is_own = |word: &WordField| {
            let flag = word.text.starts_with("--") && table.is_some_and(|table| table.is_flag_argument(&word.text));
            flag && !["--host", "--port"].iter().any(|address| word.text.starts_with(address))
        };
        named && words.iter().any(is_own)
    }
}

/// Returns whether the option makes a shell read its next argument as a script, as `-c` and `-lc` do.
fn is_command_option(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|letters| !letters.starts_with('-') && letters.ends_with('c'))
}

/// Returns whether a command runs its standard input as a script.
pub(super) fn runs_input<'w>(mut words: impl Iterator<Item = &'w str>) -> bool {
    words.any(|word| SHELLS.contains(&file_name(word)) || word == "ssh")
}

/// Divides the words before a program into the wrapper and the variables that it sets, as in `env A=b`.
fn divide_wrapper(words: &[WordField]) -> (Vec<WordField>, BTreeMap<String, WordField>) {
    let sets_variables = words.iter().any(|word| SETS_VARIABLES.contains(&file_name(&word.text)));
    let (mut wrapper, mut env) = (Vec::new(), BTreeMap::new());
    for word in words {
        match word.text.split_once('=').filter(|(name, _)| sets_variables && crate::engine::is_variable(name)) {
            Some((name, value)) => {
                env.insert(name.to_owned(), WordField { text: value.to_owned(), ..word.clone() });
            }
            None => wrapper.push(word.clone()),
        }
    }
    // Words that only start the next program have no effect on the server.
    let is_plain =
        |word: &&WordField| ["env", "exec", "nohup", "command", "time", "setsid", "$"].contains(&&*word.text);
    let plain = wrapper.iter().take_while(is_plain).count();
    wrapper.drain(..plain);
    (wrapper, env)
}

/// Returns the last part of a path.
pub(super) fn file_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}
