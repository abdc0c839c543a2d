//! Follows the commands of a script in their order, keeps its variables, and collects the servers that it starts.

use std::collections::{BTreeMap, BTreeSet};

use super::expand::{ShellValue, ShellVariables};
use super::lexer::tokens;
use super::word::{ShellToken, ShellWord};
use crate::deployment::call::{ServerCall, ServerSearch, runs_input};
use crate::deployment::field::WordField;

/// Reserved words that may stand before a command.
const RESERVED: [&str; 12] = ["if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "time", "fi"];

/// Commands whose success is a condition for the commands behind `&&`.
const CONDITIONS: [&str; 6] = ["[", "[[", "test", "grep", "command", "which"];

/// The largest number of elements of an array that is extended.
const MAX_ELEMENTS: usize = 1024;

/// Returns the servers that a shell text starts. `variables` are those of its environment.
pub(in crate::deployment) fn servers_of_script(
    text: &str,
    first_line: usize,
    variables: ShellVariables,
    search: ServerSearch<'_>,
) -> Vec<ServerCall> {
    let exported = variables.values.keys().cloned().collect();
    let mut script = ScriptRun {
        search,
        variables,
        exported,
        exports_all: false,
        blocks: Vec::new(),
        chain: None,
        calls: Vec::new(),
    };
    let mut words = Vec::new();
    let mut line = first_line;
    for (at, token) in tokens(text, first_line) {
        match token {
            ShellToken::Word(word) => {
                if words.is_empty() {
                    line = at;
                }
                words.push(word);
            }
            ShellToken::Operator(operator) => {
                script.run(line, &std::mem::take(&mut words), operator);
            }
            // The text stands in place of the end of its command's line.
            ShellToken::HereDocument(body) => {
                if runs_input(words.iter().filter_map(ShellWord::literal)) {
                    script.run_document(at + 1, &body);
                }
                script.run(line, &std::mem::take(&mut words), "\n");
            }
        }
    }
    script.run(line, &words, "\n");
    script.calls
}

/// The state of a script at one command.
struct ScriptRun<'s> {
    search: ServerSearch<'s>,
    variables: ShellVariables,
    exported: BTreeSet<String>,
    /// Whether `set -a` exports each assigned variable.
    exports_all: bool,
    /// The lines of open `if`, loops and `case`, with the variables that they assign.
    blocks: Vec<(usize, BTreeSet<String>)>,
    /// The condition of the current chain of `&&` and `||`, with the variables that it assigns.
    chain: Option<(usize, BTreeSet<String>)>,
    calls: Vec<ServerCall>,
}

