//! Exceptions by their position. The exception is the first line below a traceback's frames that has the indentation of
//! the header. Its class may have any name.

use std::collections::HashMap;

use super::line::LogLine;

/// The first line of every Python traceback.
const HEADER: &str = "Traceback (most recent call last):";

/// The number of lines by other writers that may be between a traceback's frames and its exception.
const MAX_FOREIGN: u32 = 20;

/// A traceback before its exception.
#[derive(Clone, Copy)]
struct OpenTraceback<'a> {
    /// Text before the header. It also precedes each of its lines if [`LogLine`] does not know the prefix.
    prefix: &'a str,
    foreign_lines: u32,
}

/// Returns the exceptions at the end of a log's tracebacks, with their line numbers.
pub(super) fn find_exceptions<'a>(lines: &[LogLine<'a>]) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    // Processes write at the same time, so each has its own traceback. The key is the writer's index.
    let mut open: HashMap<usize, OpenTraceback<'a>> = HashMap::new();
    let mut writers: Vec<LogLine<'a>> = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_quiet()) {
        let text = line.text();
        let writer = writers.iter().position(|known| known.continues(line)).unwrap_or_else(|| {
            writers.push(*line);
            writers.len() - 1
        });
        if let Some(begin) = text.find(HEADER) {
            open.insert(writer, OpenTraceback { prefix: &text[..begin], foreign_lines: 0 });
            continue;
        }
        let Some(traceback) = open.get_mut(&writer) else {
            // A long log may have lost the header.
            if is_frame(text) {
                open.insert(writer, OpenTraceback { prefix: "", foreign_lines: 0 });
            }
            continue;
        };
        let text = without_prefix(text, traceback.prefix);
        // `+---------------- 2 ----------------` is the beginning of the next exception in a group.
        let is_ruler = text.trim_start().starts_with(['+', '|']) && text.contains("----");
        if text.starts_with([' ', '\t']) || text.is_empty() || is_ruler {
            continue;
        }
        match class_name(text) {
            Some(_) => {
                found.push((at, text));
                let is_grouped = traceback.prefix.trim_start().starts_with(['|', '+']);
                // A member of a group that was never raised has no header of its own, so the traceback stays open.
                if !is_grouped {
                    open.remove(&writer);
                }
            }
            None if traceback.foreign_lines >= MAX_FOREIGN => drop(open.remove(&writer)),
            None => traceback.foreign_lines += 1,
        }
    }
    found
}

/// Returns whether the text is a frame: `  File "/vllm/a.py", line 7, in load_model`.
fn is_frame(text: &str) -> bool {
    text.strip_prefix("  File \"").is_some_and(|rest| rest.contains("\", line "))
}

/// Removes the prefix of a traceback's header from one of its lines. Digits in it may differ, as in a timestamp. In a
/// group, bars replace the header's `+`.
fn without_prefix<'a>(text: &'a str, prefix: &str) -> &'a str {
    if let Some(indent) = prefix.strip_suffix("Exception Group ") {
        return without_prefix(text, &indent.replace('+', "|"));
    }
    let alike = |(a, b): (u8, u8)| a == b || (a.is_ascii_digit() && b.is_ascii_digit());
    // `    |` is an empty line of a group.
    let bytes = prefix.as_bytes();
    if text.len() < prefix.len() && prefix.trim_end() == text {
        return "";
    }
    match text.get(..prefix.len()) {
        Some(head) if head.bytes().zip(bytes.iter().copied()).all(alike) => &text[prefix.len()..],
        _ => text,
    }
}

/// Returns the name of the class in `module.Class: message` or `module.Class`.
pub(super) fn class_name(text: &str) -> Option<&str> {
    let name = text.split_once(": ").map_or(text, |(name, _)| name).trim_end_matches(':').trim_end();
    // For instance `ray.exceptions.RayTaskError(RuntimeError)`.
    let name = name.split('(').next().unwrap_or(name);
    let begins = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
    (begins && name.chars().all(|c| c.is_alphanumeric() || "._<>".contains(c))).then_some(name)
}
