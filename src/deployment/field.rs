//! One argument of a server after the replacement of variables.

/// The largest number of bytes of a text after the replacement of its variables. Otherwise a few lines that double a
/// variable would fill the memory.
const MAX_LENGTH: usize = 1 << 16;

/// One argument after the replacement of variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WordField {
    pub(super) text: String,
    /// The reason why the text is not the argument that the server would get.
    pub(super) trouble: Option<String>,
    /// An assumption behind the text.
    pub(super) note: Option<String>,
}

impl WordField {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), trouble: None, note: None }
    }

    /// Adds text that is unknown for a reason. The first reason is kept.
    pub(super) fn push_unknown(&mut self, source: &str, reason: impl Into<String>) {
        self.text.push_str(source);
        self.trouble.get_or_insert_with(|| reason.into());
    }

    /// Joins trouble and notes of a part of this argument.
    pub(super) fn absorb(&mut self, part: &Self) {
        if self.text.len() + part.text.len() > MAX_LENGTH {
            return self.push_unknown("", "the text is too long after the replacement of its variables");
        }
        self.text.push_str(&part.text);
        self.trouble = self.trouble.take().or_else(|| part.trouble.clone());
        self.note = self.note.take().or_else(|| part.note.clone());
    }
}

impl AsRef<str> for WordField {
    fn as_ref(&self) -> &str {
        &self.text
    }
}
