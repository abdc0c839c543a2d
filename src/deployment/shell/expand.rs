//! Replaces the variables of words by the values that the script itself assigns.

use std::collections::BTreeMap;

use super::lexer::quoted_pieces;
use super::word::{Modifier, ShellWord, WordPiece};
use crate::deployment::field::WordField;

/// The largest depth of fallbacks within fallbacks.
const MAX_DEPTH: usize = 8;

/// The largest number of characters of one word after the replacement of its variables.
const MAX_LENGTH: usize = 1 << 16;

/// The value of a shell variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::deployment) enum ShellValue {
    Text(WordField),
    List(Vec<WordField>),
    /// The reason why the value is unknown.
    Unknown(String),
}

/// The variables of a shell at one place of its script.
#[derive(Clone, Debug, Default)]
pub(in crate::deployment) struct ShellVariables {
    pub(in crate::deployment) values: BTreeMap<String, ShellValue>,
    /// The reason why a variable may have a value that the text does not contain, such as a sourced file.
    pub(in crate::deployment) other_source: Option<String>,
}

impl ShellVariables {
    /// Returns the arguments that a word becomes. An unquoted variable may become several arguments or none.
    pub(super) fn expand(&self, word: &ShellWord) -> Vec<WordField> {
        let mut fields = FieldList::default();
        self.expand_pieces(&word.pieces, &mut fields, 0);
        if let Some(problem) = &word.broken {
            fields.current().push_unknown("", problem.clone());
        }
        fields.finish()
    }

    /// Returns the value of a word without a division into several arguments, as in an assignment.
    pub(super) fn expand_whole(&self, word: &ShellWord) -> WordField {
        let mut whole = WordField::default();
        let pieces: Vec<_> = word.pieces.iter().cloned().map(quoted).collect();
        let mut fields = FieldList::default();
        self.expand_pieces(&pieces, &mut fields, 0);
        if let Some(problem) = &word.broken {
            fields.current().push_unknown("", problem.clone());
        }
        for (index, field) in fields.finish().iter().enumerate() {
            if index > 0 {
                whole.text.push(' ');
            }
            whole.absorb(field);
        }
        whole
    }

    fn expand_pieces(&self, pieces: &[WordPiece], fields: &mut FieldList, depth: usize) {
        for piece in pieces {
            match piece {
                WordPiece::Text { text, .. } => fields.current().text.push_str(text),
                WordPiece::Executed { source } => {
                    fields.current().push_unknown(source, format!("`{}` would have to be executed", shortened(source)));
                }
                WordPiece::Parameter { name, modifier, quoted, source } => {
                    self.expand_parameter((name, source), modifier, *quoted, fields, depth);
                }
            }
            if fields.length > MAX_LENGTH {
                fields.current().push_unknown("", "the word is too long after the replacement of its variables");
                return;
            }
        }
    }

    fn expand_parameter(
        &self,
        (name, source): (&str, &str),
        modifier: &Modifier,
        quoted: bool,
        fields: &mut FieldList,
        depth: usize,
    ) {
        let value = self.values.get(name);
        let is_positional = name.chars().all(|c| c.is_ascii_digit() || c == '@' || c == '*');
        let known = matches!(value, Some(ShellValue::Text(_) | ShellValue::List(_)));
        match (value, modifier) {
            (Some(ShellValue::Text(field)), Modifier::None | Modifier::Elements) => fields.push(field, quoted),
            // A set but empty variable counts as unset: the forms without a colon are rare.
            (Some(ShellValue::Text(field)), Modifier::Fallback(_)) if !field.text.is_empty() => {
                fields.push(field, quoted);
            }
            (Some(ShellValue::List(all)), Modifier::Elements) => fields.push_all(all, quoted),
            (Some(ShellValue::List(all)), Modifier::None | Modifier::Fallback(_)) if !all.is_empty() => {
                fields.push(&all[0], quoted);
            }
            (Some(ShellValue::Unknown(reason)), _) => fields.current().push_unknown(source, reason.clone()),
            (_, Modifier::Fallback(text) | Modifier::Alternative(text))
                if known == matches!(modifier, Modifier::Alternative(_))
                    || matches!(modifier, Modifier::Fallback(_)) =>
            {
                let mut field = self.expand_text(&text.text, depth);
                if !known {
                    field.note.get_or_insert_with(|| self.assumed_unset(name));
                }
                fields.push(&field, quoted || text.quoted);
            }
            (None, Modifier::Alternative(_)) => fields.current().note = Some(self.assumed_unset(name)),
            (None, _) if matches!(name, "@" | "*") => {
                let note = format!("`{source}`: further arguments of the script are not known, and are left out");
                fields.drop_with_note(note);
            }
            (None, _) if is_positional => {
                fields.current().push_unknown(source, format!("the argument `{source}` of the script is not known"));
            }
            (None, _) => fields.current().push_unknown(source, self.unknown(name)),
            // An empty list, and an alternative for an empty value.
            (Some(ShellValue::Text(_) | ShellValue::List(_)), _) => {}
        }
    }

