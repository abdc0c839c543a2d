//! The flags of a build, read from the text of `llama-server --help` (`common_arg::to_string` in `common/arg.cpp`).
//!
//! Each entry begins with its spellings at the start of a line. Its description begins in column 40, on the same line or,
//! after long spellings, on the next one. A value's form follows from its placeholder (`N`, `<0|1>`, `{none,layer}`,
//! `[on|off|auto]`), from the list of allowed values in the description, and from the default.

use std::collections::BTreeSet;

use serde_json::{Map, Value as Json, json};

use crate::facts::EngineVersion;

/// The column of the descriptions.
const COLUMN: usize = 40;

/// Spellings that the text names, and that are no flags of a serving engine.
const NO_FLAGS: [&str; 6] = ["--help", "--usage", "--version", "--cache-list", "--completion-bash", "--list-devices"];

/// Returns the facts of a [`FlagBook`](crate::flag::FlagBook) with this build alone. Flags that the text calls removed are
/// left out.
pub(super) fn flag_facts(help: &str, build: EngineVersion) -> String {
    let release = build.to_string();
    let flags: Map<String, Json> = entries(help).filter_map(|entry| entry.flag(&release)).collect();
    // Every value that the text does not describe is accepted: there are no JSON forms and no unset values.
    json!({"versions": [release], "recorded_from": "0.0.0", "optional_from": "4294967295.0.0", "flags": flags})
        .to_string()
}

/// Returns the names of the flags that all programs of the build have. They are the first section of the text.
pub(super) fn common_names(help: &str) -> BTreeSet<String> {
    let section = help.split("\n-----").next().unwrap_or_default();
    entries(section).filter_map(|entry| Some(entry.flag("")?.0)).collect()
}

/// One entry of the text.
#[derive(Debug, Default, PartialEq)]
struct HelpEntry<'t> {
    /// The spellings that set the flag, and those that switch it off.
    positive: Vec<&'t str>,
    negative: Vec<&'t str>,
    /// The placeholder of the value; empty for a switch.
    value: String,
    description: String,
}

/// Divides the text into its entries.
fn entries(help: &str) -> impl Iterator<Item = HelpEntry<'_>> {
    let mut found: Vec<HelpEntry<'_>> = Vec::new();
    for line in help.lines().filter(|line| !line.starts_with("-----")) {
        if line.starts_with('-') {
            let (head, rest) = match line.split_at_checked(COLUMN) {
                Some((head, rest)) if head.ends_with("  ") => (head, rest),
                _ => (line, ""),
            };
            found.push(HelpEntry::of_head(head, rest.trim()));
        } else if let Some(entry) = found.last_mut() {
            if !entry.description.is_empty() {
                entry.description.push('\n');
            }
            entry.description.push_str(line.trim());
        }
    }
    found.into_iter()
}

impl<'t> HelpEntry<'t> {
    fn of_head(head: &'t str, description: &str) -> Self {
        let mut entry = Self { description: description.to_owned(), ..Self::default() };
        let mut words = head.split_whitespace().peekable();
        let mut spellings = Vec::new();
        while let Some(word) = words.next_if(|word| word.starts_with('-')) {
            spellings.push(word.trim_end_matches(','));
        }
        entry.value = words.collect::<Vec<_>>().join(" ");
        // The spellings that switch a flag off are the last ones. They begin after the last long one that sets it.
        let is_negative = |word: &&str| word.starts_with("--no-");
        let has_both = spellings.iter().any(is_negative) && spellings.iter().any(sets);
        let last = spellings.iter().rposition(sets).filter(|_| has_both);
        let divide = last.map_or(spellings.len(), |last| last + 1);
        entry.negative = spellings.split_off(divide);
        entry.positive = spellings;
        entry
    }

