//! Arguments as entries of vLLM's `--config` file.
//!
//! vLLM makes words of the entries again before it parses them (`load_config_file` of `vllm/utils/argparse_utils.py`).
//! All releases make the same words of these entries. Older ones drop `false` and write mappings in Python's spelling.
//! Hence `--no-x` is the entry `no-x: true`, and JSON is a text.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::config_file::{FLAG, plain};
use crate::config::Value;
use crate::engine::ConfigFileEntries;
use crate::flag::{FlagKind, FlagTable};

/// The range of floats that Python writes without an exponent.
const DECIMAL_FLOATS: std::ops::Range<f64> = 1e-4..1e15;

/// Returns the entries that set the same as these arguments. The last of several equal flags wins.
///
/// # Errors
/// The argument that the file cannot contain, with the reason.
pub(super) fn config_file_entries(arguments: &[String], table: FlagTable) -> Result<ConfigFileEntries, String> {
    let mut entries = BTreeMap::new();
    let mut rest = arguments;
    while let Some((word, behind)) = rest.split_first() {
        if !is_flag(word, table) {
            return Err(format!("{word:?} is no flag and no value of one"));
        }
        let count = if word.contains('=') { 0 } else { behind.iter().take_while(|word| !is_flag(word, table)).count() };
        let (values, others) = behind.split_at(count);
        let entry = Entry::read(word, values, table)?;
        if entry.is_unknown && entries.contains_key(&entry.name) {
            return Err(format!("{word} is given twice, and the file can contain a flag once"));
        }
        // `--x` and `--no-x` set the same flag.
        let opposite = entry.name.strip_prefix("no-").map_or_else(|| format!("no-{}", entry.name), str::to_owned);
        entries.remove(&opposite);
        entries.insert(entry.name, entry.value);
        rest = others;
    }
    Ok(ConfigFileEntries { flag: FLAG, entries })
}

struct Entry {
    name: String,
    value: Json,
    /// Whether the release's table lacks the flag.
    is_unknown: bool,
}

impl Entry {
    /// Reads a flag with the words behind it.
    fn read(word: &str, values: &[String], table: FlagTable) -> Result<Self, String> {
        let group: Vec<_> = std::iter::once(word.to_owned()).chain(values.iter().cloned()).collect();
        let (written, inline) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let known = table.parse(&group).ok().filter(|_| !written.contains('.'));
        let known = known.as_ref().and_then(|config| config.iter().next());
        let texts: Vec<_> = inline.into_iter().chain(values.iter().map(String::as_str)).collect();
        let long = written.strip_prefix("--");
        let (name, value) = match (known, long) {
            (Some((name, Value::Bool(false))), _) if texts.is_empty() => (format!("no-{name}"), Json::Bool(true)),
            // The value of `-O3` is a part of the flag.
            (Some((name, value)), None) if texts.is_empty() => (name.to_owned(), text_or_switch(value)),
            (Some((name, _)), _) => (name.to_owned(), json_of(&texts, table.find(name).map(|flag| flag.kind()))),
            (None, Some(name)) => (name.to_owned(), json_of(&texts, None)),
            (None, None) => return Err(format!("{written} is a short flag that is not known: write its long name")),
        };
        if matches!(name.as_str(), "model" | "config") {
            return Err(format!("{written} belongs to the command line, not to the file"));
        }
        if let Some(text) = texts.iter().find(|text| is_flag(text, table)) {
            return Err(format!("the value of {written} has the form of a flag: {text:?}"));
        }
        Ok(Self { name, value, is_unknown: known.is_none() })
    }
}

/// Returns whether vLLM's parser takes the word for a flag.
fn is_flag(word: &str, table: FlagTable) -> bool {
    let name = word.split('=').next().unwrap_or(word);
    let is_name = name.trim_start_matches('-').starts_with(|c: char| c.is_ascii_alphabetic());
    let is_written = word.starts_with('-') && is_name && !name.contains(char::is_whitespace);
    is_written || table.is_flag_argument(word)
}

fn text_or_switch(value: &Value) -> Json {
    match value {
        Value::Bool(on) => Json::Bool(*on),
        other => Json::String(other.to_string()),
    }
}

/// Returns the value of an entry: nothing is a switch, and several texts are a list.
fn json_of(texts: &[&str], kind: Option<FlagKind>) -> Json {
    match (texts, kind) {
        ([], _) => Json::Bool(true),
        ([text], Some(FlagKind::Int | FlagKind::Float)) => number(text).unwrap_or_else(|| Json::from(*text)),
        ([text], Some(FlagKind::List)) => Json::from(vec![*text]),
        ([text], _) => Json::from(*text),
        (texts, _) => Json::from(texts.to_vec()),
    }
}

