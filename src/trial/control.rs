//! Removal of control characters, which must not pass from logs, servers or files to terminals or scripts.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

/// Returns whether a character moves the cursor, changes the display of the text around it, or ends a line. These are
/// the control characters of C0 and C1, line and paragraph separators, and marks of the direction of writing.
#[must_use]
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the text on one line, with a blank for each run of control characters and without escape sequences.
#[must_use]
pub fn without_controls(text: &str) -> Cow<'_, str> {
    static SEQUENCES: LazyLock<Regex> = LazyLock::new(|| {
        let pattern = r"(?:\x1b\[|\x{9b})[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x{90}\x{98}\x{9d}-\x{9f}])[^\x07\x1b\x{9c}\n]*(?:\x07|\x1b\\|\x{9c})?|\x1b[ -/]*[0-~]";
        Regex::new(pattern).unwrap_or_else(|error| panic!("bug: {error}"))
    });
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let text = SEQUENCES.replace_all(text, "");
    let mut clean = String::with_capacity(text.len());
    let mut is_gap = false;
    for c in text.chars() {
        let (was_gap, is_blank) = (is_gap, c == ' ' || is_control(c));
        is_gap = is_control(c) || (was_gap && is_blank);
        match is_blank {
            // A control character and the blanks around it become one blank.
            true if is_gap && clean.ends_with(' ') => {}
            true => clean.push(' '),
            false => clean.push(c),
        }
    }
    Cow::Owned(clean)
}

/// Returns the text for a terminal: lines and tabs stay, other control characters become blanks.
#[must_use]
pub fn for_terminal(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| is_control(c) && c != '\n' && c != '\t') {
        return Cow::Borrowed(text);
    }
    let line = |line: &str| line.split('\t').map(without_controls).collect::<Vec<_>>().join("\t");
    Cow::Owned(text.split('\n').map(line).collect::<Vec<_>>().join("\n"))
}

/// Escapes every control character of a JSON document, so that a terminal does not interpret data. Line ends between
/// values stay.
#[must_use]
pub fn json_for_terminal(json: &str) -> Cow<'_, str> {
    let is_raw = |c: char| is_control(c) && c != '\n';
    if !json.contains(is_raw) {
        return Cow::Borrowed(json);
    }
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_raw(c) {
            let mut units = [0; 2];
            text.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            text.push(c);
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_become_one_blank_and_sequences_nothing() {
        for (text, expected) in [
            ("\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}text", "text"),
            ("\u{9b}31mred", "red"),
            ("a\r\n\tb", "a b"),
            ("a\u{7f}b\u{85}c", "a b c"),
            ("a\u{202e}b\u{2066}c", "a b c"),
            ("\u{1b}Pq#0\u{1b}\\x", "x"),
            ("plain", "plain"),
        ] {
            assert_eq!(without_controls(text), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_keeps_a_control_character(text in "(?s)[\u{1b}\u{9b}\u{9d}\u{7}\\[\\]0-9;mHa\n\r\u{202e}]{0,40}|(?s).{0,60}") {
            prop_assert!(!without_controls(&text).contains(is_control));
        }
    }

    #[test]
    fn a_terminal_gets_lines_and_tabs_and_no_other_control_character() {
        assert_eq!(for_terminal("a\tb\n\u{1b}[2Jc\rd\u{202e}"), "a\tb\nc d ");
        let json = serde_json::json!({"a": "\u{1b}[2J\u{7f}\u{9b}\u{202e}\n"});
        let text = format!("{json:#}");
        let shown = json_for_terminal(&text);
        assert!(!shown.contains(|c| is_control(c) && c != '\n'), "{shown:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), json);
    }
}
