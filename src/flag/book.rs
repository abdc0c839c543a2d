//! An engine's flags over all its releases, indexed by release and by name.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::OnceLock;

use serde::Deserialize;

use super::form::JsonForm;
use super::{BoolStyle, FlagBounds, FlagKind};
use crate::config::Value;
use crate::facts::EngineVersion;

/// The entry of one flag, over all releases.
#[derive(Debug, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts of the book, independent of each other")]
pub(super) struct FlagEntry {
    /// One character for each release, the oldest first: `x` if the release has the flag.
    pub(super) present: String,
    /// The replacement, for a flag that later releases do not have.
    pub(super) replaced_by: Option<String>,
    #[serde(default)]
    kind: FlagKind,
    /// The kind of a list's elements. Only integers are distinguished.
    #[serde(default)]
    item: Option<FlagKind>,
    /// Whether `None` and the empty text leave the flag unset.
    #[serde(default)]
    optional: bool,
    /// Whether the parser converts the value to lower case, and `-` to `_`.
    #[serde(default)]
    folded: bool,
    /// Whether the flag may stand without a value.
    #[serde(default)]
    bare: bool,
    /// Whether an integer may be written as `2k` (thousands) or `2K` (1024s).
    #[serde(default)]
    human: bool,
    /// The first release that reads `auto` as -1.
    auto_from: Option<String>,
    /// Whether the configuration classes validate the fields of a JSON flag. Otherwise the parser does.
    #[serde(default)]
    by_classes: bool,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    bool_style: BTreeMap<String, BoolStyle>,
    #[serde(default)]
    choices: BTreeMap<String, Option<Vec<Value>>>,
    #[serde(default)]
    bounds: BTreeMap<String, Option<FlagBounds>>,
}

/// The facts as they are in the file: one line for each flag.
#[derive(Debug, Deserialize)]
struct FlagFacts {
    versions: Vec<String>,
    /// The first release for which the book contains the forms of JSON flags. For older releases, the values of JSON
    /// flags are not checked.
    recorded_from: String,
    /// The first release that takes `None` for an optional flag.
    optional_from: String,
    flags: BTreeMap<String, FlagEntry>,
}

/// The flags of an engine, release by release.
///
/// The facts are JSON. `present` of a flag has one character for each release of `versions`: `x` if the release has the
/// flag. `bool_style`, `choices` and `bounds` have an entry for each release that changes them. A release between two
/// of `versions` counts as the older one. `replaced_by` contains the replacement of a flag that later releases do not
/// have. A second text contains the forms of JSON flags.
pub struct FlagBook {
    /// The engine's name in messages.
    pub(super) engine: &'static str,
    facts: &'static str,
    forms: &'static str,
    loaded: OnceLock<Loaded>,
}

impl fmt::Debug for FlagBook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlagBook({})", self.engine)
    }
}

#[derive(Debug)]
struct Loaded {
    facts: &'static FlagFacts,
    /// Oldest release first.
    columns: Vec<ReleaseColumn>,
}

/// The properties of a flag in one release.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts of the book, independent of each other")]
pub(super) struct KnownFlag {
    pub(super) name: &'static str,
    pub(super) kind: FlagKind,
    /// Whether the elements of a list are integers.
    pub(super) of_integers: bool,
    pub(super) optional: bool,
    pub(super) folded: bool,
    pub(super) bare: bool,
    pub(super) human: bool,
    /// Whether `auto` means -1.
    pub(super) auto_is_minus_one: bool,
    pub(super) by_classes: bool,
    /// Whether the book contains the forms of this release's JSON flags. Otherwise their values are not checked.
    pub(super) recorded: bool,
    pub(super) bool_style: Option<BoolStyle>,
    pub(super) choices: Option<&'static [Value]>,
    pub(super) bounds: Option<FlagBounds>,
    /// The fields of a JSON flag, if they are recorded.
    pub(super) form: Option<&'static JsonForm>,
}

/// One spelling on the command line, including dashes.
#[derive(Debug)]
pub(super) struct FlagSpelling {
    pub(super) text: String,
    pub(super) flag: &'static KnownFlag,
    /// Whether this is `--no-x`.
    pub(super) negates: bool,
}

/// One release's flags.
#[derive(Debug)]
pub(super) struct ReleaseColumn {
    pub(super) release: EngineVersion,
    /// Flags by name and by alias, without the leading dashes.
    pub(super) by_name: HashMap<&'static str, &'static KnownFlag>,
    /// Spellings by text, for the parser.
    pub(super) by_spelling: HashMap<&'static str, &'static FlagSpelling>,
    /// Spellings in the order of their texts, for abbreviations.
    pub(super) spellings: &'static [FlagSpelling],
}

impl FlagBook {
    /// Returns a book that is read on first use. The texts are part of the program: a mistake in them is a bug.
    #[must_use]
    pub const fn new(engine: &'static str, facts: &'static str, forms: &'static str) -> Self {
        Self { engine, facts, forms, loaded: OnceLock::new() }
    }

