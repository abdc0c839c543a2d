//! The flags of engines by release: names, values and spellings. The texts of errors and the reading of values follow
//! Python's argparse. The facts of an engine are its [`FlagBook`].

mod book;
mod form;
mod parse;
mod read;
mod render;

pub use book::FlagBook;

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;

use crate::config::Value;
use crate::facts::EngineVersion;
use book::{KnownFlag, ReleaseColumn};

/// The reason why a flag or its value cannot be used. The texts follow argparse, which ends with exit status 2 in these
/// cases.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    #[error("unrecognized arguments: --{name}{}", .hint.as_ref().map(|h| format!(" ({h})")).unwrap_or_default())]
    Unknown { name: String, hint: Option<String> },
    #[error("unexpected argument {0:?}: every flag begins with --")]
    Positional(String),
    #[error("argument --{0}: expected one argument")]
    MissingValue(String),
    #[error("argument --{name}: invalid {expected} value: '{value}'")]
    WrongType { name: String, expected: &'static str, value: String },
    #[error("argument --{name}: invalid choice: '{value}' (choose from {choices})")]
    InvalidChoice { name: String, value: String, choices: String },
    #[error("ambiguous option: {text} could match {matches}")]
    Ambiguous { text: String, matches: String },
    #[error("argument --{name}: {problem}")]
    Form { name: String, problem: String },
    #[error("argument --{name}: ignored explicit argument '{value}' (use --{name} or --no-{name})")]
    ExplicitBool { name: String, value: String },
}

/// The spelling of a boolean flag in a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoolStyle {
    /// `--x` or `--no-x`.
    Optional,
    /// `--x` or nothing.
    StoreTrue,
    /// `--x` or `--x=False` (0.6 only).
    StoreBoolean,
}

/// The form of a flag's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlagKind {
    Int,
    Float,
    Bool,
    /// One of the flag's choices.
    Enum,
    /// Must be JSON.
    Json,
    /// JSON if the text is in braces, any text otherwise.
    TextOrJson,
    /// Several arguments, carried as one text with spaces between them.
    List,
    String,
    /// A flag that is known to exist, without a record of its form.
    #[default]
    Other,
}

/// The bounds of a numeric value, named as in pydantic: `ge` is the smallest value, and `gt` is less than every value.
/// `le` and `lt` are the upper bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct FlagBounds {
    pub ge: Option<f64>,
    pub gt: Option<f64>,
    pub le: Option<f64>,
    pub lt: Option<f64>,
}

impl FlagBounds {
    /// Returns the first bound that a number breaks, in pydantic's wording. `NaN` breaks every bound.
    #[must_use]
    pub fn find_broken_bound(&self, number: f64) -> Option<String> {
        let holds =
            |limit: Option<f64>, relation: fn(&f64, &f64) -> bool| limit.filter(|limit| !relation(&number, limit));
        let broken = [
            (holds(self.ge, f64::ge), "greater than or equal to"),
            (holds(self.gt, f64::gt), "greater than"),
            (holds(self.le, f64::le), "less than or equal to"),
            (holds(self.lt, f64::lt), "less than"),
        ];
        broken.into_iter().find_map(|(limit, relation)| Some(format!("Input should be {relation} {}", limit?)))
    }
}

/// The flags of one release.
#[derive(Clone, Copy)]
pub struct FlagTable {
    book: &'static FlagBook,
    index: usize,
    column: &'static ReleaseColumn,
}

impl fmt::Debug for FlagTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlagTable({})", self.book.release_name(self.index))
    }
}

/// One flag in one release.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    properties: &'static KnownFlag,
}

impl FlagBook {
    /// Returns the newest release in the book. It is assumed if the installed release is unknown.
    #[must_use]
    pub fn newest_release(&self) -> EngineVersion {
        self.columns().last().map_or(EngineVersion::LATEST, |column| column.release)
    }

