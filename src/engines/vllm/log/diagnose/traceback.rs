//! Exceptions by their place: the first line below a traceback's frames that is indented as its header is. A class of any name
//! can be raised.

use std::collections::HashMap;

use super::line::Line;

/// Begins every traceback of Python.
const HEADER: &str = "Traceback (most recent call last):";

/// Lines of other writers that may stand between a traceback's frames and its exception.
const MOST_FOREIGN: u32 = 20;

/// A traceback that has begun and whose exception has not come yet.
#[derive(Clone, Copy)]
struct Open<'a> {
    /// Text before the header, and before each of its lines if their prefix is one that [`Line`] does not know.
    prefix: &'a str,
    foreign: u32,
}

/// Returns the exceptions that end the tracebacks of a log, with the numbers of their lines.
pub(super) fn raised<'a>(lines: &[Line<'a>]) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    // Processes write at the same time: each has its own. The key is a line that the others continue.
    let mut open: HashMap<usize, Open<'a>> = HashMap::new();
    let mut writers: Vec<Line<'a>> = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_quiet()) {
        let text = line.text();
        let writer = writers.iter().position(|known| known.continues(line)).unwrap_or_else(|| {
            writers.push(*line);
            writers.len() - 1
        });
        if let Some(begin) = text.find(HEADER) {
            open.insert(writer, Open { prefix: &text[..begin], foreign: 0 });
            continue;
        }
        let Some(traceback) = open.get_mut(&writer) else {
            // The header may be among the lines that a long log has lost.
            if is_frame(text) {
                open.insert(writer, Open { prefix: "", foreign: 0 });
            }
            continue;
        };
        let text = without_prefix(text, traceback.prefix);
        // `+---------------- 2 ----------------` begins the next exception of a group.
        let is_ruler = text.trim_start().starts_with(['+', '|']) && text.contains("----");
        if text.starts_with([' ', '\t']) || text.is_empty() || is_ruler {
            continue;
        }
        match name(text) {
            Some(_) => {
                found.push((at, text));
                let is_grouped = traceback.prefix.trim_start().starts_with(['|', '+']);
                // A member of a group that was never raised has no header of its own.
                if !is_grouped {
                    open.remove(&writer);
                }
            }
            None if traceback.foreign >= MOST_FOREIGN => drop(open.remove(&writer)),
            None => traceback.foreign += 1,
        }
    }
    found
}

/// `  File "/vllm/a.py", line 7, in load_model`
fn is_frame(text: &str) -> bool {
    text.strip_prefix("  File \"").is_some_and(|rest| rest.contains("\", line "))
}

/// Removes the prefix of a traceback's header from one of its lines. Digits in it may differ, as those of a timestamp do;
/// the bars of a group continue its `+`.
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

/// The name of the class in `module.Class: message` or `module.Class`.
pub(super) fn name(text: &str) -> Option<&str> {
    let name = text.split_once(": ").map_or(text, |(name, _)| name).trim_end_matches(':').trim_end();
    // `ray.exceptions.RayTaskError(RuntimeError)`
    let name = name.split('(').next().unwrap_or(name);
    let begins = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
    (begins && name.chars().all(|c| c.is_alphanumeric() || "._<>".contains(c))).then_some(name)
}
