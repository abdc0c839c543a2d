//! A part of a recipe with its place: the file, the line and the path of its key.

use std::collections::BTreeMap;

use super::RecipeError;
use crate::deployment::yaml::{YamlNode, YamlValue};

/// The hint for a key without its value.
pub(super) const CUT_OFF: &str = "the file may be cut off: download the recipe again";

/// The hint for a value of another kind.
const WRONG_KIND: &str = "correct the value, or download the recipe again";

/// A node of the file's tree.
#[derive(Clone, Debug)]
pub(super) struct RecipeNode<'a> {
    file: &'a str,
    /// The dotted path of the key.
    path: String,
    node: &'a YamlNode,
}

impl<'a> RecipeNode<'a> {
    pub(super) fn root(file: &'a str, node: &'a YamlNode) -> Self {
        Self { file, path: String::new(), node }
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// If the key is there without a value.
    pub(super) fn get(&self, key: &str) -> Result<Option<Self>, RecipeError> {
        let Some(node) = self.node.get(key) else { return Ok(None) };
        let found = self.child(key, node);
        match found.node.value {
            YamlValue::Null => Err(found.error("has no value", CUT_OFF)),
            _ => Ok(Some(found)),
        }
    }

    /// Returns the value of a key that every recipe has.
    ///
    /// # Errors
    /// If the key is missing or has no value.
    pub(super) fn required(&self, key: &str) -> Result<Self, RecipeError> {
        self.get(key)?.ok_or_else(|| self.child(key, self.node).error("is missing", CUT_OFF))
    }

    pub(super) fn text(&self) -> Result<String, RecipeError> {
        self.node.text().map(str::to_owned).ok_or_else(|| self.error("is not a text", WRONG_KIND))
    }

    pub(super) fn number(&self) -> Result<u32, RecipeError> {
        let number = self.node.text().and_then(|text| text.parse().ok());
        number.ok_or_else(|| self.error("is not a whole number", WRONG_KIND))
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(self.node.value, YamlValue::Map(_))
    }

    /// Returns the texts of a list.
    pub(super) fn texts(&self) -> Result<Vec<String>, RecipeError> {
        let YamlValue::List(items) = &self.node.value else {
            return Err(self.error("is not a list", WRONG_KIND));
        };
        let text = |(index, item)| self.child(&format!("[{index}]"), item).text();
        items.iter().enumerate().map(text).collect()
    }

    /// Returns the entries of a mapping. An entry without a value is an error.
    pub(super) fn entries(&self) -> Result<Vec<(String, Self)>, RecipeError> {
        let YamlValue::Map(entries) = &self.node.value else {
            return Err(self.error("is not a mapping", WRONG_KIND));
        };
        entries
            .iter()
            .map(|(name, node)| match (self.child(name, node), &node.value) {
                (child, YamlValue::Null) => Err(child.error("has no value", CUT_OFF)),
                (child, _) => Ok((name.clone(), child)),
            })
            .collect()
    }

    /// Returns the names of a mapping's keys.
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.node.entries().iter().map(|(name, _)| name.as_str())
    }

    /// Returns the optional texts of a key.
    pub(super) fn texts_of(&self, key: &str) -> Result<Vec<String>, RecipeError> {
        self.get(key)?.map_or(Ok(Vec::new()), |node| node.texts())
    }

    /// Returns the optional text of a key.
    pub(super) fn text_of(&self, key: &str) -> Result<Option<String>, RecipeError> {
        self.get(key)?.map(|node| node.text()).transpose()
    }

    /// Reads each entry of an optional mapping.
    pub(super) fn map_of<T>(
        &self,
        key: &str,
        read: impl Fn(&Self) -> Result<T, RecipeError>,
    ) -> Result<BTreeMap<String, T>, RecipeError> {
        let Some(map) = self.get(key)? else { return Ok(BTreeMap::new()) };
        map.entries()?.into_iter().map(|(name, node)| Ok((name, read(&node)?))).collect()
    }

    pub(super) fn error(&self, problem: impl Into<String>, hint: impl Into<String>) -> RecipeError {
        RecipeError {
            file: self.file.to_owned(),
            line: Some(self.node.line),
            key: self.path.clone(),
            problem: problem.into(),
            hint: hint.into(),
        }
    }

    fn child(&self, key: &str, node: &'a YamlNode) -> Self {
        let path = match self.path.as_str() {
            "" => key.to_owned(),
            path if key.starts_with('[') => format!("{path}{key}"),
            path => format!("{path}.{key}"),
        };
        Self { file: self.file, path, node }
    }
}