    /// Returns the name of the flag and its facts. `None` for an entry that is no flag.
    fn flag(&self, release: &str) -> Option<(String, Json)> {
        let is_left_out = self.description.starts_with("the argument has been removed")
            || self.positive.iter().any(|word| NO_FLAGS.contains(word));
        // `--no-host` has no positive form.
        let long = self.positive.iter().find(|word| word.starts_with("--"))?;
        let name = long.trim_start_matches('-').to_owned();
        let aliases: Vec<_> = self.positive.iter().filter(|word| *word != long).collect();
        let mut facts = Map::new();
        facts.insert("present".to_owned(), json!("x"));
        facts.insert("aliases".to_owned(), json!(aliases));
        let mut set = |key: &str, value: Json| drop(facts.insert(key.to_owned(), value));
        match self.form() {
            HelpForm::Switch => {
                set("kind", json!("bool"));
                let style = if self.negative.is_empty() { "store_true" } else { "optional" };
                set("bool_style", json!({release: style}));
            }
            HelpForm::Int(bounds) => {
                set("kind", json!("int"));
                if let Some((low, high)) = bounds {
                    set("bounds", json!({release: {"ge": low, "le": high}}));
                }
            }
            HelpForm::IntOrAuto => {
                set("kind", json!("int"));
                set("auto_from", json!("0.0.0"));
            }
            HelpForm::Float => set("kind", json!("float")),
            HelpForm::Choice(choices) => {
                set("kind", json!("enum"));
                set("choices", json!({release: choices}));
            }
            HelpForm::Text => set("kind", json!("string")),
            HelpForm::Unknown => {}
        }
        (!is_left_out).then_some((name, Json::Object(facts)))
    }

    fn form(&self) -> HelpForm {
        let value = self.value.as_str();
        if value.is_empty() {
            return HelpForm::Switch;
        }
        let inner = |open: char, close: char| value.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
        if let Some(names) = inner('{', '}') {
            return HelpForm::choice(names.split(','));
        }
        if let Some(names) = inner('[', ']').filter(|names| names.contains('|')) {
            return HelpForm::choice(names.split('|'));
        }
        if let Some(range) = inner('<', '>') {
            if let Some((low, high)) = range.split_once("...") {
                let bounds = low.parse().ok().zip(high.parse().ok());
                return bounds.map_or(HelpForm::Unknown, |bounds| HelpForm::Int(Some(bounds)));
            }
            return if range.contains('|') { HelpForm::choice(range.split('|')) } else { HelpForm::Text };
        }
        if let Some(line) = self.description.lines().find_map(|line| line.strip_prefix("allowed values: ")) {
            return HelpForm::choice(line.split(','));
        }
        // A number that some words may replace, such as `auto`.
        if self.description.contains("either an exact number") {
            return HelpForm::IntOrAuto;
        }
        let default = self.stated_default();
        match default.map(|text| (text.parse::<i64>().is_ok(), text.parse::<f64>().is_ok())) {
            Some((true, _)) => return HelpForm::Int(None),
            Some((false, true)) => return HelpForm::Float,
            _ => {}
        }
        if value == "N" {
            // A number of threads or of layers; others may be fractions.
            let text = self.description.replace('\n', " ");
            let is_count =
                ["(default: same as ", "(default: unset", "the first N "].iter().any(|part| text.contains(part));
            return if is_count { HelpForm::Int(None) } else { HelpForm::Unknown };
        }
        let names: Vec<_> = self.description.lines().filter_map(listed_name).collect();
        if names.len() < 2 {
            return HelpForm::Text;
        }
        // The list may lack the default.
        let more = default.filter(|text| !names.contains(text));
        HelpForm::choice(names.iter().copied().chain(more))
    }

    /// Returns the first word of the default.
    fn stated_default(&self) -> Option<&str> {
        let rest = self.description.split_once("(default:")?.1.trim_start();
        let end = rest.find(|c: char| c.is_whitespace() || ",)".contains(c)).unwrap_or(rest.len());
        Some(&rest[..end])
    }
}

/// Returns whether a spelling sets its flag, and is a long one.
fn sets(word: &&str) -> bool {
    word.starts_with("--") && !word.starts_with("--no-")
}

/// Returns the name in a line of a description's list, such as `- mmap: memory-map model`.
fn listed_name(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("- ")?.split_once(':')?;
    let name = name.strip_suffix(" (default)").unwrap_or(name);
    (!name.is_empty() && !name.contains(' ')).then_some(name)
}

/// The form of a value.
#[derive(Debug, PartialEq)]
enum HelpForm {
    Switch,
    /// An integer, with its smallest and largest value.
    Int(Option<(i64, i64)>),
    /// An integer, or `auto`, which is -1.
    IntOrAuto,
    Float,
    /// One of these values: integers, or texts.
    Choice(Vec<Json>),
    Text,
    /// The text does not show it.
    Unknown,
}

