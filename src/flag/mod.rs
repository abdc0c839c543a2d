//! The flags of `vllm serve`, release by release: which exist, which values they take, how they are spelt.
//!
//! The facts lie in `vllm.json`, one line a flag: `present` has one character for each release of `versions`, and
//! `bool_style`, `choices` and `bounds` are stated where they change. A release between two of them is read as the
//! older one.

mod parse;
mod render;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::config::Value;
use crate::facts::EngineVersion;

/// Why a flag or its value cannot be used. The texts follow argparse, which refuses the same with exit status 2.
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
    #[error("argument --{name}: ignored explicit argument '{value}' (use --{name} or --no-{name})")]
    ExplicitBool { name: String, value: String },
}

/// How a release spells a boolean flag.
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Int,
    Float,
    Bool,
    Enum,
    Json,
    List,
    String,
    /// Known to exist, its form not recorded.
    #[default]
    Other,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Bounds {
    pub ge: Option<f64>,
    pub gt: Option<f64>,
    pub le: Option<f64>,
    pub lt: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    present: String,
    #[serde(default)]
    kind: Kind,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    bool_style: BTreeMap<String, BoolStyle>,
    #[serde(default)]
    choices: BTreeMap<String, Option<Vec<Value>>>,
    #[serde(default)]
    bounds: BTreeMap<String, Option<Bounds>>,
}

#[derive(Debug, Deserialize)]
struct Book {
    versions: Vec<String>,
    flags: BTreeMap<String, Entry>,
}

static BOOK: LazyLock<Book> = LazyLock::new(|| {
    let text = include_str!("vllm.json");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("src/flag/vllm.json is invalid: {error}"))
});

/// The flags of one release.
#[derive(Clone, Copy, Debug)]
pub struct FlagTable {
    column: usize,
}

/// One flag as one release knows it.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    column: usize,
    entry: &'static Entry,
}

impl FlagTable {
    /// The newest release in the book: what is assumed where nothing else is known.
    #[must_use]
    pub fn newest_release() -> EngineVersion {
        release(BOOK.versions.len() - 1)
    }

    /// The covered releases from `first` to `last`, and the one that `first` is read as; without bounds all of them.
    pub fn releases(first: Option<EngineVersion>, last: Option<EngineVersion>) -> impl Iterator<Item = EngineVersion> {
        let read_as = first.map_or(0, |first| Self::for_version(first).column);
        (read_as..BOOK.versions.len()).map(release).filter(move |version| last.is_none_or(|last| *version <= last))
    }

    /// The flags of the newest covered release that is not newer than `version`, or of the oldest.
    #[must_use]
    pub fn for_version(version: EngineVersion) -> Self {
        let column = (0..BOOK.versions.len()).rev().find(|column| release(*column) <= version).unwrap_or(0);
        Self { column }
    }

    /// The flag of this name or alias, in this release.
    #[must_use]
    pub fn find(self, name: &str) -> Option<Flag> {
        let name = name.replace('_', "-");
        BOOK.flags.iter().find_map(|(known, entry)| {
            let matches = *known == name || entry.aliases.iter().any(|alias| alias.trim_start_matches('-') == name);
            let flag = Flag { name: known, column: self.column, entry };
            (matches && flag.present_in(self.column)).then_some(flag)
        })
    }

    /// The error for a flag that this release does not have: it says which releases had it, or the nearest name.
    #[must_use]
    pub fn unknown(self, name: &str) -> FlagError {
        let elsewhere = BOOK.flags.get(&name.replace('_', "-")).map(|entry| {
            let present: Vec<_> = entry.present.char_indices().filter(|(_, c)| *c == 'x').map(|(i, _)| i).collect();
            match (present.first(), present.last()) {
                (_, Some(last)) if *last < self.column => format!("last seen in vLLM {}", BOOK.versions[*last]),
                (Some(first), _) => format!("first seen in vLLM {}", BOOK.versions[*first]),
                _ => "in no covered release of vLLM".to_owned(),
            }
        });
        let hint = elsewhere.or_else(|| self.nearest(name).map(|near| format!("did you mean --{near}?")));
        FlagError::Unknown { name: name.to_owned(), hint }
    }

