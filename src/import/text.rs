//! Texts with results in any order: launch lines with their errors, lines of used memory, result blocks, Markdown
//! tables and JSON.
//!
//! A launch line belongs to the first result or error after it. Later results have an unknown configuration, because
//! nothing in the text states that the server was not restarted in between.

use serde_json::Value as Json;

use super::block::{BlockLine, ResultBlock};
use super::table::MarkdownTable;
use super::{
    GpuMemoryUse, ImportedDocument, ImportedFailure, ImportedLaunch, ImportedResult, LineProblem, UnreadLine, launch,
    object,
};
use crate::trial::FailureKind;

/// Labels of the lines that `setpoint bench` writes below a block.
const OWN_LABELS: [&str; 7] = ["errors:", "window:", "95 % CI:", "client:", "server:", "end:", "saturated:"];

/// Reads a text.
///
/// # Errors
/// If a result is cut off or malformed.
pub(super) fn read(text: &str) -> Result<ImportedDocument, LineProblem> {
    let mut scan = TextScan { text, ..TextScan::default() };
    while scan.at < text.len() {
        scan.step()?;
    }
    scan.finish()
}

/// The state of the reading.
#[derive(Debug, Default)]
struct TextScan<'a> {
    text: &'a str,
    /// Byte offset of the next line, and the number of the line before it.
    at: usize,
    number: usize,
    document: ImportedDocument,
    block: Option<ResultBlock>,
    table: Option<MarkdownTable>,
    /// The launch without a result so far, with its line.
    launch: Option<(usize, ImportedLaunch)>,
    memory: Option<(usize, GpuMemoryUse)>,
    /// Length of the prompts by the last `seq_length:`.
    input_len: Option<u64>,
    /// Whether the lines are code of another language than JSON.
    in_code: bool,
    in_traceback: bool,
    /// Whether the last result is a block, so that its further lines may follow.
    after_block: bool,
}