/// Returns the number of a text if Python's `str` makes the same text of it.
fn number(text: &str) -> Option<Json> {
    let number = plain(text);
    let is_decimal = number.as_i64().is_some() || number.as_f64().is_some_and(|float| DECIMAL_FLOATS.contains(&float));
    let written = number.to_string();
    (is_decimal && written == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::FLAGS;
    use crate::engines::vllm::config_file::read_config_file;

    fn table() -> FlagTable {
        FLAGS.for_version(FLAGS.newest_release())
    }

    fn words(line: &str) -> Vec<String> {
        shlex::split(line).unwrap()
    }

    fn entries(line: &str) -> Result<String, String> {
        let read = config_file_entries(&words(line), table())?;
        Ok(serde_json::to_string(&read.entries).unwrap())
    }

    #[test]
    fn arguments_become_entries_of_which_every_release_makes_the_same_words() {
        for (line, expected) in [
            ("--max-num-seqs 64", r#"{"max-num-seqs":64}"#),
            ("--max_num_seqs=64 --enforce-eager", r#"{"enforce-eager":true,"max-num-seqs":64}"#),
            ("--gpu-memory-utilization 0.90", r#"{"gpu-memory-utilization":"0.90"}"#),
            ("--gpu-memory-utilization 0.9", r#"{"gpu-memory-utilization":0.9}"#),
            ("--max-model-len 16k", r#"{"max-model-len":"16k"}"#),
            ("--max-model-len -1", r#"{"max-model-len":-1}"#),
            ("--no-enable-prefix-caching", r#"{"no-enable-prefix-caching":true}"#),
            ("--enable-prefix-caching --no-enable-prefix-caching", r#"{"no-enable-prefix-caching":true}"#),
            ("--seed 1 --seed 2", r#"{"seed":2}"#),
            ("-tp 2 -O3", r#"{"optimization-level":"3","tensor-parallel-size":2}"#),
            ("--served-model-name a 'b c'", r#"{"served-model-name":["a","b c"]}"#),
            ("--served-model-name a", r#"{"served-model-name":["a"]}"#),
            ("--served-model-name '- a' -1 ''", r#"{"served-model-name":["- a","-1",""]}"#),
            ("--compilation-config '{\"level\": 3}'", r#"{"compilation-config":"{\"level\": 3}"}"#),
            ("--compilation-config.level 3", r#"{"compilation-config.level":"3"}"#),
            ("--of-a-plugin on --sim-device=h100", r#"{"of-a-plugin":"on","sim-device":"h100"}"#),
        ] {
            assert_eq!(entries(line).as_deref(), Ok(expected), "{line}");
        }
    }

    #[test]
    fn an_argument_that_the_file_cannot_contain_is_named() {
        for (line, problem) in [
            ("a --seed 1", "\"a\" is no flag"),
            ("--model m", "--model belongs to the command line"),
            ("--config a.yaml", "--config belongs to the command line"),
            ("--of-a-plugin 1 --of-a-plugin 2", "given twice"),
            ("--tokenizer=-x", "has the form of a flag"),
            ("-Z 3", "-Z is a short flag"),
        ] {
            let told = entries(line).unwrap_err();
            assert!(told.contains(problem), "{line}: {told}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_text_is_read_back_as_it_was(text in ".*") {
            let given = ["--tokenizer".to_owned(), text];
            proptest::prop_assume!(!is_flag(&given[1], table()));
            let read = config_file_entries(&given, table()).unwrap();
            let text = serde_saphyr::to_string(&read.entries).unwrap();
            proptest::prop_assert_eq!(read_config_file(&text, table()).unwrap().words, given);
        }
    }

    #[test]
    fn the_reader_makes_the_same_flags_of_the_entries() {
        let line = "--max-num-seqs 64 --no-enable-prefix-caching --served-model-name a 'b c' -O3 --enforce-eager \
                    --hf-overrides '{\"a\": [1, {\"b\": null}], \"c\": \"$x %s\"}' --gpu-memory-utilization 0.85 \
                    --speculative-config '{\"method\": \"ngram\"}' --kv-cache-dtype fp8 --max-model-len 4k --dtype auto";
        let read = config_file_entries(&words(line), table()).unwrap();
        let text = serde_saphyr::to_string(&read.entries).unwrap();
        let back = read_config_file(&text, table()).unwrap();
        assert_eq!(back.model, None);
        assert_eq!(table().parse(&back.words), table().parse(&words(line)), "{text}");
    }
}