    /// The names of this release's flags.
    fn names(self) -> impl Iterator<Item = &'static str> {
        let present = move |entry: &Entry| entry.present.as_bytes()[self.column] == b'x';
        BOOK.flags.iter().filter(move |(_, entry)| present(entry)).map(|(name, _)| name.as_str())
    }

    /// The known flag with the most similar name, if one is similar enough to be a slip of the finger.
    #[must_use]
    pub fn nearest(self, name: &str) -> Option<&'static str> {
        self.names()
            .map(|known| (strsim::jaro_winkler(known, name), known))
            .filter(|(similarity, _)| *similarity > 0.85)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, known)| known)
    }
}

impl Flag {
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.entry.kind
    }

    #[must_use]
    pub fn bool_style(&self) -> Option<BoolStyle> {
        as_of(&self.entry.bool_style, self.column).copied()
    }

    /// The only values that this release's parser takes, where it restricts them.
    #[must_use]
    pub fn choices(&self) -> Option<&'static [Value]> {
        as_of(&self.entry.choices, self.column).and_then(Option::as_deref)
    }

    /// The bounds that this release's configuration classes enforce.
    #[must_use]
    pub fn bounds(&self) -> Option<Bounds> {
        as_of(&self.entry.bounds, self.column).copied().flatten()
    }

    fn release(&self) -> EngineVersion {
        release(self.column)
    }

    fn present_in(&self, column: usize) -> bool {
        self.entry.present.as_bytes()[column] == b'x'
    }
}

/// The value stated for the newest release that is not newer than `column`.
fn as_of<T>(stated: &BTreeMap<String, T>, column: usize) -> Option<&T> {
    (0..=column).rev().find_map(|column| stated.get(&BOOK.versions[column]))
}

fn release(column: usize) -> EngineVersion {
    let text = &BOOK.versions[column];
    text.parse().unwrap_or_else(|error| panic!("src/flag/vllm.json: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(version: &str) -> Result<FlagTable, crate::facts::VersionError> {
        version.parse().map(FlagTable::for_version)
    }

    #[test]
    fn every_release_and_flag_of_the_book_is_well_formed() {
        assert!((0..BOOK.versions.len()).map(release).is_sorted());
        for (name, entry) in &BOOK.flags {
            assert_eq!(entry.present.len(), BOOK.versions.len(), "{name}");
            assert_eq!(entry.kind == Kind::Bool, !entry.bool_style.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_flag_exists_only_in_its_releases() -> Result<(), crate::facts::VersionError> {
        assert!(table("0.6.3.post1")?.find("scheduler-delay-factor").is_some());
        assert!(table("0.11.0")?.find("scheduler_delay_factor").is_some(), "read as 0.10.2");
        assert!(table("0.32.0")?.find("scheduler-delay-factor").is_none());
        let error = table("0.32.0")?.unknown("scheduler-delay-factor").to_string();
        assert_eq!(error, "unrecognized arguments: --scheduler-delay-factor (last seen in vLLM 0.10.2)");
        Ok(())
    }

    #[test]
    fn a_misspelt_flag_gets_the_nearest_name() -> Result<(), crate::facts::VersionError> {
        let error = table("0.32.0")?.unknown("max-num-seq").to_string();
        assert_eq!(error, "unrecognized arguments: --max-num-seq (did you mean --max-num-seqs?)");
        Ok(())
    }

    #[test]
    fn block_sizes_are_a_choice_until_012_and_a_bound_later() -> Result<(), crate::facts::VersionError> {
        let old = table("0.6.3")?.find("block-size").and_then(|flag| flag.choices());
        assert_eq!(old, Some(&[Value::Int(8), Value::Int(16), Value::Int(32)][..]));
        let new = table("0.32.0")?.find("block-size");
        assert_eq!(new.and_then(|flag| flag.choices()), None);
        assert_eq!(new.and_then(|flag| flag.bounds()).and_then(|bounds| bounds.gt), Some(0.0));
        Ok(())
    }
}