impl ScriptRun<'_> {
    /// Follows one command, which ends with an operator.
    fn run(&mut self, line: usize, words: &[ShellWord], operator: &str) {
        let words = self.skip_reserved(line, words);
        let is_condition = words.first().and_then(ShellWord::literal).is_some_and(|word| CONDITIONS.contains(&word));
        self.run_command(line, words);
        match operator {
            "||" => _ = self.chain.get_or_insert_with(|| (line, BTreeSet::new())),
            "&&" if is_condition => _ = self.chain.get_or_insert_with(|| (line, BTreeSet::new())),
            "&&" | "|" | "|&" => {}
            _ => {
                if let Some((line, names)) = self.chain.take() {
                    self.forget(&names, line);
                }
            }
        }
    }

    /// Opens and closes blocks, and returns the words behind the reserved ones.
    fn skip_reserved<'w>(&mut self, line: usize, mut words: &'w [ShellWord]) -> &'w [ShellWord] {
        while let Some(word) = words.first().and_then(ShellWord::literal) {
            match word {
                "if" | "while" | "until" => self.blocks.push((line, BTreeSet::new())),
                "for" | "select" => {
                    self.blocks.push((line, BTreeSet::new()));
                    if let Some(name) = words.get(1).and_then(ShellWord::literal) {
                        let reason = format!("the variable `{name}` changes in the loop on line {line}");
                        self.variables.values.insert(name.to_owned(), ShellValue::Unknown(reason));
                    }
                    return &[];
                }
                "case" => {
                    self.blocks.push((line, BTreeSet::new()));
                    return &[];
                }
                "else" | "elif" => {
                    // The branches exclude each other.
                    self.close_block();
                    self.blocks.push((line, BTreeSet::new()));
                }
                "fi" | "done" | "esac" => self.close_block(),
                word if RESERVED.contains(&word) => {}
                _ => break,
            }
            words = &words[1..];
        }
        words
    }

    fn close_block(&mut self) {
        if let Some((line, names)) = self.blocks.pop() {
            self.forget(&names, line);
        }
    }

    /// Marks variables as unknown that were assigned under a condition.
    fn forget(&mut self, names: &BTreeSet<String>, line: usize) {
        for name in names {
            let reason = format!("the variable `{name}` depends on the condition on line {line}");
            self.variables.values.insert(name.clone(), ShellValue::Unknown(reason));
        }
        // The condition may itself be within another one.
        if let Some((_, outer)) = self.blocks.last_mut() {
            outer.extend(names.iter().cloned());
        }
    }

    fn run_command(&mut self, line: usize, words: &[ShellWord]) {
        let assigned = words.iter().take_while(|word| word.assignment().is_some()).count();
        let (before, words) = words.split_at(assigned);
        let Some(first) = words.first() else {
            for word in before {
                self.assign(word, false);
            }
            return;
        };
        match first.literal() {
            Some("export") => self.declare(&words[1..], true),
            Some("declare" | "typeset" | "local" | "readonly") => {
                let exports = words.iter().filter_map(ShellWord::literal).any(|word| word == "-x");
                self.declare(&words[1..], exports);
            }
            Some("set") => {
                for word in words.iter().filter_map(ShellWord::literal) {
                    let is_option = |sign| word.starts_with(sign) && word.contains('a');
                    self.exports_all = is_option('-') || (self.exports_all && !is_option('+'));
                }
            }
            Some("unset") => {
                for name in words[1..].iter().filter_map(ShellWord::literal) {
                    self.variables.values.remove(name);
                    self.exported.remove(name);
                }
            }
            Some("read") => {
                for name in words[1..].iter().filter_map(ShellWord::literal).filter(|word| !word.starts_with('-')) {
                    let reason = format!("the variable `{name}` is read from the input on line {line}");
                    self.variables.values.insert(name.to_owned(), ShellValue::Unknown(reason));
                }
            }
            Some("source" | ".") => {
                self.variables.other_source = Some(format!("line {line} reads another file"));
            }
            _ => self.find_servers(line, before, words),
        }
    }

    fn declare(&mut self, words: &[ShellWord], exports: bool) {
        for word in words {
            if word.assignment().is_some() {
                self.assign(word, exports);
            } else if let Some(name) = word.literal().filter(|_| exports) {
                self.exported.insert(name.to_owned());
            }
        }
    }

    fn assign(&mut self, word: &ShellWord, exports: bool) {
        let Some((name, appends, value)) = word.assignment() else { return };
        let value = self.value(name, appends, &value);
        self.variables.values.insert(name.to_owned(), value);
        if exports || self.exports_all {
            self.exported.insert(name.to_owned());
        }
        let condition = self.chain.as_mut().or(self.blocks.last_mut());
        if let Some((_, names)) = condition {
            names.insert(name.to_owned());
        }
    }

    fn value(&self, name: &str, appends: bool, word: &ShellWord) -> ShellValue {
        let before = self.variables.values.get(name).filter(|_| appends);
        if let Some(elements) = &word.elements {
            let new = elements.iter().flat_map(|element| self.variables.expand(element));
            return match before {
                Some(ShellValue::List(all)) if all.len() > MAX_ELEMENTS => {
                    ShellValue::Unknown(format!("the array `{name}` has more than {MAX_ELEMENTS} elements"))
                }
                Some(ShellValue::List(all)) => ShellValue::List(all.iter().cloned().chain(new).collect()),
                Some(ShellValue::Text(first)) => ShellValue::List(std::iter::once(first.clone()).chain(new).collect()),
                Some(unknown @ ShellValue::Unknown(_)) => unknown.clone(),
                None => ShellValue::List(new.collect()),
            };
        }
        let new = self.variables.expand_whole(word);
        match before {
            Some(ShellValue::Text(text)) => {
                let mut text = text.clone();
                text.absorb(&new);
                ShellValue::Text(text)
            }
            Some(other) => other.clone(),
            None => ShellValue::Text(new),
        }
    }

    /// Looks for a server in one command. `before` are its own assignments.
    fn find_servers(&mut self, line: usize, before: &[ShellWord], words: &[ShellWord]) {
        let words: Vec<_> = words.iter().flat_map(|word| self.variables.expand(word)).collect();
        if before.is_empty() {
            let calls = self.search.servers_of_words(&words, line, &self.variables);
            let complete = calls.into_iter().map(|call| with_environment(call, &self.variables, &self.exported));
            self.calls.extend(complete);
            return;
        }
        let mut variables = self.variables.clone();
        let mut exported = self.exported.clone();
        for (name, _, value) in before.iter().filter_map(ShellWord::assignment) {
            variables.values.insert(name.to_owned(), ShellValue::Text(self.variables.expand_whole(&value)));
            exported.insert(name.to_owned());
        }
        let calls = self.search.servers_of_words(&words, line, &variables);
        self.calls.extend(calls.into_iter().map(|call| with_environment(call, &variables, &exported)));
    }

    /// Follows a here-document as a script if it starts a server, as in `ssh HOST bash <<EOF`.
    fn run_document(&mut self, line: usize, body: &str) {
        if let Some(search) = self.search.nested() {
            self.calls.extend(servers_of_script(body, line, self.variables.clone(), search));
        }
    }
}

/// Adds the exported variables to the environment of a call.
fn with_environment(mut call: ServerCall, variables: &ShellVariables, exported: &BTreeSet<String>) -> ServerCall {
    let exported = exported.iter().filter_map(|name| {
        let field = match variables.values.get(name)? {
            ShellValue::Text(field) => field.clone(),
            ShellValue::List(_) => return None,
            ShellValue::Unknown(reason) => WordField { trouble: Some(reason.clone()), ..WordField::new(String::new()) },
        };
        Some((name.clone(), field))
    });
    // A container does not inherit the variables of the script.
    if call.image.is_none() {
        let mut env: BTreeMap<_, _> = exported.collect();
        env.append(&mut call.env);
        call.env = env;
    }
    for (name, value) in &variables.values {
        if let ShellValue::Text(field) = value {
            call.secrets.add_variable(name, &field.text);
        }
    }
    call
}
