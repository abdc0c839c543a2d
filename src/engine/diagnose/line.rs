//! Which lines of a log may tell a cause. A log also holds configurations, addresses of documentation and what users have
//! asked for: a prompt about running out of memory is no failure.

/// One line of a log without what stands before its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    /// The message, its indentation kept.
    message: &'a str,
    level: Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Error,
    /// What is no error, and dumps of requests.
    Quiet,
    /// Without a logger: tracebacks, argparse, the interpreter itself.
    Plain,
}

/// Behind these words stands what a user has written.
const PROMPTS: [&str; 4] = ["prompt:", "prompt=", "'prompt'", "\"prompt\""];

/// Last words of the names of exceptions.
const EXCEPTIONS: [&str; 8] = [
    "Error",
    "Exception",
    "error",
    "KeyboardInterrupt",
    "OutOfResources",
    "OfflineModeIsEnabled",
    "BackendCompilerFailed",
    "Unsupported",
];

impl<'a> Line<'a> {
    /// Reads `(EngineCore pid=7) ERROR 11-20 21:21:18 [core.py:1510] message`, the form without process or brackets of older
    /// releases, uvicorn's `ERROR:    message`, and lines without any of that.
    pub(super) fn read(line: &'a str) -> Self {
        let rest = without_process(line.trim_end());
        let (word, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_uppercase()).unwrap_or(rest.len()));
        let level = match word {
            "ERROR" | "CRITICAL" | "FATAL" => Level::Error,
            "INFO" | "WARNING" | "DEBUG" => Level::Quiet,
            _ => return Self { message: rest, level: Level::Plain },
        };
        if let Some(message) = after.strip_prefix(':') {
            return Self { message: message.trim_start(), level };
        }
        match after.split_once("] ") {
            // Releases from 0.8 on write down, as errors, what was scheduled when a step failed.
            Some((place, _)) if place.contains("dump_input.py:") => Self { message: "", level: Level::Quiet },
            Some((_, message)) => Self { message, level },
            None => Self { message: after, level },
        }
    }

    pub(super) fn message(&self) -> &'a str {
        self.message.trim()
    }

    /// Part of a traceback above its exception, or a detail below it.
    pub(super) fn is_indented(&self) -> bool {
        self.level != Level::Quiet && self.message.starts_with([' ', '\t'])
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.level == Level::Quiet
    }

    /// What the line says of a failure, without the words of users; `None` where it says nothing of one.
    pub(super) fn complaint(&self) -> Option<&'a str> {
        if self.level == Level::Quiet || self.is_indented() || self.message.is_empty() {
            return None;
        }
        if self.level == Level::Plain && !(self.exception().is_some() || is_last_word(self.message)) {
            return None;
        }
        let end = PROMPTS.iter().filter_map(|prompt| self.message.find(prompt)).min();
        Some(self.message[..end.unwrap_or(self.message.len())].trim())
    }

    /// Whether nobody but a traceback vouches for it.
    pub(super) fn is_plain(&self) -> bool {
        self.level == Level::Plain
    }

    /// The name of the exception that the line ends a traceback with.
    pub(super) fn exception(&self) -> Option<&'a str> {
        if self.level == Level::Quiet || self.is_indented() {
            return None;
        }
        let message = self.message.trim();
        let name = message.split_once(": ").map_or(message, |(name, _)| name);
        // `ray.exceptions.RayTaskError(RuntimeError)`
        let name = name.split('(').next().unwrap_or(name).trim_end_matches(':');
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c));
        let last = name.rsplit('.').next().unwrap_or(name);
        // One word alone is the name of an exception without a message, or just a word.
        let suffices = |end: &&str| last.ends_with(end) && (message.len() > name.len() || last != "error");
        (is_name && EXCEPTIONS.iter().any(suffices)).then_some(name)
    }
}

/// Complaints that are neither logged nor exceptions: argparse's, and those of what lies below Python.
fn is_last_word(message: &str) -> bool {
    let lower = ["terminate called after", "Fatal Python error", "!!!!!!! Segfault", "Segmentation fault"];
    message.contains(": error: ") || lower.iter().any(|words| message.starts_with(words))
}

/// Without `(Worker_TP0 pid=9) `, which several releases write in colour, `[rank0]: ` of torch, and colours.
fn without_process(line: &str) -> &str {
    let mut rest = skip_escapes(line);
    loop {
        let after = match rest.chars().next() {
            Some('(') => rest.split_once(')').filter(|(process, _)| process.contains(" pid=")),
            Some('[') => rest.split_once("]:").filter(|(rank, _)| rank.starts_with("[rank")),
            _ => None,
        };
        let Some((_, after)) = after else { return rest };
        let after = skip_escapes(after);
        rest = skip_escapes(after.strip_prefix(' ').unwrap_or(after));
    }
}

/// Without `ESC [ ... m` at its beginning.
fn skip_escapes(mut text: &str) -> &str {
    while let Some((_, after)) = text.strip_prefix("\u{1b}[").and_then(|rest| rest.split_once('m')) {
        text = after;
    }
    text
}