impl HelpForm {
    fn choice<'n>(names: impl Iterator<Item = &'n str>) -> Self {
        let names: Vec<_> = names.map(str::trim).filter(|name| !name.is_empty()).collect();
        let numbers: Option<Vec<i64>> = names.iter().map(|name| name.parse().ok()).collect();
        Self::Choice(numbers.map_or_else(
            || names.iter().map(|name| json!(name)).collect(),
            |numbers| numbers.into_iter().map(Json::from).collect(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Value};
    use crate::engines::llama_cpp::{KNOWN_FLAGS, KNOWN_HELP};
    use crate::flag::FlagKind;

    fn form(line: &str) -> HelpForm {
        entries(line).next().unwrap().form()
    }

    #[test]
    fn the_form_of_a_value_follows_from_its_placeholder_and_its_description() {
        let texts = |names: &[&str]| HelpForm::Choice(names.iter().map(|name| json!(name)).collect());
        for (line, expected) in [
            ("--metrics                               enable metrics", HelpForm::Switch),
            ("-b,    --batch-size N                   size (default: 2048)", HelpForm::Int(None)),
            ("--temp, --temperature N                 temperature (default: 0.80)", HelpForm::Float),
            ("--n-cpu-moe N                           keep the weights of the first N layers", HelpForm::Int(None)),
            ("--rope-scale N                          RoPE context scaling factor", HelpForm::Unknown),
            ("--cpu-strict <0|1>                      strict (default: 0)", HelpForm::Choice(vec![json!(0), json!(1)])),
            ("--poll <0...100>                        polling (default: 50)", HelpForm::Int(Some((0, 100)))),
            ("-fa,   --flash-attn [on|off|auto]       use (default: 'auto')", texts(&["on", "off", "auto"])),
            ("-m,    --model FNAME                    model path to load", HelpForm::Text),
            (
                "--numa TYPE                             attempt\n  - distribute: a\n  - isolate: b",
                texts(&["distribute", "isolate"]),
            ),
            ("-ctk,  --cache-type-k TYPE              type\n      allowed values: f32, f16", texts(&["f32", "f16"])),
        ] {
            assert_eq!(form(line), expected, "{line}");
        }
    }

    #[test]
    fn spellings_that_switch_a_flag_off_are_no_aliases() {
        let entry = entries("-cb,   --cont-batching, -nocb, --no-cont-batching\n      whether").next().unwrap();
        assert_eq!(
            (entry.positive, entry.negative),
            (vec!["-cb", "--cont-batching"], vec!["-nocb", "--no-cont-batching"])
        );
        let alone = entries("--no-host                               bypass host buffer").next().unwrap();
        assert_eq!((alone.positive, alone.negative), (vec!["--no-host"], vec![]));
    }

    #[test]
    fn the_first_section_has_the_flags_of_all_programs() {
        let common = common_names(KNOWN_HELP);
        for (name, is_common) in
            [("ctx-size", true), ("cache-type-k", true), ("model", true), ("temp", false), ("parallel", false)]
        {
            assert_eq!(common.contains(name), is_common, "{name}");
        }
    }

    #[test]
    fn the_known_build_has_its_flags() {
        let table = KNOWN_FLAGS.for_version(EngineVersion::build(11_434));
        let kind = |name: &str| table.find(name).map(|flag| flag.kind());
        assert_eq!(KNOWN_FLAGS.problems(), Vec::<String>::new());
        assert_eq!(
            (kind("threads"), kind("t"), kind("parallel")),
            (Some(FlagKind::Int), Some(FlagKind::Int), Some(FlagKind::Int))
        );
        assert_eq!((kind("flash-attn"), kind("cont-batching")), (Some(FlagKind::Enum), Some(FlagKind::Bool)));
        assert_eq!((kind("draft-max"), kind("help")), (None, None));
        assert!(table.flags().count() > 200, "{}", table.flags().count());
        let config = Config::new().with("threads", 2_i64).with("cont-batching", false).with("flash-attn", "on");
        assert_eq!(table.render(&config).unwrap().join(" "), "--no-cont-batching --flash-attn on --threads 2");
        assert!(table.render(&Config::new().with("poll", Value::Text("much".to_owned()))).is_err());
    }
}
