//! Words of a shell text before their expansion.

/// One word with the parts that a shell would expand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShellWord {
    pub(super) pieces: Vec<WordPiece>,
    /// The elements of `NAME=(ELEMENT ...)`. Then `pieces` contains `NAME=` alone.
    pub(super) elements: Option<Vec<ShellWord>>,
    /// The reason why the end of the word is unknown, such as a quote that is never closed.
    pub(super) broken: Option<String>,
}

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WordPiece {
    Text {
        text: String,
        quoted: bool,
    },
    /// `$NAME` or `${NAME...}`.
    Parameter {
        name: String,
        modifier: Modifier,
        quoted: bool,
        source: String,
    },
    /// Text that only an execution could replace, such as `$(...)`, as it is written.
    Executed {
        source: String,
    },
}

/// The part of `${NAME...}` behind the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Modifier {
    None,
    /// `${NAME:-TEXT}` and its variants: the text replaces an unset value.
    Fallback(ModifierText),
    /// `${NAME:+TEXT}`: the text replaces a set value.
    Alternative(ModifierText),
    /// `${NAME[@]}`: every element of an array.
    Elements,
}

/// The text within a modifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModifierText {
    pub(super) text: String,
    /// Whether the text has quotes of its own, which keep its blanks.
    pub(super) quoted: bool,
}

impl ShellWord {
    /// Returns the word if it is one unquoted literal, as reserved words and names of variables are.
    pub(super) fn literal(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [WordPiece::Text { text, quoted: false }] if self.elements.is_none() => Some(text),
            _ => None,
        }
    }

    /// Returns the name and the value of an assignment, and whether it appends (`+=`).
    pub(super) fn assignment(&self) -> Option<(&str, bool, ShellWord)> {
        let Some(WordPiece::Text { text, quoted: false }) = self.pieces.first() else { return None };
        let (name, value) = text.split_once('=')?;
        let (name, appends) = name.strip_suffix('+').map_or((name, false), |name| (name, true));
        if !crate::engine::is_variable(name) {
            return None;
        }
        let mut rest = self.clone();
        rest.pieces[0] = WordPiece::Text { text: value.to_owned(), quoted: false };
        Some((name, appends, rest))
    }
}

/// A token of a shell text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShellToken {
    Word(ShellWord),
    /// `&&`, `||`, `|`, `;`, `&`, a line's end, or a parenthesis.
    Operator(&'static str),
    /// The lines of a here-document.
    HereDocument(String),
}
