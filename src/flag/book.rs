//! The book of flags (`vllm.json`, `forms.json`), indexed by release and by name.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde::Deserialize;

use super::form::Form;
use super::{BoolStyle, Bounds, Kind};
use crate::config::Value;
use crate::facts::EngineVersion;

/// The first release whose JSON flags are recorded field by field, and whose parser is recorded value by value.
pub(super) const RECORDED: EngineVersion = EngineVersion::new(0, 32, 0);

/// What the book says of one flag, over all releases.
#[derive(Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) present: String,
    /// What to do instead, where later releases do not have the flag.
    pub(super) replaced_by: Option<String>,
    #[serde(default)]
    kind: Kind,
    /// Whether the elements of a list are integers.
    #[serde(default)]
    item: Option<Kind>,
    /// Whether `None` and the empty text mean: not set.
    #[serde(default)]
    optional: bool,
    /// Whether capitals count as small letters and `-` as `_`.
    #[serde(default)]
    folded: bool,
    /// Whether the flag may stand without a value.
    #[serde(default)]
    bare: bool,
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

/// What one release knows of a flag.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts of the book, independent of each other")]
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) release: EngineVersion,
    pub(super) kind: Kind,
    pub(super) of_integers: bool,
    pub(super) optional: bool,
    pub(super) folded: bool,
    pub(super) bare: bool,
    pub(super) bool_style: Option<BoolStyle>,
    pub(super) choices: Option<&'static [Value]>,
    pub(super) bounds: Option<Bounds>,
    /// The fields of a JSON flag, where they are recorded.
    pub(super) form: Option<&'static Form>,
}

/// One spelling on the command line, dashes included.
#[derive(Debug)]
pub(super) struct Spelling {
    pub(super) text: String,
    pub(super) flag: &'static Known,
    /// `--no-x`.
    pub(super) negates: bool,
}

/// One release's flags.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) release: EngineVersion,
    /// By name and by alias, without dashes.
    pub(super) by_name: HashMap<&'static str, &'static Known>,
    /// By spelling, for the parser.
    pub(super) by_spelling: HashMap<&'static str, &'static Spelling>,
    /// In the order of their texts, for abbreviations.
    pub(super) spellings: &'static [Spelling],
}

static BOOK: LazyLock<Book> = LazyLock::new(|| {
    let text = include_str!("vllm.json");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("src/flag/vllm.json is invalid: {error}"))
});

static FORMS: LazyLock<BTreeMap<String, Form>> = LazyLock::new(|| {
    let text = include_str!("forms.json");
    serde_json::from_str(text).unwrap_or_else(|error| panic!("src/flag/forms.json is invalid: {error}"))
});

static COLUMNS: LazyLock<Vec<Column>> = LazyLock::new(|| (0..BOOK.versions.len()).map(column).collect());

/// The columns, oldest release first.
pub(super) fn columns() -> &'static [Column] {
    &COLUMNS
}

pub(super) fn entry(name: &str) -> Option<&'static Entry> {
    BOOK.flags.get(name)
}

pub(super) fn release_name(column: usize) -> &'static str {
    &BOOK.versions[column]
}

fn column(index: usize) -> Column {
    let text = &BOOK.versions[index];
    let release = text.parse().unwrap_or_else(|error| panic!("src/flag/vllm.json: {error}"));
    let (mut by_name, mut spellings) = (HashMap::new(), Vec::new());
    for (name, entry) in BOOK.flags.iter().filter(|(_, entry)| entry.present.as_bytes()[index] == b'x') {
        let known = Known {
            name,
            release,
            kind: entry.kind,
            of_integers: entry.item == Some(Kind::Int),
            optional: entry.optional && release >= EngineVersion::new(0, 10, 0),
            folded: entry.folded,
            bare: entry.bare,
            bool_style: as_of(&entry.bool_style, index).copied(),
            choices: as_of(&entry.choices, index).and_then(Option::as_deref),
            bounds: as_of(&entry.bounds, index).copied().flatten(),
            form: FORMS.get(name).filter(|_| release >= RECORDED),
        };
        // The book lives as long as the program, and so do its pages.
        let flag: &'static Known = Box::leak(Box::new(known));
        by_name.insert(flag.name, flag);
        by_name.extend(entry.aliases.iter().map(|alias| (alias.trim_start_matches('-'), flag)));
        let spelt = |text: String, negates| Spelling { text, flag, negates };
        spellings.push(spelt(format!("--{name}"), false));
        spellings.extend(entry.aliases.iter().map(|alias| spelt(alias.clone(), false)));
        if flag.bool_style == Some(BoolStyle::Optional) {
            spellings.push(spelt(format!("--no-{name}"), true));
        }
    }
    spellings.sort_by(|a, b| a.text.cmp(&b.text));
    let spellings: &'static [Spelling] = spellings.leak();
    let by_spelling = spellings.iter().map(|spelling| (spelling.text.as_str(), spelling)).collect();
    Column { release, by_name, by_spelling, spellings }
}

/// The value stated for the newest release that is not newer than the column.
fn as_of<T>(stated: &BTreeMap<String, T>, column: usize) -> Option<&T> {
    (0..=column).rev().find_map(|column| stated.get(&BOOK.versions[column]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_release_and_flag_of_the_book_is_well_formed() {
        assert!(columns().iter().map(|column| column.release).is_sorted());
        for (name, entry) in &BOOK.flags {
            assert_eq!(entry.present.len(), BOOK.versions.len(), "{name}");
            assert_eq!(entry.kind == Kind::Bool, !entry.bool_style.is_empty(), "{name}");
        }
        for name in FORMS.keys() {
            assert!(BOOK.flags.contains_key(name), "{name}");
        }
    }

    #[test]
    fn a_flag_that_is_gone_says_what_to_do_instead() {
        for (name, entry) in &BOOK.flags {
            assert_ne!(entry.present.ends_with('x'), entry.replaced_by.is_some(), "{name}");
            let words = entry.replaced_by.iter().flat_map(|instead| instead.split_whitespace());
            for other in words.filter_map(|word| word.strip_prefix("--")) {
                let known = &BOOK.flags[other].present;
                assert!(known[entry.present.rfind('x').unwrap() + 1..].contains('x'), "{name}: --{other}");
            }
        }
    }
}
