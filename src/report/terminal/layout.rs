//! The width and the characters of an output, and texts that keep to them.

use std::borrow::Cow;

use console::{measure_text_width, truncate_str};

/// Columns of a row without a terminal. A log has no width, and this one keeps a row on one line of most screens.
const PIPE_WIDTH: usize = 120;

/// The properties of an output that its texts depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextLayout {
    /// Columns of a row.
    pub width: usize,
    /// Whether sentences are wrapped as well. Without a terminal each stays on one line, as programs expect it.
    pub wraps_sentences: bool,
    /// Whether the output shows other characters than ASCII.
    pub is_utf8: bool,
}

impl TextLayout {
    /// Returns the layout of a terminal with this many columns.
    #[must_use]
    pub(crate) fn terminal(width: usize) -> Self {
        Self { width, wraps_sentences: true, is_utf8: is_utf8_locale(|name| std::env::var(name).ok()) }
    }

    /// Returns the layout of a pipe or a file.
    #[must_use]
    pub(crate) fn pipe() -> Self {
        Self { width: PIPE_WIDTH, wraps_sentences: false, ..Self::terminal(PIPE_WIDTH) }
    }

    pub(super) fn arrow(self) -> &'static str {
        if self.is_utf8 { "→" } else { "->" }
    }

    fn ellipsis(self) -> &'static str {
        if self.is_utf8 { "…" } else { "..." }
    }

    /// Cuts a text to this many columns, with an ellipsis at its end if something is lost.
    pub(super) fn cut(self, text: &str, columns: usize) -> Cow<'_, str> {
        truncate_str(text, columns, if columns < 4 { "" } else { self.ellipsis() })
    }

    /// Cuts or fills a text on its right to exactly this many columns.
    pub(super) fn left(self, text: &str, columns: usize) -> String {
        let cut = self.cut(text, columns);
        let blanks = columns.saturating_sub(measure_text_width(&cut));
        format!("{cut}{:blanks$}", "")
    }

    /// Cuts or fills a text on its left to exactly this many columns.
    pub(super) fn right(self, text: &str, columns: usize) -> String {
        let cut = self.cut(text, columns);
        let blanks = columns.saturating_sub(measure_text_width(&cut));
        format!("{:blanks$}{cut}", "")
    }
}

/// Returns whether the locale's character set is UTF-8. The variables take precedence in the order of POSIX.
fn is_utf8_locale(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set =
        ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(|name| variable(name).filter(|text| !text.is_empty()));
    set.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// Wraps a sentence at blanks. Further lines begin with `indent` blanks. Words that are longer than a line are not
/// split, so that paths and commands can be copied.
#[must_use]
pub(crate) fn wrap_text(text: &str, layout: TextLayout, indent: usize) -> String {
    if !layout.wraps_sentences {
        return text.to_owned();
    }
    text.split('\n').map(|line| wrap_line(line, layout.width, indent)).collect::<Vec<_>>().join("\n")
}

fn wrap_line(line: &str, width: usize, indent: usize) -> String {
    let own = line.len() - line.trim_start().len();
    let (mut wrapped, mut columns) = (" ".repeat(own), own);
    let mut is_first = true;
    for word in line.split_whitespace() {
        let length = measure_text_width(word);
        if !is_first && columns + 1 + length > width {
            wrapped.push('\n');
            wrapped.extend(std::iter::repeat_n(' ', own + indent));
            columns = own + indent;
            is_first = true;
        }
        if !is_first {
            wrapped.push(' ');
            columns += 1;
        }
        wrapped.push_str(word);
        columns += length;
        is_first = false;
    }
    wrapped
}

/// Wraps a command of quoted words between its flags, with a backslash at the end of each line but the last. A value
/// stays on the line of its flag.
#[must_use]
pub(crate) fn wrap_command(words: &[String], layout: TextLayout, indent: usize) -> String {
    let mut groups: Vec<String> = Vec::new();
    for word in words {
        let is_value = !word.starts_with('-') && groups.last().is_some_and(|group| is_lone_flag(group));
        match groups.last_mut().filter(|_| is_value) {
            Some(group) => *group = format!("{group} {word}"),
            None => groups.push(word.clone()),
        }
    }
    let (mut text, mut columns) = (" ".repeat(indent), indent);
    for (index, group) in groups.iter().enumerate() {
        let length = measure_text_width(group);
        // Two columns are kept for the backslash.
        if index > 0 && columns + 1 + length + 2 > layout.width {
            text.push_str(" \\\n");
            text.extend(std::iter::repeat_n(' ', indent + 2));
            columns = indent + 2;
        } else if index > 0 {
            text.push(' ');
            columns += 1;
        }
        text.push_str(group);
        columns += length;
    }
    text
}

fn is_lone_flag(group: &str) -> bool {
    group.starts_with('-') && !group.contains(' ') && !group.contains('=')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terminal(width: usize) -> TextLayout {
        TextLayout { width, wraps_sentences: true, is_utf8: true }
    }

    #[test]
    fn the_first_set_variable_of_the_locale_decides_about_utf8() {
        let locale = |set: &[(&str, &str)]| {
            let set: std::collections::BTreeMap<_, _> = set.iter().copied().collect();
            is_utf8_locale(|name| set.get(name).map(|text| (*text).to_owned()))
        };
        assert!(locale(&[("LANG", "en_GB.UTF-8")]) && locale(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8")]));
        assert!(!locale(&[]) && !locale(&[("LC_ALL", "C"), ("LANG", "en_GB.UTF-8")]));
    }

    #[test]
    fn a_cut_text_has_exactly_its_columns_also_with_wide_characters() {
        let layout = terminal(80);
        for text in ["", "abc", "abcdefghij", "模型模型模型模型", "a模b型c模"] {
            for columns in 0..14 {
                assert_eq!(measure_text_width(&layout.left(text, columns)), columns, "{text} {columns}");
                assert_eq!(measure_text_width(&layout.right(text, columns)), columns, "{text} {columns}");
            }
        }
        assert_eq!(layout.left("abcdefgh", 6), "abcde…");
        assert_eq!(TextLayout { is_utf8: false, ..layout }.left("abcdefgh", 6), "abc...");
    }

    #[test]
    fn sentences_are_wrapped_on_terminals_only_and_keep_their_indent() {
        let text = "one two three\n  four five six";
        assert_eq!(wrap_text(text, terminal(10), 2), "one two\n  three\n  four\n    five\n    six");
        let pipe = TextLayout { wraps_sentences: false, ..terminal(10) };
        assert_eq!(wrap_text(text, pipe, 2), text);
    }

    #[test]
    fn a_wrapped_command_keeps_values_beside_their_flags_and_is_the_same_for_a_shell() {
        let words = "vllm serve model --max-num-seqs 64 --enable-prefix-caching --dtype=auto --block-size 16";
        let list: Vec<_> = words.split(' ').map(str::to_owned).collect();
        let wrapped = wrap_command(&list, terminal(40), 2);
        let expected =
            "  vllm serve model --max-num-seqs 64 \\\n    --enable-prefix-caching \\\n    --dtype=auto --block-size 16";
        assert_eq!(wrapped, expected);
        assert_eq!(shlex::split(&wrapped.replace("\\\n", " ")).unwrap(), list);
    }
}
