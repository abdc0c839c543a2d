//! Reads TOML files key by key. Errors contain the file, the line and the key. For an unknown key they suggest the most
//! similar valid one. The module `json` reads JSON that other programs wrote.
//!
//! The calling code asks a [`Section`] for each key that it supports. All other keys of the section are refused as
//! unknown. `serde` is not used: its errors for values out of range have no line, and those for unknown keys no
//! suggestion.

pub(crate) mod json;
mod section;
mod value;

use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

pub use section::Section;
pub use value::FromToml;

/// An error in a TOML file: the place, the problem and a hint for its repair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct DocumentError {
    pub file: PathBuf,
    pub line: Option<usize>,
    /// Dotted path of the key. Empty if the error concerns the whole file.
    pub key: String,
    pub problem: String,
    pub hint: Option<String>,
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.problem)
    }
}

/// The text of one TOML file.
#[derive(Clone, Debug)]
pub struct Document {
    pub file: PathBuf,
    text: String,
    #[cfg(test)]
    pub(crate) reads: std::cell::RefCell<Vec<KeyRead>>,
}

/// One read of a key. Tests derive the reference of the study file from these reads.
#[cfg(test)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRead {
    /// Dotted path of the key.
    pub path: String,
    /// Accepted kind of value, with its article.
    pub kind: String,
    /// `required`, `none`, or the default in backticks.
    pub default: String,
}

impl Document {
    /// Reads the file's text without parsing it.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(file: &Path) -> Result<Self, DocumentError> {
        match std::fs::read_to_string(file) {
            Ok(text) => Ok(Self::from_text(file, text)),
            Err(error) => Err(DocumentError {
                file: file.to_owned(),
                line: None,
                key: String::new(),
                problem: format!("cannot be read: {error}"),
                hint: Some("give the path of a readable TOML file".to_owned()),
            }),
        }
    }

    /// Creates a document from a text in memory. `name` replaces the file's path in errors.
    #[must_use]
    pub fn from_text(name: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        Self {
            file: name.into(),
            text: text.into(),
            #[cfg(test)]
            reads: std::cell::RefCell::default(),
        }
    }

    /// Parses the text, passes its root table to `read`, and refuses the keys that `read` did not ask for.
    ///
    /// # Errors
    /// If the file is not TOML, `read` refuses a value, or a key is unknown.
    pub fn parse<T>(&self, read: impl FnOnce(&Section<'_>) -> Result<T, DocumentError>) -> Result<T, DocumentError> {
        let table = DeTable::parse(&self.text).map_err(|error| DocumentError {
            file: self.file.clone(),
            line: error.span().map(|span| self.line(span.start)),
            key: String::new(),
            problem: format!("not valid TOML: {}", error.message()),
            hint: None,
        })?;
        Section::new(self, String::new(), table.get_ref(), 0).read(read)
    }

    /// Returns the number of the line that contains this byte. Lines are counted from 1, bytes from 0.
    fn line(&self, byte: usize) -> usize {
        self.text.as_bytes()[..byte.min(self.text.len())].split(|b| *b == b'\n').count()
    }
}

/// Minimum Jaro-Winkler similarity of a misspelling: 0 means that no character matches, and 1 that the texts are equal.
const MIN_SIMILARITY: f64 = 0.8;

/// Returns the most similar candidate, if it is similar enough to be a misspelling of `name`.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(candidate, name), candidate))
        .filter(|(similarity, _)| *similarity > MIN_SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn error(text: &str) -> DocumentError {
        let read = Document::from_text("study.toml", text).parse(|root| {
            root.section("load", |load| {
                let concurrency: u32 = load.required("concurrency")?;
                let timeout: Option<Duration> = load.optional("timeout")?;
                Ok((concurrency, timeout))
            })
        });
        match read {
            Ok(value) => panic!("{value:?} was read from {text:?}"),
            Err(error) => error,
        }
    }

    #[test]
    fn an_unknown_key_names_its_line_and_the_nearest_one() {
        let error = error("[load]\nconcurrency = 4\ntimeuot = '3s'\n");
        assert_eq!(error.to_string(), "study.toml:3: load.timeuot: unknown key");
        assert_eq!(error.hint.as_deref(), Some("did you mean `timeout`?"));
    }

    #[test]
    fn a_misspelt_required_key_is_reported_as_misspelt_and_not_as_missing() {
        let error = error("[load]\nconcurency = 4\n");
        assert_eq!(error.to_string(), "study.toml:2: load.concurency: unknown key");
        assert_eq!(error.hint.as_deref(), Some("did you mean `concurrency`?"));
    }

    #[test]
    fn types_ranges_and_missing_keys_are_named() {
        for (text, expected) in [
            ("[load]\n", "study.toml:1: load.concurrency: is missing"),
            ("", "study.toml: load: the table [load] is missing"),
            ("load = 3", "study.toml:1: load: expected a table, found integer 3"),
            ("[load]\nconcurrency = 'x'", "study.toml:2: load.concurrency: expected an integer, found string \"x\""),
            ("[load]\nconcurrency = -1", "study.toml:2: load.concurrency: -1 is not between 0 and 4294967295"),
            ("[load]\nconcurrency = 1\ntimeout = 'soon'", "study.toml:3: load.timeout: \"soon\" is not a duration"),
            ("[load\n", "study.toml:1: not valid TOML: "),
        ] {
            let message = error(text).to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
