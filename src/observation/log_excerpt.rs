//! The last lines of a log, bounded and without control characters and secrets.

use std::collections::VecDeque;
use std::path::Path;

use crate::server::LogTail;
use crate::trial::{redact, without_controls};

/// The largest number of lines that are kept.
const MAX_LINES: usize = 200;

/// The largest number of bytes of a line that are kept.
const MAX_LINE_BYTES: usize = 1_000;

/// The last lines of a log.
#[derive(Debug, Default)]
pub(super) struct LogExcerpt(VecDeque<String>);

impl LogExcerpt {
    /// Reads the last lines of a file, at most 1 MiB of it. Empty if it cannot be read.
    pub(super) fn read(path: &Path) -> Self {
        let mut excerpt = Self::default();
        excerpt.push(&LogTail::new(path).read_new());
        excerpt
    }

    /// Adds whole lines. A progress bar, whose states are separated by carriage returns, counts as one line.
    pub(super) fn push(&mut self, text: &str) {
        let lines: Vec<_> = text.lines().rev().filter(|line| !line.trim().is_empty()).take(MAX_LINES).collect();
        for line in lines.into_iter().rev() {
            if self.0.len() == MAX_LINES {
                self.0.pop_front();
            }
            self.0.push_back(clean_line(line));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.0.iter().cloned().collect()
    }
}

fn clean_line(line: &str) -> String {
    let last = line.split('\r').rfind(|state| !state.trim().is_empty()).unwrap_or_default();
    let end = last.floor_char_boundary(MAX_LINE_BYTES);
    without_controls(&redact(&last[..end])).trim_end().to_owned()
}