impl TextScan<'_> {
    fn step(&mut self) -> Result<(), LineProblem> {
        let rest = &self.text[self.at..];
        let whole = rest.split_inclusive('\n').next().unwrap_or(rest);
        self.number += 1;
        let begin = self.at;
        self.at += whole.len();
        let line = whole.trim();
        if let Some(fence) = line.strip_prefix("```") {
            self.in_code = !fence.is_empty() && !["json", "text", "console", "sh", "bash"].contains(&fence);
            return Ok(());
        }
        if self.in_code {
            self.unread(line, "code");
            return Ok(());
        }
        if let Some(mut block) = self.block.take() {
            match block.read(self.number, line)? {
                BlockLine::Taken => self.block = Some(block),
                BlockLine::Unknown => {
                    self.unread(line, "an unknown label of a result");
                    self.block = Some(block);
                }
                BlockLine::End => self.end_block(block, true)?,
                BlockLine::Other => {
                    self.end_block(block, false)?;
                    return self.line(begin, line);
                }
            }
            return Ok(());
        }
        self.line(begin, line)
    }

    /// Reads a line outside of a block.
    fn line(&mut self, begin: usize, line: &str) -> Result<(), LineProblem> {
        if let Some(table) = self.table.take().filter(|_| line.starts_with('|')) {
            if let Some(result) = table.row(self.number, line)? {
                self.document.results.push(result);
            }
            self.table = Some(table);
            return Ok(());
        }
        if line.starts_with('|')
            && let Some(table) = MarkdownTable::begin(line)
        {
            self.table = Some(table);
            return Ok(());
        }
        if let Some(block) = ResultBlock::begin(self.number, line) {
            self.block = Some(block);
            return Ok(());
        }
        let dashes = line.len() - line.trim_start_matches('-').len();
        if is_json(&line[dashes..]) {
            let offset = self.text[begin..].find(['{', '[']).unwrap_or(0);
            return self.json(begin + offset);
        }
        self.plain(line);
        Ok(())
    }

    /// Reads a line that is no part of a table, a block or JSON.
    fn plain(&mut self, line: &str) {
        if line.chars().all(|c| "-=#_* ".contains(c)) || self.own_line(line) {
            return;
        }
        if let Some(memory) = GpuMemoryUse::parse(line) {
            if let Some((at, earlier)) = self.memory.replace((self.number, memory)) {
                self.unread_at(at, &earlier.to_string(), "a memory line without a result");
            }
            return;
        }
        match launch::parse(line) {
            Some(Ok(launch)) => {
                let earlier = self.launch.replace((self.number, launch));
                self.unread_launch(earlier);
                self.after_block = false;
                return;
            }
            Some(Err(reason)) => return self.unread(line, reason),
            None => {}
        }
        if let Some((key, value)) = line.split_once(':').filter(|(key, _)| ["num_prompts", "seq_length"].contains(key))
        {
            if key == "seq_length" {
                self.input_len = value.trim().parse().ok();
            }
            return;
        }
        if line == "Traceback (most recent call last):" {
            self.in_traceback = true;
        } else if is_error(line) {
            self.failure(line);
        } else if !self.in_traceback {
            self.unread(line, "not a line of a result");
        }
    }

    /// Reads a line that `setpoint bench` writes below a block. Returns whether it is one.
    fn own_line(&mut self, line: &str) -> bool {
        let Some(last) = self.document.results.last_mut().filter(|_| self.after_block) else { return false };
        if let Some(values) = line.strip_prefix("E2EL (ms):") {
            for value in values.split(',') {
                let parsed = value.trim().split_once(' ').and_then(|(name, value)| Some((name, value.parse().ok()?)));
                if let Some((statistic, value)) = parsed {
                    last.metrics.insert(format!("{statistic}_e2el_ms"), value);
                }
            }
            return true;
        }
        if let Some(verdict) = line.strip_prefix("valid:") {
            if let Some(reasons) = verdict.trim().strip_prefix("NO:") {
                last.failure = Some(void(reasons.trim()));
            }
            return true;
        }
        OWN_LABELS.iter().any(|label| line.starts_with(label))
    }

    fn failure(&mut self, line: &str) {
        self.in_traceback = false;
        let Some((number, launch)) = self.launch.take() else {
            return self.unread(line, "an error without a launch line before it");
        };
        let failure = ImportedFailure { message: line.to_owned(), kind: None, rule: None };
        let mut result = ImportedResult { line: number, failure: Some(failure), ..ImportedResult::default() };
        result.load.model.clone_from(&launch.model);
        result.launch = Some(launch);
        self.document.results.push(result);
    }

    /// Reads a JSON value that begins at this offset.
    fn json(&mut self, begin: usize) -> Result<(), LineProblem> {
        let first = self.number;
        let mut values = serde_json::Deserializer::from_str(&self.text[begin..]).into_iter::<Json>();
        let value = match values.next() {
            Some(Ok(value)) => value,
            Some(Err(error)) if error.is_eof() => {
                let last = first + self.text[begin..].lines().count() - 1;
                let problem = format!("the JSON that begins on line {first} does not end");
                return Err(LineProblem::cut_off(last, problem));
            }
            Some(Err(error)) => {
                return Err(LineProblem::new(first + error.line() - 1, format!("invalid JSON: {error}")));
            }
            None => return Ok(()),
        };
        let end = begin + values.byte_offset();
        let line_end = self.text[end..].find('\n').map_or(self.text.len(), |length| end + length + 1);
        self.number = first + self.text[begin..end].matches('\n').count();
        let behind = self.text[end..line_end].trim();
        self.at = line_end;
        if !behind.is_empty() {
            self.unread(behind, "text behind JSON");
        }
        match object::read(first, &value) {
            Ok(results) => self.take(results),
            Err(problem) if problem.hint.is_some() => {
                let text = value.to_string();
                self.unread_at(first, &text, "JSON without a known shape of results");
            }
            Err(problem) => return Err(problem),
        }
        Ok(())
    }

    fn end_block(&mut self, block: ResultBlock, is_ended: bool) -> Result<(), LineProblem> {
        let mut result = block.finish(self.number, is_ended)?;
        result.load.input_len = self.input_len;
        // A profile's run has its name on the line above.
        let is_name = |unread: &UnreadLine| unread.line + 1 == result.line && !unread.text.contains(' ');
        if self.document.unread.last().is_some_and(is_name) {
            result.name = self.document.unread.pop().map(|unread| unread.text);
        }
        self.take(vec![result]);
        self.after_block = true;
        Ok(())
    }

    /// Adds results. One result belongs to the launch and the memory before it.
    fn take(&mut self, mut results: Vec<ImportedResult>) {
        self.after_block = false;
        if let [only] = results.as_mut_slice()
            && only.launch.is_none()
        {
            if let Some((line, launch)) = self.launch.take() {
                only.line = line;
                only.load.model = only.load.model.take().or_else(|| launch.model.clone());
                only.launch = Some(launch);
            }
            only.memory = self.memory.take().map(|(_, memory)| memory);
        }
        self.document.results.extend(results);
    }

    fn finish(mut self) -> Result<ImportedDocument, LineProblem> {
        if let Some(block) = self.block.take() {
            self.end_block(block, false)?;
        }
        let launch = self.launch.take();
        self.unread_launch(launch);
        if let Some((line, memory)) = self.memory.take() {
            self.unread_at(line, &memory.to_string(), "a memory line without a result");
        }
        self.document.unread.sort_by_key(|unread| unread.line);
        Ok(self.document)
    }

    fn unread_launch(&mut self, launch: Option<(usize, ImportedLaunch)>) {
        if let Some((line, launch)) = launch {
            let text = shlex::try_join(launch.command.iter().map(String::as_str)).unwrap_or_default();
            self.unread_at(line, &text, "a launch line without a result or an error");
        }
    }

    fn unread(&mut self, text: &str, reason: &'static str) {
        if !text.is_empty() {
            self.unread_at(self.number, text, reason);
        }
    }

    fn unread_at(&mut self, line: usize, text: &str, reason: &'static str) {
        let text = crate::trial::redact(text).into_owned();
        self.document.unread.push(UnreadLine { file: std::path::PathBuf::new(), line, text, reason });
    }
}

/// Creates the failure of a sample whose numbers must not be used.
pub(super) fn void(reasons: &str) -> ImportedFailure {
    let message = format!("the sample is void: {reasons}");
    ImportedFailure { message, kind: Some(FailureKind::ClientBound), rule: None }
}

/// Returns whether a line begins a JSON document. `[INFO]` and `[link](url)` do not.
fn is_json(line: &str) -> bool {
    line.starts_with('{') || line == "[" || line.starts_with("[{")
}

/// Returns whether a line is the last line of a Python traceback, or an argument parser's error.
fn is_error(line: &str) -> bool {
    let (name, message) = line.split_once(':').unwrap_or((line, ""));
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '.' || c == '_');
    let is_exception = is_name && (name.ends_with("Error") || name.ends_with("Exception"));
    is_exception || (message.trim_start().starts_with("error:") && !name.contains(' '))
}