    /// Returns the engine's name in messages.
    #[must_use]
    pub fn engine(&self) -> &'static str {
        self.engine
    }

    fn loaded(&self) -> &Loaded {
        self.loaded.get_or_init(|| {
            let invalid = |error: serde_json::Error| -> ! { panic!("bug: the flags of {}: {error}", self.engine) };
            let facts: FlagFacts = serde_json::from_str(self.facts).unwrap_or_else(|error| invalid(error));
            let forms: BTreeMap<String, JsonForm> =
                serde_json::from_str(self.forms).unwrap_or_else(|error| invalid(error));
            // The book lives as long as the program, so its contents may be leaked.
            let (facts, forms): (&'static FlagFacts, &'static _) =
                (Box::leak(Box::new(facts)), Box::leak(Box::new(forms)));
            let columns = (0..facts.versions.len()).map(|index| column(facts, forms, index)).collect();
            Loaded { facts, columns }
        })
    }

    /// Returns the columns, the oldest release first.
    pub(super) fn columns(&self) -> &[ReleaseColumn] {
        &self.loaded().columns
    }

    pub(super) fn entry(&self, name: &str) -> Option<&'static FlagEntry> {
        self.loaded().facts.flags.get(name)
    }

    pub(super) fn release_name(&self, column: usize) -> &'static str {
        &self.loaded().facts.versions[column]
    }
}

fn release(text: &str) -> EngineVersion {
    text.parse().unwrap_or_else(|error| panic!("bug: a release of a flag book: {error}"))
}

fn column(facts: &'static FlagFacts, forms: &'static BTreeMap<String, JsonForm>, index: usize) -> ReleaseColumn {
    let version = release(&facts.versions[index]);
    let (recorded, optional) = (version >= release(&facts.recorded_from), version >= release(&facts.optional_from));
    let (mut by_name, mut spellings) = (HashMap::new(), Vec::new());
    for (name, entry) in facts.flags.iter().filter(|(_, entry)| entry.present.as_bytes()[index] == b'x') {
        let known = KnownFlag {
            name,
            kind: entry.kind,
            of_integers: entry.item == Some(FlagKind::Int),
            optional: entry.optional && optional,
            folded: entry.folded,
            bare: entry.bare,
            human: entry.human,
            auto_is_minus_one: entry.auto_from.as_deref().is_some_and(|from| version >= release(from)),
            by_classes: entry.by_classes,
            recorded,
            bool_style: value_as_of(&entry.bool_style, &facts.versions[..=index]).copied(),
            choices: value_as_of(&entry.choices, &facts.versions[..=index]).and_then(Option::as_deref),
            bounds: value_as_of(&entry.bounds, &facts.versions[..=index]).copied().flatten(),
            form: forms.get(name).filter(|_| recorded),
        };
        let flag: &'static KnownFlag = Box::leak(Box::new(known));
        by_name.insert(flag.name, flag);
        by_name.extend(entry.aliases.iter().map(|alias| (alias.trim_start_matches('-'), flag)));
        let spelt = |text: String, negates| FlagSpelling { text, flag, negates };
        spellings.push(spelt(format!("--{name}"), false));
        spellings.extend(entry.aliases.iter().map(|alias| spelt(alias.clone(), false)));
        if flag.bool_style == Some(BoolStyle::Optional) {
            spellings.push(spelt(format!("--no-{name}"), true));
        }
    }
    spellings.sort_by(|a, b| a.text.cmp(&b.text));
    let spellings: &'static [FlagSpelling] = spellings.leak();
    let by_spelling = spellings.iter().map(|spelling| (spelling.text.as_str(), spelling)).collect();
    ReleaseColumn { release: version, by_name, by_spelling, spellings }
}

/// Returns the value for the last of these releases: the entry of the newest release that has one. The releases ascend.
fn value_as_of<'s, T>(stated: &'s BTreeMap<String, T>, releases: &[String]) -> Option<&'s T> {
    releases.iter().rev().find_map(|release| stated.get(release))
}

#[cfg(test)]
impl FlagBook {
    /// Lists mistakes in the facts, one line each.
    pub(crate) fn problems(&self) -> Vec<String> {
        let (facts, mut problems) = (self.loaded().facts, Vec::new());
        let mut require = |holds: bool, name: &str, what: &str| {
            if !holds {
                problems.push(format!("{name}: {what}"));
            }
        };
        require(self.columns().iter().map(|column| column.release).is_sorted(), "versions", "do not ascend");
        for (name, entry) in &facts.flags {
            let present = &entry.present;
            require(present.len() == facts.versions.len(), name, "`present` needs one character for each release");
            require(
                (entry.kind == FlagKind::Bool) != entry.bool_style.is_empty(),
                name,
                "`bool_style` is for switches, and every switch has one",
            );
            require(
                present.ends_with('x') == entry.replaced_by.is_none(),
                name,
                "`replaced_by` is for removed flags, and every removed flag has one",
            );
            let words = entry.replaced_by.iter().flat_map(|instead| instead.split_whitespace());
            for other in words.filter_map(|word| word.strip_prefix("--")) {
                let later = facts.flags.get(other).map(|known| &known.present[present.rfind('x').unwrap_or(0) + 1..]);
                require(
                    later.is_some_and(|later| later.contains('x')),
                    name,
                    &format!("--{other} does not replace it"),
                );
            }
        }
        let forms: BTreeMap<String, serde_json::Value> = serde_json::from_str(self.forms).unwrap_or_default();
        for name in forms.keys() {
            require(facts.flags.contains_key(name), name, "the form belongs to no flag");
        }
        problems
    }
}