    /// Returns the covered releases from `first` to `last`. A `first` between two covered releases counts as the older
    /// one. Without bounds, this function returns all covered releases.
    pub fn releases(
        &'static self,
        first: Option<EngineVersion>,
        last: Option<EngineVersion>,
    ) -> impl Iterator<Item = EngineVersion> {
        let read_as = first.map_or(0, |first| self.for_version(first).index);
        self.columns()[read_as..]
            .iter()
            .map(|column| column.release)
            .filter(move |version| last.is_none_or(|last| *version <= last))
    }

    /// Returns the flags of the newest covered release that is not newer than `version`, otherwise those of the
    /// oldest.
    #[must_use]
    pub fn for_version(&'static self, version: EngineVersion) -> FlagTable {
        let columns = self.columns();
        let index = columns.iter().rposition(|column| column.release <= version).unwrap_or(0);
        FlagTable { book: self, index, column: &columns[index] }
    }
}

impl FlagTable {
    /// Returns the release of the table.
    #[must_use]
    pub fn release(self) -> EngineVersion {
        self.column.release
    }

    /// Returns the flag with this name or alias in this release.
    #[must_use]
    pub fn find(self, name: &str) -> Option<Flag> {
        self.column.by_name.get(dashed(name).as_ref()).map(|known| Flag::of(known))
    }

    /// Returns the error for a flag that this release does not have. Its hint contains the last or the first release
    /// with the flag, and the replacement. For a flag of no release, the hint contains the most similar name.
    #[must_use]
    pub fn unknown(self, name: &str) -> FlagError {
        let engine = self.book.engine;
        let elsewhere =
            self.book.entry(&dashed(name)).map(|entry| match (entry.present.find('x'), entry.present.rfind('x')) {
                (_, Some(last)) if last < self.index => {
                    let instead = entry.replaced_by.iter().map(|instead| format!("; {instead}"));
                    format!("last seen in {engine} {}{}", self.book.release_name(last), instead.collect::<String>())
                }
                (Some(first), _) => format!("first seen in {engine} {}", self.book.release_name(first)),
                _ => format!("in no covered release of {engine}"),
            });
        let hint = elsewhere.or_else(|| self.nearest(name).map(|near| format!("did you mean --{near}?")));
        FlagError::Unknown { name: name.to_owned(), hint }
    }

    /// Returns every flag of this release, ordered by name.
    pub fn flags(self) -> impl Iterator<Item = Flag> {
        let names = self.column.spellings.iter().filter(|spelling| !spelling.negates);
        names.filter(|spelling| spelling.text[2..] == *spelling.flag.name).map(|spelling| Flag::of(spelling.flag))
    }

    /// Returns the known flag with the most similar name, if it is similar enough for a typing error.
    #[must_use]
    pub fn nearest(self, name: &str) -> Option<&'static str> {
        self.flags()
            .map(|flag| (strsim::jaro_winkler(flag.name, name), flag.name))
            .filter(|(similarity, _)| *similarity > 0.85)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, known)| known)
    }
}

/// Replaces underscores by dashes. The book has names with dashes, and the engine accepts both.
fn dashed(name: &str) -> Cow<'_, str> {
    if name.contains('_') { Cow::Owned(name.replace('_', "-")) } else { Cow::Borrowed(name) }
}

impl Flag {
    fn of(known: &'static KnownFlag) -> Self {
        Self { name: known.name, properties: known }
    }

    #[must_use]
    pub fn kind(&self) -> FlagKind {
        self.properties.kind
    }

    #[must_use]
    pub fn bool_style(&self) -> Option<BoolStyle> {
        self.properties.bool_style
    }

    /// Returns the only values that this release's parser accepts. `None` if it accepts others.
    #[must_use]
    pub fn choices(&self) -> Option<&'static [Value]> {
        self.properties.choices
    }

    /// Returns whether the configuration classes validate the fields of this JSON flag. Otherwise the parser does.
    #[must_use]
    pub fn is_read_by_classes(&self) -> bool {
        self.properties.by_classes
    }

    /// Returns the bounds that this release's configuration classes enforce.
    #[must_use]
    pub fn bounds(&self) -> Option<FlagBounds> {
        self.properties.bounds
    }
}