    fn expand_text(&self, text: &str, depth: usize) -> WordField {
        let mut whole = WordField::default();
        if depth >= MAX_DEPTH {
            whole.push_unknown(text, format!("the fallbacks are nested deeper than {MAX_DEPTH} levels"));
            return whole;
        }
        let mut fields = FieldList::default();
        self.expand_pieces(&quoted_pieces(text), &mut fields, depth + 1);
        fields.finish().iter().for_each(|field| whole.absorb(field));
        whole
    }

    fn assumed_unset(&self, name: &str) -> String {
        let source = self.other_source.as_ref().map(|source| format!(" ({source})"));
        format!("`{name}` is assumed to be unset, so that its default applies{}", source.unwrap_or_default())
    }

    fn unknown(&self, name: &str) -> String {
        match &self.other_source {
            Some(source) => format!("the value of the variable `{name}` is not in the text ({source})"),
            None => format!("the value of the variable `{name}` is not in the text"),
        }
    }
}

/// Returns the first characters of a text.
fn shortened(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn quoted(piece: WordPiece) -> WordPiece {
    match piece {
        WordPiece::Text { text, .. } => WordPiece::Text { text, quoted: true },
        WordPiece::Parameter { name, modifier, source, .. } => {
            WordPiece::Parameter { name, modifier, quoted: true, source }
        }
        executed @ WordPiece::Executed { .. } => executed,
    }
}

/// The arguments that are built from the pieces of one word.
#[derive(Default)]
struct FieldList {
    done: Vec<WordField>,
    open: Option<WordField>,
    length: usize,
}

impl FieldList {
    fn current(&mut self) -> &mut WordField {
        self.open.get_or_insert_default()
    }

    /// Appends a value. Unquoted values are divided at blanks.
    fn push(&mut self, value: &WordField, quoted: bool) {
        self.length += value.text.len();
        if quoted {
            self.current().absorb(value);
            return;
        }
        if value.text.starts_with(char::is_whitespace) {
            self.done.extend(self.open.take());
        }
        for (index, part) in value.text.split_whitespace().enumerate() {
            if index > 0 {
                self.done.extend(self.open.take());
            }
            self.current().absorb(&WordField { text: part.to_owned(), ..value.clone() });
        }
        if value.text.ends_with(char::is_whitespace) {
            self.done.extend(self.open.take());
        }
    }

    /// Appends the elements of an array, each as an argument of its own.
    fn push_all(&mut self, values: &[WordField], quoted: bool) {
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                self.done.extend(self.open.take());
            }
            self.push(value, quoted);
        }
    }

    /// Leaves out a parameter. The note is kept with an empty argument, which the caller removes.
    fn drop_with_note(&mut self, note: String) {
        self.current().note = Some(note);
    }

    fn finish(self) -> Vec<WordField> {
        self.done.into_iter().chain(self.open).collect()
    }
}
