//! One table of a TOML file.

use std::cell::RefCell;
use std::fmt::Debug;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::value::{FromToml, describe};
use super::{Document, DocumentError, nearest};

/// A table that records the keys it was asked for.
#[derive(Debug)]
pub struct Section<'d> {
    document: &'d Document,
    /// Dotted path of the table; empty for the root.
    path: String,
    table: &'d DeTable<'d>,
    /// Byte at which the table begins, for errors about missing keys.
    start: usize,
    requested_keys: RefCell<Vec<String>>,
}

impl<'d> Section<'d> {
    pub(super) fn new(document: &'d Document, path: String, table: &'d DeTable<'d>, start: usize) -> Self {
        Self { document, path, table, start, requested_keys: RefCell::default() }
    }

    /// Passes the table to `read` and refuses the keys that `read` did not ask for.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Section<'d>) -> Result<T, DocumentError>,
    ) -> Result<T, DocumentError> {
        let value = read(self)?;
        let asked = self.requested_keys.borrow();
        match self.keys().find(|key| !asked.iter().any(|known| known == key)) {
            None => Ok(value),
            Some(unknown) => {
                let hint = match nearest(unknown, asked.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("known keys here: {}", asked.join(", ")),
                };
                Err(self.error(unknown, "unknown key", Some(hint)))
            }
        }
    }

    /// Returns the value of a key, or `None` if it is absent.
    ///
    /// # Errors
    /// If the value is of another type or out of its type's range.
    pub fn optional<T: FromToml>(&self, key: &str) -> Result<Option<T>, DocumentError> {
        #[cfg(test)]
        self.record::<T>(key, "none");
        self.value(key)
    }

    /// Returns the value of a key, or `default` if it is absent.
    ///
    /// # Errors
    /// Those of [`optional`](Self::optional).
    pub fn optional_or<T: FromToml + Debug>(&self, key: &str, default: T) -> Result<T, DocumentError> {
        #[cfg(test)]
        self.record::<T>(key, &format!("`{default:?}`"));
        Ok(self.value(key)?.unwrap_or(default))
    }

    /// Returns the value of a required key.
    ///
    /// # Errors
    /// Those of [`optional`](Self::optional), or that the key is absent.
    pub fn required<T: FromToml>(&self, key: &str) -> Result<T, DocumentError> {
        #[cfg(test)]
        self.record::<T>(key, "required");
        self.value(key)?.ok_or_else(|| self.missing(key, "is missing".to_owned()))
    }

    /// Reads a required table.
    ///
    /// # Errors
    /// Those of [`optional_section`](Self::optional_section), or that the table is absent.
    pub fn section<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Section<'d>) -> Result<T, DocumentError>,
    ) -> Result<T, DocumentError> {
        self.optional_section(key, read)?.ok_or_else(|| self.missing(key, format!("the table [{key}] is missing")))
    }

    /// Reads a table. Returns `None` if it is absent.
    ///
    /// # Errors
    /// If the key holds no table, `read` refuses a value, or a key of the table is unknown.
    pub fn optional_section<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Section<'d>) -> Result<T, DocumentError>,
    ) -> Result<Option<T>, DocumentError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        self.child(self.joined(key), key, value)?.read(read).map(Some)
    }

    /// Reads every table of an array of tables (`[[key]]`), in order. Returns an empty list if the array is absent.
    ///
    /// # Errors
    /// Those of [`optional_section`](Self::optional_section), for each table.
    pub fn sections<T>(
        &self,
        key: &str,
        mut read: impl FnMut(&Section<'d>) -> Result<T, DocumentError>,
    ) -> Result<Vec<T>, DocumentError> {
        let Some(value) = self.find(key) else { return Ok(Vec::new()) };
        let DeValue::Array(items) = value.get_ref() else {
            return Err(self.error(key, format!("expected [[{key}]], found {}", describe(value.get_ref())), None));
        };
        let child = |(index, item)| self.child(format!("{}[{index}]", self.joined(key)), key, item)?.read(&mut read);
        items.iter().enumerate().map(child).collect()
    }

    /// Returns whether the key holds an array, such as an array of tables (`[[key]]`).
    #[must_use]
    pub fn is_array(&self, key: &str) -> bool {
        self.table.get(key).is_some_and(|value| matches!(value.get_ref(), DeValue::Array(_)))
    }

    /// Returns the keys of this table, in the file's order.
    pub fn keys(&self) -> impl Iterator<Item = &'d str> {
        self.table.keys().map(|key| key.get_ref().as_ref())
    }

    /// Returns an error at this key of the table. If the key is absent, the line is that of the table.
    #[must_use]
    pub fn error(&self, key: &str, problem: impl Into<String>, hint: Option<String>) -> DocumentError {
        let place = self.table.keys().find(|known| known.get_ref() == key).map(|known| known.span().start);
        DocumentError {
            file: self.document.file.clone(),
            line: place
                .or((self.start > 0 || !self.path.is_empty()).then_some(self.start))
                .map(|b| self.document.line(b)),
            key: self.joined(key),
            problem: problem.into(),
            hint,
        }
    }

    fn value<T: FromToml>(&self, key: &str) -> Result<Option<T>, DocumentError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        T::from_toml(value.get_ref()).map(Some).map_err(|problem| self.error(key, problem, None))
    }

    #[cfg(test)]
    fn record<T: FromToml>(&self, key: &str, default: &str) {
        let read = super::KeyRead { path: self.joined(key), kind: T::kind(), default: default.to_owned() };
        self.document.reads.borrow_mut().push(read);
    }

    fn missing(&self, key: &str, problem: String) -> DocumentError {
        let asked = self.requested_keys.borrow();
        let unknown = self.keys().filter(|present| !asked.iter().any(|known| known == present));
        match nearest(key, unknown) {
            Some(misspelt) => self.error(misspelt, "unknown key", Some(format!("did you mean `{key}`?"))),
            None => self.error(key, problem, None),
        }
    }

    fn find(&self, key: &str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.requested_keys.borrow_mut().push(key.to_owned());
        self.table.get(key)
    }

    fn child(&self, path: String, key: &str, value: &'d Spanned<DeValue<'d>>) -> Result<Self, DocumentError> {
        match value.get_ref() {
            DeValue::Table(table) => Ok(Self::new(self.document, path, table, value.span().start)),
            other => Err(self.error(key, format!("expected a table, found {}", describe(other)), None)),
        }
    }

    fn joined(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}
